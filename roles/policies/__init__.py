"""Policies: networks that act, the statistics they normalise by, and how they are described.

Torch is not imported here: a launcher computes sizes by the multiples below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gmi_drl.lazy import lazy

if TYPE_CHECKING:
    from .actor_critic import ActorCritic, distribution_for, observation_width
    from .recurrent import RecurrentActorCritic
    from .structure import structured_space, unflatten

# In float32 numbers: parameters begin at multiples of the first, and rollout rows are multiples of
# the second, as cuBLAS takes slow kernels for matrices that are not aligned to 16 bytes.
PARAMETER_MULTIPLE: Final = 64
ROW_MULTIPLE: Final = 8

__all__ = [
    "ActorCritic", "RecurrentActorCritic", "distribution_for", "observation_width",
    "structured_space", "unflatten",
]  # fmt: skip
__getattr__, __dir__ = lazy(
    __name__,
    {
        ".actor_critic": ["ActorCritic", "distribution_for", "observation_width"],
        ".recurrent": ["RecurrentActorCritic"],
        ".structure": ["structured_space", "unflatten"],
    },
)
