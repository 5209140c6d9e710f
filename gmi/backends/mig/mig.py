"""A GMI as a process in a MIG instance: SMs, memory and caches of its own, split by the hardware.

Instances that exist are used. Those of the layout that do not are made, and destroyed at the end,
with MIG mode as it was before; all that is noted in a lease first, so that the next run destroys
what a killed launcher has left. There is no CUDA IPC between instances.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from gmi_drl.gmi import cuda_driver
from gmi_drl.gmi.backends import cpu, gpu
from gmi_drl.gmi.errors import GmiError, SliceError
from gmi_drl.gmi.lease import Lease
from gmi_drl.placement.mig.instances import commands_for, whole_instances

from .nvml import MigError, MigGpu
from .undo import undo, undo_notes

if TYPE_CHECKING:
    from gmi_drl.placement.layout import GmiSpec, MigSlice
    from gmi_drl.placement.topology import Device, MigInstance, Topology

__all__ = ["FAULTS_SPREAD", "THREADS", "enter", "prepare", "undo", "verify"]  # undo: of leases

THREADS: Final = False
FAULTS_SPREAD: Final = False
LET_FINISH: Final = False

_INSTANCE: Final = "GMI_DRL_MIG"  # for `verify`: "uuid sm_count mem_bytes" of the instance
_SMALLER: Final = 0.85  # what CUDA says of memory against NVML: a part is the driver's own


class MigSlices:
    """The instances of some GMIs of a run. Use `prepare`; it is for one thread."""

    def __init__(self) -> None:
        self._lease = Lease.open("mig")
        self._noted: dict[int, dict[str, Any]] = {}
        self._instances: dict[int, MigInstance] = {}

    def take(self, device: Device, gmis: Sequence[GmiSpec]) -> None:
        """Finds or makes the instances of a device's GMIs. GmiError; then `release`."""
        places = _places(gmis)
        have = {(its.profile, its.start): its for its in whole_instances(device)}
        missing = []
        with MigGpu.open(gpu.uuid_of(gmis[0])) as mig_gpu:
            for gmi, place in zip(gmis, places, strict=True):
                if found := have.get((place.profile, place.start)):
                    self._use(mig_gpu, gmi, found)
                else:
                    missing.append((gmi, place))
            try:
                self._make(mig_gpu, device, missing)
            except MigError as error:
                if error.code != "NO_PERMISSION":
                    raise
                commands = "\n".join(f"  {line}" for line in commands_for(device, places))
                raise GmiError(f"{error} The commands:\n{commands}") from error

    def environment(self, spec: GmiSpec) -> dict[str, str]:
        """The one MIG device it sees, outside any MPS daemon, and what `verify` holds it against.

        A MIG device is seen as a GPU, by its UUID; the GPU's own would show its first instance.
        """
        its = self._instances[spec.gmi_id]
        told = f"{its.uuid} {its.sm_count or 0} {its.mem_bytes}"
        return {**gpu.environment(spec, its.uuid), _INSTANCE: told}

    def fence_all(self, living: Sequence[tuple[GmiSpec, int]]) -> None:
        """Nothing: the end of the process leaves its instance as it was."""

    def release(self) -> None:
        """Destroys what was made, the last first. What is still in use is waited for, 10 s.

        What then remains stays noted for the next run to destroy; GmiError says what it is.
        Calling it again is fine.
        """
        if self._lease.closed:
            return
        try:
            undo_notes(list(self._noted.items()), True, self._strike)
        finally:
            self._lease.close()

    def _use(self, mig_gpu: MigGpu, gmi: GmiSpec, found: MigInstance) -> None:
        """Takes an instance that exists, if nobody else does."""
        what = _words(gmi)
        if not mig_gpu.has_device(found.uuid):
            raise GmiError(f"{what} is gone since the devices were looked at. Launch again.")
        self._note({"gpu": mig_gpu.uuid, "uses": found.start})
        self._refuse_if_noted(gmi, mig_gpu.uuid, found.start)
        if pids := mig_gpu.pids(found.uuid):
            raise GmiError(
                f"{what} is in use by process {_listed(pids)}. End it, or use fewer GMIs."
            )
        self._give(gmi, found)

    def _make(
        self, mig_gpu: MigGpu, device: Device, gmis: Sequence[tuple[GmiSpec, MigSlice]]
    ) -> None:
        """The instances that are missing, and MIG mode before them."""
        switched = {"gpu": mig_gpu.uuid, "mode": True}
        if not gmis:
            return
        if mig_gpu.mode()[0]:
            # By a run that is on: whoever of us is the last switches it off.
            if any(switched in left.notes for left in self._lease.others()):
                self._note(switched)
        else:
            if pids := mig_gpu.pids():
                raise GmiError(
                    f"GPU {device.index}: MIG mode is off, and cannot be switched on while process "
                    f"{_listed(pids)} holds the GPU. End it, or use backend mps."
                )
            self._note(switched)
            mig_gpu.switch(True)
        for gmi, place in gmis:
            profile_id = mig_gpu.profile_id(place, device)
            step = {"gpu": mig_gpu.uuid, "profile_id": profile_id, "start": place.start}
            number = self._note(step)
            try:
                self._refuse_if_noted(gmi, mig_gpu.uuid, place.start)
                made = mig_gpu.make(profile_id, place.start)
            except GmiError:
                self._strike(number)  # not made: what is there is somebody else's
                raise
            # From here on it is known by its id; only then is it given what a process can see, so
            # that an instance with that is never taken for ours by its place alone.
            self._note({**step, "instance": made})
            self._strike(number)
            self._give(gmi, mig_gpu.fill(made, device))

    def _refuse_if_noted(self, gmi: GmiSpec, gpu_uuid: str, start: int) -> None:
        """GmiError if another run has noted the instance at this place as its own."""
        for left in self._lease.others():
            for note in left.notes:
                if note.get("gpu") == gpu_uuid and start in (note.get("uses"), note.get("start")):
                    raise GmiError(
                        f"{_words(gmi)} is another run's (its notes: {left.directory}). Wait for "
                        "it to end, or use fewer GMIs."
                    )

    def _give(self, gmi: GmiSpec, its: MigInstance) -> None:
        if (gmi.mem_bytes or 0) > its.mem_bytes:
            raise GmiError(
                f"GmiSpec {gmi.gmi_id}: mem_bytes={gmi.mem_bytes}; {its.profile} has "
                f"{its.mem_bytes} here. Use a larger profile, or ask for less."
            )
        self._instances[gmi.gmi_id] = its

    def _note(self, what: dict[str, Any]) -> int:
        number = self._lease.note(what)
        self._noted[number] = what
        return number

    def _strike(self, number: int) -> None:
        self._lease.undone(number)
        del self._noted[number]


def prepare(gmis: Sequence[GmiSpec], topology: Topology) -> MigSlices:
    """Finds the instances of the GMIs, and makes those that do not exist (as root).

    The layout says which: `check` lets a layout pass that names others than exist only with
    hardware.allow_create. GmiError has the reason, with all undone that was done.
    """
    slices = MigSlices()
    try:
        for device in topology.devices:
            its = [gmi for gmi in gmis if gmi.gpu_id == device.index]
            if its:
                slices.take(device, its)
    except BaseException as error:
        try:
            slices.release()
        except GmiError as left:
            error.add_note(f"and not all of it could be undone: {left}")
        raise
    return slices


def enter(spec: GmiSpec, device: Device) -> None:
    """Takes the cores; the instance was chosen by the environment."""
    gpu.enter(spec, device)


def verify(spec: GmiSpec, device: Device) -> None:
    """SliceError unless CUDA sees the GMI's instance alone, with its SMs and its memory."""
    cpu.verify(spec, device)
    told = os.environ.get(_INSTANCE, "").split()
    if len(told) != 3:
        raise SliceError(
            f"GmiSpec {spec.gmi_id}: {_INSTANCE} is not in the environment, where the launcher "
            "puts it. Something clears the environment of processes: let it pass."
        )
    uuid, sm_count, mem_bytes = told[0], int(told[1]), int(told[2])
    gpu.verify_device(spec, uuid)
    gpu.verify_outside_mps(spec)
    seen_sms, seen_bytes = cuda_driver.sm_count(), cuda_driver.total_mem_bytes()
    where = f"GmiSpec {spec.gmi_id}: MIG device {uuid}"
    if sm_count and seen_sms != sm_count:
        raise SliceError(
            f"{where}: {sm_count} SMs; CUDA sees {seen_sms}. The instance was changed since it was "
            "looked at: launch again."
        )
    if seen_bytes < mem_bytes * _SMALLER:
        raise SliceError(
            f"{where}: {mem_bytes} bytes of memory; CUDA sees {seen_bytes}. The instance was "
            "changed since it was looked at: launch again."
        )


def sm_count() -> int:
    """See `Backend`."""
    return cuda_driver.sm_count()


def _places(gmis: Sequence[GmiSpec]) -> list[MigSlice]:
    """Where each is, in their order; SliceError unless each has an instance of its own."""
    seen: dict[MigSlice, int] = {}
    for gmi in gmis:
        if gmi.mig is None:
            raise SliceError(
                f"GmiSpec {gmi.gmi_id}: backend mig without mig. Name the instance (profile and "
                "start), or let the layout be made from a template."
            )
        other = seen.setdefault(gmi.mig, gmi.gmi_id)
        if other != gmi.gmi_id:
            raise SliceError(
                f"{_words(gmi)} is GMI {other}'s too. Give each an instance of its own."
            )
    return list(seen)


def _words(gmi: GmiSpec) -> str:
    where = f"{gmi.mig.profile} at {gmi.mig.start}" if gmi.mig else "without a place"
    return f"GmiSpec {gmi.gmi_id}: MIG instance {where} of GPU {gmi.gpu_id}"


def _listed(pids: Sequence[int]) -> str:
    return ", ".join(map(str, pids))
