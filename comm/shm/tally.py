"""The tally counts what each GMI has done, and outlives its process.

A row of 64-bit words for each GMI, in shared memory: one writer, whole stores, any reader. Nothing
here imports torch, as a launcher must not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from gmi_drl.runtime.store.memfd import Memfd

_WORD: Final = 8


class Tally:
    """The counters of all GMIs, mapped into this process."""

    def __init__(self, memory: memoryview, names: Sequence[str]) -> None:
        self._words = memory.cast("Q")
        self._place = {name: index for index, name in enumerate(names)}

    def __getitem__(self, key: tuple[int, str]) -> int:
        return self._words[self._index(*key)]

    def __setitem__(self, key: tuple[int, str], value: int) -> None:
        self._words[self._index(*key)] = value

    def row(self, gmi_id: int) -> dict[str, int]:
        """Returns a GMI's counters by name. Each is right; they may be of different moments."""
        return {name: self[gmi_id, name] for name in self._place}

    def writer(self, gmi_id: int, name: str) -> Callable[[int], None]:
        """Returns a function that stores one counter quickly, for counters that change often."""
        return partial(self._words.__setitem__, self._index(gmi_id, name))

    def _index(self, gmi_id: int, name: str) -> int:
        return gmi_id * len(self._place) + self._place[name]


@dataclass(frozen=True)
class TallySpec:
    """The means to open a tally; it passes through the arguments of an actor call."""

    names: tuple[str, ...]
    memfd: Memfd

    def open(self) -> Tally:
        """Opens the counters, in this process too."""
        return Tally(self.memfd.map(), self.names)


def create_tally(gmis: int, names: Sequence[str]) -> TallySpec:
    """Makes counters called `names`, all 0, for GMIs 0 to `gmis` - 1.

    The memory has no name and goes when the last process that holds it does.
    """
    if gmis < 1 or not names:
        raise ValueError(f"{gmis} GMIs, {len(names)} names: a tally has one or more of both.")
    return TallySpec(tuple(names), Memfd.create("gmi-drl-tally", gmis * len(names) * _WORD))
