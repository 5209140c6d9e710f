"""Runs a role in a GMI: joins the group, builds the role, and lets it run.

The launcher names these classes, so nothing heavy is imported at the top.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, ClassVar, Final, TextIO

from gmi_drl import runtime
from gmi_drl.comm.shm import heartbeat
from gmi_drl.gmi import backend_of
from gmi_drl.gmi.faults import leave_if_faulted
from gmi_drl.gmi.usage.memory import DeviceMemory
from gmi_drl.roles.telemetry import phases
from gmi_drl.runtime import shared_lock
from gmi_drl.runtime.process import progress

from . import readiness
from .closing import Closing
from .job import Job

# What became of the segments that a trainer was sent, when the run is over.
FATES: Final = ("trained", "stale", "incomplete", "missing", "repeated", "under_way")
# What every run counts for each of its GMIs; `lives` are the processes that have been it.
COUNTERS: Final = (
    "lives", "set_up", "steps", "sampled", "begun", "sent", "lost", "unsent", "settled", "undone",
    *FATES,
    "mem_peak_bytes", "mem_process_bytes",  # see gmi.memory: `look`, and `process_bytes` at its end
    "sm_count",  # of its slice, as CUDA says
    "refused",  # connections and messages of strangers, at its links to other hosts
    "other_rounds",  # steps that these have made more or fewer: see optimizers.trained_steps
    "bereft",  # written by the launcher: peers are lost for good; HEIR: this one saves the state
    "snapshot",  # what a GMI has to save that leaves lost peers: see `heirs`
    "resizing",  # written by the launcher: it is for a resize that a GMI is asked to stop
    heartbeat.COUNTER,
)  # fmt: skip

_LOGGER: Final = "gmi_drl"
_NUMBER: Final = re.compile(r"\d+")


class GmiHost:
    """The body of one GMI: the actor of its process, or one of several that are threads in one."""

    def __init__(self, gmi_id: int, job: Job) -> None:
        from .role import load_role

        self._gmi_id, self._job = gmi_id, job
        if job.lock is not None:  # as long as this process lives
            with suppress(OSError):  # no locks there: the launcher has said so
                if shared_lock.join(job.lock) is None:
                    raise RuntimeError(f"{job.lock.parent}: another launch has begun to train it.")
        self._closing = Closing(lambda message: _warn(f"gmi {gmi_id}: {message}"))
        folder = job.role_folder
        if folder is not None and str(folder) not in sys.path:  # also of an environment's module
            sys.path.insert(0, str(folder))
        self._role = load_role(job.class_of(gmi_id), folder)
        if threading.current_thread() is threading.main_thread():  # else one GMI of several here
            runtime.set_title(f"gmi {gmi_id} {self._role.__name__}")

    def run(self) -> Any:
        """Builds the role and runs it to its end; returns what GMI_run returns.

        When the process dies the runtime calls this again, in a new one: everything that is needed
        is in the job, and the group knows that this GMI had joined before.
        """
        import torch

        from gmi_drl.comm import Mailbox, solo_group
        from gmi_drl.roles.algorithms import with_settings
        from gmi_drl.roles.policies.trunk import set_matmul_precision
        from gmi_drl.roles.seeds import OTHERS
        from gmi_drl.roles.state.checkpoint import iteration_of

        from .manager import GMI_manager, GmiContext

        job, spec = self._job, self._job.layout.gmi(self._gmi_id)
        config = with_settings(job.config, job.role_folder, job.layout)
        timeout = timedelta(seconds=config.comm.timeout_s)
        on_gpu = job.layout.topology.devices[spec.gpu_id].kind == "gpu"
        device = torch.device("cuda" if on_gpu else "cpu")
        memory = DeviceMemory(job.layout, self._gmi_id, device, _warn)
        tally = job.tally.open()
        lives = tally[self._gmi_id, "lives"]
        tally[self._gmi_id, "lives"] = lives + 1
        pulse = heartbeat.Heartbeat(tally, self._gmi_id)
        progress.bind(pulse)
        tally[self._gmi_id, "sm_count"] = backend_of(spec.backend).sm_count()
        rank = job.rank_of(self._gmi_id)
        if rank is None or job.group is None:  # of no trainer: a group of its own
            group = solo_group(f"gmi {self._gmi_id}")
        else:
            group = job.group.join(rank, timeout)
        mailbox = Mailbox(job.sockets, self._gmi_id, timeout=timeout)
        context = GmiContext(
            self._gmi_id, job.layout, config, group, mailbox, job.folder, job.resume, device,
            job.session, job.wires, tally, lives if rank is None else 0, lives,
            trace=self._trace(on_gpu), memory=memory, private=job.sockets, closing=self._closing,
            heartbeat=pulse, pause=job.pause, epoch=job.epoch,
            resumed=0 if job.resume is None else iteration_of(job.resume),
        )  # fmt: skip
        GMI_manager.bind(context)
        torch.use_deterministic_algorithms(config.run.deterministic)
        set_matmul_precision(config.algorithm.precision, context.device)
        torch.manual_seed(GMI_manager.add_GMI(self._gmi_id).seed(OTHERS))
        exits = False
        try:
            memory.bound()
            role = self._role(self._gmi_id, "+".join(spec.roles), spec.gpu_id)
            params = self._params(spec.roles)
            if not role.says_set_up:
                readiness.say(tally, self._gmi_id)
                pulse.beat("")  # what it does is not known before it says so
            with told_warnings(self._gmi_id):
                return role.GMI_run(**params)
        except SystemExit:  # of an environment: a death, after which this GMI may come back
            exits = True
            raise
        except Exception as error:
            leave_if_faulted(error)
            self._closing.all_briefly()
            if (ran_out := memory.explained(error)) is not None:
                raise ran_out from error
            raise
        finally:
            if context.trace is not None:
                context.trace.close()
            if not exits:
                mailbox.close()
                group.close()  # GMIs that wait for this one learn that it will not come
            GMI_manager.bind(None)
            progress.bind(None)
            with suppress(Exception):  # of a GPU that is lost; why the role ended is to be told
                context.note_memory()
                tally[self._gmi_id, "mem_process_bytes"] = memory.process_bytes()

    def close(self) -> None:
        """Closes what the role has opened; called when the result of `run` is known."""
        self._closing.all()

    def _trace(self, on_gpu: bool) -> phases.Trace | None:
        """Returns the trace of this GMI, or None if it makes none."""
        job = self._job
        if not job.config.run.profile:
            phases.show_to_tools()
        if not job.traced or job.folder is None:
            return None
        path = phases.trace_path(job.folder, self._gmi_id)
        return phases.Trace(path, self._gmi_id, on_gpu, _warn)

    def _params(self, roles: tuple[str, ...]) -> dict[str, Any]:
        sections = self._job.config.roles
        given = [sections[role].params for role in roles if role in sections]
        return {name: value for params in given for name, value in params.items()}


class _WarningHandler(logging.StreamHandler[TextIO]):
    """Tells what one GMI logs, and not what GMIs log that are other threads of its process."""

    gmis: ClassVar[set[int]] = set()  # the threads of this process that are GMIs

    def __init__(self, gmi_id: int) -> None:
        super().__init__(sys.stderr)  # the GMI's log
        self.setLevel(logging.WARNING)
        self._gmi_id, self.thread = gmi_id, threading.get_ident()
        self._told: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread in self.gmis - {self.thread}:
            return
        super().emit(record)
        text = record.getMessage()
        if (pattern := _NUMBER.sub("#", text)) not in self._told:  # counts go up
            self._told.add(pattern)
            _warn(f"gmi {self._gmi_id}: {text}")


@contextmanager
def told_warnings(gmi_id: int) -> Iterator[None]:
    """Tells the launcher what is logged as `gmi_drl.*` in this block, warnings and worse.

    Of those that differ in numbers alone only the first is told. All of them go to stderr.
    """
    logger, handler = logging.getLogger(_LOGGER), _WarningHandler(gmi_id)
    handler.gmis.add(handler.thread)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.gmis.discard(handler.thread)


def _warn(message: str) -> None:
    runtime.emit({"kind": "warning", "message": message})
