"""Cuts a batch into minibatches, in memory that stays the same."""

from __future__ import annotations

import torch
from torch import Tensor

from .batch import Batch, Sequences


class Minibatch:
    """One minibatch at a time of a batch's packed rows.

    It has some of the rows, wherever they are; or, where the policy remembers, all steps of some
    environments. `batch` has them, in the same tensors each time; `pieces` of the whole are there
    to pick from, and `size` of them are picked.
    """

    def __init__(self, whole: Batch, parts: int) -> None:
        assert whole.rows is not None
        self._sequences, rows = whole.sequences, whole.rows
        self._dim = 0 if self._sequences is None else 1
        self._whole = rows.flatten(0, 1) if self._sequences is None else rows
        self.pieces = self._whole.shape[self._dim]
        self.size = self.pieces // parts
        shape = (self.size,) if self._sequences is None else (len(rows), self.size)
        self._rows = rows.new_zeros(*shape, rows.shape[-1])
        its: Sequences | None = None
        if self._sequences is not None:
            state = self._sequences.state
            its = Sequences(state.new_zeros(self.size, state.shape[1]), rows.new_zeros(shape))
        self.batch = whole.minibatch(self._rows.view(-1, rows.shape[-1]), its)

    def fill(self, picked: Tensor) -> None:
        """Copy what was picked [size] into `batch`."""
        torch.index_select(self._whole, self._dim, picked, out=self._rows)
        if self._sequences is not None:
            its = self.batch.sequences
            assert its is not None
            torch.index_select(self._sequences.state, 0, picked, out=its.state)
            torch.index_select(self._sequences.done, 1, picked, out=its.done)
