"""Holds the results of directions, and a tree of aggregators that adds them up for the driver.

Sums of floats depend on their order, so they are taken over aligned blocks of directions, 2^level
of them, each the sum of its two halves. So the sum is the same bits, in whatever order results come
and wherever they are added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from gmi_drl import runtime
from gmi_drl.roles.errors import EvaluatorLate

from .episodes import RETURN, STEPS
from .graph import Weights

Block = tuple[int, int]  # (level, index): directions from index x 2^level on, 2^level of them


@dataclass
class Tried:
    """Holds what came of some directions.

    `pairs` has by direction the returns and steps of both its ways [2, 2]; a return is NaN where
    it, an observation or an action was not finite. `sums` of what was seen in the others, by block.
    """

    pairs: dict[int, np.ndarray[Any, Any]] = field(default_factory=dict)
    sums: dict[Block, np.ndarray[Any, Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: Tensor, first: int) -> Tried:
        """Makes one of rows [K, 2, W] of directions from `first`; see PerturbedEpisodes.play."""
        tried = cls()
        for index, (row, finite) in enumerate(
            zip(rows.numpy(), rows.isfinite().all(-1).numpy(), strict=True), first
        ):
            pair = row[:, [RETURN, STEPS]]
            pair[~finite, RETURN] = np.nan
            tried.pairs[index] = pair
            sums = row[0, 2:] + row[1, 2:]
            tried._add((0, index), sums if finite.all() else np.zeros_like(sums))
        return tried

    def add(self, other: Tried) -> None:
        """Takes in what came of other directions."""
        self.pairs |= other.pairs
        for block, sums in other.sums.items():
            self._add(block, sums)

    def whole(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Returns the pairs [K, 2, 2] of directions 0 to K, and the sum over all of them."""
        pairs = np.stack([self.pairs[index] for index in range(len(self.pairs))])
        blocks = dict(self.sums)
        while len(blocks) > 1:  # the last one of a level has no other half
            block = min(blocks)
            parent, sums = (block[0] + 1, block[1] // 2), blocks.pop(block)
            blocks[parent] = blocks[parent] + sums if parent in blocks else sums
        (total,) = blocks.values()
        return pairs, total

    def _add(self, block: Block, sums: np.ndarray[Any, Any]) -> None:
        while True:
            level, index = block
            if (sibling := self.sums.pop((level, index ^ 1), None)) is None:
                self.sums[block] = sums
                return
            block, sums = (level + 1, index // 2), sibling + sums if index & 1 else sums + sibling


class Aggregator:
    """Has directions tried by evaluators or aggregators below it, and adds up their results.

    One that has answered is asked again, so the slowest is waited for no longer than one share.
    """

    def __init__(self, below: Mapping[str, Any], share: int | None, timeout_s: float) -> None:
        """`below`: evaluators or aggregators, by the names that errors call them.

        `share`: the directions that one is asked to try at a time; None: an equal part each.
        """
        self._below, self._share, self._timeout_s = dict(below), share, timeout_s

    @classmethod
    def remote(cls, *arguments: Any) -> runtime.ActorHandle:
        """Starts one as an actor, which is asked again what it was asked when it is killed."""
        actor = runtime.remote(max_restarts=-1, num_threads=1)(cls)
        handle: runtime.ActorHandle = actor.remote(*arguments)
        return handle

    def score(self, weights: Weights, number: int, first: int, end: int) -> Tried:
        """Returns what comes of directions `first` to `end` of round `number`."""
        share = self._share or -(-(end - first) // len(self._below))
        ranges = [(begin, min(begin + share, end)) for begin in range(first, end, share)][::-1]
        tried, idle = Tried(), list(self._below)
        under_way: dict[runtime.ObjectRef, str] = {}
        while ranges or under_way:
            while ranges and idle:
                name, directions = idle.pop(0), ranges.pop()
                node = self._below[name]
                if isinstance(node, runtime.ActorHandle):
                    under_way[node.score.remote(weights, number, *directions)] = name
                else:
                    tried.add(node.score(weights, number, *directions))
                    idle.append(name)
            if under_way:
                ready, _ = runtime.wait(list(under_way), timeout=self._timeout_s)
                if not ready:
                    raise EvaluatorLate(
                        f"timed out after {self._timeout_s:g} s: {', '.join(under_way.values())} "
                        "did not answer, asked to try directions. If it only takes longer, raise "
                        "`timeout`."
                    )
                idle.append(under_way.pop(ready[0]))
                tried.add(runtime.get(ready[0]))
        return tried


def aggregated(
    evaluators: Sequence[Any], share: int | None, timeout_s: float, fan_out: int | None
) -> tuple[Aggregator, list[runtime.ActorHandle]]:
    """Returns the root over evaluators, and the aggregators between that are actors.

    None has more than `fan_out` below it; with None, the root has all of them. Aggregators are
    actors where all below them are.
    """
    actors: list[runtime.ActorHandle] = []
    nodes = {f"evaluator {number}": node for number, node in enumerate(evaluators)}
    width = 1  # evaluators below each of `nodes`
    while fan_out is not None and len(nodes) > fan_out:
        above: dict[str, Any] = {}
        width *= fan_out
        for first in range(0, len(evaluators), width):
            names = list(nodes)[:fan_out]
            below = {name: nodes.pop(name) for name in names}
            last = min(first + width, len(evaluators)) - 1
            name = f"the aggregator of evaluators {first} to {last}"
            if all(isinstance(node, runtime.ActorHandle) for node in below.values()):
                actors.append(Aggregator.remote(below, share, timeout_s))
                above[name] = actors[-1]
            else:
                above[name] = Aggregator(below, share, timeout_s)
        nodes, share = above, None  # what is below has its own
    return Aggregator(nodes, share, timeout_s), actors
