"""Closes what a GMI opened when its work is done and its result is safe.

An environment's `close` is the user's code, or a simulator's, and may raise, crash or never return.
The launcher has the result before it asks GMIs to close what they opened, and waits for that only
so long (see `gmi_drl.launcher.watch.watchdog`).
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from typing import Final

from gmi_drl.roles.envs.errors import EnvRaised

_BRIEF_S: Final = 5.0  # for what a GMI closes that has raised


class Closing:
    """Holds what is to be closed; `warn` is told what a `close` raised, and the log has all of it.

    An error that several raise, as environments to train and to evaluate in may, is told once.
    """

    def __init__(self, warn: Callable[[str], object] = lambda message: None) -> None:
        self._warn = warn
        self._later: list[Callable[[], object]] = []
        self._told: set[str] = set()

    def later(self, close: Callable[[], object]) -> None:
        """Has `close` called when the GMI's work is done and its result known."""
        self._later.append(close)

    def now(self, close: Callable[[], object]) -> None:
        """Calls `close`, which may raise."""
        try:
            close()
        except Exception as error:
            traceback.print_exc()
            name = getattr(close, "__qualname__", "close")
            text = f"{name} raised {type(error).__name__}: {error}. Nothing is lost by that"
            if isinstance(error, EnvRaised):  # which names the environment
                text = str(error).removesuffix(".")
            if text not in self._told:
                self._told.add(text)
                self._warn(f"{text}; the traceback is in its log")

    def all(self) -> None:
        """Closes everything, the last that was opened first."""
        while self._later:
            self.now(self._later.pop())

    def all_briefly(self) -> None:
        """Closes everything within seconds, as an error has still to be told."""
        if not self._later:
            return
        thread = threading.Thread(target=self.all, name="closing", daemon=True)
        thread.start()
        thread.join(_BRIEF_S)
