"""Runs the command `gmi-drl`: starts the fork server, then the app with its commands."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Final

from gmi_drl.launcher.interrupts import terminate_as_interrupt
from gmi_drl.launcher.view.tables import make_encodable

_COMMANDS: Final = (  # in the order of --help
    "commands",
    "run_commands",
    "trained_commands",
    "tune_commands",
)
_RUNNING: Final = ("launch", "tune", "search")  # those that start GMIs
# Unless by one of these: the first start none, and each of seeds has a launcher of its own.
_NO_GMIS: Final = {"--help", "--show", "--on", "--seeds"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    make_encodable(sys.stdout, sys.stderr)
    try:
        with terminate_as_interrupt(), warnings_without_source(), _fork_server(words):
            from .app import app

            for name in _COMMANDS:
                import_module(f"{__package__}.{name}")
            app(words, prog_name="gmi-drl")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(bool(end.code))
    except KeyboardInterrupt:  # before a command has begun, or after it has ended
        print("interrupted", file=sys.stderr)
        return 130
    return 0


@contextmanager
def warnings_without_source() -> Iterator[None]:
    """Prints each plain UserWarning in this block as its text alone."""
    default_format = warnings.formatwarning

    def text(message: Warning | str, category: type[Warning], *where: Any, **line: Any) -> str:
        if category is UserWarning:
            return f"warning: {message}\n"
        return default_format(message, category, *where, **line)

    warnings.formatwarning = text
    try:
        yield
    finally:
        warnings.formatwarning = default_format


@contextmanager
def _fork_server(words: Sequence[str]) -> Iterator[None]:
    """Starts the fork server, which imports torch while this process does the rest."""
    options = {word.partition("=")[0] for word in words}
    if not words or words[0] not in _RUNNING or options & _NO_GMIS:
        yield
        return
    from gmi_drl import runtime
    from gmi_drl.launcher.start.preload import preload_of

    runtime.init(preload_of(*words))
    try:
        yield
    finally:
        runtime.shutdown()
