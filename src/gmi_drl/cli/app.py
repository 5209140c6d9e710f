"""Holds what the commands of `gmi-drl` share: the app, exit codes, options, how errors are told.

Exit codes: 0 done; 1 a run that failed, or a check that found faults; 2 a bad config or bad
arguments; 130 ended by Ctrl-C. Nothing heavy is imported before a command needs it.
"""

from __future__ import annotations

import dataclasses
import errno
import functools
import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer
from typer.core import TyperCommand

from gmi_drl import __version__
from gmi_drl.errors import GmiDrlError
from gmi_drl.launcher.view.tables import printable, printable_lines

if TYPE_CHECKING:
    from rich.console import Console

    from gmi_drl.launcher.view.view import ViewName

FAILED: Final = 1
INTERRUPTED: Final = 130
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_PATH: Final = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG)
_SETTING: Final = re.compile(r"[a-z_]+(\.\w+)*=")  # run.total_steps=10

app = typer.Typer(
    help="Deep-RL training on GPU multiplexing instances (GMIs).",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

ConfigFile: TypeAlias = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="A YAML file; see docs/configuration.md.")
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Overrides: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key; may be repeated."),
]
Again: TypeAlias = Annotated[
    bool, typer.Option("--again", help="Begin anew, whatever is on record.")
]
Quiet: TypeAlias = Annotated[bool, typer.Option("--quiet", help="Print errors only.")]
Plain: TypeAlias = Annotated[bool, typer.Option("--plain", help="Print lines, in a terminal too.")]


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"gmi-drl {__version__}")
        raise typer.Exit


@app.callback()
def front(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None: ...


class BadPath(GmiDrlError):
    """A path on the command line cannot be used."""

    command_exit_code = 2


def refuse_no_file(option: str, file: Path) -> None:
    """Raises BadPath where no file can be, before there is anything to write."""
    if not file.absolute().parent.is_dir():
        raise BadPath(f"{option} {file}: its folder is not there. Make it, or give another.")
    if file.is_dir():
        raise BadPath(f"{option} {file}: it is a folder. Give the path of a file.")


def write_file(option: str, file: Path, text: str) -> None:
    """Writes what `option` asked for; BadPath if it cannot."""
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadPath(f"{option} {file}: {error.strerror}. Give another path.") from None


def print_json(value: object) -> None:
    """Prints a value for programs, with dataclasses as objects."""
    print(json.dumps(value, indent=1, default=dataclasses.asdict))


@contextmanager
def status(text: str) -> Iterator[Callable[[str], None]]:
    """Shows a text on standard error while the block runs, if that is a terminal.

    Yields a function that shows another one instead.
    """
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status(text) as shown:
        yield lambda line: shown.update(Text(printable(line)))


def console_for(plain: bool = False) -> Console:
    """Opens where tables go; `plain`: as if it were no terminal."""
    from rich.console import Console

    return Console(force_terminal=False if plain else None)


def view_for(quiet: bool, plain: bool) -> ViewName:
    """Names the view that shows progress."""
    return "none" if quiet else "plain" if plain else "auto"


def command(function: Callable[..., int]) -> Callable[..., int]:
    """Adds a command to the app: a function that returns an exit code, run by `guarded`."""

    @functools.wraps(function)
    def run(**options: Any) -> None:
        raise typer.Exit(guarded(lambda: function(**options)))

    app.command(cls=_Command)(run)
    return function


class _Command(TyperCommand):
    """A command that tells how a setting is given where `--set` was forgotten."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.allow_extra_args = True
        extra: list[str] = super().parse_args(ctx, args)
        takes_settings = any("--set" in parameter.opts for parameter in self.params)
        if takes_settings and (settings := [word for word in extra if _SETTING.match(word)]):
            suggestion = " ".join(f"--set {shlex.quote(word)}" for word in settings)
            ctx.fail(f"{', '.join(settings)}: a setting is given by --set. Write {suggestion}.")
        if extra:
            ctx.fail(f"unexpected: {' '.join(extra)}")
        return extra


def guarded(run: Callable[[], int]) -> int:
    """Returns the exit code of a command; our own errors are told without a traceback.

    Their text may be of a stranger's file, and is made printable.
    """
    try:
        return run()
    except KeyboardInterrupt as interrupt:
        tell("interrupted", interrupt)
        return INTERRUPTED
    except BrokenPipeError:  # `gmi-drl runs | head`
        sys.stderr.close()
        return FAILED
    except OSError as error:
        if error.errno in _NO_PATH and error.filename:
            text = f"{error.filename}: {error.strerror}. Give another path, or see who may use it."
            tell(text, error)
            return BadPath.command_exit_code
        if error.errno not in _NO_ROOM:
            raise
        tell(f"{error.filename or 'a file'} cannot be written ({error.strerror}). Free some "
              "space, or give another folder: --set run.folder=...", error)  # fmt: skip
        return FAILED
    except GmiDrlError as error:  # any other is a fault of this program: its traceback shows where
        tell(error, error)
        return error.command_exit_code


def tell(what: object, error: BaseException) -> None:
    """Prints `what`, and the notes that the error carries, to standard error."""
    for text in (what, *getattr(error, "__notes__", ())):
        print(printable_lines(text), file=sys.stderr)
