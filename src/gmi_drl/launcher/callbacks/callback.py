"""Declares callbacks: what follows a run from its start to its end, in the launcher's process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from gmi_drl.launcher.start.result import RunResult
    from gmi_drl.placement import Config, Layout


@dataclass(frozen=True)
class StartedRun:
    """Describes the run that a callback follows."""

    folder: Path
    config: Config
    layout: Layout
    is_resumed: bool
    # Ends it after the iteration in flight, with a checkpoint, as Ctrl-C does; the text says why.
    request_stop: Callable[[str], None]


@dataclass(frozen=True)
class EndedRun:
    """Says how a launch ended. `result` is there unless it failed or was ended at once."""

    state: str  # finished, stopped or failed
    error: str = ""
    result: RunResult | None = None


class Callback:
    """Does nothing at any event; derive from it, or write any of these methods in any class.

    All are called by the launcher, one after the other, in the order of callbacks: while one works,
    the GMIs go on, and nothing is shown. What they raise is told, and the run goes on, unless
    `run.callback_errors` says fail. What has raised in `on_start` is not called again.
    """

    # Of loggers: iterations that `run.log_every` leaves out are not told, but for the last one.
    only_logged: ClassVar[bool] = False

    def on_start(self, run: StartedRun) -> None:
        """Is called once in a launch, before a GMI is started."""

    def on_iteration(self, iteration: int, metrics: Mapping[str, Any]) -> None:
        """Is called for each iteration that was reported, with what metrics.jsonl has of it.

        When training goes back to an earlier state, as a GMI died, iterations come again.
        """

    def on_checkpoint(self, path: Path) -> None:
        """Is called when a checkpoint is whole. The run keeps the last three."""

    def on_end(self, end: EndedRun) -> None:
        """Is called once, when all is over and written down, however it ended."""


def scalars(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Returns the numbers among metrics, without that of the iteration."""
    return {
        key: value
        for key, value in metrics.items()
        if isinstance(value, (int, float)) and key != "iteration"
    }
