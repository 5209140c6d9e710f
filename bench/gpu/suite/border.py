"""Writes sentences of where the tuner itself saw packing stop paying."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from .rows import Row
from .words import gmis_text, phases_text, ratio_text, setting_text

PAYS: Final = 1.05  # less is noise
One = Mapping[str, Any]  # a candidate that was measured


def tuner_sentences(rows: Sequence[Row]) -> list[str]:
    """What the tuner chose in each question, beside the suite's own best, and its border."""
    its = [row for row in rows if row["experiment"] == "tuner"]
    tuned = [row for row in its if row["side"] == "tune"]
    beside = {row["block"]: row for row in its if row["side"] == "choice of tune"}
    found = []
    for row in tuned:
        ended = "" if row["complete"] else ", when its budget ended"
        found.append(
            f"tuner, network {row['network']} ({row['env']}), at most {row['cap']:,} environments "
            f"in all: it chose {gmis_text(row['gmis'])} ({setting_text(row)}) by {row['profiles']} "
            f"measurements of {row['space']} candidates in {row['spent_s']:.0f} s{ended}. "
            f"{_beside(beside.get(row['block']))} {border(row['candidates'])}"
        )
    if len(tuned) > 1:
        found.append(_whole(tuned))
    return found


def border(candidates: Sequence[One]) -> str:
    """Up to which k packing pays, up to how many environments in all, and why not beyond.

    Settled only between numbers of GMIs that were measured with as many environments in all.
    """
    best = _best(candidates, lambda one: one["gmis"])
    if 1 not in best or len(best) == 1:
        return "It has not measured GMIs beside one process."
    one = best[1]
    ratios = {k: _over(best[k], one) for k in sorted(best) if k > 1}
    each = ", ".join(f"k = {k} {ratios[k]:.2f}x ({best[k]['num_env']:,} each)" for k in ratios)
    text = f"It saw, over one GMI ({one['num_env']:,}), each at its best num_env: {each}"
    top = max(ratios, key=lambda k: ratios[k])
    later = [k for k in ratios if k > top]
    sides = one, best[top]
    met = _meet(candidates, sides)
    if ratios[top] < PAYS:
        verdict = "packing does not pay"
    elif later:
        verdict = f"packing stops paying beyond k = {top}"
        if met:
            sides = best[top], best[later[0]]
            met = _meet(candidates, sides)
    else:
        verdict = f"it pays up to k = {top}, the most that it measured"
    if not met:
        verdict = "not settled, as these have no number of environments in all in common: "
        verdict += ", ".join(
            f"{gmis_text(side['gmis'])} with "
            + ", ".join(f"{total:,}" for total in _totals(candidates, side))
            for side in sides
        )
    return f"{text}; {verdict}{_by_total(candidates)}. {_why(*sides)}"


def _meet(candidates: Sequence[One], sides: tuple[One, One]) -> bool:
    """Whether both numbers of GMIs were measured with as many environments in all."""
    theirs, ours = (set(_totals(candidates, side)) for side in sides)
    return bool(theirs & ours)


def _totals(candidates: Sequence[One], side: One) -> list[int]:
    """The environments in all that so many GMIs were measured with, rising."""
    its = (one for one in candidates if one["gmis"] == side["gmis"])
    return sorted({int(one["gmis"] * one["num_env"]) for one in its})


def _by_total(candidates: Sequence[One]) -> str:
    """The border in environments, where as many in all were measured in one GMI and in several."""
    ratios = {}
    totals = sorted({one["gmis"] * one["num_env"] for one in candidates})
    for total in totals:
        same = [one for one in candidates if one["gmis"] * one["num_env"] == total]
        alone = _best([one for one in same if one["gmis"] == 1], lambda one: 1)
        packed = _best([one for one in same if one["gmis"] > 1], lambda one: 1)
        if alone and packed:
            ratios[total] = _over(packed[1], alone[1])
    if not ratios:
        return ""
    paying = [total for total, ratio in ratios.items() if ratio >= PAYS]
    after = [total for total in ratios if not paying or total > paying[-1]]
    parts = [f"pays up to {paying[-1]:,} ({ratios[paying[-1]]:.2f}x)"] if paying else []
    parts += [f"does not pay at {after[0]:,} ({ratios[after[0]]:.2f}x)"] if after else []
    return f"; with as many environments in all it {' and '.join(parts)}"


def _whole(tuned: Sequence[Row]) -> str:
    """The choices by network and environments, in a line."""
    parts = []
    for network in dict.fromkeys(row["network"] for row in tuned):
        its = sorted((row for row in tuned if row["network"] == network), key=lambda r: r["cap"])
        each = ", ".join(f"up to {row['cap']:,} k = {row['gmis']}" for row in its)
        parts.append(f"{network}: {each}")
    return f"The tuner's border: {'; '.join(parts)}."


def _beside(row: Row | None) -> str:
    if row is None:
        return "It was not yet measured beside the best of the suite's own rows."
    peer = row["peer_setting"]
    return (
        f"Beside the best of the suite's own rows by then, of one process or by its backend "
        f"({gmis_text(peer['gmis'])}, {setting_text(peer)}), that is {ratio_text(row)}."
    )


def _best(candidates: Sequence[One], by: Any) -> dict[int, One]:
    found: dict[int, One] = {}
    for one in candidates:
        found[by(one)] = max(found.get(by(one), one), one, key=lambda c: float(c["steps_per_s"]))
    return found


def _over(ours: One, theirs: One) -> float:
    return float(ours["steps_per_s"]) / float(theirs["steps_per_s"])


def _why(theirs: One, ours: One) -> str:
    sides = " -> ".join(f"{gmis_text(one['gmis'])} of {one['num_env']:,}" for one in (theirs, ours))
    text = phases_text(theirs["phases"], theirs["steps_per_s"], ours["phases"], ours["steps_per_s"])
    return f"1,000 steps take, {sides}: {text}."
