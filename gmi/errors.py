"""Defines the errors of GMIs, exceptions that can be sent between processes.

RuntimeError
  GmiError
    SliceError      a GMI did not get the slice its GmiSpec says
    GmiDied         a GMI's process ended, or its role raised
    GmiTimeout      (also TimeoutError) a GMI did not answer by the deadline
    DiscoveryError  the GPUs of this machine cannot be used as asked
    DeviceMemoryError  the memory of a GMI's device ran out
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gmi_drl.errors import GmiDrlError
from gmi_drl.placement import counted
from gmi_drl.runtime.errors import exit_text, tail_text

_CALLS: Final = 3  # of each part of a traceback in the text


class GmiError(GmiDrlError, RuntimeError):
    """Base of what `gmi_drl.gmi` raises."""


class SliceError(GmiError):
    """A GMI does not have the cores, threads or device of its GmiSpec: value, rule, remedy."""


class DiscoveryError(GmiError):
    """The devices that were asked for are not there: value, rule, remedy."""

    command_exit_code = 2


@dataclass(eq=False, repr=False)
class DeviceMemoryError(GmiError):
    """The memory of a GMI's device ran out; the text says its share, its peak, and what to lower.

    `share_bytes` is None where it is not known; `peak_bytes` is what its process had held at most.
    """

    gmi_id: int
    share_bytes: int | None
    peak_bytes: int
    text: str

    def __str__(self) -> str:
        return self.text


class GmiTimeout(GmiError, TimeoutError):
    """A GMI did not answer by the deadline; the text names it."""


@dataclass(eq=False, repr=False)
class GmiDied(GmiError):
    """The process of the GMI that went down first ended, or what it ran raised.

    The gang has been stopped because of it. `exit_code` or `signal` says how the process ended;
    both are None when the role raised.
    """

    gmi_id: int
    role: str
    exit_code: int | None = None
    signal: int | None = None
    log_tail: str = ""  # the last 40 lines of its log
    error: str = ""  # the GMI's traceback, or the text of an error that needs none
    others: tuple[int, ...] = ()  # GMIs that went down after it
    stopped: tuple[int, ...] = ()  # GMIs that were stopped because of it
    deaths: tuple[str, ...] = ()  # how its process had ended before each of its restarts
    reason: str = ""  # why something else ended it (it hung, say); `others` had the same fate
    log: str = ""  # the path of its log, if that is kept

    def __str__(self) -> str:
        lines = [f"gmi {self.gmi_id} ({self.role}) "]
        lines[0] += "raised" if self.error else exit_text(self.exit_code, self.signal)
        if self.deaths:
            lines[0] += f" after it was restarted {counted(len(self.deaths), 'time')}"
            lines.append(f"before that it {', '.join(self.deaths)}")
        if self.reason and not self.error:
            lines[0] += f": {self.reason}"
        if self.others and self.reason:
            lines[0] += f"; so did {_gmis(self.others)}"
        elif self.others:
            lines[0] += f", first of all; after it went down: {_gmis(self.others)}"
        if self.stopped:
            lines[0] += f"; stopped because of it: {_gmis(self.stopped)}"
        tail, error = self.log_tail.rstrip(), self.error.rstrip()
        if error:
            lines.append(_last_calls(error))
            # The GMI has logged it, too, and it may be longer than the tail of the log.
            tail = "" if error.endswith(tail) else tail.removesuffix(error)
        if self.log and (tail or error):
            lines.append(f"its log: {self.log}")
        return "\n".join(lines) + (tail_text(tail) if tail or not error else "")


def _last_calls(error: str) -> str:
    """Shortens a traceback to the last calls of each part; the exceptions stay."""
    lines: list[str] = []
    calls: list[list[str]] = []  # of the current part
    for line in [*error.splitlines(), ""]:
        if line.startswith("  File "):
            calls.append([line])
        elif calls and line.startswith("  "):
            calls[-1].append(line)
        else:
            if len(calls) > _CALLS:
                lines.append(f"  ... calls left out: {len(calls) - _CALLS}")
            lines += [part for call in calls[-_CALLS:] for part in call]
            calls = []
            lines.append(line)
    return "\n".join(lines[:-1])


def _gmis(ids: tuple[int, ...]) -> str:
    return ", ".join(f"gmi {gmi_id}" for gmi_id in ids)
