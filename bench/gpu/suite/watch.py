"""Watches the runs that the suite's cells launch."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from gmi_drl.gmi import Gang
from gmi_drl.gmi.usage.meter import Meter
from gmi_drl.placement.slicing import memory_share
from gmi_drl.selector.tune.profile.candidate_run import CandidateTimeout, StopRun
from gmi_drl.selector.tune.profile.profiler import ProfileWatch

_NOT_CAPTURED: Final = "not captured"  # in a GMI's log, of work that should be captured
_MEANS: Final = ("predictions_per_s", "policy_lag_mean")


class Listening(ProfileWatch):
    """A profile that collects more than a profile needs; see `more`.

    `folders` has the run's folder as soon as that is known.
    """

    def __init__(
        self, seconds: float, timeout: CandidateTimeout, meter: Meter, folders: Sequence[Path],
        least_s: float,
    ) -> None:  # fmt: skip
        super().__init__(seconds, timeout, meter, least_s)
        self._folders = folders
        self._eager: list[str] = []
        self._asked_at_s = time.monotonic()
        self._first_at_s: float | None = None
        self._lines: list[dict[str, float]] = []
        self._peaks: dict[int, int] = {}  # bytes, by gmi_id
        self._shares: dict[int, int] = {}
        self._sms: list[int] = []

    def show(self, record: dict[str, Any]) -> None:
        """See `Watch`."""
        if record.get("kind") in ("iteration", "served"):
            self._first_at_s = self._first_at_s or time.monotonic()
            self._lines.append({name: record[name] for name in _MEANS if name in record})
            self._sms = [count for count in record.get("gmi_sm_count", ()) if count]
            for gmi_id, peak in enumerate(record.get("gmi_mem_peak_bytes", ())):
                self._peaks[gmi_id] = max(peak, self._peaks.get(gmi_id, 0))
        super().show(record)

    def tick(self, gang: Gang) -> None:
        """See `Watch`."""
        if not self._shares:
            shares = {gmi.gmi_id: memory_share(gang.layout, gmi.gmi_id) for gmi in gang.layout.gmis}
            self._shares = {gmi_id: share.nbytes for gmi_id, share in shares.items() if share}
        try:
            super().tick(gang)
        except StopRun:  # the folder is removed with the run
            self._eager = _not_captured(self._folders)
            raise

    def more(self) -> dict[str, Any]:
        """Returns what it collected: times of the start, means after the first iteration, memory.

        `gmi_mem_bytes` is the largest peak of a GMI, `gmi_mem_share` the largest peak over the
        GMI's own share. `sm_count` is that of each GMI by CUDA. `not_captured` has the messages
        about work that should have been captured.
        """
        fields: dict[str, Any] = {}
        if self._first_at_s is not None:
            fields["first_iteration_s"] = round(self._first_at_s - self._asked_at_s, 3)
        for name in _MEANS:
            if known := [line[name] for line in self._lines if name in line][1:]:
                fields[name] = sum(known) / len(known)
        if peak := max(self._peaks.values(), default=0):
            fields["gmi_mem_bytes"] = peak
        ratios = [self._peaks.get(gmi, 0) / share for gmi, share in self._shares.items() if share]
        if peak and ratios:
            fields["gmi_mem_share"] = round(max(ratios), 4)
        if self._sms:
            fields["sm_count"] = self._sms
        if self._eager:
            fields["not_captured"] = self._eager
        return fields


def _not_captured(folders: Sequence[Path]) -> list[str]:
    """Returns the messages about it in the GMIs' logs, each once."""
    messages: dict[str, None] = {}
    for folder in folders:
        for path in sorted(folder.rglob("gmi*.log")):
            lines = path.read_text(errors="replace").splitlines()
            messages |= dict.fromkeys(line for line in lines if _NOT_CAPTURED in line)
    return list(messages)[:3]


class Following:
    """A `Watch` that lets a run train for some seconds, and keeps its returns."""

    def __init__(self, seconds: float) -> None:
        self.gang: Gang | None = None
        self.points: list[tuple[float, int, float]] = []  # seconds of training, steps, return
        self._seconds, self._over = seconds, False
        self.steps = 0

    def show(self, record: dict[str, Any]) -> None:
        """See `Watch`."""
        if record.get("kind") != "iteration":
            return
        time_s, self.steps = float(record["time_s"]), int(record["steps"])
        if record.get("return_mean") is not None:
            self.points.append((round(time_s, 4), self.steps, float(record["return_mean"])))
        self._over = self._over or time_s >= self._seconds

    def tick(self, gang: Gang) -> None:
        """See `Watch`."""
        self.gang = gang
        if self._over:
            gang.kill()
            raise StopRun
