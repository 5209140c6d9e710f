"""What a batch on the device asks of its physics."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor


class World(Protocol):
    """The state of N worlds of one MuJoCo model. Fields are attributes, names and layouts as in
    MjData: `world.qpos` is [N, nq], `world.xpos` [N, nbody, 3], float32 on `device`. A field is the
    same tensor for good; what is written into `qpos`, `qvel`, `act`, `ctrl` or `qacc_warmstart` is
    what the next `step` reads.

    Derived fields (xpos, cinert, cvel, cfrc_ext, ...) belong to the last dynamics that were
    computed, not to a qpos written or integrated since: call `forward` after writing qpos and qvel.
    """

    num_world: int
    device: torch.device
    room: str  # how many contacts it has room for, and the remedy, for the log

    def __getattr__(self, name: str) -> Tensor: ...

    def step(self, frame_skip: int, rne_post: bool) -> None:
        """`frame_skip` physics steps; with `rne_post` also cfrc_ext, as Gymnasium does after."""
        ...

    def forward(self) -> None:
        """Derived fields and qacc of the present qpos, qvel and ctrl, of all worlds."""
        ...

    def dropped(self) -> Tensor:
        """[N] bool: contacts or constraint rows of this world did not fit since last asked."""
        ...

    def on_torch_stream(self) -> AbstractContextManager[Any]:
        """`step` and `forward` are called within: behind what torch has launched so far, and
        before what it launches next. Nothing of torch runs within."""
        ...
