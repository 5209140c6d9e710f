"""Packs image channels in LZ4 blocks: a word with the length, then the bytes, in whole words.

A block that does not shrink is stored as it is: then its length is that of the numbers. The package
lz4 is imported only where a channel asks for it.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from gmi_drl.runtime.store.alignment import round_up

from .schema import WORD


def pack(memory: Any, offset: int, blocks: Sequence[Any]) -> int:
    """Writes the uint8 arrays `blocks` into `memory` from `offset` on; returns their end."""
    lz4 = importlib.import_module("lz4.block")
    for block in blocks:
        raw = memoryview(block.reshape(-1))
        packed = lz4.compress(raw, store_size=False)
        data: Any = raw if len(packed) >= len(raw) else packed
        memory[offset : offset + WORD].view(np.uint64)[0] = len(data)
        offset += WORD
        memory[offset : offset + len(data)] = np.frombuffer(data, np.uint8)
        offset += round_up(len(data), WORD)
    return offset


def unpack(memory: Any, offset: int, sizes: Sequence[int]) -> list[Any]:
    """Returns the blocks from `offset` on as uint8 arrays, `sizes` numbers each.

    ValueError if they are not such blocks.
    """
    lz4 = importlib.import_module("lz4.block")
    blocks = []
    for size in sizes:
        if offset + WORD > len(memory):
            raise ValueError(f"a packet of {len(memory)} bytes ends before its LZ4 blocks do")
        length = int(memory[offset : offset + WORD].view(np.uint64)[0])
        offset += WORD
        data = memory[offset : offset + length]
        if length > size or len(data) < length:
            raise ValueError(f"an LZ4 block of {length} bytes, for {size}, in {len(memory)}")
        if length < size:
            try:
                plain = lz4.decompress(data, uncompressed_size=size, return_bytearray=True)
            except lz4.LZ4BlockError as error:
                raise ValueError(str(error)) from error
            if len(plain) != size:
                raise ValueError(f"an LZ4 block of {len(plain)} bytes instead of {size}")
            data = np.frombuffer(plain, np.uint8)
        blocks.append(data)
        offset += round_up(length, WORD)
    return blocks
