"""Plans what the suite measures: experiments as lists of small cells, in their order.

A *cell* is one launch or one measurement of some seconds. Cells of a *block* are compared with each
other, so they run one after the other; its first side is the baseline. This module
only plans and runs nothing: the same stage gives the same cells, whatever the results.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from .blocks import BLOCKS, ladder, warmed
from .stage import EXPERIMENTS, Cell, Stage

Records = Mapping[str, Mapping[str, Any]]
What = Mapping[str, Any]
SETTING: Final = ("gmis", "backend", "num_env", "capture", "sm_overcommit")
_OF_ITS_OWN: Final = ("training", "num_env")  # whose rows the tuner is compared with


class Open(Exception):
    """The measurement that a cell depends on is missing."""


def cells(stage: Stage, repeats: int, only: Sequence[str] = tuple(EXPERIMENTS)) -> list[Cell]:
    """Returns all cells in the order in which they run.

    First come cells that others depend on: kernels, and the exclusive processes. Then experiments
    take turns, block by block, so that each has its first row early. Every cell runs once before
    any is repeated.
    """
    names = [name for name in EXPERIMENTS if name in only]
    climbed = _ladders_of(stage, names)
    planned = [
        cell
        for name in EXPERIMENTS if name in {*names, *climbed}
        for cell in ladder(stage, name, name in climbed)
    ]  # fmt: skip
    for repeat in range(repeats):
        turns = [list(BLOCKS[name](stage, repeat)) for name in names]
        for turn in itertools.zip_longest(*turns, fillvalue=()):
            planned += [cell for block in turn for cell in block]
    return warmed(stage, planned)


def _ladders_of(stage: Stage, names: Sequence[str]) -> set[str]:
    """Returns the experiments whose ladders cells of `names` depend on."""
    modes = {
        cell.what["mode"]
        for name in names for block in BLOCKS[name](stage, 0) for cell in block
        if cell.what.get("num_env") == "best"
    }  # fmt: skip
    return {_ladder_of(mode) for mode in modes}


def _ladder_of(mode: str) -> str:
    return "serving" if mode == "serving" else "training"


def resolved(cell: Cell, records: Records) -> dict[str, Any]:
    """Returns the cell with its open values filled in; Open says what is not measured.

    `num_env: best` is the exclusive process's best in the ladder of the same mode, divided among
    the GMIs if `split` is set; it stays the same in all cells of a block. `own` is the best of the
    suite's own rows, `tuned` the tuner's choice.
    """
    what = dict(cell.what)
    if cell.needs and "failed" in records.get(cell.needs, {"failed": "not run"}):
        raise Open(f"the kernels are not there: see {cell.needs}")
    if what.get("num_env") == "best":
        best = _best_of_block(cell, records) or best_of(records, what["mode"])
        if best is None:
            raise Open("the exclusive process's best num_env is not known: no ladder")
        share = what.pop("split", 1)
        what |= {"num_env": max(1, best["num_env"] // share), "best": best["num_env"]}
        if best.get("capture") is not None:
            what["capture"] = best["capture"]
    elif what.get("num_env") == "own":
        what |= _setting(own_best(records, what))
    elif what.get("num_env") == "tuned":
        tune_record = records.get(f"{cell.experiment}/{cell.block}/tune#0", {})
        if "choice" not in tune_record:
            raise Open("the tuner has not chosen")
        what |= _setting(tune_record["choice"])
    filled = {**asdict(cell), "what": what, "key": cell.key}
    del filled["needs"]
    return filled


def answers(record: Mapping[str, Any], cell: Cell) -> bool:
    """Tells whether a record is of the same settings as the cell, which then need not run again.

    A failed warm-up runs again: the adapter keeps what it compiled, and continues from there.
    """
    if record["kind"] == "warm" and "failed" in record:
        return False
    filled_in = {"num_env", "split", *SETTING} if isinstance(cell.what.get("num_env"), str) else ()
    return all(
        record["what"].get(name) == value
        for name, value in cell.what.items() if name not in filled_in
    )  # fmt: skip


def _best_of_block(cell: Cell, records: Records) -> What | None:
    """Returns the best setting that other cells of its block were filled in with."""
    for record in records.values():
        same_block = (record["experiment"], record.get("block")) == (cell.experiment, cell.block)
        if same_block and "best" in record["what"]:
            return {**record["what"], "num_env": record["what"]["best"]}
    return None


def _setting(setting: What) -> dict[str, Any]:
    return {name: setting[name] for name in SETTING if name in setting}


def best_of(records: Records, mode: str) -> What | None:
    """Returns the fastest exclusive process of a mode's ladder; None if none was measured."""
    ladder = f"{_ladder_of(mode)}/ladder/"
    return _fastest(r for k, r in records.items() if k.startswith(ladder))


def own_best(records: Records, what: What) -> What:
    """Returns the fastest of the suite's own rows for the tuner's question; Open if there is none.

    They have the same network, environment and devices, and at most the same total of environments.
    Several GMIs have the tuner's own backend; one process may have any, as it shares with none.
    """
    question = [what[name] for name in ("network", "env", "mode", "devices")]
    best = _fastest(
        record
        for record in records.values()
        if record["kind"] == "rate" and record["experiment"] in _OF_ITS_OWN
        and [record["what"].get(name) for name in ("network", "env", "mode", "devices")] == question
        and record["what"]["num_env"] * record["what"]["gmis"] <= what["cap"]
        and (record["what"]["gmis"] == 1 or record["what"]["backend"] == what["backend"])
    )  # fmt: skip
    if best is None:
        raise Open(f"no row of the suite has network {what['network']} and {what['cap']:,} "
                   "environments or fewer")  # fmt: skip
    return best


def _fastest(records: Any) -> What | None:
    measured = (record for record in records if "steps_per_s" in record)
    best = max(measured, key=lambda record: float(record["steps_per_s"]), default=None)
    return None if best is None else best["what"]
