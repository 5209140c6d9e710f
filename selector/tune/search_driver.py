"""Drives a search of tuning: asks are answered from the journal if they can be, else measured."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from gmi_drl.selector.errors import BudgetTooShort, NothingMeasured
from gmi_drl.selector.record.record import TuneJournal

from .algorithms.default import FIRST_ERROR, LONGEST
from .algorithms.observations import combined
from .candidate import (
    Answer,
    Ask,
    Candidate,
    Chosen,
    Failed,
    Measured,
    Space,
    TuneSearch,
    candidate_text,
)

if TYPE_CHECKING:
    from .tune_view import TuneView

Profile = Callable[[Ask], Measured | Failed]
_SAME: Final = 0.999  # of the seconds asked for: a measurement of so many is long enough
_LEAST_S: Final = 0.5  # of training, below which a measurement says nothing
_MOST_REASONS: Final = 8


@dataclass(frozen=True)
class SearchOutcome:
    """Holds what a search chose, and how far its budget went."""

    chosen: Chosen
    spent_s: float  # of the budget, by what was measured and what was recalled
    left_out: str = ""  # what the budget did not suffice for, in words


def run_search(
    search: TuneSearch,
    space: Space,
    profile: Profile,
    journal: TuneJournal,
    budget_s: float,
    *,
    listener: TuneView,
    clock: Callable[[], float] = time.monotonic,
    waits_s: float = 0.0,
) -> SearchOutcome:
    """Returns what `search` chooses in `space` with `budget_s` seconds of the clock.

    What is recalled counts with the seconds it took. Blocks as long as `profile` does; nothing ends
    a measurement once it has begun, and each is on record before the next begins. `waits_s`: how
    long `profile` waits for a first iteration; what was too slow where that was less is measured
    again. BudgetTooShort when not one fits, NothingMeasured when all fail.
    """
    answerer = _Answerer(profile, journal, budget_s, listener, clock, _waits_s=waits_s)
    chosen = search(answerer.answer)
    if chosen.winner is None:
        raise NothingMeasured(*_reasons(journal, space))
    left_out = "" if chosen.complete else _left_out(space, journal, budget_s)
    return SearchOutcome(chosen, answerer.spent_s, left_out)


def measured_of(journal: TuneJournal, candidate: Candidate) -> Measured:
    """Returns all measurements of a candidate that are on record, as one. It has one or more."""
    answers = [answer for ask, answer in journal.record.profiles if ask.candidate == candidate]
    return combined([answer for answer in answers if isinstance(answer, Measured)])


@dataclass
class _Answerer:
    """Answers asks, one after the other, until the budget is spent."""

    _profile: Profile
    _journal: TuneJournal
    _budget_s: float
    _listener: TuneView
    _clock: Callable[[], float]
    _waits_s: float
    spent_s: float = 0.0
    _slow_s: dict[Candidate, float] = field(default_factory=dict)  # seconds too few for it

    def __post_init__(self) -> None:
        record = self._journal.record
        profiles = zip(record.profiles, record.costs_s, record.waits_s, strict=True)
        # On record, and not taken yet: the seconds, the answer, its cost and how long it waited.
        self._recorded: dict[Candidate, deque[tuple[float, Measured | Failed, float, float]]] = {}
        for (ask, answer), cost_s, waits_s in profiles:
            recorded = self._recorded.setdefault(ask.candidate, deque())
            recorded.append((ask.seconds, answer, cost_s, waits_s))

    def answer(self, ask: Ask) -> Answer:
        """Returns the answer, which is on record afterwards; None when there is no time for it."""
        if (recorded := self._recall(ask)) is not None:
            self._listener.answers(ask, recorded, recalled=True, left_s=self._left_s)
            return recorded
        limit_s = self._time_for(ask)
        if limit_s is None:
            return None
        self._listener.asks(ask, self._left_s)
        start_s = self._clock()
        answer = self._profile(Ask(ask.candidate, limit_s))
        cost_s = self._clock() - start_s
        self.spent_s += cost_s
        # What was too slow for less time than asked may be fast enough with all of it: a longer
        # budget measures it again. A measurement is kept as asked; its error says how sure it is.
        unsure = isinstance(answer, Failed) and answer.reason == "slow" and limit_s < ask.seconds
        recorded_ask = replace(ask, seconds=limit_s) if unsure else ask
        self._journal.profiled(recorded_ask, answer, cost_s, self._waits_s)
        self._listener.answers(ask, answer, recalled=False, left_s=self._left_s)
        if len(self._journal.record.profiles) == 1 and cost_s > self._budget_s:
            raise BudgetTooShort(self._budget_s, cost_s, took=True)
        return None if unsure else answer

    @property
    def _left_s(self) -> float:
        return self._budget_s - self.spent_s

    def _recall(self, ask: Ask) -> Measured | Failed | None:
        """Returns the next answer to this ask on record, if it says as much as a new one would."""
        answers = self._recorded.get(ask.candidate, deque())
        while answers:
            seconds, answer, cost_s, waits_s = answers.popleft()
            is_slow = isinstance(answer, Failed) and answer.reason == "slow"
            if is_slow and waits_s < _SAME * self._waits_s:
                continue
            # Answers that are neither slow nor noisy hold for an ask of any length.
            sure = not is_slow if isinstance(answer, Failed) else answer.error <= FIRST_ERROR
            if sure or seconds >= _SAME * ask.seconds:
                self.spent_s += cost_s
                return answer
            if is_slow:
                self._slow_s[ask.candidate] = seconds
        return None

    def _time_for(self, ask: Ask) -> float | None:
        """Returns how long to measure: as asked, or as there is time; None: it is not worth it."""
        record = self._journal.record
        if not record.profiles:
            if self._budget_s < ask.seconds:
                raise BudgetTooShort(self._budget_s, ask.seconds, took=False)
            return ask.seconds
        if len(record.profiles) == 1 and record.costs_s[0] > self._budget_s:
            raise BudgetTooShort(self._budget_s, record.costs_s[0], took=True)
        # Start and end are counted as the shortest so far: to run a little over the budget is
        # better than to leave its last seconds unused.
        limit_s = min(ask.seconds, self._left_s - record.around_s)
        least_s = min(ask.seconds, max(_LEAST_S, ask.seconds / LONGEST))
        enough = limit_s >= least_s and limit_s > self._slow_s.get(ask.candidate, 0.0)
        return limit_s if enough else None


def _reasons(journal: TuneJournal, space: Space) -> Sequence[str]:
    reasons = [
        f"{candidate_text(ask.candidate, space.splits)}: {answer.reason}: {answer.text}"
        for ask, answer in journal.record.profiles
        if isinstance(answer, Failed)
    ]
    more = len(reasons) - _MOST_REASONS
    return reasons if more <= 0 else [*reasons[:_MOST_REASONS], f"and {more} more"]


def _left_out(space: Space, journal: TuneJournal, budget_s: float) -> str:
    seen = {ask.candidate for ask, _ in journal.record.profiles}
    untouched = [row[0].row.gmi_per_gpu for row in space.rows if seen.isdisjoint(row)]
    text = (
        f"the search ended with its budget of {budget_s:.0f} s: {len(seen)} of {space.size} "
        "candidates were measured"
    )
    if untouched:
        is_all = len(untouched) == sum(split.gmi_per_gpu in untouched for split in space.splits)
        counts = ", ".join(map(str, sorted(set(untouched))))
        text += f", and none of {'' if is_all else 'some rows of '}{counts} GMIs on a device"
    return f"{text}; a longer one goes on from here"
