"""Shows a tune to a person: what is measured now, the best so far, and what time is left."""

from __future__ import annotations

import time
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gmi_drl.launcher.view.tables import table_within
from gmi_drl.launcher.view.view import Screen, bar, duration
from gmi_drl.placement import counted
from gmi_drl.selector.record.results import results_of

from .candidate import Ask, Failed, Measured, Space, candidate_text

_LAST: Final = 8  # answers that a terminal shows


class TuneView:
    """Shows how a tune goes. `left_s`: what is left of the budget."""

    def __init__(self, title: str, space: Space, budget_s: float, screen: Screen) -> None:
        self._screen, self._title, self._space, self._budget_s = screen, title, space, budget_s
        self._profiles: list[tuple[Ask, Measured | Failed]] = []
        self._splits = space.splits
        self._width = max(len(candidate_text(c, self._splits)) for row in space.rows for c in row)
        self._now, self._since_s, self._left_s = "", time.monotonic(), budget_s
        screen.line(f"{title}: {counted(space.size, 'candidate')}, {duration(budget_s)} to spend")

    def note(self, text: str) -> None:
        """Shows a line that stays."""
        self._screen.note(text)

    def asks(self, ask: Ask, left_s: float) -> None:
        """Shows that a candidate is measured from now on."""
        self._begin(candidate_text(ask.candidate, self._splits), left_s)

    def answers(
        self, ask: Ask, answer: Measured | Failed, *, recalled: bool, left_s: float
    ) -> None:
        """Shows that a candidate was measured, or (`recalled`) was on record."""
        old_best = self._best()
        self._profiles.append((ask, answer))
        self._begin("", left_s)
        is_best = isinstance(answer, Measured) and self._best() != old_best
        self._screen.line(
            f"{len(self._profiles):4d}  "
            f"{candidate_text(ask.candidate, self._splits):<{self._width}}  "
            f"{_answer_text(answer)}  "
            f"{'on record' if recalled else f'{duration(max(0.0, left_s))} left'}"
            f"{'  best so far' if is_best else ''}"
        )

    def racing(self, text: str, left_s: float) -> None:
        """Shows that something other than profiles takes the time from now on."""
        self._begin(text, left_s)
        self._screen.line(f"{text}  {duration(max(0.0, left_s))} left")

    def _begin(self, what: str, left_s: float) -> None:
        self._now, self._since_s, self._left_s = what, time.monotonic(), left_s

    def _best(self) -> str:
        """Returns the fastest so far, by all its measurements."""
        fastest = results_of(self._profiles).fastest
        if fastest is None:
            return "nothing measured yet"
        measured = fastest.measured
        speed = f"{measured.steps_per_s:,.0f} steps/s ± {100 * measured.error:.1f} %"
        return f"{candidate_text(fastest.candidate, self._splits)}: {speed}"

    def render(self, width: int) -> Group:
        """Draws the latest answers, the best, what is measured now, and a bar of the budget."""
        budget_s, since_s = self._budget_s, time.monotonic() - self._since_s
        left_s = min(max(0.0, self._left_s - since_s), budget_s)
        rows: list[list[str | Text]] = []
        for ask, answer in self._profiles[-_LAST:]:
            style = "red" if isinstance(answer, Failed) else ""
            setting = candidate_text(ask.candidate, self._splits)
            rows.append([setting, Text(_answer_text(answer).strip(), style)])
        results, lines = results_of(self._profiles), Table.grid(padding=(0, 2))
        failed = f", {len(results.failures)} failed" if results.failures else ""
        for name, text in (
            ("now", f"{self._now or '...'}   {duration(since_s)}"),
            ("best", self._best()),
            (
                "so far",
                f"{results.tried} of {counted(self._space.size, 'candidate')} tried{failed}",
            ),
            ("left", f"{duration(left_s)} of {duration(budget_s)}"),
        ):
            lines.add_row(name, Text(text))
        head: RenderableType = Text(self._title)
        if rows:
            head = table_within(width, self._title, ["setting", "measured"], rows)
        return Group(head, lines, bar(budget_s, budget_s - left_s, width))


def _answer_text(answer: Measured | Failed) -> str:
    if isinstance(answer, Failed):
        return f"{'failed':>11} ({answer.reason}): {answer.text}"
    return f"{answer.steps_per_s:>11,.0f} steps/s ± {100 * answer.error:.1f} %"
