"""Where packing stops paying, and why, and whether the aim is reached: sentences from the rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from suite_border import PAYS, tuner_sentences
from suite_rows import Row
from suite_stage import BASELINE
from suite_store import DRY_NOTE, Store
from suite_words import gmis_text, phases_text, ratio_text, setting_text

_BUSY: Final = 0.5  # cores of others that are told
_AIM: Final = 1.86  # the paper's average for sync training
_AIM_NUM_ENV: Final = 4096


def statement(store: Store, rows: Sequence[Row]) -> list[str]:
    """Where packing stops paying, in k, num_env and model, and why, from the rows there are."""
    found = [f"{DRY_NOTE}."] if "note" in store.head else []
    busy = max((float(r.get("others_cores", 0.0)) for r in store.records.values()), default=0.0)
    if busy > _BUSY:
        found.append(f"Other programs kept up to {busy:.1f} cores busy meanwhile.")
    for experiment in ("training", "serving"):
        found += _by_k(experiment, [r for r in rows if r["experiment"] == experiment])
    for network in dict.fromkeys(r["network"] for r in rows if r["experiment"] == "num_env"):
        its = [r for r in rows if r["experiment"] == "num_env" and r["network"] == network]
        found += _by_num_env(network, [r for r in its if r["side"] != BASELINE])
    found += _by_precision([r for r in rows if r["experiment"] == "precision"])
    found += tuner_sentences(rows)
    return [*found, *(_aim(name, rows) for name in ("training", "serving"))]


def _by_k(experiment: str, rows: Sequence[Row]) -> list[str]:
    best: dict[int, Row] = {}
    for row in rows:
        if row["ratio"] and row["gmis"] > 1 and "eager" not in row["side"]:
            best[row["gmis"]] = max(best.get(row["gmis"], row), row, key=lambda r: r["ratio"])
    if not best:
        return [f"{experiment}: nothing of several GMIs beside one process yet."]
    each = ", ".join(
        f"k = {k} {ratio_text(best[k])} ({setting_text(best[k])})" for k in sorted(best)
    )
    top = max(best.values(), key=lambda row: row["ratio"])
    head = f"{experiment}, k GMIs over one process with {top['peer_setting']['num_env']:,} "
    verdict = f"most at k = {top['gmis']}"
    if top["ratio"] < PAYS:
        verdict = "packing does not pay here"
    elif top["gmis"] < max(best):
        verdict += ", and no more beyond"
    return [f"{head}environments: {each}; {verdict}. {_why(top)}"]


def _by_num_env(network: str, rows: Sequence[Row]) -> list[str]:
    """The border in num_env: the last that pays, the first after it that does not."""
    by_total = {row["peer_setting"]["num_env"]: row for row in rows}
    if not by_total:
        return []
    totals, text = sorted(by_total), []
    paying = [n for n in totals if by_total[n]["ratio"] >= PAYS]
    after = [n for n in totals if not paying or n > paying[-1]]

    def told(totals: Sequence[int]) -> str:
        return " and ".join(f"{n:,} ({ratio_text(by_total[n])})" for n in totals)

    if paying:
        text.append(f"pays up to {told(paying[-1:])}")
        if between := [n for n in totals if n < paying[-1] and n not in paying]:
            text.append(f"though not at {told(between)}")
    if after:
        text.append(f"does not pay at {told(after[:1])}")
    else:
        text.append("and where it stops lies beyond what was measured")
    row = by_total[after[0] if after else paying[-1]]
    where = f"network {network}" + (f" ({row['env']})" if "env" in row else "")
    return [
        f"num_env, {where}: {row['gmis']} GMIs ({row['backend']}) that share as many "
        f"environments as one process has: packing {', '.join(text)}. {_why(row)}"
    ]


def _by_precision(rows: Sequence[Row]) -> list[str]:
    """What precision gives one process, and packing in each."""
    parts = []
    for row in rows:
        if row["side"].startswith(BASELINE) and row["precision"] != "fp32":
            parts.append(f"one process in {row['precision']} {ratio_text(row)} over fp32")
        elif row["gmis"] > 1 and (row["precision"] == "fp32" or "one process" in row["side"]):
            where = f"{gmis_text(row['gmis'])} in {row['precision']}"
            parts.append(f"{where} {ratio_text(row)} over one process in it")
    return [f"precision: {', '.join(parts)}."] if parts else []


def _aim(experiment: str, rows: Sequence[Row]) -> str:
    """Whether GMIs reach the aim, by the best row that it is about."""
    text = (
        f"{experiment}, aim: >= {_AIM} over the exclusive captured baseline at num_env <= "
        f"{_AIM_NUM_ENV:,}:"
    )
    its = [
        row
        for row in rows
        if row["experiment"] == experiment and row["ratio"] and row["gmis"] > 1
        and "eager" not in row["side"] and row["peer_setting"].get("capture") is True
        and "not_captured" not in row["peer_setting"]
        and max(row["num_env"], row["peer_setting"]["num_env"]) <= _AIM_NUM_ENV
    ]  # fmt: skip
    if not its:
        return f"{text} not measured"
    best = max(its, key=lambda row: row["ratio"])
    verdict = "reached" if best["ratio"] >= _AIM else "not reached"
    return (
        f"{text} {verdict}: {ratio_text(best)} by {gmis_text(best['gmis'])} ({setting_text(best)}) "
        f"over one process with {best['peer_setting']['num_env']:,}, network {best['network']}"
    )


def _why(row: Row) -> str:
    peer = row["peer_setting"]["phases"]
    text = phases_text(peer, row["peer"], row["phases"], row["value"])
    return f"1,000 steps take, one process -> {row['gmis']} GMIs: {text}."
