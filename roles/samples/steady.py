"""The steps of an environment in tensors that stay where they are, for captured work to read."""

from __future__ import annotations

import torch

from gmi_drl.roles.envs.protocol import Step


class Steady:
    """Keeps the last `Step` where it can be read: in the same tensors, once two were taken.

    An environment that gives the same Step object every time writes into the same tensors, and is
    read in place. What others give is copied, on their device.
    """

    def __init__(self) -> None:
        self._step: Step | None = None
        self._copied = False
        self.taken = 0  # steps
        self.moves = 0  # how often `step` has changed its place

    @property
    def step(self) -> Step:
        """The last step."""
        assert self._step is not None
        return self._step

    def take(self, step: Step) -> None:
        """Takes in the step that an environment has made."""
        self.taken += 1
        if step is self._step:
            return
        if self._step is None:
            self._step, self.moves = step, 1
            return
        if not self._copied:
            self._step = Step(*(torch.empty_like(part) for part in step))
            self._copied, self.moves = True, self.moves + 1
        for mine, given in zip(self._step, step, strict=True):
            mine.copy_(given)
