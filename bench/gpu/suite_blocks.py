"""The suite's experiments as blocks of cells. What is compared is one block; the first side of it
is the baseline."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from suite_stage import BASELINE, EXPERIMENTS, WARM_UP, Cell, Stage

AROUND_S: Final = 20.0  # imports, and the end
_COMPILE_S: Final = 300.0  # the kernels of an environment
CAPTURE: Final = {None: "", True: " captured", False: " eager"}
Blocks = Iterator[list[Cell]]


def warmed(stage: Stage, cells: Sequence[Cell]) -> list[Cell]:
    """The cells, and before what needs it a cell that compiles what the adapter then keeps.

    Kernels of adapter warp are of an environment: all come first. Those of mjx are of an
    environment and a num_env: each comes before the block that has it first.
    """
    if stage.adapter not in ("warp", "mjx"):
        return list(cells)
    found: list[Cell] = []
    made: set[str] = set()
    for _, its in itertools.groupby(cells, lambda cell: (cell.experiment, cell.block, cell.repeat)):
        block = list(its)
        for cell in block:
            env, num_env = cell.what.get("env"), cell.what.get("num_env")
            if env is None or (stage.adapter == "mjx" and not isinstance(num_env, int)):
                continue
            what = {"env": env, "num_env": num_env if stage.adapter == "mjx" else 64}
            name = f"{env}, {num_env} environments" if stage.adapter == "mjx" else env
            if name not in made:
                made.add(name)
                found.append(
                    Cell(WARM_UP, name, "kernels", 0, "warm", {**what, "seconds": 0.0}, _COMPILE_S)
                )
        found += block
    if stage.adapter == "warp":
        found.sort(key=lambda cell: cell.kind != "warm")  # which keeps the order otherwise
    return found


def ladders(stage: Stage, experiment: str) -> Blocks:
    """The exclusive process by num_env: what all of an experiment is held against."""
    mode = {"training": "sync", "serving": "serving"}.get(experiment)
    if mode is None:
        return
    yield [
        _rate(stage, experiment, "ladder", f"{num_env}{CAPTURE[capture]}", 0, mode=mode,
              num_env=num_env, capture=capture)
        for num_env, capture in itertools.product(stage.ladder, stage.captures or (None,))
    ]  # fmt: skip


def _rate(stage: Stage, experiment: str, block: str, side: str, repeat: int, **what: Any) -> Cell:
    """One launch whose steps/s are measured."""
    network = what.get("network", stage.networks[0])
    given = {
        "mode": "sync", "gmis": 1, "devices": 1, "backend": stage.backends[0], "capture": None,
        "network": network, "env": stage.env_of(network), "seconds": stage.seconds, **what,
    }  # fmt: skip
    return Cell(
        experiment, block, side, repeat, "rate", given, stage.seconds + stage.first_s + AROUND_S
    )


def _throughput(experiment: str, stage: Stage, repeat: int) -> Blocks:
    """For each k all backends beside the exclusive process.

    First with as many environments in all as the exclusive process has, then as many in each GMI.
    """
    mode = "sync" if experiment == "training" else "serving"

    def side(block: str, name: str, **what: Any) -> Cell:
        return _rate(stage, experiment, block, name, repeat, mode=mode, **what)

    for each in (False, True):
        for k in (*stage.gmis, *(() if each else (1,))):
            block = f"{k} GMIs" + (", as many environments in each" if each else "")
            sides = [side(block, BASELINE, num_env="best")]
            for backend in stage.backends:
                if k > 1 or backend in ("mps", "green"):  # else it is the exclusive process
                    split = 1 if each else k
                    sides.append(
                        side(block, backend, gmis=k, num_env="best", split=split, backend=backend)
                    )
            if len(sides) > 1:
                yield sides


def _num_env(stage: Stage, repeat: int) -> Blocks:
    """One process with n environments, and k GMIs with n / k each."""
    if not stage.gmis:
        return
    for network, total in itertools.product(stage.networks, stage.totals):
        block, k = f"{network} {total}", stage.gmis[0]
        common = {"network": network, "capture": True if True in stage.captures else None}
        yield [
            _rate(stage, "num_env", block, BASELINE, repeat, num_env=total, **common),
            _rate(
                stage, "num_env", block, f"{k} {stage.packer}", repeat, num_env=total // k,
                gmis=k, backend=stage.packer, **common,
            ),
        ]  # fmt: skip


def _tuner(stage: Stage, repeat: int) -> Blocks:
    """The tuner by itself, once; then its choice beside the best of the suite's own rows."""
    for cap in stage.caps:
        its = [(f"{network}, {cap} environments", network) for network in stage.networks]
        for block, network in its if repeat == 0 else ():
            what = {
                "mode": "sync", "gmis": [1, *sorted(stage.gmis)], "devices": 1,
                "backend": stage.packer, "network": network, "env": stage.env_of(network),
                "capture": True if True in stage.captures else None, "cap": cap,
                "least": max(1, min(128, cap // 32)), "seconds": stage.tune_s,
            }  # fmt: skip
            # The last candidate may begin before the budget's end, and be slow to start.
            until_s = stage.tune_s + stage.first_s + 2 * AROUND_S
            yield [Cell("tuner", block, "tune", 0, "tune", what, until_s)]
        for block, network in its:
            yield [
                _rate(stage, "tuner", block, side, repeat, network=network, num_env=which, cap=cap,
                      backend=stage.packer)
                for side, which in (("best of the suite", "own"), ("choice of tune", "tuned"))
            ]  # fmt: skip


def _precision(stage: Stage, repeat: int) -> Blocks:
    """One process and GMIs in each precision, as many environments in all."""
    sides: dict[str, dict[str, Any]] = {BASELINE: {}}
    for k in stage.gmis[:1]:
        sides[f"{k} {stage.packer}"] = {"gmis": k, "split": k, "backend": stage.packer}
    yield [
        _rate(stage, "precision", "training", f"{side} {precision}", repeat, num_env="best",
              precision=precision, **its)
        for side, its in sides.items() for precision in stage.precisions
    ]  # fmt: skip


def _reduction(stage: Stage, repeat: int) -> Blocks:
    """All strategies among k GMIs of a device, and among devices."""
    shapes = [(1, k, b) for k in stage.gmis for b in stage.backends]
    if stage.devices > 1:
        shapes += [(stage.devices, 1, stage.backends[0])]
        shapes += [(stage.devices, 2, stage.backends[0])] * (stage.kind == "gpu")
    for devices, k, backend in shapes:
        what = {
            "devices": devices, "gmis": k, "backend": backend, "nbytes": list(stage.nbytes),
            "network": stage.networks[0], "mode": "sync", "num_env": 64, "capture": None,
        }  # fmt: skip
        block = f"{devices} x {k}"
        yield [Cell("reduction", block, backend, repeat, "reduction", what, 60.0)]


def _experience(stage: Stage, repeat: int) -> Blocks:
    """Agents and a trainer apart: on two devices where there are two, else on one."""
    apart = stage.devices > 1
    where = {"devices": 2 if apart else 1, "gmis": 1 if apart else 2, "backend": stage.packer}
    num_env = stage.ladder[-1]
    yield [
        _rate(stage, "experience", "channels", side, repeat, mode="async", channels=side,
              num_env=num_env, **where)
        for side in ("ucc", "mcc", "joined")
    ]  # fmt: skip
    yield [
        # The agent has all environments; together, each of the two GMIs has one half.
        _rate(stage, "experience", "async", "sync", repeat, num_env=num_env // 2, once=True,
              **where),
        _rate(stage, "experience", "async", "async", repeat, mode="async", channels="auto",
              num_env=num_env, **where),
    ]  # fmt: skip


def _learning(stage: Stage, repeat: int) -> Blocks:
    """The same learning problem by one process and by GMIs, for the same time."""
    sides = {BASELINE: {"gmis": 1, "backend": stage.backends[0]}}
    for k in stage.gmis[:1]:
        sides[f"{k} {stage.packer}"] = {"gmis": k, "backend": stage.packer}
    yield [
        Cell(
            "learning", "curve", side, repeat, "curve",
            {"mode": "sync", "devices": 1, "num_env": "best", "split": its["gmis"],
             "network": stage.networks[0], "env": stage.env, "seconds": stage.curve_s,
             "seed": repeat, "capture": None, **its},
            stage.curve_s + stage.first_s + AROUND_S,
        )
        for side, its in sides.items()
    ]  # fmt: skip


def _start(stage: Stage, repeat: int) -> Blocks:
    """GMIs that do nothing."""
    for backend in stage.backends:
        what = {
            "devices": 1, "gmis": sorted({1, *stage.gmis}), "backend": backend, "mode": "sync",
            "network": stage.networks[0], "num_env": 64, "capture": None,
        }  # fmt: skip
        yield [Cell("start", backend, "start", repeat, "start", what, 90.0)]


def _devices(stage: Stage, repeat: int) -> Blocks:
    """One device, all of them, and all of them cut: as many environments on each device."""
    g = stage.devices
    k = next((k for k in stage.gmis if stage.kind == "gpu" or g * k <= len(stage.cores)), 0)
    if g < 2:
        return
    for mode in ("sync", "serving"):
        sides: dict[str, dict[str, Any]] = {"one device": {"devices": 1, "part_of": g}}
        sides[f"{g} devices"] = {"devices": g}
        if k:
            sides[f"{g} devices, {k} GMIs each"] = {
                "devices": g, "gmis": k, "split": k, "backend": stage.packer,
            }  # fmt: skip
        yield [
            _rate(stage, "devices", mode, side, repeat, mode=mode, num_env="best", **its)
            for side, its in sides.items()
        ]


BLOCKS: Final[dict[str, Callable[[Stage, int], Blocks]]] = {
    "training": lambda stage, repeat: _throughput("training", stage, repeat),
    "serving": lambda stage, repeat: _throughput("serving", stage, repeat),
    "num_env": _num_env,
    "tuner": _tuner,
    "precision": _precision,
    "reduction": _reduction,
    "experience": _experience,
    "learning": _learning,
    "start": _start,
    "devices": _devices,
}
assert BLOCKS.keys() == EXPERIMENTS.keys()
