"""Computes the costs of reductions and templates by the papers' equations.

Reductions: symbols as in GMI-DRL's Table 2: `t` GMIs on each of `g` GPUs, `b2` bytes/s by NCCL
between GPUs, `b1` through the host, `mp_bytes` the gradient. One ring over n members moves
2 (n - 1) / n of the gradient through each link; every term is such a ring. These equations have no
latency, which `gmi_drl.comm.plan.plan` measures beside the bandwidth: sending the gradients of the
paper's policies takes less time than the latency of a link.

Templates: Tables 3 to 5, as functions of a `Workload`, which is the paper's or a measured one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final


def ring(members: int, nbytes: float, bandwidth: float) -> float:
    """Returns the seconds of a reduction over one ring: 2 (n - 1) bytes / (n bandwidth)."""
    if members < 1 or nbytes < 0 or not bandwidth > 0:
        raise ValueError(
            f"members={members}, nbytes={nbytes}, bandwidth={bandwidth}: a ring has one member or "
            "more, no fewer than 0 bytes, and a bandwidth above 0."
        )
    return 2 * (members - 1) * nbytes / (members * bandwidth)


def mrr(t: int, g: int, mp_bytes: float, b2: float) -> float:
    """Returns Table 2's multi-ring reduction: 2 (g - 1) Mp / (g B2) + 2 (t - 1) Mp / (t B2).

    The rings over the GPUs run side by side; the last one joins an endpoint of each, which must lie
    on different GPUs: ValueError unless t <= g.
    """
    if t > g:
        raise ValueError(f"t={t}, g={g}: multi-ring reduction has no more GMIs on a GPU than GPUs.")
    return ring(g, mp_bytes, b2) + ring(t, mp_bytes, b2)


def har(t: int, g: int, mp_bytes: float, b1: float, b2: float) -> float:
    """Returns Table 2's hierarchical one: 2 (t - 1) Mp / (t B1) + 2 (g - 1) Mp / (g B2)."""
    return ring(t, mp_bytes, b1) + ring(g, mp_bytes, b2)


@dataclass(frozen=True)
class Workload:
    """Describes the needs of one instance of a DRL program, in the symbols of GMI-DRL's Table 3.

    Times are those of one training iteration (of one step, in serving); only their ratios matter
    when templates are compared. Sizes are of the dominant resource, in any one unit: SMs, cores,
    bytes of memory.
    """

    ts_s: float  # simulation
    ta_s: float  # inference
    tt_s: float  # training
    rs: float  # the resource that a simulator occupies while it works
    ra: float  # an agent
    rt: float  # a trainer
    alpha: float = 0.2  # the part of Ra that an agent in its own GMI takes
    beta: float = 0.3  # the part of Rt that a trainer in its own GMI takes
    state_bytes: float = 0.0  # S: of all environments of an instance, one step
    action_bytes: float = 0.0  # A
    reward_bytes: float = 0.0  # W
    policy_bytes: float = 0.0  # Mp
    m: int = 1  # steps in a training iteration
    bandwidth: float = math.inf  # BW: bytes/s from GMI to GMI
    # Measured seconds of sending in the split templates, which replace bytes over bandwidth.
    tdg_com_s: float | None = None
    tdg_ex_com_s: float | None = None

    def reduced_bytes(self, n: int) -> float:
        """Returns the bytes that each of `n` trainers sends to reduce a gradient."""
        if n < 1:
            raise ValueError(f"n={n}: one GMI or more holds a trainer.")
        return 2 * (n - 1) * self.policy_bytes / n


# Section 5: Rs = 10 Ra = 5 Rt, Ts = 6 Ta = 3 Tt; COM / BW is 2 (Ts + Ta) in serving and
# 7 (Ts + Ta + Tt) in training.
PAPER: Final = Workload(
    ts_s=6.0, ta_s=1.0, tt_s=2.0, rs=10.0, ra=1.0, rt=2.0, tdg_com_s=14.0, tdg_ex_com_s=63.0
)


@dataclass(frozen=True)
class CostEquation:
    """A template's row of Tables 4 and 5.

    Roles in separate GMIs take turns, so that `resource` is their mean over time; roles in one GMI
    hold the resource of the largest all the time.
    """

    resource: Callable[[Workload], float]  # R: the resource of an instance
    com_bytes: Callable[[Workload, int], float]  # COM: the bytes it sends; n GMIs hold a trainer
    trains: bool
    measured_com_s: Callable[[Workload], float | None] = lambda w: None

    def com_s(self, w: Workload) -> float:
        """Returns COM / BW, the seconds of sending in an iteration, measured or computed."""
        measured = self.measured_com_s(w)
        return self.com_bytes(w, 1) / w.bandwidth if measured is None else measured

    def iteration_s(self, w: Workload) -> float:
        """Returns the seconds of one iteration: Ts + Ta + COM / BW, and Tt where it trains."""
        return w.ts_s + w.ta_s + (w.tt_s if self.trains else 0.0) + self.com_s(w)

    def throughput(self, w: Workload) -> float:
        """Returns iterations a second for each unit of the resource.

        As in the paper, fractions of instances count.
        """
        return 1 / self.resource(w) / self.iteration_s(w)

    def penalty(self, split: CostEquation, w: Workload) -> float:
        """Returns how much more an instance occupies than one of `split`: 0.163, 0.466."""
        return self.resource(w) / split.resource(w) - 1

    def ratio(self, other: CostEquation, w: Workload) -> float:
        """Returns the throughput over that of `other` on the same devices: 2.58, 5.46."""
        return self.throughput(w) / other.throughput(w)
