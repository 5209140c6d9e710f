"""Tells what experience a version of the policy was computed from, as trainers tell each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple


class Use(NamedTuple):
    """Experience of one GMI's process that one round has used."""

    gmi_id: int  # that sampled it
    process: int  # the processes that were this GMI before it in this launch
    version: int  # of the policy that it was sampled with
    parts: int  # segments, gradients or directions
    steps: int  # of environments


class Kept(NamedTuple):
    """Describes a replay that a round has drawn from."""

    rows: int
    oldest: int  # the version whose round put its oldest row in
    minibatches: int  # drawn in this round


class Experience(NamedTuple):
    """The experience of a round, of all GMIs that train, by rank."""

    uses: tuple[tuple[Use, ...], ...] = ()
    kept: tuple[Kept, ...] = ()  # empty without a replay
    lag: int = 0  # the most updates that a part was behind the policy it was used on


_USE: Final = len(Use._fields)


class ExperienceCodec:
    """Packs experience into numbers that trainers tell each other (see Progress), and unpacks it.

    Every trainer has `slots` for what it used. Where lineage is not recorded there are no numbers,
    and no experience.
    """

    def __init__(self, slots: int, *, is_recorded: bool, has_replay: bool = False) -> None:
        self._slots, self._is_recorded, self._has_replay = slots, is_recorded, has_replay
        replay_numbers = len(Kept._fields) if has_replay else 0
        self.numel = 1 + slots * _USE + replay_numbers if is_recorded else 0

    def pack(self, uses: Iterable[Use], lag: int = 0, kept: Kept | None = None) -> list[float]:
        """Returns the numbers of what this trainer used."""
        if not self._is_recorded:
            return []
        numbers: list[float] = [lag]
        for use in uses:
            numbers += use
        numbers += [-1.0] * (1 + self._slots * _USE - len(numbers))
        if self._has_replay:
            assert kept is not None
            numbers += kept
        assert len(numbers) == self.numel
        return numbers

    def unpack(self, rows: Sequence[Sequence[float]]) -> Experience | None:
        """Returns what all have used, by the numbers of each; None where it is not recorded."""
        if not self._is_recorded:
            return None
        end = 1 + self._slots * _USE
        uses = []
        for row in rows:
            slots = (row[start : start + _USE] for start in range(1, end, _USE) if row[start] >= 0)
            uses.append(_merge_uses(Use(*map(int, slot)) for slot in slots))
        kept = tuple(Kept(*map(int, row[end:])) for row in rows) if self._has_replay else ()
        return Experience(tuple(uses), kept, int(max(row[0] for row in rows)))


def _merge_uses(uses: Iterable[Use]) -> tuple[Use, ...]:
    """Adds up what one process has sampled with one version."""
    merged: dict[tuple[int, int, int], Use] = {}
    for use in uses:
        total = merged.get(use[:3], Use(*use[:3], 0, 0))
        parts, steps = total.parts + use.parts, total.steps + use.steps
        merged[use[:3]] = total._replace(parts=parts, steps=steps)
    return tuple(merged.values())
