"""Searches by population based training (Jaderberg et al., 2017): the worse follow the better.

At the end of an interval one of the worst members takes over a checkpoint and the values of one of
the best (exploit, by truncation) and changes the values a little (explore), which makes a schedule
of them.
"""

from __future__ import annotations

import numpy as np

from .ranges import Ranges
from .trial_run import RunKey, TrialAlgorithm, TrialRun, Values, ranked

_SOURCES = 2  # the stream of random numbers that decides whom to go on from; see `Ranges`


class PopulationBased(TrialAlgorithm):
    """Has the member that is furthest behind train next, and compares it before it does.

    A member is compared with those that have ended the same interval so far, and waits for none:
    their scores, and the checkpoints that it may go on from, are of as many steps as its own, which
    those of the paper are not. `synchronous`: only when all have ended the interval; then the same
    seed makes the same search however many train side by side. A member that failed goes on from
    one of the best, in addition to the `truncation` that are worst.
    """

    def __init__(
        self,
        ranges: Ranges,
        total_steps: int,
        *,
        seed: int,
        population: int = 8,
        interval_steps: int | None = None,
        truncation: float = 0.2,
        perturb: float = 0.2,
        resample: float = 0.25,
        synchronous: bool = False,
    ) -> None:
        self._interval = interval_steps or max(1, -(-total_steps // 10))
        self._intervals = -(-total_steps // self._interval)
        super().__init__(population * self._intervals)
        self._ranges, self._total_steps, self._seed = ranges, total_steps, seed
        self._population, self._truncation = population, truncation
        self._perturb, self._resample, self._synchronous = perturb, resample, synchronous
        self._next = [0] * population  # by member: the number of the run that it begins next
        self._training: dict[int, TrialRun] = {}  # by member
        self._values: dict[RunKey, Values] = {}
        self._ended: list[dict[int, float | None]] = [{} for _ in range(self._intervals)]

    @property
    def done(self) -> bool:
        return not self._training and all(self._next_start(m) is None for m in self._waiting())

    def ask(self) -> TrialRun | None:
        for member in self._waiting():
            if (begin := self._next_start(member)) is not None:
                (start, values), number = begin, self._next[member]
                run = TrialRun(
                    trial=member, number=number, values=values, start=start, bracket=number,
                    steps=min((number + 1) * self._interval, self._total_steps),
                )  # fmt: skip
                self._next[member] += 1
                self._training[member], self._values[run.key] = run, values
                self._steps[run.key] = run.steps
                return run
        return None

    def tell(self, run: TrialRun, score: float | None) -> None:
        super().tell(run, score)
        del self._training[run.trial]
        self._ended[run.number][run.trial] = score

    def kept(self) -> set[RunKey]:
        keys = {run.start for run in self._training.values()} | {self.best()}
        most = max(1, self._cut(self._population))
        for last, scores in enumerate(self._ended[:-1]):
            if any(number <= last + 1 for number in self._next):  # some are still to be compared
                alive = ranked(scores)
                waiting = [member for member in alive if self._next[member] == last + 1]
                keys |= {(member, last) for member in [*alive[:most], *waiting]}
        return {key for key in keys if key is not None and key in self._scores}

    def _waiting(self) -> list[int]:
        """Returns the members that wait and have an interval left, the furthest behind first."""
        waiting = [
            member
            for member, number in enumerate(self._next)
            if member not in self._training and number < self._intervals
        ]
        return sorted(waiting, key=lambda member: (self._next[member], member))

    def _next_start(self, member: int) -> tuple[RunKey | None, Values] | None:
        """Returns what a member's next interval begins with; None: it must wait for others.

        The run that it goes on from, and its values.
        """
        last = self._next[member] - 1
        if last < 0:
            return None, self._ranges.draw(member)
        scores = self._ended[last]
        alive, cut = ranked(scores), self._cut(len(scores))
        if not alive or (self._synchronous and len(scores) < self._population):
            return None
        best = alive[: max(1, cut)]
        worst = set(alive[len(alive) - cut :]) - set(best)
        if scores[member] is not None and member not in worst:
            return (member, last), self._values[member, last]
        rng = np.random.default_rng((self._seed, _SOURCES, last, member))
        source = best[int(rng.integers(len(best)))]
        values = self._values[source, last]
        place = (last, member)
        return (source, last), self._ranges.explored(values, place, self._perturb, self._resample)

    def _cut(self, known: int) -> int:
        """Returns how many of `known` members are worst, and best; one at least of them all."""
        return min(max(round(self._truncation * known), known == self._population), known // 2)
