"""Cuts a batch into minibatches, in the same tensors each time."""

from __future__ import annotations

import torch
from torch import Tensor

from .batch import Batch, Sequences


class Minibatch:
    """One minibatch at a time of a batch's packed rows.

    It has any of the rows, or, where the policy remembers, all steps of some environments. `batch`
    holds them, in the same tensors each time. There are `pieces` rows or environments, of which a
    minibatch has `size`. Observations that the batch keeps in `frames` are put before them.
    """

    def __init__(self, whole: Batch, parts: int) -> None:
        assert whole.rows is not None
        assert whole.row_layout is not None
        self._sequences, self._frames, rows = whole.sequences, whole.frames, whole.rows
        self._dim = 0 if self._sequences is None else 1
        self._all_rows = rows.flatten(0, 1) if self._sequences is None else rows
        self.pieces = self._all_rows.shape[self._dim]
        self.size = self.pieces // parts
        shape = (self.size,) if self._sequences is None else (len(rows), self.size)
        sequences: Sequences | None = None
        if self._sequences is not None:
            state = self._sequences.state
            sequences = Sequences(state.new_zeros(self.size, state.shape[1]), rows.new_zeros(shape))
        layout, width = whole.row_layout, 0
        if self._frames is not None:
            width = self._frames.width
            self._numbers, layout = layout.numbers, layout.behind("observation", width)
        self._rows = rows.new_zeros(*shape, layout.width)
        self._observation = self._rows[..., :width]
        self.batch = whole.minibatch(self._rows.view(-1, layout.width), sequences, layout)

    def fill(self, picked: Tensor) -> None:
        """Copies the rows or environments `picked` [size] into `batch`."""
        if self._frames is None:
            torch.index_select(self._all_rows, self._dim, picked, out=self._rows)
        else:
            width = self._frames.width
            rows = self._all_rows.index_select(self._dim, picked)[..., : self._numbers]
            self._rows[..., width : width + self._numbers].copy_(rows)
        if self._sequences is not None:
            sequences = self.batch.sequences
            assert sequences is not None
            torch.index_select(self._sequences.state, 0, picked, out=sequences.state)
            torch.index_select(self._sequences.done, 1, picked, out=sequences.done)
        if self._frames is not None and self._sequences is not None:
            self._frames.environments(picked).all(self._observation)
        elif self._frames is not None:
            self._frames.rows(picked, self._observation)


def joined(whole: Batch) -> Batch:
    """Returns all rows of a batch as one minibatch; views, where rows hold observations."""
    if whole.frames is None:
        return whole.flat()
    minibatch = Minibatch(whole, 1)
    minibatch.fill(torch.arange(minibatch.pieces, device=minibatch.batch["action"].device))
    return minibatch.batch
