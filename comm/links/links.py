"""Fits links as alpha + beta * bytes: what a primitive of a reduction takes on this machine.

A *link* is one primitive among so many ranks, as the ranks of a layout lie on devices and cores:

    host          a reduction in memory the ranks share (mpr), and reading its result in place
    ring          an all-reduce between devices: NCCL on GPUs, gloo between groups of cores
    ring_bcast    one rank's vector to the others over such a ring
    ipc           a reduction in the memory of one GPU
    one_step, two_steps, halving
                  an all-reduce between the leaders of hosts; see comm/hosts/steps.py
    gloo          the same by gloo

alpha is what a transfer takes before its first byte; at the size of a policy it decides. This file
is arithmetic; `measure` finds the times, `link_record` keeps what was found.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from gmi_drl.comm.group.group import Wire
from gmi_drl.comm.hosts.steps import Way

HostsWay: TypeAlias = Way | Literal["gloo"]
LinkKind: TypeAlias = Literal["host", "ring", "ring_bcast", "ipc"] | HostsWay
LINK_KINDS: Final[dict[LinkKind, str]] = {  # and what people call them
    "host": "shared memory",
    "ring": "ring",
    "ring_bcast": "broadcast by ring",
    "ipc": "GPU memory",
    "one_step": "one step",
    "two_steps": "two steps",
    "halving": "halving and doubling",
    "gloo": "gloo",
}


@dataclass(frozen=True, order=True)
class LinkKey:
    """One link: what is done, by how many ranks, how often at the same time, and on what."""

    kind: LinkKind
    ranks: int
    at_once: int  # groups of so many ranks that do it side by side
    devices: int  # that the ranks of one group lie on
    cores: int  # that all these ranks together may use: with fewer than ranks they take turns
    wire: Wire = "fp32"  # what the vector is sent as
    backend: str = "cpu"  # how its devices are cut: in turns or at once, processes or threads

    def __str__(self) -> str:
        groups = f"{self.at_once} x {self.ranks}" if self.at_once > 1 else f"{self.ranks}"
        return f"{self.kind} of {groups}"


@dataclass(frozen=True)
class Link:
    """Seconds for n bytes of float32: alpha_s + beta_s_per_byte * n, fitted to `samples`.

    The bytes are those of the vector, also where it is sent as bfloat16.
    """

    alpha_s: float
    beta_s_per_byte: float
    residual: float  # the largest |fitted - measured| / measured
    samples: tuple[tuple[int, float], ...]  # (bytes, median seconds)

    def seconds(self, nbytes: float) -> float:
        """Returns what `nbytes` of one rank take."""
        return self.alpha_s + self.beta_s_per_byte * nbytes

    @property
    def bandwidth(self) -> float:
        """Returns the bytes of one rank's vector a second, without alpha; or infinity."""
        return 1 / self.beta_s_per_byte if self.beta_s_per_byte else math.inf


def fastest(links: Mapping[HostsWay, Link], nbytes: int) -> HostsWay:
    """Returns the one of several ways that takes the least for a vector of so many bytes."""
    return min(links, key=lambda way: links[way].seconds(nbytes))


def fit(times: Sequence[tuple[int, Sequence[float]]]) -> Link:
    """Fits the link with the smallest relative errors: alpha, beta >= 0.

    `times`: (bytes, seconds of each repetition), two sizes or more; medians of them count.
    """
    samples = tuple((nbytes, statistics.median(seconds)) for nbytes, seconds in times)
    sizes = {nbytes for nbytes, _ in samples}
    if len(sizes) < 2 or any(seconds <= 0 for _, seconds in samples):
        raise ValueError(
            f"samples {samples}; a line needs two sizes or more, and times above 0 s. Measure anew."
        )
    alpha, beta = _least_squares(samples)
    residual = max(abs(alpha + beta * n - s) / s for n, s in samples)
    return Link(alpha, beta, residual, samples)


def _least_squares(samples: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Minimises the sum of ((alpha + beta n) / s - 1)^2, with neither below 0."""
    u = [1 / s for _, s in samples]
    v = [n / s for n, s in samples]
    uu, vv, uv = _dot(u, u), _dot(v, v), _dot(u, v)
    det = uu * vv - uv * uv
    alpha = (sum(u) * vv - sum(v) * uv) / det
    beta = (sum(v) * uu - sum(u) * uv) / det
    if alpha < 0:  # the best on the edge: the problem is convex
        return 0.0, sum(v) / vv
    if beta < 0:
        return sum(u) / uu, 0.0
    return alpha, beta


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))
