"""How many threads a GMI computes with: as many as its largest multiplication keeps busy.

A thread that is given too little costs more than it does: those of one operation wait for each
other at its end, and operations of a small network follow each other within microseconds.
"""

from __future__ import annotations

from typing import Final

from torch import nn

from gmi_drl.placement import AlgorithmConfig, Config, Layout, UpdateSize, is_own_network

# Products of a weight and a number that are worth a thread of their own. Measured on two cores with
# layers of 64 to 256 units: two threads lose below 5 million together, and gain from 8 million on.
_PRODUCTS: Final = 4_000_000


def threads_for(rows: int, network: nn.Module, cores: int) -> int:
    """Returns the threads, at most `cores`, for a network that is given `rows` rows at once.

    The weights of a convolution are used at many places: it keeps a thread a core.
    """
    matrices = [parameter for parameter in network.parameters() if parameter.ndim > 1]
    if any(matrix.ndim > 2 for matrix in matrices):
        return cores
    largest = max((matrix.numel() for matrix in matrices), default=0)
    return max(1, min(cores, rows * largest // _PRODUCTS))


def is_all_ours(settings: AlgorithmConfig) -> bool:
    """Tells whether the policy's network is all that computes, and no code of the user's."""
    has_model = hasattr(settings, "ensemble")  # of the environment
    is_ours = settings.implementation.startswith("gmi_drl.")
    return is_ours and not is_own_network(settings.network) and not has_model


def rows_at_once(config: Config, layout: Layout, gmi_id: int) -> int:
    """Returns the most rows that a GMI's network is given at once: to act, or to train.

    A recurrent one sees a sequence step by step, and a perturbed one only acts.
    """
    gmi, algorithm = layout.gmi(gmi_id), config.algorithm
    is_trained = "trainer" in gmi.roles or algorithm.sends_gradients
    if not is_trained or algorithm.resolved_optimizer == "population":
        return gmi.num_env
    size = UpdateSize.of(config, layout)
    of_minibatch = size.minibatch  # of one agent, where those send gradients
    if not algorithm.sends_gradients:
        of_minibatch //= size.trainers
    if getattr(algorithm, "recurrent", None) is not None:
        of_minibatch //= getattr(algorithm, "drawn_steps", algorithm.horizon)
    return max(gmi.num_env, of_minibatch)
