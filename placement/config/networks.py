"""Lists the hidden layer sizes of the six policies in the GMI-DRL paper (its Table 6)."""

from __future__ import annotations

from typing import Final

NETWORKS: Final[dict[str, tuple[int, ...]]] = {
    "ant": (256, 128, 64),
    "anymal": (256, 128, 64),
    "ballbalance": (256, 128, 64),
    "frankacabinet": (256, 128, 64),
    "humanoid": (200, 400, 100),
    "shadowhand": (512, 512, 512, 256),
}


def hidden_sizes(network: str | tuple[int, ...] | list[int]) -> tuple[int, ...]:
    """Returns the sizes themselves, or those of the preset with this name."""
    return NETWORKS[network] if isinstance(network, str) else tuple(network)
