"""The gradient noise scale: how many samples a gradient needs to be more than noise.

A gradient of b samples is the true gradient G and noise, of covariance Sigma / b. The simple noise
scale is tr(Sigma) / |G|^2, in samples: a batch of that size has as much noise as gradient, one far
below it mostly noise, and one far above it little to gain from more samples (McCandlish et al.,
2018, "An Empirical Model of Large-Batch Training", equations 2.8 and 2.9).

Both parts follow from two numbers that are cheap where gradients are averaged anyway: the mean
squared norm of a gradient of b samples, and the mean product of two that are independent.

    E[g . g'] = |G|^2,    E[|g|^2] = |G|^2 + tr(Sigma) / b

With k GMIs the products come from the norm of the mean over them, which is appendix A.1's estimator
for batches of b and of k b samples. With one GMI two minibatches that follow each other are
multiplied; between them is one step of the parameters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import torch
from torch import Tensor

from gmi_drl.comm import Reducer

# The averages' decay with each update: they are of the last twenty updates or so. One update has a
# few products, whose own noise is far larger than |G|^2. Longer averages would jump less, and lag:
# |G|^2 falls a thousandfold within the first hundred updates of HalfCheetah.
_DECAY: Final = 0.95
# The most minibatches of an update that are measured. A round on a replay may have hundreds of
# small steps; twelve of them say as much, at a tenth of the cost.
_MAX_MINIBATCHES: Final = 12


class NoiseScale:
    """The noise scale, from numbers of each update that are averaged before they are divided."""

    def __init__(self) -> None:
        # Both averages begin at zero. The correction for that is the same factor, and cancels.
        self._trace = self._square = 0.0

    @property
    def value(self) -> float | None:
        """The noise scale in samples; None while |G|^2 cannot be told from zero."""
        if self._square <= 0.0:
            return None
        ratio = max(self._trace, 0.0) / self._square
        return ratio if math.isfinite(ratio) else None

    def update(self, square: float, product: float, samples: int) -> None:
        """Takes in an update, unless its numbers are not finite.

        `square`: the mean squared norm of a gradient of so many `samples`. `product`: the mean
        product of two such gradients whose samples are independent.
        """
        trace = samples * (square - product)
        if math.isfinite(trace) and math.isfinite(product):
            self._trace = _DECAY * self._trace + (1.0 - _DECAY) * trace
            self._square = _DECAY * self._square + (1.0 - _DECAY) * product

    def state_dict(self) -> dict[str, float]:
        return {"trace": self._trace, "square": self._square}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Loads what `state_dict` gave."""
        self._trace, self._square = state["trace"], state["square"]


class NoiseMeter:
    """Measures gradients for the noise scale; the same numbers on all ranks.

    Only the first minibatches of an update count, of its first epoch: later epochs have fitted the
    samples before. Measurements stay on the gradients' device, and nothing waits for them before
    they are read with other numbers. `scale` is the noise scale that follows from them.
    """

    def __init__(self) -> None:
        self.scale = NoiseScale()
        self._samples = self._left = 0
        self._squares: list[Tensor] = []
        self._products: list[Tensor] = []
        self._follows = False  # whether `_previous` is of the minibatch before, of this update

    def connect(self, reducer: Reducer, numel: int, parts: int) -> None:
        """Measures the gradients [numel] at the beginning of a bucket, the mean over `parts` ranks.

        The bucket's last number is for this class: the mean of the ranks' squared norms.
        """
        self._size, buffer, result = parts, reducer.buffer, reducer.result
        self._own, self._own_square = buffer[:numel], buffer[-1]
        self._gradient, self._mean_square = result[:numel], result[-1]
        self._previous = torch.zeros(numel if self._size == 1 else 0, device=buffer.device)
        self._left = 0
        self._squares, self._products = [], []  # of an update that the re-forming cut short

    def begin(self, samples: int) -> None:
        """Begins an update, with minibatches of so many samples on each rank."""
        self._samples, self._left, self._follows = samples, _MAX_MINIBATCHES, False

    def end(self) -> None:
        """Leaves the rest of this update out."""
        self._left = 0

    def share(self, *, always: bool) -> None:
        """Puts the squared norm of this rank's gradient into the bucket, before it is reduced.

        `always`: also where it does not count, as in work that is captured and repeated.
        """
        if self._size > 1 and (always or self._left):
            torch.dot(self._own, self._own, out=self._own_square)

    def measure(self) -> None:
        """Measures the gradient that was reduced, if it counts; nothing waits."""
        if not self._left:
            return
        self._left -= 1
        gradient = self._gradient
        if self._size > 1:
            self._squares.append(self._mean_square.clone())
            self._products.append(torch.dot(gradient, gradient))
            return
        self._squares.append(torch.dot(gradient, gradient))
        if self._follows:
            self._products.append(torch.dot(gradient, self._previous))
        self._previous.copy_(gradient)
        self._follows = True

    @property
    def measured(self) -> list[Tensor]:
        """The scalars that were measured since the last `take`."""
        return [*self._squares, *self._products]

    def take(self, measured: Sequence[float]) -> float | None:
        """Takes in the numbers of `measured`, which were read, and returns the noise scale."""
        count = len(self._squares)
        squares, products = measured[:count], measured[count:]
        self._squares, self._products = [], []
        if products:
            square, product = sum(squares) / len(squares), sum(products) / len(products)
            if (k := self._size) > 1:
                # The squared norm of a mean is k squares and k (k - 1) products, over k^2.
                product = (k * product - square) / (k - 1)
            self.scale.update(square, product, self._samples)
        return self.scale.value
