"""Says how many threads a GMI computes with: as many as its largest multiplication keeps busy.

A thread that is given too little costs more than it does: those of one operation wait for each
other at its end, and operations of a small network follow each other within microseconds.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from torch import nn

from gmi_drl.placement import (
    AlgorithmConfig,
    CEMConfig,
    Config,
    Layout,
    MBPOConfig,
    UpdateSize,
    is_own_network,
)

# Products of a weight and a number that are worth a thread of their own. Measured on two cores with
# layers of 64 to 256 units: two threads lose below 5 million together, and gain from 8 million on.
_PRODUCTS: Final = 4_000_000


def threads_for(rows: int, network: nn.Module, cores: int, beside: int = 0) -> int:
    """Returns the threads, at most `cores`, for a network that is given `rows` rows at once.

    `beside` is the products of the largest multiplication of what learns beside it. The weights of
    a convolution are used at many places: it keeps a thread a core.
    """
    matrices = [parameter for parameter in network.parameters() if parameter.ndim > 1]
    if any(matrix.ndim > 2 for matrix in matrices):
        return cores
    largest = max((matrix.numel() for matrix in matrices), default=0)
    return max(1, min(cores, max(rows * largest, beside) // _PRODUCTS))


def model_products(settings: AlgorithmConfig, width: int) -> int:
    """Returns the products of the largest layer of a model that is trained; 0: there is none.

    Each network of an ensemble is given a minibatch of its own. `width` is the numbers of an
    observation; those of an action are few. Roll-outs are rare, and not counted.
    """
    if not isinstance(settings, MBPOConfig):
        return 0
    widths = [width, *settings.model_network, 2 * width]
    largest = max(inputs * outputs for inputs, outputs in pairwise(widths))
    return settings.ensemble * settings.model_batch_size * largest


def is_all_ours(settings: AlgorithmConfig) -> bool:
    """Tells whether all that computes is known: no plans by a model, and no code of the user's."""
    is_ours = settings.implementation.startswith("gmi_drl.")
    return is_ours and not is_own_network(settings.network) and not isinstance(settings, CEMConfig)


def rows_at_once(config: Config, layout: Layout, gmi_id: int) -> int:
    """Returns the most rows that a GMI's network is given at once: to act, or to train.

    A recurrent one sees a sequence step by step, and a perturbed one only acts.
    """
    gmi, algorithm = layout.gmi(gmi_id), config.algorithm
    is_trained = "trainer" in gmi.roles or algorithm.sends_gradients
    if not is_trained or algorithm.resolved_optimizer == "population":
        return gmi.num_env
    size = UpdateSize.of(config, layout)
    minibatch_rows = size.minibatch  # of one agent where agents send gradients
    if not algorithm.sends_gradients:
        minibatch_rows //= size.trainers
    if getattr(algorithm, "recurrent", None) is not None:
        minibatch_rows //= getattr(algorithm, "drawn_steps", algorithm.horizon)
    return max(gmi.num_env, minibatch_rows)
