"""Makes rows of a suite's cells, each beside its baseline of the same suite where both compare."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from .plan import SETTING
from .stage import BASELINE
from .store import Record, Store, ratio
from .texts import gmis_text

_OF_TUNE: Final = (
    "error", "why", "complete", "profiles", "space", "spent_s", "candidates", "refused",
)  # fmt: skip
Row = dict[
    str, Any
]  # experiment, block, side, name, value, unit, peer, ratio, spread, repeats, ...
_BASES: Final = (
    BASELINE, "one device", "ucc", "sync", "best of the suite", f"{BASELINE} fp32",
)  # fmt: skip
_FIGURE: Final = (
    "num_env", "gmis", "backend", "network", "env", "capture", "sm_overcommit", "precision",
    "devices", "mode",
)  # fmt: skip
_KEPT: Final = (
    "phases", "host_bytes", "device_bytes", "memory", "gmi_mem_bytes", "gmi_mem_share", "sm_count",
    "cores", "sm_activity",
)  # fmt: skip


def rows_of(store: Store) -> list[Row]:
    """Returns the rows of all pairs of cells of this suite, and those of single cells."""
    kinds = (_ladder, _compared, _precisions, _tuned, _reductions, _returns, _starts)
    return [row for kind in kinds for row in kind(store)]


def named(records: Sequence[Record]) -> Row:
    """Returns what some cells have in common: phases, memory and settings of the median one.

    If one of them is not captured the row is not, as its time is in the ratio.
    """
    middle = sorted(records, key=lambda record: float(record["steps_per_s"]))[len(records) // 2]
    setting = {name: middle["what"][name] for name in _FIGURE if name in middle["what"]}
    messages = dict.fromkeys(text for record in records for text in record.get("not_captured", ()))
    eager = {"not_captured": list(messages)} if messages else {}
    return setting | {name: middle[name] for name in _KEPT if name in middle} | eager


def _groups(store: Store, kind: str) -> dict[tuple[str, str], dict[str, list[Record]]]:
    """Returns the records of a kind that did not fail, by (experiment, block) and by side."""
    groups: dict[tuple[str, str], dict[str, list[Record]]] = {}
    for record in store.records.values():
        if record["kind"] == kind and "failed" not in record:
            block = groups.setdefault((record["experiment"], record["block"]), {})
            block.setdefault(record["side"], []).append(record)
    return groups


def _compared(store: Store) -> Iterator[Row]:
    """Yields each side of a block over its baseline: the median of the ratios within a repeat."""
    for (experiment, block), sides in _groups(store, "rate").items():
        base = next((name for name in _BASES if name in sides), None)
        if block == "ladder" or base is None:
            continue
        if experiment == "tuner":
            sides = {**sides, base: _same_setting(sides[base])}
        for side, records in sides.items():
            keys = {"steps_per_s": ""}
            if experiment == "experience":
                keys["predictions_per_s"] = " predictions"
            for key, suffix in keys.items():
                yield from _pair(experiment, block, side + suffix, records, sides[base], key)
                yield from _over_eager(store, experiment, block, side, records)


def _same_setting(records: Sequence[Record]) -> list[Record]:
    """Returns the records with the last one's setting, as the suite's best may have changed."""
    setting = max(records, key=lambda record: int(record["repeat"]))["what"]
    same = [[r["what"].get(name) == setting.get(name) for name in SETTING] for r in records]
    return [record for record, matches in zip(records, same, strict=True) if all(matches)]


def _precisions(store: Store) -> Iterator[Row]:
    """Yields GMIs over one process of the same precision."""
    for block, sides in _groups(store, "rate").items():
        if block[0] == "precision":
            for side, records in sides.items():
                base = f"{BASELINE} {records[0]['what']['precision']}"
                if base in sides and side != base and not base.endswith("fp32"):
                    side = f"{side} over one process in it"
                    yield from _pair(*block, side, records, sides[base], "steps_per_s")


def _tuned(store: Store) -> Iterator[Row]:
    """Yields what the tuner chose, as it measured it."""
    for (experiment, block), sides in _groups(store, "tune").items():
        for side, (record, *_) in sides.items():
            what, choice = record["what"], record["choice"]
            yield {
                "experiment": experiment, "block": block, "side": side,
                "name": f"{experiment}/{block}/{side}", "value": round(record["steps_per_s"], 1),
                "unit": "steps/s", "peer": None, "ratio": None, "repeats": 1, "spread": None,
                "network": what["network"], "env": what["env"], "cap": what["cap"], **choice,
                **{name: record[name] for name in _OF_TUNE},
            }  # fmt: skip


def _pair(
    experiment: str, block: str, side: str, records: Sequence[Record], peers: Sequence[Record],
    key: str, unit: str = "steps/s",
) -> Iterator[Row]:  # fmt: skip
    by_repeat = {record["repeat"]: record for record in peers}
    pairs = [(r, by_repeat[r["repeat"]]) for r in records if r["repeat"] in by_repeat]
    if not pairs:
        return
    ratios = sorted(ratio(record, peer, key) for record, peer in pairs)
    values = sorted(float(record[key]) for record, _ in pairs)
    yield {
        "experiment": experiment, "block": block, "side": side,
        "name": f"{experiment}/{block}/{side}", "value": round(statistics.median(values), 1),
        "unit": unit, "peer": round(statistics.median(float(o[key]) for _, o in pairs), 1),
        "ratio": round(statistics.median(ratios), 4), "repeats": len(pairs),
        "spread": [round(values[0], 1), round(values[-1], 1)],
        "ratio_spread": [round(ratios[0], 4), round(ratios[-1], 4)],
        "peer_setting": named([peer for _, peer in pairs]), **named([r for r, _ in pairs]),
    }  # fmt: skip


def _over_eager(
    store: Store, experiment: str, block: str, side: str, records: Sequence[Record]
) -> Iterator[Row]:
    """Yields the same over the eager process of the ladder, whose num_env is in the row's name."""
    if experiment not in ("training", "serving") or side == BASELINE:
        return
    eager = [
        entry
        for entry in _groups(store, "rate").get((experiment, "ladder"), {}).values()
        if entry[0]["what"]["capture"] is False
    ]
    if eager:
        best = max((entry[0] for entry in eager), key=lambda record: float(record["steps_per_s"]))
        repeated = [{**best, "repeat": record["repeat"]} for record in records]
        name = f"{side} over eager {best['what']['num_env']}"
        yield from _pair(experiment, block, name, records, repeated, "steps_per_s")


def _ladder(store: Store) -> Iterator[Row]:
    for (experiment, block), sides in _groups(store, "rate").items():
        if block == "ladder":
            for side, records in sides.items():
                value = round(float(records[0]["steps_per_s"]), 1)
                yield {
                    "experiment": experiment, "block": block, "side": side,
                    "name": f"{experiment}/ladder/{side}", "value": value, "unit": "steps/s",
                    "peer": None, "ratio": None, "repeats": 1, "spread": None, **named(records),
                }  # fmt: skip


def _reductions(store: Store) -> Iterator[Row]:
    """Yields the time of each strategy; the ratio is that through the host over it."""
    for (_, block), sides in _groups(store, "reduction").items():
        for side, records in sides.items():
            cells: dict[tuple[str, int], list[float]] = {}
            for row in (row for record in records for row in record["rows"] if "us" in row):
                cells.setdefault((row["strategy"], row["nbytes"]), []).append(row["us"])
            for (strategy, nbytes), times in cells.items():
                host = cells.get(("mpr", nbytes))
                ours = statistics.median(times)
                peer = None if host is None else statistics.median(host)
                yield {
                    "experiment": "reduction", "block": block, "side": side,
                    "name": f"reduction/{block}/{side}/{strategy}/{nbytes}B", "value": ours,
                    "unit": "us", "peer": peer, "ratio": peer and round(peer / ours, 4),
                    "repeats": len(times), "spread": [min(times), max(times)],
                    "strategy": strategy, "nbytes": nbytes, "ranks": records[0]["ranks"],
                }  # fmt: skip


def _returns(store: Store) -> Iterator[Row]:
    """Yields the return after all, half and a quarter of the time, without a ratio."""
    for (_, block), sides in _groups(store, "curve").items():
        for side, records in sides.items():
            end = float(records[0]["what"]["seconds"])
            returns = {
                share: [value for r in records if (value := return_at(r, share * end)) is not None]
                for share in (1.0, 0.5, 0.25)
            }
            peers = sides.get(BASELINE, []) if side != BASELINE else []
            ends = sorted(returns[1.0])
            yield {
                "experiment": "learning", "block": block, "side": side,
                "name": f"learning/{block}/{side}", "value": round(statistics.median(ends), 2),
                "unit": f"return after {end:g} s",
                "peer": peers and round(statistics.median(o["return_mean"] for o in peers), 2),
                "ratio": None, "repeats": len(ends),
                "spread": [round(ends[0], 2), round(ends[-1], 2)],
                "half": returns[0.5] and round(statistics.median(returns[0.5]), 2),
                "quarter": returns[0.25] and round(statistics.median(returns[0.25]), 2),
                "steps": statistics.median(record["steps"] for record in records),
                "num_env": records[0]["what"]["num_env"], "gmis": records[0]["what"]["gmis"],
            }  # fmt: skip


def return_at(record: Record, time_s: float) -> float | None:
    """Returns the return that was known after `time_s` seconds of training."""
    known = [float(value) for at_s, _, value in record["points"] if at_s <= time_s]
    return known[-1] if known else None


def _starts(store: Store) -> Iterator[Row]:
    for (_, block), sides in _groups(store, "start").items():
        for records in sides.values():
            for index, row in enumerate(records[0]["rows"]):
                times = sorted(record["rows"][index]["slices_s"] for record in records)
                yield {
                    "experiment": "start", "block": block, "side": gmis_text(row["gmis"]),
                    "name": f"start/{block}/{gmis_text(row['gmis'])}", "unit": "s", "peer": None,
                    "value": statistics.median(times), "ratio": None, "repeats": len(times),
                    "spread": [times[0], times[-1]], "torch_s": row["torch_s"],
                    "end_s": row["end_s"],
                }  # fmt: skip


def failures(records: Mapping[str, Record]) -> list[tuple[str, str, str]]:
    """Returns (cell, kind, why) of cells that failed or left something behind."""
    failed = []
    for key, record in records.items():
        if "failed" in record:
            failed.append((key, record["failed"], str(record["why"])))
        if record["left"]:
            failed.append((key, "left", ", ".join(record["left"])))
    return failed
