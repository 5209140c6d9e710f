"""Checks that all GMIs still hold the same parameters, bit for bit."""

from __future__ import annotations

import collections
import zlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gmi_drl.comm.errors import ParametersDiffer

from .group import Group


def assert_identical(
    group: Group, flat: Tensor, names: Sequence[str], offsets: Sequence[int], iteration: int
) -> None:
    """Raises ParametersDiffer on every rank unless `flat` [n] is the same everywhere. Collective.

    `offsets` are where the parameters called `names` begin in `flat`, ascending. Costs one CRC-32
    and one meeting; only after a difference is the first differing parameter looked for.
    """
    if group.size == 1:
        return
    array: Any = flat.detach().cpu().contiguous().view(torch.uint8).numpy()
    raw = memoryview(array)
    odd = _odd_ranks(group.exchange(zlib.crc32(raw) | (len(raw) & 0xFFFFFFFF) << 32))
    if not odd:
        return
    # From here on all ranks know of the difference and go the same way together.
    parameter = "their sizes or names"
    if not _odd_ranks(group.exchange(zlib.crc32(repr((len(raw), names, offsets)).encode()))):
        width = flat.element_size()
        for name, start, stop in zip(names, offsets, [*offsets[1:], flat.numel()], strict=True):
            if differing := _odd_ranks(
                group.exchange(zlib.crc32(raw[start * width : stop * width]))
            ):
                odd, parameter = differing, name
                break
    members = [group.members[rank] for rank in odd]
    raise ParametersDiffer(iteration, tuple(odd), members, parameter)


def _odd_ranks(values: Sequence[int]) -> list[int]:
    """Returns the ranks whose value is not the most frequent one; in a tie rank 0's counts."""
    majority = collections.Counter(values).most_common(1)[0][0]  # ties: the one met first
    return [rank for rank, value in enumerate(values) if value != majority]
