"""Asks a run to stop, as Ctrl-C in its terminal would, or for a checkpoint."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from gmi_drl.errors import GmiDrlError
from gmi_drl.launcher.folder.run_folder import lock_of
from gmi_drl.roles.state.request import make_request
from gmi_drl.runtime import shared_lock

from .run_reader import RunReader

_ASKS: Final = (signal.SIGINT, signal.SIGTERM)  # a launch takes either as Ctrl-C


class CannotAsk(GmiDrlError):
    """A run is asked for nothing: nobody here trains it, or whoever does cannot be asked."""


def stop(folder: Path, written: dict[str, Any]) -> int:
    """Sends the launcher that trains `folder` what Ctrl-C would; returns its pid.

    `written` is the run's run.json.
    """
    with _launcher(folder, written) as (pid, process):
        signal.pidfd_send_signal(process, _stop_signal_of(pid))
    return pid


def ask_for_checkpoint(folder: Path, written: dict[str, Any]) -> int:
    """Asks for a checkpoint of `folder` at the end of the iteration; returns the launcher's pid.

    `written` is the run's run.json.
    """
    with _launcher(folder, written) as (pid, _):
        reader = RunReader(folder)
        reader.poll()
        if reader.mode == "serving":
            raise CannotAsk(f"{folder} serves a policy, and has nothing to save.")
        try:
            make_request(folder)
        except OSError as error:
            raise CannotAsk(
                f"{folder} cannot be written ({error.strerror}), and a checkpoint is asked for by "
                "a file there. Ask as the user who trains it."
            ) from error
    return pid


@contextmanager
def _launcher(folder: Path, written: dict[str, Any]) -> Iterator[tuple[int, int]]:
    """Gives the pid of the launcher that trains `folder`, and a descriptor of that process.

    run.json names it. It is believed when that process holds the lock of the run: a number alone
    may be another process's by now, or anybody's.
    """
    pid = written.get("pid")
    if written.get("state") != "running" or type(pid) is not int or pid <= 1:
        raise CannotAsk(f"{folder} is not being trained, so there is nobody to ask.")
    try:
        process = os.pidfd_open(pid)  # from here on the number stays this process's
    except OSError as error:
        raise CannotAsk(
            f"{folder}: its launcher, process {pid}, is gone ({error.strerror}). "
            "`gmi-drl launch --resume` goes on with the run."
        ) from None
    try:
        if pid not in _holders(folder):
            raise CannotAsk(
                f"{folder}: process {pid} does not train this run, so it is left alone. The run "
                "may be trained in another container, on another host or by another user: ask "
                "there."
            )
        yield pid, process
    except PermissionError:
        raise CannotAsk(f"{folder}: process {pid} is another user's. Ask as that user.") from None
    except ProcessLookupError:
        raise CannotAsk(f"{folder}: process {pid} has ended just now.") from None
    finally:
        os.close(process)


def _holders(folder: Path) -> list[int]:
    try:
        return shared_lock.holders(lock_of(folder))
    except OSError:
        return []


def _stop_signal_of(pid: int) -> signal.Signals:
    """Returns the signal that a launcher acts on: a shell's background job ignores Ctrl-C."""
    with open(f"/proc/{pid}/status", encoding="utf-8") as status:
        caught = next((line for line in status if line.startswith("SigCgt:")), "SigCgt: 0")
    mask = int(caught.split()[1], 16)
    for number in _ASKS:
        if mask >> (number - 1) & 1:
            return number
    raise CannotAsk(
        f"process {pid} ends at once by any signal, and saves nothing. End it yourself: kill {pid}."
    )
