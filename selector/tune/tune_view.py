"""What a person sees while tuning: what is measured now, the best so far, and what time is left."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, Protocol

from rich.console import Console, Group
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gmi_drl.launcher.view.view import ViewName, drawn, duration, is_live
from gmi_drl.placement import counted
from gmi_drl.selector.record.findings import candidate_text, findings_of

from .candidate import Answer, Ask, Candidate, Failed, Measured, Space

_LAST: Final = 8  # answers that a terminal shows


class TuneView(Protocol):
    """Is told what happens. `left_s`: what is left of the budget."""

    def note(self, text: str) -> None:
        """A line that stays."""

    def asks(self, ask: Ask, left_s: float) -> None:
        """This candidate is measured from now on."""

    def answers(self, ask: Ask, answer: Answer, *, recalled: bool, left_s: float) -> None:
        """It has been; `recalled`: long ago, and the record told."""

    def racing(self, text: str, left_s: float) -> None:
        """From now on something other than profiles takes the time."""


@contextmanager
def open_tune_view(name: ViewName, title: str, space: Space, budget_s: float) -> Iterator[TuneView]:
    """The view `name`; "auto" is live in a terminal and plain elsewhere."""
    if name == "none":
        yield _Silent()
    elif is_live(name):
        view = _LiveView(title, space, budget_s)
        with drawn(view):
            yield view
    else:
        yield _PlainView(title, space, budget_s)


class _Silent:
    def note(self, text: str) -> None:
        pass

    def asks(self, ask: Ask, left_s: float) -> None:
        pass

    def answers(self, ask: Ask, answer: Answer, *, recalled: bool, left_s: float) -> None:
        pass

    def racing(self, text: str, left_s: float) -> None:
        pass


class _Told:
    """What has been told so far."""

    def __init__(self, title: str, space: Space, budget_s: float) -> None:
        self.title, self.space, self.budget_s = title, space, budget_s
        self.profiles: list[tuple[Ask, Answer]] = []
        self._rows = [its[0].row for its in space.rows]

    def text(self, candidate: Candidate) -> str:
        """A candidate, told from the others of the space."""
        return candidate_text(candidate, self._rows)

    def counts(self) -> str:
        """How many have been tried."""
        found = findings_of(self.profiles)
        failed = f", {len(found.failures)} failed" if found.failures else ""
        return f"{found.tried} of {counted(self.space.size, 'candidate')} tried{failed}"

    def best(self) -> str:
        """The fastest so far, by all its measurements."""
        found = findings_of(self.profiles).fastest
        if found is None:
            return "nothing measured yet"
        its = found.measured
        speed = f"{its.steps_per_s:,.0f} steps/s ± {100 * its.error:.1f} %"
        return f"{self.text(found.candidate)}: {speed}"


def answer_text(answer: Answer) -> str:
    """An answer on a line."""
    if isinstance(answer, Measured):
        return f"{answer.steps_per_s:>11,.0f} steps/s ± {100 * answer.error:.1f} %"
    if isinstance(answer, Failed):
        return f"{'failed':>11} ({answer.reason}): {answer.text}"
    return f"{'-':>11} the budget is used up"


class _PlainView:
    """A line for every answer."""

    def __init__(self, title: str, space: Space, budget_s: float) -> None:
        self._told = _Told(title, space, budget_s)
        self._width = max(len(self._told.text(c)) for its in space.rows for c in its)
        self.note(f"{title}: {counted(space.size, 'candidate')}, {duration(budget_s)} to spend")

    def note(self, text: str) -> None:
        with suppress(OSError):  # nobody reads any more: the record is worth more than its screen
            print(text, flush=True)

    def asks(self, ask: Ask, left_s: float) -> None:
        pass  # its answer is a line soon enough

    def answers(self, ask: Ask, answer: Answer, *, recalled: bool, left_s: float) -> None:
        told = self._told
        before = told.best()
        told.profiles.append((ask, answer))
        new = "  best so far" if told.best() != before and isinstance(answer, Measured) else ""
        rest = "on record" if recalled else f"{duration(max(0.0, left_s))} left"
        self.note(
            f"{len(told.profiles):4d}  {told.text(ask.candidate):<{self._width}}  "
            f"{answer_text(answer)}  {rest}{new}"
        )

    def racing(self, text: str, left_s: float) -> None:
        self.note(f"{text}  {duration(max(0.0, left_s))} left")


class _LiveView:
    """The latest answers, the best, what is measured now, and a bar of the budget."""

    def __init__(self, title: str, space: Space, budget_s: float) -> None:
        self._told = _Told(title, space, budget_s)
        self._now, self._since_s, self._left_s = "", time.monotonic(), budget_s
        self.console = Console()

    def note(self, text: str) -> None:
        with suppress(OSError):  # as above
            self.console.print(Text(text))  # it stays above what is redrawn

    def asks(self, ask: Ask, left_s: float) -> None:
        self._begin(self._told.text(ask.candidate), left_s)

    def answers(self, ask: Ask, answer: Answer, *, recalled: bool, left_s: float) -> None:
        self._told.profiles.append((ask, answer))
        self._begin("", left_s)

    def racing(self, text: str, left_s: float) -> None:
        self._begin(text, left_s)

    def _begin(self, what: str, left_s: float) -> None:
        self._now, self._since_s, self._left_s = what, time.monotonic(), left_s

    def render(self) -> Group:
        """The present state as something rich can draw."""
        told, since_s = self._told, time.monotonic() - self._since_s
        left_s = min(max(0.0, self._left_s - since_s), told.budget_s)
        table = Table(title=escape(told.title), title_justify="left")
        for column in ("setting", "measured"):
            table.add_column(column, overflow="fold")
        for ask, answer in told.profiles[-_LAST:]:
            style = "red" if isinstance(answer, Failed) else ""
            table.add_row(told.text(ask.candidate), Text(answer_text(answer).strip(), style))
        lines = Table.grid(padding=(0, 2))
        for name, text in (
            ("now", f"{self._now or '...'}   {duration(since_s)}"),
            ("best", told.best()),
            ("so far", told.counts()),
            ("left", f"{duration(left_s)} of {duration(told.budget_s)}"),
        ):
            lines.add_row(name, Text(text))
        bar = ProgressBar(
            total=told.budget_s, completed=told.budget_s - left_s, width=min(60, self.console.width)
        )
        return Group(*([table] if told.profiles else [Text(told.title)]), lines, bar)
