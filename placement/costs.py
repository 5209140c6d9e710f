"""What reductions and templates cost by the papers' equations, from times, bytes and bandwidths.

Reductions: symbols as in GMI-DRL's Table 2: `t` GMIs on each of `g` GPUs, `b1` bytes/s between
processes through the host, `b2` bytes/s by NCCL between GPUs, `mp_bytes` the gradient. One ring
over n members moves 2 (n - 1) / n of the gradient through each link; every term is such a ring.

These equations have no latency. The gradients of the paper's policies are 0.2 to 3 MB, which a link
passes in less time than it takes to begin: `gmi_drl.comm.plan.plan` measures both and adds them up.

Templates: Tables 3 to 5, as functions of a `Workload`, which is the paper's or a measured one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final, Literal


def ring(members: int, nbytes: float, bandwidth: float) -> float:
    """A reduction over one ring: 2 (n - 1) bytes / (n bandwidth). Nothing for one member."""
    if members < 1 or nbytes < 0 or not bandwidth > 0:
        raise ValueError(
            f"members={members}, nbytes={nbytes}, bandwidth={bandwidth}: a ring has one member or "
            "more, no fewer than 0 bytes, and a bandwidth above 0."
        )
    return 2 * (members - 1) * nbytes / (members * bandwidth)


def mpr(t: int, g: int, mp_bytes: float, b1: float) -> float:
    """Table 2, multi-process reduction: 2 (gt - 1) Mp / (gt B1)."""
    return ring(g * t, mp_bytes, b1)


def mrr(t: int, g: int, mp_bytes: float, b2: float) -> float:
    """Table 2, multi-ring reduction: 2 (g - 1) Mp / (g B2) + 2 (t - 1) Mp / (t B2).

    The rings over the GPUs run side by side; the last one joins an endpoint of each, which must lie
    on different GPUs: ValueError unless t <= g.
    """
    if t > g:
        raise ValueError(f"t={t}, g={g}: multi-ring reduction has no more GMIs on a GPU than GPUs.")
    return ring(g, mp_bytes, b2) + ring(t, mp_bytes, b2)


def har(t: int, g: int, mp_bytes: float, b1: float, b2: float) -> float:
    """Table 2, hierarchical reduction: 2 (t - 1) Mp / (t B1) + 2 (g - 1) Mp / (g B2)."""
    return ring(t, mp_bytes, b1) + ring(g, mp_bytes, b2)


def hybrid(k: int, t: int, g: int, mp_bytes: float, b1: float, b2: float) -> float:
    """ATC 2025, hybrid(k): k of the t GMIs of each GPU join one ring across the GPUs first.

    2 (g - 1) S / (g B2) + 2 (q - 1) S / (q B1) with q = g (t - k) + k: q members are left for the
    processes to reduce. hybrid(t) is HAR; hybrid(0) would be MPR with a ring too many.
    """
    q = _left(k, t, g)
    return ring(g, mp_bytes, b2) + ring(q, mp_bytes, b1)


def project_hybrid(k: int, t: int, g: int, cost_ip: float, cost_rp: float) -> float:
    """hybrid(k) from two costs that were measured with one GMI on each of g GPUs.

    `cost_ip` = 2 (g - 1) S / (g B1) through processes, `cost_rp` = 2 (g - 1) S / (g B2) by ring.
    The projection that is printed in the ATC version does not give its own closed form back when
    these are put in. A ring over q members costs (q - 1) / q where one over g costs (g - 1) / g, so
    that the first is scaled by g (q - 1) / (q (g - 1)), and the second not at all:
    cost_ip g (q - 1) / (q (g - 1)) + cost_rp, which equals `hybrid` exactly.
    """
    if g < 2:
        raise ValueError(f"g={g}: with one GPU no cost of a ring was measured. Use mpr.")
    q = _left(k, t, g)
    return cost_ip * g * (q - 1) / (q * (g - 1)) + cost_rp


def _left(k: int, t: int, g: int) -> int:
    if not 0 < k <= t or g < 1:
        raise ValueError(f"k={k}, t={t}, g={g}: k is 1 to t, and there is a GPU.")
    return g * (t - k) + k


# Templates (Tables 3-5) ---------------------------------------------------------------------------

SPLIT: Final = ("tdg", "tdg_ex")  # the templates whose roles lie in different GMIs
TABLES: Final = (*SPLIT, "tcg", "tcg_ex")


@dataclass(frozen=True)
class Workload:
    """What one instance of a DRL program takes, in the symbols of GMI-DRL's Table 3.

    Times are those of one training iteration (of one step, in serving); only their ratios matter
    when templates are compared. Sizes are of the dominant resource, in any unit that `resource_all`
    shares: SMs, cores, bytes of memory.
    """

    ts_s: float  # simulation
    ta_s: float  # inference
    tt_s: float  # training
    rs: float  # what a simulator occupies while it works
    ra: float  # an agent
    rt: float  # a trainer
    alpha: float = 0.2  # the part of Ra that an agent in a GMI of its own takes
    beta: float = 0.3  # the same of Rt and a trainer
    state_bytes: float = 0.0  # S: of all environments of an instance, one step
    action_bytes: float = 0.0  # A
    reward_bytes: float = 0.0  # W
    policy_bytes: float = 0.0  # Mp
    m: int = 1  # steps in a training iteration
    bandwidth: float = math.inf  # BW: bytes/s from GMI to GMI
    # Seconds that the split templates send, where that was measured as a whole; they take the place
    # of bytes over bandwidth.
    tdg_com_s: float | None = None
    tdg_ex_com_s: float | None = None


# Section 5: Rs = 10 Ra = 5 Rt, Ts = 6 Ta = 3 Tt; COM / BW is 2 (Ts + Ta) in serving and
# 7 (Ts + Ta + Tt) in training.
PAPER: Final = Workload(
    ts_s=6.0, ta_s=1.0, tt_s=2.0, rs=10.0, ra=1.0, rt=2.0, tdg_com_s=14.0, tdg_ex_com_s=63.0
)  # fmt: skip


def resource(template: str, w: Workload) -> float:
    """R of Tables 4 and 5: what an instance occupies of the dominant resource.

    In GMIs of their own roles take turns, so that R is their mean over time; together they hold
    what the largest needs all the time.
    """
    if template == "tdg":
        return (w.ts_s * w.rs + w.ta_s * w.alpha * w.ra) / (w.ts_s + w.ta_s)
    if template == "tcg":
        return max(w.rs, w.ra)
    if template == "tdg_ex":
        busy = w.ts_s * w.rs + w.ta_s * w.alpha * w.ra + w.tt_s * w.beta * w.rt
        return busy / (w.ts_s + w.ta_s + w.tt_s)
    _known(template)
    return max(w.rs, w.ra, w.rt)


def com_bytes(template: str, w: Workload, n: int = 1) -> float:
    """COM of Tables 4 and 5: bytes an instance sends in an iteration; `n` GMIs hold a trainer."""
    if template == "tcg":
        return 0.0
    if template == "tdg":
        return 2 * w.state_bytes + w.action_bytes + w.reward_bytes
    _known(template)
    if n < 1:
        raise ValueError(f"n={n}: one GMI or more holds a trainer.")
    reduced = 2 * (n - 1) * w.policy_bytes / n
    if template == "tcg_ex":
        return reduced
    steps = w.m * (w.state_bytes + w.action_bytes + w.reward_bytes)
    return steps + w.policy_bytes + reduced


def com_s(template: str, w: Workload, n: int = 1) -> float:
    """COM / BW: seconds of an iteration that go to sending; as measured, where it was."""
    measured = {"tdg": w.tdg_com_s, "tdg_ex": w.tdg_ex_com_s}.get(template)
    return com_bytes(template, w, n) / w.bandwidth if measured is None else measured


def iteration_s(template: str, w: Workload, n: int = 1) -> float:
    """Seconds of one iteration: Ts + Ta + COM / BW, and Tt where the template trains."""
    trains = template.endswith("_ex")
    return w.ts_s + w.ta_s + (w.tt_s if trains else 0.0) + com_s(template, w, n)


def throughput(template: str, w: Workload, resource_all: float = 1.0, n: int = 1) -> float:
    """Iterations a second of all instances that `resource_all` holds: (R_all / R) / iteration.

    As in the paper, a part of an instance counts as that part.
    """
    return resource_all / resource(template, w) / iteration_s(template, w, n)


def penalty(together: str, split: str, w: Workload) -> float:
    """How much more an instance occupies with its roles together than split: 0.163, 0.466."""
    return resource(together, w) / resource(split, w) - 1


def ratio(template: str, other: str, w: Workload, n: int = 1) -> float:
    """Throughput of one template over that of another on the same devices: 2.58, 5.46."""
    return throughput(template, w, n=n) / throughput(other, w, n=n)


@dataclass(frozen=True)
class Need:
    """What one role occupies, measured with a GPU of its own."""

    sms: float
    mem_bytes: float


def dominant(need: Need, sms_per_gpu: float, mem_per_gpu: float) -> Literal["SM", "memory"]:
    """The resource that runs out first, I of section 5: SM if its part of a GPU is no smaller."""
    return "SM" if need.sms / sms_per_gpu >= need.mem_bytes / mem_per_gpu else "memory"


def project(
    template: str,
    w: Workload,
    needs: tuple[Need, Need, Need],
    sms_per_gpu: float,
    mem_per_gpu: float,
    num_gpus: int = 1,
    n: int = 1,
) -> tuple[float, Literal["SM", "memory"]]:
    """Iterations a second of so many GPUs, and the resource that limits them.

    `needs` are those of the simulator, the agent and the trainer; they replace the sizes in `w`.
    """
    s, a, t = needs
    by_sm = replace(w, rs=s.sms, ra=a.sms, rt=t.sms)
    by_memory = replace(w, rs=s.mem_bytes, ra=a.mem_bytes, rt=t.mem_bytes)
    whole = Need(resource(template, by_sm), resource(template, by_memory))
    if dominant(whole, sms_per_gpu, mem_per_gpu) == "SM":
        return throughput(template, by_sm, sms_per_gpu * num_gpus, n), "SM"
    return throughput(template, by_memory, mem_per_gpu * num_gpus, n), "memory"


def _known(template: str) -> None:
    if template not in TABLES:
        raise ValueError(
            f"template={template!r}: Tables 4 and 5 have {', '.join(TABLES)}. Use one of them."
        )
