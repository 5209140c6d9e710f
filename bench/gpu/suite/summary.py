"""Writes sentences from rows: where packing stops helping, why, and whether the aim is reached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from .rows import Row
from .stage import BASELINE
from .store import DRY_NOTE, Store
from .texts import gmis_text, phases_text, ratio_text, setting_text

_PAYS: Final = 1.05  # less is noise
Measured = Mapping[str, Any]  # a candidate that was measured
_BUSY: Final = 0.5  # cores that others use before it is reported
_AIM: Final = 1.86  # the paper's average for sync training
_AIM_NUM_ENV: Final = 4096


def summary(store: Store, rows: Sequence[Row]) -> list[str]:
    """Returns sentences on where packing stops paying, in k, num_env and model, and why."""
    sentences = [f"{DRY_NOTE}."] if "note" in store.head else []
    busy = max((float(r.get("others_cores", 0.0)) for r in store.records.values()), default=0.0)
    if busy > _BUSY:
        sentences.append(f"Other programs kept up to {busy:.1f} cores busy meanwhile.")
    for experiment in ("training", "serving"):
        sentences += _packing_texts(experiment, [r for r in rows if r["experiment"] == experiment])
    if eager := [r for r in rows if r["experiment"] == "eager"]:
        sentences += _packing_texts("eager", eager)
    for network in dict.fromkeys(r["network"] for r in rows if r["experiment"] == "num_env"):
        network_rows = [r for r in rows if r["experiment"] == "num_env" and r["network"] == network]
        sentences += _num_env_sentences(network, [r for r in network_rows if r["side"] != BASELINE])
    sentences += _precision_sentences([r for r in rows if r["experiment"] == "precision"])
    sentences += _tuner_sentences(rows)
    return [*sentences, *(_aim_sentence(name, rows) for name in ("training", "serving"))]


def _packing_texts(experiment: str, rows: Sequence[Row]) -> list[str]:
    """Returns what k GMIs gain with the environments of one process and, apart, with more."""
    rows = [row for row in rows if row["ratio"] and row["gmis"] > 1 and "eager" not in row["side"]]
    shared = [row for row in rows if _same_total(row)]
    totals = sorted({row["peer_setting"]["num_env"] for row in shared})
    sentences = [_same_total_sentence(experiment, total, shared) for total in totals]
    return [
        *(sentences or [f"{experiment}: nothing of several GMIs beside one process yet."]),
        *_larger_total_sentences(rows),
    ]


def _same_total_sentence(experiment: str, total: int, rows: Sequence[Row]) -> str:
    """Returns what the best k GMIs gain that share `total` environments, for each k."""
    best = _best_by_k([row for row in rows if row["peer_setting"]["num_env"] == total])
    top = max(best.values(), key=lambda row: row["ratio"])
    verdict = f"most at k = {top['gmis']}"
    if top["ratio"] < _PAYS:
        verdict = "packing does not pay here"
    elif top["gmis"] < max(best):
        verdict += ", and no more beyond"
    return (
        f"{experiment}, k GMIs that share the {total:,} environments of one process, over it: "
        f"{_ratios_text(best)}; {verdict}. {_phases_of(top)}"
    )


def _larger_total_sentences(rows: Sequence[Row]) -> list[str]:
    """Returns what GMIs gain with k times the environments, without a verdict on packing."""
    best = _best_by_k([row for row in rows if not _same_total(row)])
    if not best:
        return []
    return [
        f"{next(iter(best.values()))['experiment']}, with as many environments in each GMI as the "
        f"one process has, k times as many in all: {_ratios_text(best)}. More environments may do "
        "that by themselves; it counts for no verdict."
    ]


def _best_by_k(rows: Sequence[Row]) -> dict[int, Row]:
    best: dict[int, Row] = {}
    for row in rows:
        best[row["gmis"]] = max(best.get(row["gmis"], row), row, key=lambda r: r["ratio"])
    return best


def _ratios_text(best: Mapping[int, Row]) -> str:
    return ", ".join(
        f"k = {k} {ratio_text(best[k])} ({setting_text(best[k])})" for k in sorted(best)
    )


def _same_total(row: Row) -> bool:
    """Tells whether the GMIs together have no more environments than the one process."""
    return bool(row["gmis"] * row["num_env"] <= row["peer_setting"]["num_env"])


def _num_env_sentences(network: str, rows: Sequence[Row]) -> list[str]:
    """Returns the border in num_env: the last that pays, and the first after it that does not."""
    by_total = {row["peer_setting"]["num_env"]: row for row in rows}
    if not by_total:
        return []
    totals, text = sorted(by_total), []
    paying = [n for n in totals if by_total[n]["ratio"] >= _PAYS]
    failing = [n for n in totals if not paying or n > paying[-1]]

    def listed(totals: Sequence[int]) -> str:
        return " and ".join(f"{n:,} ({ratio_text(by_total[n])})" for n in totals)

    if paying:
        text.append(f"pays up to {listed(paying[-1:])}")
        if between := [n for n in totals if n < paying[-1] and n not in paying]:
            text.append(f"though not at {listed(between)}")
    if failing:
        text.append(f"does not pay at {listed(failing[:1])}")
    else:
        text.append("and where it stops lies beyond what was measured")
    row = by_total[failing[0] if failing else paying[-1]]
    title = f"network {network}" + (f" ({row['env']})" if "env" in row else "")
    return [
        f"num_env, {title}: {row['gmis']} GMIs ({row['backend']}) that share as many "
        f"environments as one process has: packing {', '.join(text)}. {_phases_of(row)}"
    ]


def _precision_sentences(rows: Sequence[Row]) -> list[str]:
    """Returns what precision gains for one process, and packing in each precision."""
    parts = []
    for row in rows:
        if row["side"].startswith(BASELINE) and row["precision"] != "fp32":
            parts.append(f"one process in {row['precision']} {ratio_text(row)} over fp32")
        elif row["gmis"] > 1 and (row["precision"] == "fp32" or "one process" in row["side"]):
            title = f"{gmis_text(row['gmis'])} in {row['precision']}"
            parts.append(f"{title} {ratio_text(row)} over one process in it")
    return [f"precision: {', '.join(parts)}."] if parts else []


def _aim_sentence(experiment: str, rows: Sequence[Row]) -> str:
    """Returns whether GMIs reach the aim with the baseline's own environments, by the best row."""
    text = (
        f"{experiment}, aim: >= {_AIM} over the exclusive captured baseline at num_env <= "
        f"{_AIM_NUM_ENV:,}:"
    )
    candidates = [
        row
        for row in rows
        if row["experiment"] == experiment and row["ratio"] and row["gmis"] > 1
        and "eager" not in row["side"] and row["peer_setting"].get("capture") is True
        and "not_captured" not in row["peer_setting"] and _same_total(row)
        and row["peer_setting"]["num_env"] <= _AIM_NUM_ENV
    ]  # fmt: skip
    if not candidates:
        return f"{text} not measured"
    best = max(candidates, key=lambda row: row["ratio"])
    verdict = "reached" if best["ratio"] >= _AIM else "not reached"
    return (
        f"{text} {verdict}: {ratio_text(best)} by {gmis_text(best['gmis'])} ({setting_text(best)}) "
        f"over one process with {best['peer_setting']['num_env']:,}, network {best['network']}"
        f"{_larger_baseline_text(best, rows)}"
    )


def _larger_baseline_text(best: Row, rows: Sequence[Row]) -> str:
    """Returns whether one process does better with more environments than the baseline has."""
    num_env = best["peer_setting"]["num_env"]
    same = ("network", "env", "mode", "devices")
    alone = [
        row
        for row in rows
        if (row.get("block") == "ladder" or row["side"] == BASELINE)
        and row["num_env"] > num_env
        and all(row.get(name) == best.get(name) for name in same)
    ]  # fmt: skip
    fastest = max(alone, key=lambda row: row["value"], default=None)
    if fastest is None:
        return f"; {num_env:,} is the most that one process was given: it may do better with more"
    if fastest["value"] <= best["peer"]:
        return ""
    return (
        f"; one process does better with more: with {fastest['num_env']:,} "
        f"{fastest['value'] / best['peer']:.2f}x this baseline, "
        f"{fastest['value'] / best['value']:.2f}x those GMIs"
    )


def _phases_of(row: Row) -> str:
    peer = row["peer_setting"]["phases"]
    text = phases_text(peer, row["peer"], row["phases"], row["value"])
    return f"1,000 steps take, one process -> {row['gmis']} GMIs: {text}."


# Where the tuner itself saw packing stop paying.


def _tuner_sentences(rows: Sequence[Row]) -> list[str]:
    """Returns what the tuner chose in each question, beside the suite's best, and its border."""
    tuner_rows = [row for row in rows if row["experiment"] == "tuner"]
    tuned = [row for row in tuner_rows if row["side"] == "tune"]
    choice_rows = {row["block"]: row for row in tuner_rows if row["side"] == "choice of tune"}
    sentences = []
    for row in tuned:
        ended = "" if row["complete"] else ", when its budget ended"
        sentences.append(
            f"tuner, network {row['network']} ({row['env']}), at most {row['cap']:,} environments "
            f"in all: it chose {gmis_text(row['gmis'])} ({setting_text(row)}) by {row['profiles']} "
            f"measurements of {row['space']} candidates in {row['spent_s']:.0f} s{ended}. "
            f"{_comparison_sentence(choice_rows.get(row['block']))} {border(row['candidates'])}"
        )
    if len(tuned) > 1:
        sentences.append(_choices_sentence(tuned))
    return sentences


def border(candidates: Sequence[Measured]) -> str:
    """Returns up to which k and which total of environments packing pays, and why not beyond.

    It is settled only between numbers of GMIs measured with a common total of environments.
    """
    best = _best(candidates, lambda candidate: candidate["gmis"])
    if 1 not in best or len(best) == 1:
        return "It has not measured GMIs beside one process."
    single = best[1]
    ratios = {k: _speedup(best[k], single) for k in sorted(best) if k > 1}
    listed = ", ".join(f"k = {k} {ratios[k]:.2f}x ({best[k]['num_env']:,} each)" for k in ratios)
    text = f"It saw, over one GMI ({single['num_env']:,}), each at its best num_env: {listed}"
    top = max(ratios, key=lambda k: ratios[k])
    later = [k for k in ratios if k > top]
    sides = single, best[top]
    comparable = _have_common_total(candidates, sides)
    if ratios[top] < _PAYS:
        verdict = "packing does not pay"
    elif later:
        verdict = f"packing stops paying beyond k = {top}"
        if comparable:
            sides = best[top], best[later[0]]
            comparable = _have_common_total(candidates, sides)
    else:
        verdict = f"it pays up to k = {top}, the most that it measured"
    if not comparable:
        verdict = "not settled, as these have no number of environments in all in common: "
        verdict += ", ".join(
            f"{gmis_text(side['gmis'])} with "
            + ", ".join(f"{total:,}" for total in _totals(candidates, side))
            for side in sides
        )
    return f"{text}; {verdict}{_border_by_total(candidates)}. {_phases_sentence(*sides)}"


def _have_common_total(candidates: Sequence[Measured], sides: tuple[Measured, Measured]) -> bool:
    """Tells whether both numbers of GMIs were measured with a common number of environments."""
    baseline_totals, packed_totals = (set(_totals(candidates, side)) for side in sides)
    return bool(baseline_totals & packed_totals)


def _totals(candidates: Sequence[Measured], side: Measured) -> list[int]:
    """Returns the totals of environments that this number of GMIs was measured with, rising."""
    measured = (candidate for candidate in candidates if candidate["gmis"] == side["gmis"])
    return sorted({int(candidate["gmis"] * candidate["num_env"]) for candidate in measured})


def _border_by_total(candidates: Sequence[Measured]) -> str:
    """Returns the border in environments, from totals measured with one GMI and with several."""
    ratios = {}
    totals = sorted({c["gmis"] * c["num_env"] for c in candidates})
    for total in totals:
        same = [c for c in candidates if c["gmis"] * c["num_env"] == total]
        alone = _best([c for c in same if c["gmis"] == 1], lambda c: 1)
        packed = _best([c for c in same if c["gmis"] > 1], lambda c: 1)
        if alone and packed:
            ratios[total] = _speedup(packed[1], alone[1])
    if not ratios:
        return ""
    paying = [total for total, ratio in ratios.items() if ratio >= _PAYS]
    failing = [total for total in ratios if not paying or total > paying[-1]]
    parts = [f"pays up to {paying[-1]:,} ({ratios[paying[-1]]:.2f}x)"] if paying else []
    parts += [f"does not pay at {failing[0]:,} ({ratios[failing[0]]:.2f}x)"] if failing else []
    return f"; with as many environments in all it {' and '.join(parts)}"


def _choices_sentence(tuned: Sequence[Row]) -> str:
    """Returns the choices by network and environments in one sentence."""
    parts = []
    for network in dict.fromkeys(row["network"] for row in tuned):
        rows = sorted((row for row in tuned if row["network"] == network), key=lambda r: r["cap"])
        listed = ", ".join(f"up to {row['cap']:,} k = {row['gmis']}" for row in rows)
        parts.append(f"{network}: {listed}")
    return f"The tuner's border: {'; '.join(parts)}."


def _comparison_sentence(row: Row | None) -> str:
    if row is None:
        return "It was not yet measured beside the best of the suite's own rows."
    peer = row["peer_setting"]
    return (
        f"Beside the best of the suite's own rows by then, of one process or by its backend "
        f"({gmis_text(peer['gmis'])}, {setting_text(peer)}), that is {ratio_text(row)}."
    )


def _best(candidates: Sequence[Measured], by: Any) -> dict[int, Measured]:
    best: dict[int, Measured] = {}
    for candidate in candidates:
        key = by(candidate)
        best[key] = max(best.get(key, candidate), candidate, key=lambda c: float(c["steps_per_s"]))
    return best


def _speedup(ours: Measured, theirs: Measured) -> float:
    return float(ours["steps_per_s"]) / float(theirs["steps_per_s"])


def _phases_sentence(theirs: Measured, ours: Measured) -> str:
    sides = " -> ".join(f"{gmis_text(s['gmis'])} of {s['num_env']:,}" for s in (theirs, ours))
    text = phases_text(theirs["phases"], theirs["steps_per_s"], ours["phases"], ours["steps_per_s"])
    return f"1,000 steps take, {sides}: {text}."
