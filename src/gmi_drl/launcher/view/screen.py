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
    """Shows nothing. Base of the others."""

    is_live = False

    def note(self, text: str, style: str = "") -> None:
        """A line that stays."""

    def line(self, text: str) -> None:
        """A line of progress; where that is drawn, nothing."""


class PlainScreen(Screen):
    """Prints lines."""

    def note(self, text: str, style: str = "") -> None:
        with suppress(OSError):  # nobody reads any more: the work is worth more than its screen
            print(text, flush=True)

    def line(self, text: str) -> None:
        self.note(text)


class LiveScreen(Screen):
    """A terminal in which the view is redrawn in place; notes stay above it."""

    is_live = True

    def __init__(self) -> None:
        self.console = Console()

    def note(self, text: str, style: str = "") -> None:
        with suppress(OSError):  # as above
            self.console.print(Text(text, style))


class Drawn(Protocol):
    """A view that can be drawn."""

    def render(self, width: int) -> Group:
        """How it looks now in so many columns."""


V = TypeVar("V", bound=Drawn)


@contextmanager
def opened(name: ViewName, view_of: Callable[[Screen], V]) -> Iterator[V]:
    """The view on the screen `name`; "auto" is live in a terminal and plain elsewhere.

    A live one is drawn four times a second, and as it is at the end.
    """
    if name == "none":
        yield view_of(Screen())
    elif name == "plain" or (name == "auto" and not sys.stdout.isatty()):
        yield view_of(PlainScreen())
    else:
        screen = LiveScreen()
        view, console = view_of(screen), screen.console
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
    """A bar of progress in a view that is so wide."""
    return ProgressBar(total=total, completed=completed, width=min(_BAR, width))


def duration(seconds: float) -> str:
    """65.2 -> 1:05."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
