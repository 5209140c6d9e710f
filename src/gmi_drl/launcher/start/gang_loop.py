"""Watches a gang until its GMIs are done, and shows what they report."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from gmi_drl import runtime
from gmi_drl.gmi import Gang
from gmi_drl.launcher.hosts.messages import SILENCE_S
from gmi_drl.launcher.interrupts import every_signal_counts
from gmi_drl.launcher.view.view import RunView, is_for_view
from gmi_drl.launcher.watch.iteration_times import IterationTimes
from gmi_drl.launcher.watch.policy_log import PolicyLog
from gmi_drl.launcher.watch.records import ServingMetrics
from gmi_drl.launcher.watch.watch import Watch
from gmi_drl.launcher.watch.watchdog import Restarts, Watchdog
from gmi_drl.roles.role.job import Job
from gmi_drl.roles.role.readiness import Start

from .resizer import Resizer

_POLL = timedelta(milliseconds=100)


def warn(screen: RunView, text: str) -> None:
    screen.show({"kind": "warning", "message": text})


def train_until_done(job: Job, reports: Reports, restarts: Restarts, resizer: Resizer) -> bool:
    """Shows records until every GMI is done; True if it was asked to stop before that.

    A resize lets the iteration in flight end, too, however long that takes.

    Before all GMIs are set up there is nothing to save, and Ctrl-C (or SIGTERM, or a closed
    terminal) ends everything. After that the first lets the iteration in flight end and a
    checkpoint be written; the second, or a role that does not end in time, ends everything.
    """
    asked_s: float | None = None
    grace_s = 0.0
    gang, screen, times = reports.gang, reports.screen, reports.iteration_times
    start = Start(job.tally.open(), job.layout)
    watchdog = Watchdog(gang, job.tally.open(), job.config.run.hang_timeout_s)
    gang.start("run")
    with every_signal_counts():
        while True:
            try:
                done = gang.wait(_POLL)
                if start.look():
                    times.begin()
                watchdog.look()
                reports.show(done)
                for watch in reports.watches:
                    watch.tick(gang)
                for message in restarts.news():
                    warn(screen, message)
                if asked_s is None and (message := resizer.lose(gang, times.grace_s())):
                    warn(screen, message)
                    done = False  # the survivors are told, and then answer
                resizer.name_heir()
                if start.look() and not done and asked_s is None and resizer.look():
                    gang.request_stop()
                if done:
                    return asked_s is not None
                if asked_s is not None and time.monotonic() - asked_s > grace_s:
                    raise KeyboardInterrupt  # a role that does not ask stop_requested()
            except KeyboardInterrupt:
                if asked_s is not None or gang.is_stopped:
                    raise
                if not start.look():
                    gang.request_stop()  # or leaving the gang would wait for them
                    raise
                asked_s, grace_s = time.monotonic(), times.grace_s()
                if job.layout.hosts > 1:
                    grace_s += SILENCE_S  # a host may be lost meanwhile
                resizer.give_up("the run was stopped")
                gang.request_stop()
                message = f"stopping after this iteration, in {grace_s:.0f} s at the latest"
                warn(screen, f"{message}; once more stops at once")


def _take_records(gang: Gang) -> list[tuple[int, Any]]:
    """Returns what GMIs have reported since the last call."""
    try:
        return gang.records()
    except runtime.SerializationError as error:  # of one record; the others come next time
        return [(0, {"kind": "warning", "message": str(error)})]


@contextmanager
def keeping_lineage(gang: Gang, policies: PolicyLog) -> Iterator[Gang]:
    """Yields the gang; records all lineage that it has reported once it has ended."""
    try:
        with gang:
            yield gang
    finally:
        for _, record in _take_records(gang):
            if isinstance(record, dict):
                policies.show(record)
        policies.flush()


@dataclass
class Reports:
    """Shows what the GMIs of a gang report, and keeps the last iteration in `last`."""

    gang: Gang
    screen: RunView
    serving: ServingMetrics
    watches: Sequence[Watch]
    last: dict[str, Any]
    iteration_times: IterationTimes = field(default_factory=IterationTimes)

    def show(self, done: bool = False) -> None:
        """Shows what has come since the last call; `done`: nothing more comes of serving."""
        records = [
            record
            for _, report in _take_records(self.gang)
            for record in (report, self.serving.take(report))
            if record is not None
        ]
        if done:
            records.append(self.serving.line())
        for record in records:
            for watch in self.watches if isinstance(record, dict) else ():
                watch.show(record)
            if is_for_view(record):
                if record["kind"] == "iteration":
                    self.iteration_times.note()
                    self.last.clear()
                    self.last.update(record)
                self.screen.show(record)
