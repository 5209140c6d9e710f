"""Where packing stops paying, and why: sentences from a suite's rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from suite_plan import BASELINE
from suite_rows import Row
from suite_store import DRY_NOTE, Store

_PAYS: Final = 1.05  # less is noise
_BUSY: Final = 0.5  # cores of others that are told


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
    return found


def _by_k(experiment: str, rows: Sequence[Row]) -> list[str]:
    best: dict[int, Row] = {}
    for row in rows:
        if row["ratio"] and row["gmis"] > 1 and "eager" not in row["side"]:
            best[row["gmis"]] = max(best.get(row["gmis"], row), row, key=lambda r: r["ratio"])
    if not best:
        return [f"{experiment}: nothing of several GMIs beside one process yet."]
    each = ", ".join(f"k = {k} {_ratio(best[k])} ({_setting(best[k])})" for k in sorted(best))
    top = max(best.values(), key=lambda row: row["ratio"])
    head = f"{experiment}, k GMIs over one process with {top['peer_setting']['num_env']:,} "
    verdict = f"most at k = {top['gmis']}"
    if top["ratio"] < _PAYS:
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
    paying = [n for n in totals if by_total[n]["ratio"] >= _PAYS]
    after = [n for n in totals if not paying or n > paying[-1]]

    def told(totals: Sequence[int]) -> str:
        return " and ".join(f"{n:,} ({_ratio(by_total[n])})" for n in totals)

    if paying:
        text.append(f"pays up to {told(paying[-1:])}")
        if between := [n for n in totals if n < paying[-1] and n not in paying]:
            text.append(f"though not at {told(between)}")
    if after:
        text.append(f"does not pay at {told(after[:1])}")
    else:
        text.append("and where it stops lies beyond what was measured")
    row = by_total[after[0] if after else paying[-1]]
    return [
        f"num_env, network {network}: {row['gmis']} GMIs ({row['backend']}) that share as many "
        f"environments as one process has: packing {', '.join(text)}. {_why(row)}"
    ]


def _ratio(row: Row) -> str:
    """With its spread, or that there is none."""
    low, high = row["ratio_spread"]
    spread = f", {low:.2f} to {high:.2f}" if row["repeats"] > 1 else ", one repeat"
    return f"{row['ratio']:.2f}x{spread}"


def _setting(row: Row) -> str:
    return f"{row['backend']}, {row['num_env']:,} each"


def _why(row: Row) -> str:
    """The time of 1,000 steps by phases, on both sides: they add up to 1,000 / (steps/s)."""
    theirs, ours = row["peer_setting"]["phases"], row["phases"]
    parts = []
    for phase in dict.fromkeys([*theirs, *ours]):
        shares = [float(side.get(phase, 0.0)) for side in (theirs, ours)]
        ms = [1e6 * share / rate for share, rate in zip(shares, (row["peer"], row["value"]),
                                                        strict=True)]  # fmt: skip
        if max(shares) >= 0.01:
            percent = " -> ".join(f"{100 * share:.0f}" for share in shares)
            parts.append(f"{phase} {ms[0]:.2f} -> {ms[1]:.2f} ms ({percent} %)")
    return f"1,000 steps take, one process -> {row['gmis']} GMIs: {', '.join(parts)}."
