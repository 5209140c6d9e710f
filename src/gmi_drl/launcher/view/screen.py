"""Puts a view before a person: lines that stay, and in a terminal what is drawn again and again."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, Literal, Protocol, TypeVar

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

ViewName = Literal["auto", "live", "plain", "none"]
_BAR: Final = 60  # columns of a bar


class Screen:
    """Shows a view: nowhere, as printed lines, or live in a terminal."""

    def __init__(self, name: ViewName = "none") -> None:
        if name == "auto":
            name = "live" if sys.stdout.isatty() else "plain"
        self.is_live, self._prints = name == "live", name == "plain"
        self.console = Console()

    def note(self, text: str, style: str = "") -> None:
        """Shows a line that stays; in a terminal above what is drawn."""
        with suppress(OSError):  # nobody reads any more: the work is worth more than its screen
            if self.is_live:
                self.console.print(Text(text, style))
            elif self._prints:
                print(text, flush=True)

    def line(self, text: str) -> None:
        """Shows a line of progress; where that is drawn, nothing."""
        if not self.is_live:
            self.note(text)


class Drawn(Protocol):
    """A view that can be drawn."""

    def render(self, width: int) -> Group:
        """Draws how it looks now in so many columns."""


V = TypeVar("V", bound=Drawn)


@contextmanager
def opened(name: ViewName, view_of: Callable[[Screen], V]) -> Iterator[V]:
    """Yields the view on the screen `name`; "auto" is live in a terminal and plain elsewhere.

    A live one is drawn four times a second, and as it is at the end.
    """
    screen = Screen(name)
    view, console = view_of(screen), screen.console
    if not screen.is_live:
        yield view
        return
    live = Live(
        get_renderable=lambda: view.render(console.width), refresh_per_second=4, console=console
    )
    live.start()
    try:
        yield view
    finally:
        with suppress(OSError):  # the terminal may be gone
            live.stop()


def bar(total: float, completed: float, width: int) -> ProgressBar:
    """Returns a bar of progress in a view that is so wide."""
    return ProgressBar(total=total, completed=completed, width=min(_BAR, width))


def duration(seconds: float) -> str:
    """65.2 -> 1:05."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
