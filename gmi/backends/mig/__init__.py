"""The backend mig gives a GMI a MIG instance: SMs, memory and caches of its own, by the hardware.

Existing instances are used; missing ones of the layout are made, and destroyed afterwards. A lease
notes each step first, so that the next run undoes what a killed launcher has left. There is
no CUDA IPC between instances.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from gmi_drl.gmi import cuda_driver
from gmi_drl.gmi.backends.backend import Slices
from gmi_drl.gmi.backends.cpu import verify_cores
from gmi_drl.gmi.backends.gpu import (
    GpuBackend,
    gpu_environment,
    uuid_of,
    verify_device,
    verify_outside_mps,
)
from gmi_drl.gmi.errors import GmiError, SliceError
from gmi_drl.gmi.lease import Lease, LeaseNotes
from gmi_drl.placement.mig import commands_for, whole_instances

from .mig_gpu import GpuInstance, MigError, MigGpu, retry_while_in_use

if TYPE_CHECKING:
    from gmi_drl.placement.layout import GmiSpec, MigSlice
    from gmi_drl.placement.topology import Device, MigInstance, Topology

_LEAST_PART: Final = 0.85  # CUDA's figure of memory over NVML's, at least: the driver takes some
IN_USE_TIMEOUT: Final = timedelta(seconds=10)  # for processes that still hold an instance
INSTANCE: Final = "GMI_DRL_MIG"  # in a GMI's environment: "uuid sm_count mem_bytes" of its instance


class MigBackend(GpuBackend):
    """Gives each GMI a MIG instance, which it sees as a GPU."""

    uses_mig = True

    def prepare(self, gmis: Sequence[GmiSpec], topology: Topology) -> MigSlices:
        return MigSlices(gmis, topology)

    def verify(self, spec: GmiSpec, device: Device) -> None:
        """Raises SliceError unless CUDA sees the GMI's instance alone, with its SMs and memory."""
        verify_cores(spec)
        expected = os.environ.get(INSTANCE, "").split()
        if len(expected) != 3:
            raise SliceError(
                f"GmiSpec {spec.gmi_id}: {INSTANCE} is not in the environment, where the launcher "
                "puts it. Something clears the environment of processes: let it pass."
            )
        uuid, sm_count, mem_bytes = expected[0], int(expected[1]), int(expected[2])
        verify_device(spec, uuid)
        verify_outside_mps(spec)
        seen_sms, seen_bytes = cuda_driver.sm_count(), cuda_driver.total_mem_bytes()
        prefix = f"GmiSpec {spec.gmi_id}: MIG device {uuid}"
        if sm_count and seen_sms != sm_count:
            raise SliceError(
                f"{prefix}: {sm_count} SMs; CUDA sees {seen_sms}. The instance was changed "
                "since it was looked at: launch again."
            )
        if seen_bytes < mem_bytes * _LEAST_PART:
            raise SliceError(
                f"{prefix}: {mem_bytes} bytes of memory; CUDA sees {seen_bytes}. The instance was "
                "changed since it was looked at: launch again."
            )

    def undo(self, lease: LeaseNotes) -> bool:
        return undo_notes(list(enumerate(lease.notes)), lease.same_boot, lambda number: None)

    def why_not_on(self, device: Device, allow_create: bool = False) -> str:
        name = f"GPU {device.index} ({device.name})"
        if device.mig_mode is None:
            return f"{name} is of a kind without MIG"
        if device.mig or allow_create:
            return ""
        mode = "MIG mode is on" if device.mig_mode else "MIG mode is off"
        return f"{name} has no MIG instance ({mode}); hardware.allow_create: true makes them"

    def idle_part(self, topology: Topology) -> tuple[Topology, list[int]]:
        devices, busy = [], []
        for device in topology.devices:
            if whole_instances(device):
                device = dataclasses.replace(device, mig=_idle_instances(device))
                busy += [] if device.mig else [device.index]
            devices.append(device)
        return dataclasses.replace(topology, devices=tuple(devices)), busy


def _idle_instances(device: Device) -> tuple[MigInstance, ...]:
    """Returns the instances of `device` without processes or other runs' notes.

    Runs of other users are seen only by their processes. GmiError without a driver.
    """
    assert device.uuid is not None
    with contextlib.closing(Lease("mig")) as lease, MigGpu.open(device.uuid) as gpu:
        notes = [note for other in lease.others() for note in other.notes]
        noted = {
            note.get(key)
            for note in notes
            for key in ("uses", "start")
            if note.get("gpu") == gpu.uuid
        }
        return tuple(
            item
            for item in whole_instances(device)
            if item.start not in noted and gpu.has_device(item.uuid) and not gpu.pids(item.uuid)
        )


def undo_notes(
    notes: Iterable[tuple[int, dict[str, Any]]], same_boot: bool, done: Callable[[int], None]
) -> bool:
    """Undoes notes, the last first, and calls `done` with each number; whether any had effect.

    After a failure, raised at the end, no more is undone on that GPU: MIG mode outlasts instances.
    """
    failures: dict[str, GmiError] = {}
    undone = False
    for number, note in sorted(notes, key=lambda item: item[0], reverse=True):
        if note["gpu"] in failures:
            continue
        try:
            undone = _undo_one(note, same_boot) or undone
        except GmiError as error:
            if not same_boot and isinstance(error, MigError) and error.code == "NOT_FOUND":
                done(number)  # the GPU was removed
                continue
            failures[note["gpu"]] = error
        else:
            done(number)
    for failure in failures.values():
        raise failure
    return undone


def _undo_one(note: dict[str, Any], same_boot: bool) -> bool:
    """Undoes a noted step if it was taken and nobody has changed it; returns whether so."""
    if "uses" in note:
        return False
    undone = False
    with MigGpu.open(note["gpu"]) as gpu:
        is_on, will_be = gpu.mode()
        instances = gpu.instances() if is_on else []
        if "mode" in note:
            if (is_on or will_be) and not instances:  # somebody else uses it if it has instances
                retry_while_in_use(IN_USE_TIMEOUT, functools.partial(gpu.switch, False))
                undone = True
        elif same_boot:  # no instance outlives the driver
            for instance in instances:
                if _is_ours(gpu, instance, note):
                    gpu.destroy(instance, IN_USE_TIMEOUT)
                    undone = True
    return undone


def _is_ours(gpu: MigGpu, instance: GpuInstance, note: dict[str, Any]) -> bool:
    if (instance.profile_id, instance.start) != (note["profile_id"], note["start"]):
        return False
    if "instance" in note:
        return bool(instance.id == note["instance"])
    return not gpu.is_filled(instance)  # killed before it noted the id, so it was never filled


class MigSlices(Slices):
    """Holds the instances of some GMIs of a run; makes those that do not exist (as root).

    `check` allows a layout to name those only with hardware.allow_create. GmiError undoes all.
    """

    def __init__(self, gmis: Sequence[GmiSpec], topology: Topology) -> None:
        self._lease = Lease("mig")
        self._noted: dict[int, dict[str, Any]] = {}
        self._instances: dict[int, MigInstance] = {}
        try:
            for device in topology.devices:
                if specs := [gmi for gmi in gmis if gmi.gpu_id == device.index]:
                    self._take(device, specs)
        except BaseException as error:
            try:
                self.release()
            except GmiError as release_error:
                error.add_note(f"and not all of it could be undone: {release_error}")
            raise

    def _take(self, device: Device, gmis: Sequence[GmiSpec]) -> None:
        """Finds or makes the instances of a device's GMIs."""
        mig_slices = _mig_slices(gmis)
        existing = {(entry.profile, entry.start): entry for entry in whole_instances(device)}
        missing = []
        with MigGpu.open(uuid_of(gmis[0])) as mig_gpu:
            for gmi, mig_slice in zip(gmis, mig_slices, strict=True):
                if instance := existing.get((mig_slice.profile, mig_slice.start)):
                    self._use(mig_gpu, gmi, instance)
                else:
                    missing.append((gmi, mig_slice))
            try:
                self._make(mig_gpu, device, missing)
            except MigError as error:
                if error.code != "NO_PERMISSION":
                    raise
                commands = "\n".join(f"  {line}" for line in commands_for(device, mig_slices))
                raise GmiError(f"{error} The commands:\n{commands}") from error

    def environment(self, spec: GmiSpec) -> dict[str, str]:
        """Returns the variables for one MIG device, outside any MPS daemon, and for `verify`.

        A MIG device is named by its own UUID; the GPU's would show its first instance.
        """
        instance = self._instances[spec.gmi_id]
        expected = f"{instance.uuid} {instance.sm_count or 0} {instance.mem_bytes}"
        return {**gpu_environment(spec, instance.uuid), INSTANCE: expected}

    def release(self) -> None:
        """Destroys what was made, the last first; GmiError for instances in use for over 10 s."""
        if self._lease.closed:
            return
        try:
            undo_notes(list(self._noted.items()), True, self._strike)
        finally:
            self._lease.close()

    def _use(self, mig_gpu: MigGpu, gmi: GmiSpec, instance: MigInstance) -> None:
        """Takes an existing instance, unless it is in use."""
        text = _instance_text(gmi)
        if not mig_gpu.has_device(instance.uuid):
            raise GmiError(f"{text} is gone since the devices were looked at. Launch again.")
        self._note({"gpu": mig_gpu.uuid, "uses": instance.start})
        self._refuse_if_noted(gmi, mig_gpu.uuid, instance.start)
        if pids := mig_gpu.pids(instance.uuid):
            raise GmiError(
                f"{text} is in use by process {', '.join(map(str, pids))}. End it, or use fewer "
                "GMIs."
            )
        self._give(gmi, instance)

    def _make(
        self, mig_gpu: MigGpu, device: Device, gmis: Sequence[tuple[GmiSpec, MigSlice]]
    ) -> None:
        """Makes missing instances, and switches MIG mode on before if it is off."""
        switched = {"gpu": mig_gpu.uuid, "mode": True}
        if not gmis:
            return
        if mig_gpu.mode()[0]:
            # Another run has switched it on; the last of the runs switches it off.
            if any(switched in lease.notes for lease in self._lease.others()):
                self._note(switched)
        else:
            if pids := mig_gpu.pids():
                raise GmiError(
                    f"GPU {device.index}: MIG mode is off, and cannot be switched on while process "
                    f"{', '.join(map(str, pids))} holds the GPU. End it, or use backend mps."
                )
            self._note(switched)
            mig_gpu.switch(True)
        for gmi, mig_slice in gmis:
            profile_id = mig_gpu.profile_id(mig_slice, device)
            step = {"gpu": mig_gpu.uuid, "profile_id": profile_id, "start": mig_slice.start}
            number = self._note(step)
            try:
                self._refuse_if_noted(gmi, mig_gpu.uuid, mig_slice.start)
                instance_id = mig_gpu.make(profile_id, mig_slice.start)
            except GmiError:
                self._strike(number)  # it was not made, so an instance at this place is not ours
                raise
            # The id is noted before the instance is filled, so that a filled instance is never
            # taken for ours by its place alone.
            self._note({**step, "instance": instance_id})
            self._strike(number)
            self._give(gmi, mig_gpu.fill(instance_id, device))

    def _refuse_if_noted(self, gmi: GmiSpec, gpu_uuid: str, start: int) -> None:
        """Raises GmiError if another run has noted the instance at this place."""
        for lease in self._lease.others():
            for note in lease.notes:
                if note.get("gpu") == gpu_uuid and start in (note.get("uses"), note.get("start")):
                    raise GmiError(
                        f"{_instance_text(gmi)} is another run's (its notes: {lease.directory}). "
                        "Wait for it to end, or use fewer GMIs."
                    )

    def _give(self, gmi: GmiSpec, instance: MigInstance) -> None:
        if (gmi.mem_bytes or 0) > instance.mem_bytes:
            raise GmiError(
                f"GmiSpec {gmi.gmi_id}: mem_bytes={gmi.mem_bytes}; {instance.profile} has "
                f"{instance.mem_bytes} here. Use a larger profile, or ask for less."
            )
        self._instances[gmi.gmi_id] = instance

    def _note(self, note: dict[str, Any]) -> int:
        number = self._lease.note(note)
        self._noted[number] = note
        return number

    def _strike(self, number: int) -> None:
        self._lease.undone(number)
        del self._noted[number]


def _mig_slices(gmis: Sequence[GmiSpec]) -> list[MigSlice]:
    """Returns the instances of the GMIs, in order; SliceError unless each has its own."""
    owners: dict[MigSlice, int] = {}
    for gmi in gmis:
        if gmi.mig is None:
            raise SliceError(
                f"GmiSpec {gmi.gmi_id}: backend mig without mig. Name the instance (profile and "
                "start), or let the layout be made from a template."
            )
        owner = owners.setdefault(gmi.mig, gmi.gmi_id)
        if owner != gmi.gmi_id:
            raise SliceError(
                f"{_instance_text(gmi)} is GMI {owner}'s too. Give each an instance of its own."
            )
    return list(owners)


def _instance_text(gmi: GmiSpec) -> str:
    text = f"{gmi.mig.profile} at {gmi.mig.start}" if gmi.mig else "without a place"
    return f"GmiSpec {gmi.gmi_id}: MIG instance {text} of GPU {gmi.gpu_id}"
