"""What the suite measures: experiments as lists of small cells, and the order they are run in.

A *cell* is one launch or one measurement of some seconds. Cells of a *block* are compared with each
other, so they run one after the other; its first side is the baseline. Everything here is decided
without doing: the same stage gives the same cells, whatever has been measured.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

EXPERIMENTS: Final = {
    "training": "sync training, k GMIs of a GPU against one exclusive process (figure 8)",
    "serving": "serving, k GMIs of a GPU against one exclusive process (figure 7)",
    "num_env": "throughput and memory against num_env (figure 10)",
    "reduction": "reduction of gradients among GMIs (Table 7)",
    "experience": "MCC against UCC (Table 8), async against sync (figure 11)",
    "learning": "return against wall-clock, at equal time (figure 9)",
    "start": "start of GMIs, and what they leave",
    "devices": "several devices against one",
}
BASELINE: Final = "exclusive"
_AROUND_S: Final = 20.0  # imports, and the end
_WARP_S: Final = 150.0  # its kernels are compiled at their first use, and kept
Records = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Stage:
    """What the cells are made for: the environment, and what this machine can be cut into."""

    env: str
    adapter: str
    kind: str  # gpu | cpu
    backends: tuple[str, ...]  # direct, mps, green as far as they can be used; or cpu
    devices: int
    gmis: tuple[int, ...]  # k, more than one
    ladder: tuple[int, ...]  # num_env of the exclusive process
    totals: tuple[int, ...]  # of figure 10
    networks: tuple[str, ...]  # the first is that of all other experiments
    captures: tuple[bool, ...] = ()  # what the option `capture` can be; empty: there is none
    seconds: float = 2.5  # of a rate, at most
    curve_s: float = 20.0  # of a learning curve
    first_s: float = 40.0  # for a first iteration: start, and what is compiled
    nbytes: tuple[int, ...] = (200_000, 1_000_000, 3_000_000)  # of a gradient
    cores: tuple[int, ...] = ()  # where there is no GPU
    unusable: Mapping[str, str] = field(default_factory=dict)  # backend: why


@dataclass(frozen=True)
class Cell:
    """One measurement: side `side` of a block, for the `repeat`-th time."""

    experiment: str
    block: str
    side: str
    repeat: int
    kind: str  # rate | curve | reduction | start
    what: Mapping[str, Any]
    deadline_s: float

    @property
    def key(self) -> str:
        """By which its record is kept."""
        return f"{self.experiment}/{self.block}/{self.side}#{self.repeat}"


def gpu_stage(env: str, adapter: str, topology: Any, captures: Sequence[bool]) -> Stage:
    """The stage of a machine with GPUs; `topology` as `discover` gives it."""
    unusable = dict(topology.unusable)
    backends = tuple(b for b in ("direct", "mps", "green") if b not in unusable)
    return Stage(
        env, adapter, "gpu", backends, len(topology.devices), (4, 2, 8),
        ladder=(4096, 1024, 2048, 512), totals=(1024, 4096, 16384, 65536),
        networks=("ant", "shadowhand"), captures=tuple(captures),
        first_s=_first_s(adapter),
        unusable={name: unusable[name] for name in ("direct", "mps", "green") if name in unusable},
    )  # fmt: skip


def dry_stage(env: str, adapter: str, cores: Sequence[int]) -> Stage:
    """The same experiments on groups of cores, small: they show that the suite works."""
    most = max((k for k in (2, 4, 8) if k <= len(cores)), default=1)
    return Stage(
        env, adapter, "cpu", ("cpu",), min(2, len(cores)),
        tuple(k for k in (2, 4, 8) if k <= most), ladder=(256, 64), totals=(32, 128, 512),
        networks=("ant", "shadowhand"), seconds=0.7, curve_s=3.0, cores=tuple(sorted(cores)),
        first_s=_first_s(adapter),
    )  # fmt: skip


def _first_s(adapter: str) -> float:
    return _WARP_S if adapter == "warp" else 40.0


def cells(stage: Stage, repeats: int, only: Sequence[str] = tuple(EXPERIMENTS)) -> list[Cell]:
    """All cells in the order they are to be run.

    Experiments take turns, block by block, so that each has its first row early; all is run once
    before anything is run again.
    """
    found: list[Cell] = []
    for repeat in range(repeats):
        turns = [list(_BLOCKS[name](stage, repeat)) for name in EXPERIMENTS if name in only]
        for turn in itertools.zip_longest(*turns, fillvalue=()):
            found += [cell for block in turn for cell in block]
    return found


def resolved(cell: Cell, records: Records) -> dict[str, Any] | None:
    """The cell with what was open filled in; None while what it follows from is not measured.

    `num_env: best` is the exclusive process's own best, of the ladder of the same mode, split among
    the GMIs if `split`.
    """
    what = dict(cell.what)
    if what.get("num_env") == "best":
        best = best_of(records, what["mode"])
        if best is None:
            return None
        share = what.pop("split", 1)
        what["num_env"] = max(1, best["num_env"] // share)
        if best.get("capture") is not None:
            what["capture"] = best["capture"]
    return {**asdict(cell), "what": what, "key": cell.key}


def best_of(records: Records, mode: str) -> Mapping[str, Any] | None:
    """What the fastest exclusive process of a mode's ladder was; None if none was measured."""
    experiment = "serving" if mode == "serving" else "training"
    ladder = [
        record
        for key, record in records.items()
        if key.startswith(f"{experiment}/ladder/") and "steps_per_s" in record
    ]
    best = max(ladder, key=lambda record: float(record["steps_per_s"]), default=None)
    return None if best is None else best["what"]


def _rate(stage: Stage, experiment: str, block: str, side: str, repeat: int, **what: Any) -> Cell:
    """One launch whose steps/s are measured."""
    given = {
        "mode": "sync", "gmis": 1, "devices": 1, "backend": stage.backends[0], "capture": None,
        "network": stage.networks[0], "seconds": stage.seconds, **what,
    }  # fmt: skip
    return Cell(
        experiment, block, side, repeat, "rate", given, stage.seconds + stage.first_s + _AROUND_S
    )


def _packer(stage: Stage) -> str:
    """The backend of experiments that try one only: MPS where it can be used."""
    return "mps" if "mps" in stage.backends else stage.backends[0]


def _throughput(experiment: str, stage: Stage, repeat: int) -> Iterator[list[Cell]]:
    """The ladder, once; then for each k all backends beside the exclusive process.

    First with as many environments in all as the exclusive process has, then as many in each GMI.
    """
    mode = "sync" if experiment == "training" else "serving"

    def side(block: str, name: str, **what: Any) -> Cell:
        return _rate(stage, experiment, block, name, repeat, mode=mode, **what)

    if repeat == 0:
        ladder = []
        for num_env, capture in itertools.product(stage.ladder, stage.captures or (None,)):
            name = {None: "", True: " captured", False: " eager"}[capture]
            ladder.append(side("ladder", f"{num_env}{name}", num_env=num_env, capture=capture))
        yield ladder
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


def _num_env(stage: Stage, repeat: int) -> Iterator[list[Cell]]:
    """One process with n environments, and k GMIs with n / k each."""
    if not stage.gmis:
        return
    for network, total in itertools.product(stage.networks, stage.totals):
        block, k = f"{network} {total}", stage.gmis[0]
        common = {"network": network, "capture": True if True in stage.captures else None}
        yield [
            _rate(stage, "num_env", block, BASELINE, repeat, num_env=total, **common),
            _rate(
                stage, "num_env", block, f"{k} {_packer(stage)}", repeat, num_env=total // k,
                gmis=k, backend=_packer(stage), **common,
            ),
        ]  # fmt: skip


def _reduction(stage: Stage, repeat: int) -> Iterator[list[Cell]]:
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


def _experience(stage: Stage, repeat: int) -> Iterator[list[Cell]]:
    """Agents and a trainer apart: on two devices where there are two, else on one."""
    apart = stage.devices > 1
    where = {"devices": 2 if apart else 1, "gmis": 1 if apart else 2, "backend": _packer(stage)}
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


def _learning(stage: Stage, repeat: int) -> Iterator[list[Cell]]:
    """The same learning problem by one process and by GMIs, for the same time."""
    sides = {BASELINE: {"gmis": 1, "backend": stage.backends[0]}}
    for k in stage.gmis[:1]:
        sides[f"{k} {_packer(stage)}"] = {"gmis": k, "backend": _packer(stage)}
    yield [
        Cell(
            "learning", "curve", side, repeat, "curve",
            {"mode": "sync", "devices": 1, "num_env": "best", "split": its["gmis"],
             "network": stage.networks[0], "seconds": stage.curve_s, "seed": repeat,
             "capture": None, **its},
            stage.curve_s + stage.first_s + _AROUND_S,
        )
        for side, its in sides.items()
    ]  # fmt: skip


def _start(stage: Stage, repeat: int) -> Iterator[list[Cell]]:
    """GMIs that do nothing."""
    for backend in stage.backends:
        what = {
            "devices": 1, "gmis": sorted({1, *stage.gmis}), "backend": backend, "mode": "sync",
            "network": stage.networks[0], "num_env": 64, "capture": None,
        }  # fmt: skip
        yield [Cell("start", backend, "start", repeat, "start", what, 90.0)]


def _devices(stage: Stage, repeat: int) -> Iterator[list[Cell]]:
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
                "devices": g, "gmis": k, "split": k, "backend": _packer(stage),
            }  # fmt: skip
        yield [
            _rate(stage, "devices", mode, side, repeat, mode=mode, num_env="best", **its)
            for side, its in sides.items()
        ]


_BLOCKS: Final = {
    "training": lambda stage, repeat: _throughput("training", stage, repeat),
    "serving": lambda stage, repeat: _throughput("serving", stage, repeat),
    "num_env": _num_env,
    "reduction": _reduction,
    "experience": _experience,
    "learning": _learning,
    "start": _start,
    "devices": _devices,
}
