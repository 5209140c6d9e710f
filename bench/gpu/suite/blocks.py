"""Makes blocks of cells of the suite's experiments.

Cells that are compared form one block, whose first side is the baseline.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from .stage import BASELINE, EXPERIMENTS, WARM_UP, Cell, Stage, share_of

AROUND_S: Final = 20.0  # imports, and the end
_COMPILE_S: Final = 300.0  # the kernels of an environment
Blocks = Iterator[list[Cell]]


def warmed(stage: Stage, cells: Sequence[Cell]) -> list[Cell]:
    """Returns the cells, with warm-ups that compile what the adapter keeps before the others.

    Kernels of adapter warp depend on the environment: all warm-ups come first. Those of mjx also
    depend on num_env: each comes before the first block that needs it.
    """
    if stage.adapter not in ("warp", "mjx"):
        return list(cells)
    ordered: list[Cell] = []
    warm_ups: dict[str, Cell] = {}
    for _, group in itertools.groupby(cells, lambda c: (c.experiment, c.block, c.repeat)):
        block = list(group)
        needed = [_warm_up(stage, cell) for cell in block]
        for warm_up in needed:
            if warm_up is not None and warm_up.key not in warm_ups:
                warm_ups[warm_up.key] = warm_up
                ordered.append(warm_up)
        ordered += [
            cell if warm_up is None else replace(cell, needs=warm_up.key)
            for cell, warm_up in zip(block, needed, strict=True)
        ]
    if stage.adapter == "warp":
        ordered.sort(key=lambda cell: cell.kind != "warm")  # a stable sort
    return ordered


def _warm_up(stage: Stage, cell: Cell) -> Cell | None:
    """Returns the cell that compiles what `cell` runs; None if it simulates nothing."""
    env, num_env = cell.what.get("env"), cell.what.get("num_env")
    if env is None or (stage.adapter == "mjx" and not isinstance(num_env, int)):
        return None
    name = f"{env}, {num_env} environments" if stage.adapter == "mjx" else env
    what = {"env": env, "num_env": num_env if stage.adapter == "mjx" else 64, "seconds": 0.0}
    return Cell(WARM_UP, name, "kernels", 0, "warm", what, _COMPILE_S)


def ladder(stage: Stage, experiment: str, climbed: bool) -> list[Cell]:
    """Returns the exclusive process by num_env if `climbed`, and an eager one if it has graphs."""
    mode = {"training": "sync", "serving": "serving"}.get(experiment)
    if mode is None:
        return []
    rungs = [(num_env, "", _captured(stage)) for num_env in (stage.ladder if climbed else ())]
    if False in stage.captures:
        rungs.insert(1, (stage.ladder[0], " eager", False))
    return [
        _rate(stage, experiment, "ladder", f"{num_env}{suffix}", 0, mode=mode, num_env=num_env,
              capture=capture)
        for num_env, suffix, capture in rungs
    ]  # fmt: skip


def _captured(stage: Stage) -> bool | None:
    """Returns the `capture` of cells that use graphs where there are any."""
    return True if True in stage.captures else None


def _rate(stage: Stage, experiment: str, block: str, side: str, repeat: int, **what: Any) -> Cell:
    """Returns the cell of a launch whose steps/s are measured."""
    network = what.get("network", stage.networks[0])
    settings = {
        "mode": "sync", "gmis": 1, "devices": 1, "backend": stage.exclusive, "capture": None,
        "network": network, "env": stage.env_of(network), "seconds": stage.seconds, **what,
    }  # fmt: skip
    return Cell(
        experiment, block, side, repeat, "rate", settings, stage.seconds + stage.first_s + AROUND_S
    )


def _throughput(experiment: str, stage: Stage, repeat: int) -> Blocks:
    """Yields for each k all shares beside the exclusive process.

    With a fixed ladder this is at each of its num_env, as the total of all GMIs. Otherwise it is at
    the best num_env of the exclusive process: first as the total, then in each GMI.
    """
    mode = "sync" if experiment == "training" else "serving"

    def block(name: str, k: int, alone: dict[str, Any], packed: dict[str, Any]) -> list[Cell]:
        sides: dict[str, dict[str, Any]] = {BASELINE: alone}
        for share in stage.shares:
            setting = {**packed, "gmis": k, **share_of(share, k)}
            # One GMI without a limit is the exclusive process, two at twice the SMs have no cap.
            if (k > 1 or setting["backend"] in ("mps", "green")) and setting not in sides.values():
                sides[share] = setting
        return [
            _rate(stage, experiment, name, side, repeat, mode=mode, **what)
            for side, what in sides.items()
        ]

    if stage.fixed:
        for total, k in itertools.product(stage.ladder, stage.gmis):
            alone, packed = (
                {"num_env": num_env, "capture": _captured(stage)} for num_env in (total, total // k)
            )
            yield block(f"{k} GMIs, {total} in all", k, alone, packed)
        return
    best = {"num_env": "best"}
    for k in (*stage.gmis, 1):
        if len(cells := block(f"{k} GMIs", k, best, {**best, "split": k})) > 1:
            yield cells
    for k in stage.gmis:
        yield block(f"{k} GMIs, as many environments in each", k, best, best)


def _num_env(stage: Stage, repeat: int) -> Blocks:
    """Yields one process with n environments, and k GMIs with n / k each."""
    if not stage.gmis:
        return
    for network, total in itertools.product(stage.networks, stage.totals):
        block, k = f"{network} {total}", stage.gmis[0]
        common = {"network": network, "capture": _captured(stage)}
        yield [
            _rate(stage, "num_env", block, BASELINE, repeat, num_env=total, **common),
            _rate(
                stage, "num_env", block, f"{k} {stage.packer}", repeat, num_env=total // k,
                gmis=k, backend=stage.packer, **common,
            ),
        ]  # fmt: skip


def _tuner(stage: Stage, repeat: int) -> Blocks:
    """Yields the tuner alone, once; then its choice beside the best of the suite's own rows."""
    for cap in stage.caps:
        questions = [(f"{network}, {cap} environments", network) for network in stage.networks]
        for block, network in questions if repeat == 0 else ():
            what = {
                "mode": "sync", "gmis": [1, *sorted(stage.gmis)], "devices": 1,
                "backend": stage.packer, "network": network, "env": stage.env_of(network),
                "capture": _captured(stage), "cap": cap,
                "least": max(1, min(128, cap // 32)), "seconds": stage.tune_s,
            }  # fmt: skip
            # The last candidate may begin before the budget's end, and be slow to start.
            until_s = stage.tune_s + stage.first_s + 2 * AROUND_S
            yield [Cell("tuner", block, "tune", 0, "tune", what, until_s)]
        for block, network in questions:
            yield [
                _rate(stage, "tuner", block, side, repeat, network=network, num_env=num_env,
                      cap=cap, backend=stage.packer)
                for side, num_env in (("best of the suite", "own"), ("choice of tune", "tuned"))
            ]  # fmt: skip


def _precision(stage: Stage, repeat: int) -> Blocks:
    """Yields one process and GMIs in each precision, with the same total of environments."""
    sides: dict[str, dict[str, Any]] = {BASELINE: {}}
    for k in stage.gmis[:1]:
        sides[f"{k} {stage.packer}"] = {"gmis": k, "split": k, "backend": stage.packer}
    yield [
        _rate(stage, "precision", "training", f"{side} {precision}", repeat, num_env="best",
              precision=precision, **setting)
        for side, setting in sides.items() for precision in stage.precisions
    ]  # fmt: skip


def _eager(stage: Stage, repeat: int) -> Blocks:
    """Yields runs without graphs, as with simulators that cannot be captured: the paper's case."""
    share = "mps-uncapped" if stage.packer == "mps" else stage.packer
    total = stage.ladder[0]
    for k in stage.gmis if False in stage.captures else ():
        packed = {"gmis": k, **share_of(share, k)}
        sides: dict[str, dict[str, Any]] = {
            BASELINE: {"num_env": total},
            share: {"num_env": total // k, **packed},
            f"{share}, as many in each": {"num_env": total, **packed},
        }
        yield [
            _rate(stage, "eager", f"{k} GMIs", side, repeat, capture=False, **setting)
            for side, setting in sides.items()
        ]


def _reduction(stage: Stage, repeat: int) -> Blocks:
    """Yields all strategies among k GMIs of a device, and among devices."""
    shapes = [(1, k, b) for k in stage.gmis for b in stage.backends]
    if stage.devices > 1:
        shapes += [(stage.devices, 1, stage.exclusive)]
        shapes += [(stage.devices, 2, stage.exclusive)] * (stage.kind == "gpu")
    for devices, k, backend in shapes:
        what = {
            "devices": devices, "gmis": k, "backend": backend, "nbytes": list(stage.nbytes),
            "network": stage.networks[0], "mode": "sync", "num_env": 64, "capture": None,
        }  # fmt: skip
        block = f"{devices} x {k}"
        yield [Cell("reduction", block, backend, repeat, "reduction", what, 60.0)]


def _experience(stage: Stage, repeat: int) -> Blocks:
    """Yields agents and a trainer apart: on two devices where there are two, else on one."""
    apart = stage.devices > 1
    placement = {"devices": 2 if apart else 1, "gmis": 1 if apart else 2, "backend": stage.packer}
    num_env = stage.apart
    yield [
        _rate(stage, "experience", "channels", side, repeat, mode="async", channels=side,
              num_env=num_env, **placement)
        for side in ("ucc", "mcc", "joined")
    ]  # fmt: skip
    yield [
        # The agent has all environments; together, each of the two GMIs has one half.
        _rate(stage, "experience", "async", "sync", repeat, num_env=num_env // 2, once=True,
              **placement),
        _rate(stage, "experience", "async", "async", repeat, mode="async", channels="auto",
              num_env=num_env, **placement),
    ]  # fmt: skip


def _learning(stage: Stage, repeat: int) -> Blocks:
    """Yields the same learning problem by one process and by GMIs, for the same time."""
    sides = {BASELINE: {"gmis": 1, "backend": stage.exclusive}}
    for k in stage.gmis[:1]:
        sides[f"{k} {stage.packer}"] = {"gmis": k, "backend": stage.packer}
    yield [
        Cell(
            "learning", "curve", side, repeat, "curve",
            {"mode": "sync", "devices": 1, "num_env": "best", "split": setting["gmis"],
             "network": stage.networks[0], "env": stage.env, "seconds": stage.curve_s,
             "seed": repeat, "capture": None, **setting},
            stage.curve_s + stage.first_s + AROUND_S,
        )
        for side, setting in sides.items()
    ]  # fmt: skip


def _start(stage: Stage, repeat: int) -> Blocks:
    """Yields GMIs that do nothing."""
    for backend in stage.backends:
        what = {
            "devices": 1, "gmis": sorted({1, *stage.gmis}), "backend": backend, "mode": "sync",
            "network": stage.networks[0], "num_env": 64, "capture": None,
        }  # fmt: skip
        yield [Cell("start", backend, "start", repeat, "start", what, 90.0)]


def _devices(stage: Stage, repeat: int) -> Blocks:
    """Yields one device, all, and all with several GMIs; num_env of a device is the same."""
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
            _rate(stage, "devices", mode, side, repeat, mode=mode, num_env="best", **setting)
            for side, setting in sides.items()
        ]


BLOCKS: Final[dict[str, Callable[[Stage, int], Blocks]]] = {
    "training": lambda stage, repeat: _throughput("training", stage, repeat),
    "serving": lambda stage, repeat: _throughput("serving", stage, repeat),
    "num_env": _num_env,
    "tuner": _tuner,
    "precision": _precision,
    "eager": _eager,
    "reduction": _reduction,
    "experience": _experience,
    "learning": _learning,
    "start": _start,
    "devices": _devices,
}
assert BLOCKS.keys() == EXPERIMENTS.keys()
