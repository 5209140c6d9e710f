"""Asks a run to stop, as Ctrl-C in its terminal would."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any, Final

from gmi_drl.errors import GmiDrlError
from gmi_drl.launcher.folder.run_folder import lock_of
from gmi_drl.runtime import shared_lock

_ASKS: Final = (signal.SIGINT, signal.SIGTERM)  # a launch takes either as Ctrl-C


class CannotStop(GmiDrlError):
    """A run is not asked to stop: nobody here trains it, or whoever does cannot be asked."""


def stop(folder: Path, written: dict[str, Any]) -> int:
    """Sends the launcher that trains `folder` what Ctrl-C would; returns its pid.

    `written` is the run's run.json, which names the launcher. It is believed when that process
    holds the lock of the run: a number alone may be another process's by now, or anybody's.
    """
    pid = written.get("pid")
    if written.get("state") != "running" or type(pid) is not int or pid <= 1:
        raise CannotStop(f"{folder} is not being trained, so there is nothing to stop.")
    try:
        process = os.pidfd_open(pid)  # from here on the number stays this process's
    except OSError as error:
        raise CannotStop(
            f"{folder}: its launcher, process {pid}, is gone ({error.strerror}). "
            "`gmi-drl launch --resume` goes on with the run."
        ) from None
    try:
        if pid not in _holders(folder):
            raise CannotStop(
                f"{folder}: process {pid} does not train this run, so it is left alone. The run "
                "may be trained in another container, on another host or by another user: stop it "
                "there."
            )
        signal.pidfd_send_signal(process, _heard_by(pid))
    except PermissionError:
        raise CannotStop(
            f"{folder}: process {pid} is another user's. Stop it as that user."
        ) from None
    except ProcessLookupError:
        raise CannotStop(f"{folder}: process {pid} has ended just now.") from None
    finally:
        os.close(process)
    return pid


def _holders(folder: Path) -> list[int]:
    try:
        return shared_lock.holders(lock_of(folder))
    except OSError:
        return []


def _heard_by(pid: int) -> signal.Signals:
    """Returns the signal that a launcher acts on: a shell's background job ignores Ctrl-C."""
    with open(f"/proc/{pid}/status", encoding="utf-8") as status:
        caught = next((line for line in status if line.startswith("SigCgt:")), "SigCgt: 0")
    mask = int(caught.split()[1], 16)
    for number in _ASKS:
        if mask >> (number - 1) & 1:
            return number
    raise CannotStop(
        f"process {pid} ends at once by any signal, and saves nothing. End it yourself: kill {pid}."
    )
