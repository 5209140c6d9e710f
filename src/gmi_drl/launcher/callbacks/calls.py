"""Calls the callbacks of a run, and contains what they raise."""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from gmi_drl.errors import GmiDrlError
from gmi_drl.gmi import Gang
from gmi_drl.launcher.view.tables import cut
from gmi_drl.launcher.view.view import is_for_view
from gmi_drl.placement import Config

from .callback import EndedRun, StartedRun

LOG: Final = "callbacks.log"  # in logs/: tracebacks
_MOST_FAILURES: Final = 10  # of one callback, then it is not called any more
_MOST_TEXT: Final = 600  # characters of an error
_SLOW_S: Final = 1.0
_Say = Callable[[str], None]


class CallbackError(GmiDrlError, RuntimeError):
    """Says which callback raised what, where `run.callback_errors` is fail."""


class Callbacks:
    """Tells callbacks of a run; a `Watch` that is shown its records.

    `say` shows a line; lines from before there is a screen are kept for it.
    """

    def __init__(self, callbacks: Sequence[object], folder: Path, config: Config) -> None:
        self._callbacks, self._folder = list(callbacks), folder
        self._fails, self._every = config.run.callback_errors == "fail", config.run.log_every
        self._failures: Counter[tuple[int, str]] = Counter()  # by callback and event
        self._slow: set[int] = set()
        self._unlogged: dict[str, Any] | None = None  # the last iteration, if it was left out
        self._lines: list[str] = []
        self._stop = ""
        self.say: _Say = self._lines.append

    def start(self, run: StartedRun) -> None:
        """Calls `on_start`; a callback that fails is not called again."""
        for index, _ in enumerate(self._callbacks):
            if not self._call(index, "on_start", run):
                self._failures[index, "on_start"] = _MOST_FAILURES

    def show_on(self, say: _Say) -> None:
        """Shows lines by `say` from now on, beginning with those that were kept."""
        self.say = say
        for line in self._lines:
            say(line)
        self._lines.clear()

    def request_stop(self, why: str) -> None:
        """Has the run end as Ctrl-C does, at the next look."""
        self._stop = why or "no reason was given"

    @property
    def asks_to_stop(self) -> bool:
        """Tells whether one has asked for the end of the run."""
        return bool(self._stop)

    def show(self, record: dict[str, Any]) -> None:
        """Calls callbacks for an iteration or a checkpoint; other records are not for them."""
        if record.get("kind") == "checkpoint":
            if isinstance(path := record.get("path"), str):
                self._all("on_checkpoint", Path(path))
        elif record.get("kind") == "iteration" and is_for_view(record):
            metrics = {key: value for key, value in record.items() if key != "kind"}
            logged = record["iteration"] % self._every == 0
            self._unlogged = None if logged else metrics
            self._iteration(metrics, lambda only_logged: logged or not only_logged)

    def tick(self, gang: Gang) -> None:
        """Raises KeyboardInterrupt if a callback asked for the end, which is as Ctrl-C."""
        if self._stop and not gang.asked_to_stop:
            self.say(f"a callback asked for the end: {self._stop}")
            raise KeyboardInterrupt

    def end(self, end: EndedRun) -> None:
        """Calls `on_end`; what a callback raises is raised only if the run did not fail."""
        try:
            if self._unlogged is not None:
                self._iteration(self._unlogged, lambda only_logged: only_logged)
            self._all("on_end", end)
        except CallbackError:
            if end.state != "failed":
                raise
        for index, callback in enumerate(self._callbacks):
            failed = self._failure_count(index)
            if 1 < failed < _MOST_FAILURES:
                self.say(f"callback {_name(callback)} raised {failed} times; see logs/{LOG}")

    def _iteration(self, metrics: dict[str, Any], is_told: Callable[[bool], bool]) -> None:
        for index, callback in enumerate(self._callbacks):
            if is_told(bool(getattr(callback, "only_logged", False))):
                self._call(index, "on_iteration", metrics["iteration"], metrics)

    def _all(self, event: str, *args: object) -> None:
        """Calls all callbacks; then raises Ctrl-C, or else the first fatal failure."""
        failure: CallbackError | None = None
        interrupt: KeyboardInterrupt | None = None
        for index, _ in enumerate(self._callbacks):
            try:
                self._call(index, event, *args)
            except CallbackError as error:
                failure = failure or error
            except KeyboardInterrupt as error:
                interrupt = error
        if interrupt is not None:  # which may end more than this run
            if failure is not None:
                self.say(str(failure))
            raise interrupt
        if failure is not None:
            raise failure

    def _call(self, index: int, event: str, *args: object) -> bool:
        """Calls a callback that has the method and has not failed too often; False if it raises."""
        callback = self._callbacks[index]
        method = getattr(callback, event, None)
        if method is None or self._failure_count(index) >= _MOST_FAILURES:
            return True
        began_s = time.monotonic()
        try:
            method(*args)
        except Exception as error:
            self._failed(index, event, error)
            return False
        took_s = time.monotonic() - began_s
        if took_s > _SLOW_S and event == "on_iteration" and index not in self._slow:
            self._slow.add(index)
            self.say(
                f"callback {_name(callback)}.{event} took {took_s:.1f} s, in which the launcher "
                "shows nothing; the GMIs go on"
            )
        return True

    def _failed(self, index: int, event: str, error: Exception) -> None:
        name = f"callback {_name(self._callbacks[index])}.{event}"
        text = cut(f"{name} raised {type(error).__name__}: {error}".rstrip("."), _MOST_TEXT)
        with suppress(OSError), open(self._folder / "logs" / LOG, "a", encoding="utf-8") as file:
            file.write(f"{name}\n{''.join(traceback.format_exception(error))}\n")
        self._failures[index, event] += 1
        if self._fails:
            raise CallbackError(f"{text} (run.callback_errors=fail; see logs/{LOG})") from error
        if self._failures[index, event] == 1:
            self.say(f"{text}. The run goes on; logs/{LOG} has the traceback")
        if self._failure_count(index) == _MOST_FAILURES:
            who = _name(self._callbacks[index])
            self.say(f"callback {who} raised {_MOST_FAILURES} times and is not called any more")

    def _failure_count(self, index: int) -> int:
        return sum(n for (callback, _), n in self._failures.items() if callback == index)


def _name(callback: object) -> str:
    return type(callback).__name__
