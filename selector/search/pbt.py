"""Searches by population based training (Jaderberg et al., 2017): the worse follow the better.

After each interval the worst members take over a checkpoint and the values of one of the best
(exploit, by truncation) and change the values a little (explore), which makes a schedule of them.
"""

from __future__ import annotations

import numpy as np

from .ranges import Ranges
from .trial_run import RunKey, TrialHistory, TrialRun, Values

_SOURCES = 2  # the stream of random numbers that decides whom to go on from; see `Ranges`


class Population:
    """A `TrialAlgorithm`.

    The paper's members compare themselves whenever they are ready. Here all of a generation are
    compared at once: their scores are of the same number of steps, and the same seed makes the same
    search however many train side by side. A member that failed goes on from one of the best, in
    addition to the `truncation` that are worst.
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
    ) -> None:
        self._ranges, self._total_steps, self._seed = ranges, total_steps, seed
        self._interval = interval_steps or max(1, -(-total_steps // 10))
        self._cut = min(max(1, round(truncation * population)), population // 2)
        self._perturb, self._resample = perturb, resample
        self._generations = -(-total_steps // self._interval)
        self._generation = 0
        self._values: list[Values] = [ranges.draw(member) for member in range(population)]
        self._starts: list[RunKey | None] = [None] * population
        self._scores: dict[int, float | None] = {}  # of this generation
        self._history = TrialHistory()
        self._asked = 0

    @property
    def total(self) -> int:
        return len(self._values) * self._generations

    @property
    def done(self) -> bool:
        return self._generation == self._generations

    def ask(self) -> TrialRun | None:
        if self.done or self._asked == len(self._values):
            return None
        member = self._asked
        self._asked += 1
        run = TrialRun(
            trial=member,
            number=self._generation,
            values=self._values[member],
            steps=min((self._generation + 1) * self._interval, self._total_steps),
            start=self._starts[member],
            bracket=self._generation,
        )
        self._history.runs[run.key] = run
        return run

    def tell(self, run: TrialRun, score: float | None) -> None:
        assert run.number == self._generation, f"{run.key} is of a generation that is over"
        self._scores[run.trial] = score
        if score is not None:
            self._history.scores[run.key] = score
        if len(self._scores) == len(self._values):
            self._next_generation()

    def kept(self) -> set[RunKey]:
        waiting = () if self.done else set(range(len(self._values))) - self._scores.keys()
        starts = {start for member in waiting if (start := self._starts[member]) is not None}
        present = {(member, self._generation) for member in self._scores}
        return self._history.with_best(starts | present)

    def best(self) -> RunKey | None:
        return self._history.best()

    def _next_generation(self) -> None:
        scores, now = self._scores, self._generation
        alive = [member for member, score in scores.items() if score is not None]
        if not alive:  # nobody to go on from
            self._generation = self._generations
            return
        ranked = sorted(alive, key=lambda member: (-(scores[member] or 0.0), member))
        self._generation, self._asked, self._scores = now + 1, 0, {}
        if self.done:
            return
        best = ranked[: self._cut]
        failed = [member for member in range(len(self._values)) if scores[member] is None]
        worst = [member for member in ranked[-self._cut :] if member not in best]
        values = list(self._values)
        for member in range(len(values)):
            self._starts[member] = (member, now)
        for member in sorted(failed + worst):
            random = np.random.default_rng((self._seed, _SOURCES, now, member))
            source = best[int(random.integers(len(best)))]
            values[member] = self._ranges.explored(
                self._values[source], (now, member), self._perturb, self._resample
            )
            self._starts[member] = (source, now)
        self._values = values
