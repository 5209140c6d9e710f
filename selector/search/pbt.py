"""Searches by population based training (Jaderberg et al., 2017): the worse follow the better.

After each interval the worst members take over a checkpoint and the values of one of the best
(exploit, by truncation) and change the values a little (explore), which makes a schedule of them.
"""

from __future__ import annotations

import numpy as np

from .ranges import Ranges
from .trial_run import Rounds, RunKey, TrialAlgorithm, TrialRun, Values, ranked

_SOURCES = 2  # the stream of random numbers that decides whom to go on from; see `Ranges`


def population_based(
    ranges: Ranges,
    total_steps: int,
    *,
    seed: int,
    population: int = 8,
    interval_steps: int | None = None,
    truncation: float = 0.2,
    perturb: float = 0.2,
    resample: float = 0.25,
) -> TrialAlgorithm:
    """Returns the search.

    The paper's members compare themselves whenever they are ready. Here all of a generation are
    compared at once: their scores are of the same number of steps, and the same seed makes the same
    search however many train side by side. A member that failed goes on from one of the best, in
    addition to the `truncation` that are worst.
    """
    interval = interval_steps or max(1, -(-total_steps // 10))
    cut = min(max(1, round(truncation * population)), population // 2)
    members, generations = range(population), -(-total_steps // interval)

    def rounds() -> Rounds:
        values: list[Values] = [ranges.draw(member) for member in members]
        starts: list[RunKey | None] = [None] * population
        for now in range(generations):
            steps = min((now + 1) * interval, total_steps)
            scores = yield [
                TrialRun(
                    trial=member, number=now, values=values[member], steps=steps,
                    start=starts[member], bracket=now,
                )
                for member in members
            ]  # fmt: skip
            alive = ranked(scores)
            if not alive:  # nobody to go on from
                return
            best, before = alive[:cut], list(values)
            starts = [(member, now) for member in members]
            for member in members:
                if scores[member] is None or member in set(alive[-cut:]) - set(best):
                    random = np.random.default_rng((seed, _SOURCES, now, member))
                    source = best[int(random.integers(len(best)))]
                    place = (now, member)
                    values[member] = ranges.explored(before[source], place, perturb, resample)
                    starts[member] = (source, now)

    return TrialAlgorithm([rounds()], population * generations)
