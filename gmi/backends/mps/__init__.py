"""The backend mps makes GMIs clients of an MPS server: they compute at once, each on some SMs.

Each GPU of a run has a daemon of its own, in a private directory; launches that share a GPU have
one together. A fault on one GPU does not reach another's clients, and the machine's own daemon is
left alone. The share is a cap; where a GPU's shares are nearly whole chunks and the daemon knows
static partitions (CUDA 13.1), it is a partition that nobody else computes on. The GPU's compute
mode is not changed. Source: NVIDIA's MPS guide.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gmi_drl import runtime
from gmi_drl.gmi import cuda_driver, lease
from gmi_drl.gmi.backends.backend import Slices, System
from gmi_drl.gmi.backends.cpu import verify_cores
from gmi_drl.gmi.backends.gpu import GpuBackend, gpu_environment, uuid_of, verify_device
from gmi_drl.gmi.errors import SliceError
from gmi_drl.gmi.lease import Lease, LeaseNotes, read_notes
from gmi_drl.placement.slicing import groups_of

from .control import IN_CONTAINERS, Daemon, MpsError, log_tail, missing_programs

if TYPE_CHECKING:
    from gmi_drl.placement.layout import GmiSpec
    from gmi_drl.placement.topology import Device, Topology

_VOLTA: Final = (7, 0)  # before it MPS limits nothing, and isolates no fault (MPS guide)
_FENCE: Final = timedelta(seconds=3)
_AGAIN: Final = timedelta(seconds=0.3)  # for a daemon that has missed its deadline before
_LET_IN: Final = timedelta(seconds=30)  # for a server that starts, or recovers from a fault
_PARTITION: Final = "CUDA_MPS_SM_PARTITION"
_LEASE_VARIABLE: Final = "GMI_DRL_MPS_LEASE"  # the lease's directory of another's daemons
_MEM_LIMIT: Final = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
_MIB: Final = 2**20
# SMs are switched in pairs (TPCs); the guide says that a percentage is rounded to what the hardware
# can do, and not how. A share that is one pair off is accepted; one that is off by up to a group of
# SMs (a GPC's part, or a chunk) is used, with a warning.
_ROUNDING: Final = 2
_MAX_DEVIATION: Final = 8
_STATIC_CUDA: Final = (13, 1)  # the first with the daemon's option -S
# The least part of a share's SMs that a partition, of whole chunks, must have to be used.
_LEAST_PART: Final = 0.9


class MpsBackend(GpuBackend):
    """Makes GMIs clients of one MPS server for each GPU."""

    faults_spread = True  # to every client of the server (MPS guide, error containment)
    kill_can_wedge = True  # (MPS guide, client early termination)
    trial_gmis = 2

    def prepare(self, gmis: Sequence[GmiSpec], topology: Topology) -> MpsSlices:
        return MpsSlices(gmis, topology)

    def verify(self, spec: GmiSpec, device: Device) -> None:
        """Raises SliceError unless CUDA sees the one GPU, as an MPS client, with the share.

        CUDA does not report the limit of memory, so only the variable is checked.
        """
        verify_cores(spec)
        try:
            cuda_driver.start(_LET_IN)
        except cuda_driver.DriverError as error:
            text = f"GmiSpec {spec.gmi_id}: device {spec.device_uuid}: {error}{_daemon_log()}"
            raise SliceError(text) from error
        verify_device(spec, uuid_of(spec))
        if not cuda_driver.mps_enabled():
            # CUDA says nothing when it cannot reach the daemon, and goes on without a share.
            raise SliceError(
                f"GmiSpec {spec.gmi_id}: the process is no MPS client (CUDA_MPS_PIPE_DIRECTORY="
                f"{os.environ.get('CUDA_MPS_PIPE_DIRECTORY')}): no daemon answers there. It has "
                f"died, or a sandbox hides it: use backend direct or green.{_daemon_log()}"
            )
        _verify_share(spec, device, cuda_driver.sm_count())
        if os.environ.get(_MEM_LIMIT) != mem_limit(spec):
            raise SliceError(
                f"GmiSpec {spec.gmi_id}: mem_bytes={spec.mem_bytes}; {_MEM_LIMIT} is "
                f"{os.environ.get(_MEM_LIMIT)}. Something sets it after the GMI was started: "
                "remove it."
            )

    def undo(self, lease: LeaseNotes) -> bool:
        if not lease.same_boot:
            return False
        return any([daemon.stop() for daemon in _daemons_of(lease)])

    def why_not_on(self, device: Device, allow_create: bool = False) -> str:
        if reason := super().why_not_on(device, allow_create):
            return reason
        if device.capability is not None and device.capability < _VOLTA:
            return (
                f"GPU {device.index} ({device.name}) has compute capability "
                f"{'.'.join(map(str, device.capability))}, and MPS limits SMs from 7.0 on"
            )
        return ""

    def why_not_here(self, system: System) -> str:
        if names := system.missing_programs:
            return (
                f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'} not on PATH, nor in "
                f"{IN_CONTAINERS}; they come with the driver's compute utilities, and have to be "
                "let into a container (NVIDIA_DRIVER_CAPABILITIES=compute,utility)"
            )
        return f"MPS is not known to work in {system.sandbox}" if system.sandbox else ""

    def missing_programs(self) -> list[str]:
        return missing_programs()


class Daemons:
    """Runs daemons of this process, one for each GPU, which a lease notes before they start."""

    def __init__(self) -> None:
        self._lease = Lease("mps")
        self.of: dict[str, Daemon] = {}  # by the GPU's UUID
        self._notes: dict[str, int] = {}

    @property
    def environment(self) -> dict[str, str]:
        """Returns the variables by which launchers in other processes join these daemons."""
        return {_LEASE_VARIABLE: str(self._lease.directory)}

    def start(self, uuid: str, chunks: Mapping[int, int] | None = None) -> dict[int, str]:
        """Starts the daemon of a GPU; returns static partitions of these `chunks`, by gmi_id.

        Empty where the driver has no partitions, as its version is not always known before.
        """
        index = len(self._notes)
        self._notes[uuid] = self._lease.note({"device_uuid": uuid, "index": index})
        daemon = self.of[uuid] = Daemon(self._lease.directory, uuid, index)
        if chunks:
            with contextlib.suppress(MpsError):
                daemon.start(static=True)
                return {gmi: daemon.add_partition(count) for gmi, count in chunks.items()}
            daemon.stop()
        daemon.start()
        return {}

    def release(self) -> None:
        """Stops all daemons within 20 s; one that cannot be ended stays noted (MpsError)."""
        if self._lease.closed:
            return
        try:
            with ThreadPoolExecutor(thread_name_prefix="gmi-drl-mps") as pool:
                stops = {uuid: pool.submit(daemon.stop) for uuid, daemon in self.of.items()}
            for uuid, number in list(self._notes.items()):
                if uuid not in stops or stops[uuid].exception() is None:
                    self._lease.undone(number)
                    del self._notes[uuid]
                    self.of.pop(uuid, None)
            for stop in stops.values():
                stop.result()
        finally:
            self._lease.close()


@contextlib.contextmanager
def shared_daemons(uuids: Collection[str]) -> Iterator[dict[str, str]]:
    """Runs a daemon for each of these GPUs; yields the variables by which launches join them.

    Without GPUs it does nothing. It warns of one that does not stop, which the next launch ends.
    """
    if not uuids:
        yield {}
        return
    for swept in lease.sweep():
        if swept.error:
            warnings.warn(f"{swept.lease.directory}: {swept.error}", stacklevel=3)
    daemons = Daemons()
    try:
        for uuid in uuids:
            daemons.start(uuid)
        yield daemons.environment
    finally:
        try:
            daemons.release()
        except MpsError as error:
            warnings.warn(str(error), stacklevel=3)


class JoinedDaemons:
    """Uses daemons of the process that started this launcher, without starting or stopping any."""

    def __init__(self, directory: Path) -> None:
        self.of = {daemon.device_uuid: daemon for daemon in _daemons_of(read_notes(directory))}
        self._directory = directory

    def start(self, uuid: str, chunks: Mapping[int, int] | None = None) -> dict[int, str]:
        """Checks that the daemon is noted; only its owner can make partitions."""
        if uuid not in self.of:
            raise MpsError(
                f"{_LEASE_VARIABLE}={self._directory}; no MPS daemon of GPU {uuid} is noted there. "
                "It is set for launches that share GPUs: unset it."
            )
        return {}

    def release(self) -> None:
        """Does nothing, as the daemons stay."""


def _daemons_of(lease: LeaseNotes) -> list[Daemon]:
    return [Daemon(lease.directory, note["device_uuid"], note["index"]) for note in lease.notes]


class MpsSlices(Slices):
    """Makes GMIs clients of daemons of this run, or of daemons shared with other launches."""

    def __init__(self, gmis: Sequence[GmiSpec], topology: Topology) -> None:
        by_gpu: dict[str, list[GmiSpec]] = {}
        for spec in gmis:
            by_gpu.setdefault(uuid_of(spec), []).append(spec)
        joined = os.environ.get(_LEASE_VARIABLE)
        self._daemons = JoinedDaemons(Path(joined)) if joined else Daemons()
        self._partitions: dict[int, str] = {}  # by gmi_id
        self._late: set[str] = set()  # daemons that did not answer in time
        try:
            for uuid, specs in by_gpu.items():
                chunks = partition(specs, topology.devices[specs[0].gpu_id], topology.cuda)
                self._partitions |= self._daemons.start(uuid, chunks)
        except BaseException:
            with contextlib.suppress(MpsError):  # the first error says more
                self.release()
            raise

    def environment(self, spec: GmiSpec) -> dict[str, str]:
        uuid = uuid_of(spec)
        variables = gpu_environment(spec, uuid) | self._daemons.of[uuid].environment()
        if partition := self._partitions.get(spec.gmi_id):
            variables[_PARTITION] = partition
        else:
            variables["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(spec.sm_percent or 100)
        if limit := mem_limit(spec):
            variables[_MEM_LIMIT] = limit
        return variables

    def fence_all(self, living: Sequence[tuple[GmiSpec, int]]) -> None:
        by_gpu: dict[str, list[int]] = {}
        for spec, pid in living:
            by_gpu.setdefault(uuid_of(spec), []).append(pid)
        with ThreadPoolExecutor(max(1, len(by_gpu)), "gmi-drl-fence") as pool:
            for future in [pool.submit(self._fence, *item) for item in by_gpu.items()]:
                future.result()

    def _fence(self, uuid: str, pids: Sequence[int]) -> None:
        daemon = self._daemons.of[uuid]
        try:
            if uuid in self._late:  # it has been late before, so the next wait is short
                daemon.servers(_AGAIN)
                self._late.discard(uuid)
            daemon.terminate(pids, _FENCE)
        except MpsError:
            self._late.add(uuid)

    def release(self) -> None:
        """Stops the run's own daemons within 20 s; one that cannot be ended stays noted."""
        self._daemons.release()


def _verify_share(spec: GmiSpec, device: Device, sm_count: int) -> None:
    """Raises SliceError if CUDA reports another share; warns if it may be a rounded one."""
    if device.sm_count is None:  # nothing to compare with
        return
    if os.environ.get(_PARTITION):
        expected, tolerance = num_chunks(spec, device) * chunk_sms(device), 0
    else:
        expected, tolerance = _share_sms(spec, device.sm_count), _ROUNDING
    text = (
        f"GmiSpec {spec.gmi_id}: sm_percent={spec.sm_percent}, {expected} of {device.sm_count} "
        f"SMs; CUDA gives {sm_count}."
    )
    if abs(sm_count - expected) > _MAX_DEVIATION:
        raise SliceError(
            f"{text} Something sets another share after the GMI was started, or the daemon's own "
            "is lower: remove CUDA_MPS_ACTIVE_THREAD_PERCENTAGE."
        )
    if abs(sm_count - expected) > tolerance:
        runtime.emit({"kind": "warning", "message": f"{text} That is what it computes on."})


def chunk_sms(device: Device) -> int:
    """Returns the SMs of a static partition's unit (MPS guide: 8 from Hopper on, 4 before)."""
    return 8 if (device.capability or (0, 0)) >= (9, 0) else 4


def num_chunks(spec: GmiSpec, device: Device) -> int:
    """Counts the whole chunks of a GMI's share; 0 where it has no share of SMs."""
    if spec.sm_percent is None or device.sm_count is None or device.capability is None:
        return 0
    return groups_of(spec.sm_percent, device.sm_count // chunk_sms(device))


def partition(
    gmis: Sequence[GmiSpec], device: Device, cuda: tuple[int, int] | None
) -> dict[int, int]:
    """Returns the chunks of the GMIs of one GPU, by gmi_id; none where caps are better.

    Caps are better where shares overlap, or whole chunks are less than 90 % of somebody's share.
    """
    if cuda is not None and cuda < _STATIC_CUDA:
        return {}
    chunks = {spec.gmi_id: num_chunks(spec, device) for spec in gmis}
    sm_percent = sum(spec.sm_percent or 100 for spec in gmis)
    size, sms = chunk_sms(device), device.sm_count or 0
    if sm_percent > 100 or sum(chunks.values()) > sms // size:
        return {}
    if any(chunks[spec.gmi_id] * size < _LEAST_PART * _share_sms(spec, sms) for spec in gmis):
        return {}
    return chunks if all(chunks.values()) else {}


def _share_sms(spec: GmiSpec, sm_count: int) -> int:
    """Returns the SMs that the GMI has under a cap of its share."""
    return sm_count * (spec.sm_percent or 100) // 100


def mem_limit(spec: GmiSpec) -> str | None:
    """Returns CUDA_MPS_PINNED_DEVICE_MEM_LIMIT, in whole MiB of the one device it sees."""
    return None if spec.mem_bytes is None else f"0={max(1, spec.mem_bytes // _MIB)}M"


def _daemon_log() -> str:
    """Returns the last lines of the daemon's log, for errors."""
    tail = log_tail(Path(os.environ.get("CUDA_MPS_LOG_DIRECTORY", "")))
    return f"\n{tail}" if tail else ""
