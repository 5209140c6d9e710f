"""Training in one place on what other GMIs have sampled, by RLlib's name for it.

It is for template tdg_ex: the samples of a trainer's agents are one batch, and its parameters go
back to them. Several trainers, of several devices, also reduce their gradients, so that this is
what `all_reduce` does there.
"""

from __future__ import annotations

from .all_reduce import make

__all__ = ["make"]
