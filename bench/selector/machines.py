"""Defines made-up machines on which searches are tried: each knows its best candidate.

One GMI alone keeps a share u of a device busy; g of them fill each other's gaps, and also slow each
other down. A step of n environments in each of g GMIs takes

    t(n, g) = fixed (1 + k (g - 1)) + c n g (1 + contention (g - 1)) / busy(g) * (1 + (m / edge)^p)

with m = n g^theta: theta 0 is a limit of a process, 1 one of the device. The last factor makes
throughput fall, as published: Anymal's peaks near 16,384 environments, Humanoid's falls at 32,768.
The kinds differ in what ends the rise: nothing but time for each environment (`saturating`),
memory, contention, a cliff (from some number of environments on everything is slower at once);
`noisy` is one of these four whose answers are off by 20 % in SECONDS of measuring. On a `staircase`
a device works in waves, and a wave that is not full takes as long as a full one.

Assumptions: in a row t(n, g) bends upward only, which `default` also assumes
(`selector.saturation.most`): on a cliff and a staircase it does not. Memory grows by as much for
each environment. Noise is the same everywhere and does not drift, and reported errors are the real
ones. Rows of a machine differ only by g, over-commitment and backend in the formula above. Real
machines are measured by `grid.py`.
"""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Final

from gmi_drl.selector.record.results import row_order
from gmi_drl.selector.tune.candidate import (
    Answer,
    Ask,
    Candidate,
    DeviceSplit,
    Failed,
    Measured,
    Space,
)

KINDS: Final = ("saturating", "memory", "contention", "noisy", "cliff", "staircase")
_NOISY: Final = ("saturating", "memory", "contention", "cliff")  # shapes of noisy machines
SECONDS: Final = 5.0  # of a first look; a machine's noise is that of an answer in this time
ENOUGH: Final = 0.02  # a profile ends early at this relative error
USABLE: Final = 0.95  # of the memory: a long run needs the rest
_HORIZON: Final = 16
_ONE_GIB: Final = 2**30


@dataclass(kw_only=True)
class Made(ABC):
    """A machine that is made up, and answers like a real one; subclasses define the truth."""

    kind: str
    space: Space
    noise: float  # relative, of an answer in SECONDS
    random: random.Random = field(repr=False)  # a stream of its own, for the noise

    @abstractmethod
    def truth(self, candidate: Candidate) -> float:
        """Returns steps/s without noise; 0 where memory runs out."""

    @abstractmethod
    def memory(self, candidate: Candidate) -> float:
        """Returns the share of the memory that all GMIs of a device take."""

    @property
    def best(self) -> float:
        """Returns the best candidate's truth: what an exhaustive search without noise finds."""
        return self.best_of(self.space)

    def best_of(self, space: Space) -> float:
        """Returns the best truth in a part of the space, among candidates within USABLE memory."""
        candidates = [candidate for row in space.rows for candidate in row]
        return max(
            self.truth(candidate) for candidate in candidates if self.memory(candidate) <= USABLE
        )

    def answer(self, ask: Ask) -> Answer:
        """Returns what a profile of at most `ask.seconds` gives; its noise matches its error."""
        candidate = ask.candidate
        true, memory = self.truth(candidate), self.memory(candidate)
        if true == 0.0:
            return Failed("memory", f"{memory:.0%} of the memory")
        iteration_s = candidate.samples / true
        if iteration_s > ask.seconds:
            return Failed("slow", f"an iteration takes {iteration_s:.1f} s")
        seconds = min(ask.seconds, max(SECONDS * (self.noise / ENOUGH) ** 2, 3 * iteration_s))
        error = self.noise * math.sqrt(SECONDS / seconds)
        steps_per_s = true * math.exp(self.random.gauss(0.0, error))
        return Measured(
            steps_per_s=steps_per_s,
            error=error,
            iterations=max(1, int(seconds / iteration_s)),
            seconds=seconds,
            phases={"simulate": 0.5, "infer": 0.1, "train": 0.4},
            host_bytes=int(memory * 64 * _ONE_GIB),
            device_bytes=None,
            memory=memory,
            cores=1.0,
        )


@dataclass(kw_only=True)
class Machine(Made):
    """A machine generated from a kind and a seed."""

    fixed_s: float
    per_env_s: float
    more_fixed: float
    busy: float
    contention: float
    edge: float
    steep: float
    theta: float
    cliff: float  # environments, as `m` above
    drop: float  # what is left of the throughput beyond
    mem_base: float  # share of the memory that a GMI takes, and each environment
    mem_env: float
    mem_limit: float  # what may be used: the rest is lost to fragments
    unequal: float  # times the throughput where the shares of GMIs differ
    wave: float  # environments that a device works at together; 0: it does not work in waves

    def truth(self, candidate: Candidate) -> float:
        """Returns steps/s without noise; 0 where memory runs out."""
        if self.memory(candidate) > self.mem_limit:
            return 0.0
        row, n = candidate.row, candidate.num_env
        g, over = row.gmi_per_gpu, row.sm_overcommit > 1
        busy = 1 - (1 - self.busy) ** (g * (1.4 if over else 1.0))
        contention = self.contention * (1.6 if over else 1.0)
        if row.backend == "direct" and g > 1:  # processes take turns: they fill nothing
            busy, contention = self.busy, contention * 0.5
        m = n * g**self.theta
        fixed = self.fixed_s * (1 + self.more_fixed * (g - 1))
        worked = math.ceil(n * g / self.wave) * self.wave if self.wave else n * g
        work = self.per_env_s * worked * (1 + contention * (g - 1)) / busy
        steps_per_s = n * g / (fixed + work * (1 + (m / self.edge) ** self.steep))
        if m > self.cliff:
            steps_per_s *= self.drop
        return steps_per_s * (self.unequal if row.percents else 1.0)

    def memory(self, candidate: Candidate) -> float:
        """Returns the share of the memory that all GMIs of a device take."""
        share = self.mem_base + self.mem_env * candidate.num_env
        return candidate.row.gmi_per_gpu * share


def generate(kind: str, seed: int) -> Machine:
    """Returns the machine of a kind (one of KINDS) and a seed; a quarter have two cores, no GPU."""
    rng = random.Random(f"{kind}/{seed}")
    shape = rng.choice(_NOISY) if kind == "noisy" else kind
    small = seed % 4 == 3
    space = _cores_space() if small else _gpu_space(rng)
    top = space.rows[0][-1].num_env
    # One GMI has half of its throughput at `half` environments.
    half = top * 2 ** rng.uniform(-7.0, -2.5)
    ceiling = 10 ** rng.uniform(4.0, 5.0) if small else 10 ** rng.uniform(4.7, 6.2)
    busy = rng.uniform(0.75, 0.98) if shape == "contention" else rng.uniform(0.3, 0.9)
    degrades = shape in ("contention", "cliff") or rng.random() < 0.5
    memory = top * 2 ** rng.uniform(-5.0, -0.5) if shape == "memory" else top * rng.uniform(9, 40)
    base = rng.uniform(0.01, 0.06)
    return Machine(
        kind=kind,
        space=space,
        noise=0.2 if kind == "noisy" else rng.uniform(0.005, 0.03),
        fixed_s=half / ceiling,
        per_env_s=busy / ceiling,
        more_fixed=rng.uniform(0.0, 0.3),
        busy=busy,
        contention=rng.uniform(0.1, 0.6) if shape == "contention" else rng.uniform(0.0, 0.05),
        edge=top * 2 ** rng.uniform(-3.0, 0.0) if degrades else math.inf,
        steep=rng.uniform(1.0, 3.0),
        theta=rng.random(),
        cliff=top * 2 ** rng.uniform(-5.0, -0.5) if shape == "cliff" else math.inf,
        drop=rng.uniform(0.3, 0.7),
        mem_base=base,
        mem_env=(1 - base) / memory,
        mem_limit=rng.uniform(0.9, 1.0),
        unequal=rng.uniform(0.85, 1.12),
        wave=top * 2 ** rng.uniform(-7.0, -3.0) if shape == "staircase" else 0.0,
        random=random.Random(f"{kind}/{seed}/noise"),
    )


def _cores_space() -> Space:
    """Returns the space of two cores: 1 or 2 GMIs, 4 to 4,096 environments, 42 candidates."""
    return Space(tuple(_row(DeviceSplit(g, "cpu"), 4, 4096) for g in (1, 2)))


def _gpu_space(rng: random.Random) -> Space:
    """Returns the space of one GPU: 6 to 16 rows of 19 candidates."""
    mps = rng.random() < 0.8
    rows = []
    for g in (1, 2, 3, 4, 6, 8):
        main = DeviceSplit(g, "mps" if mps else "green")
        rows.append(main)
        if mps and g > 1 and rng.random() < 0.9:
            rows.append(DeviceSplit(g, "mps", sm_overcommit=2.0))
    extra = rng.choice(("none", "direct", "unequal"))
    for g in (1, 2, 3, 4, 6, 8):
        if extra == "direct":
            rows.append(DeviceSplit(g, "direct"))
        elif extra == "unequal" and mps and g in (2, 4):
            rows.append(DeviceSplit(g, "mps", percents=(140 // g, 60 // g) * (g // 2)))
    return Space(tuple(_row(row, 128, 65536) for row in sorted(rows, key=row_order)))


def _row(row: DeviceSplit, lowest: int, highest: int) -> tuple[Candidate, ...]:
    ladder, n = [], lowest
    while n <= highest:
        ladder += [n, n + n // 2]
        n *= 2
    counts = [n for n in ladder if n <= highest]
    return tuple(Candidate(row, n, _HORIZON, n * row.gmi_per_gpu * _HORIZON) for n in counts)
