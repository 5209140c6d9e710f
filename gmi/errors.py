"""What can go wrong with a GMI, as exceptions that survive the way between processes.

RuntimeError
  GmiError
    SliceError      a GMI did not get the slice its GmiSpec says
    GmiDied         a GMI's process ended, or its role raised
    GmiTimeout      (also TimeoutError) a GMI did not answer by the deadline
    DiscoveryError  the GPUs of this machine cannot be used as asked
    DeviceMemoryError  the memory of a GMI's device ran out
"""

from __future__ import annotations

from typing import Any

from gmi_drl.runtime.errors import exit_text, tail_text


class GmiError(RuntimeError):
    """Base of what `gmi_drl.gmi` raises."""


class SliceError(GmiError):
    """A GMI has not the cores, threads or device that its GmiSpec says: value, rule, remedy."""


class DiscoveryError(GmiError):
    """The devices that were asked for are not there: value, rule, remedy."""


class DeviceMemoryError(GmiError):
    """The memory of a GMI's device ran out; the text says its share, its peak, and what to lower.

    `share_bytes` is None where it is not known; `peak_bytes` is what its process had held at most.
    """

    def __init__(self, gmi_id: int, share_bytes: int | None, peak_bytes: int, text: str) -> None:
        super().__init__(gmi_id, share_bytes, peak_bytes, text)
        self.gmi_id = gmi_id
        self.share_bytes = share_bytes
        self.peak_bytes = peak_bytes
        self.text = text

    def __str__(self) -> str:
        return self.text


class GmiTimeout(GmiError, TimeoutError):
    """A GMI did not answer by the deadline; the text names it."""


class GmiDied(GmiError):
    """A GMI's process ended, or what it ran raised; the gang has been stopped because of it.

    `exit_code` or `signal` says how the process ended; both are None when the role raised, and
    then `error` is the traceback as the GMI saw it, or the text alone of an error that says all
    (whose class has `told_alone`). `log_tail` holds the last 40 lines of its log.
    `first` is the id of the GMI that went down first: this one, unless it was not alone, in which
    case `others` names those that followed. `stopped` are the GMIs stopped because of it. `deaths`
    says how its process had ended before, each time that it was restarted after.
    """

    def __init__(
        self,
        gmi_id: int,
        role: str,
        exit_code: int | None = None,
        signal: int | None = None,
        log_tail: str = "",
        first: int | None = None,
        error: str = "",
        others: tuple[int, ...] = (),
        stopped: tuple[int, ...] = (),
        deaths: tuple[str, ...] = (),
    ) -> None:
        super().__init__(gmi_id, role, exit_code, signal)
        self.gmi_id = gmi_id
        self.role = role
        self.exit_code = exit_code
        self.signal = signal
        self.log_tail = log_tail
        self.first = gmi_id if first is None else first
        self.error = error
        self.others = others
        self.stopped = stopped
        self.deaths = deaths

    def __str__(self) -> str:
        how = "raised" if self.error else exit_text(self.exit_code, self.signal)
        lines = [f"gmi {self.gmi_id} ({self.role}) {how}"]
        if self.deaths:
            times = f"{len(self.deaths)} time{'s' if len(self.deaths) > 1 else ''}"
            lines[0] += f" after it was restarted {times} (it {', '.join(self.deaths)})"
        if self.others:
            lines[0] += f", first of all; after it went down: {_gmis(self.others)}"
        if self.stopped:
            lines[0] += f"; stopped because of it: {_gmis(self.stopped)}"
        tail = self.log_tail.rstrip()
        if error := self.error.rstrip():
            lines.append(error)
            tail = tail.removesuffix(error)  # the GMI has logged it too
            if not tail.strip():
                return "\n".join(lines)
        return "\n".join(lines) + tail_text(tail)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (
            self.gmi_id,
            self.role,
            self.exit_code,
            self.signal,
            self.log_tail,
            self.first,
            self.error,
            self.others,
            self.stopped,
            self.deaths,
        )


def _gmis(ids: tuple[int, ...]) -> str:
    return ", ".join(f"gmi {gmi_id}" for gmi_id in ids)
