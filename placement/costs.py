"""What a reduction costs by the papers' equations: seconds, from bytes and bandwidths alone.

Symbols as in GMI-DRL's Table 2: `t` GMIs on each of `g` GPUs, `b1` bytes/s between processes
through the host, `b2` bytes/s by NCCL between GPUs, `mp_bytes` the gradient. One ring over n
members moves 2 (n - 1) / n of the gradient through each link; every term here is such a ring.

These equations have no latency. The gradients of the paper's policies are 0.2 to 3 MB, which a link
passes in less time than it takes to begin: `gmi_drl.comm.plan` measures both and adds them up.
"""

from __future__ import annotations


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
