"""Finds the MIG instances of a run, makes those that do not exist, and destroys them afterwards.

A lease notes each step first, so that the next run undoes what a killed launcher has left.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from gmi_drl.gmi.backends.gpu import gpu_environment, uuid_of
from gmi_drl.gmi.errors import GmiError, SliceError
from gmi_drl.gmi.lease import Lease
from gmi_drl.placement.mig import commands_for, whole_instances

from .mig_gpu import GpuInstance, MigError, MigGpu, retry_while_in_use

if TYPE_CHECKING:
    from gmi_drl.placement.layout import GmiSpec, MigSlice
    from gmi_drl.placement.topology import Device, MigInstance, Topology


IN_USE_TIMEOUT: Final = timedelta(seconds=10)  # for what still holds an instance that is destroyed


def undo_notes(
    notes: Iterable[tuple[int, dict[str, Any]]], same_boot: bool, done: Callable[[int], None]
) -> bool:
    """Undoes each note, the last first, and calls `done` with its number; whether one needed it.

    After a failure nothing more is done on that GPU: its MIG mode stays while an instance does.
    Raises the first failure, when the other GPUs are done.
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
                done(number)  # the GPU was taken out
                continue
            failures[note["gpu"]] = error
        else:
            done(number)
    for failure in failures.values():
        raise failure
    return undone


def _undo_one(note: dict[str, Any], same_boot: bool) -> bool:
    """Undoes a step that was noted, if it was taken and is still as it was left; whether so."""
    if "uses" in note:
        return False
    undone = False
    with MigGpu.open(note["gpu"]) as gpu:
        now, then = gpu.mode()
        instances = gpu.instances() if now else []
        if "mode" in note:
            if (now or then) and not instances:  # with instances somebody else needs it by now
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
    return not gpu.is_filled(instance)  # killed before its id was noted, so before it was filled


INSTANCE: Final = "GMI_DRL_MIG"  # in a GMI's environment: "uuid sm_count mem_bytes" of its instance


class MigSlices:
    """The instances of some GMIs of a run. Use `make_slices`; it is for one thread."""

    def __init__(self) -> None:
        self._lease = Lease.open("mig")
        self._noted: dict[int, dict[str, Any]] = {}
        self._instances: dict[int, MigInstance] = {}

    def take(self, device: Device, gmis: Sequence[GmiSpec]) -> None:
        """Finds or makes the instances of a device's GMIs. GmiError; then `release`."""
        places = _places(gmis)
        existing = {(one.profile, one.start): one for one in whole_instances(device)}
        missing = []
        with MigGpu.open(uuid_of(gmis[0])) as mig_gpu:
            for gmi, place in zip(gmis, places, strict=True):
                if instance := existing.get((place.profile, place.start)):
                    self._use(mig_gpu, gmi, instance)
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
        """Returns the one MIG device it sees, outside any MPS daemon, and what `verify` expects.

        A MIG device is seen as a GPU, by its UUID; the GPU's own would show its first instance.
        """
        instance = self._instances[spec.gmi_id]
        expected = f"{instance.uuid} {instance.sm_count or 0} {instance.mem_bytes}"
        return {**gpu_environment(spec, instance.uuid), INSTANCE: expected}

    def fence_all(self, living: Sequence[tuple[GmiSpec, int]]) -> None:
        """Does nothing: the end of the process leaves its instance as it was."""

    def release(self) -> None:
        """Destroys what was made, the last first. What is still in use is waited for, 10 s.

        GmiError says what remains, noted for the next run. Calling it again is fine.
        """
        if self._lease.closed:
            return
        try:
            undo_notes(list(self._noted.items()), True, self._strike)
        finally:
            self._lease.close()

    def _use(self, mig_gpu: MigGpu, gmi: GmiSpec, instance: MigInstance) -> None:
        """Takes an instance that exists, if nobody else does."""
        what = _instance_text(gmi)
        if not mig_gpu.has_device(instance.uuid):
            raise GmiError(f"{what} is gone since the devices were looked at. Launch again.")
        self._note({"gpu": mig_gpu.uuid, "uses": instance.start})
        self._refuse_if_noted(gmi, mig_gpu.uuid, instance.start)
        if pids := mig_gpu.pids(instance.uuid):
            raise GmiError(
                f"{what} is in use by process {_pids_text(pids)}. End it, or use fewer GMIs."
            )
        self._give(gmi, instance)

    def _make(
        self, mig_gpu: MigGpu, device: Device, gmis: Sequence[tuple[GmiSpec, MigSlice]]
    ) -> None:
        """Makes the instances that are missing, and switches MIG mode on before."""
        switched = {"gpu": mig_gpu.uuid, "mode": True}
        if not gmis:
            return
        if mig_gpu.mode()[0]:
            # By a run that is on: whoever of us is the last switches it off.
            if any(switched in lease.notes for lease in self._lease.others()):
                self._note(switched)
        else:
            if pids := mig_gpu.pids():
                raise GmiError(
                    f"GPU {device.index}: MIG mode is off, and cannot be switched on while process "
                    f"{_pids_text(pids)} holds the GPU. End it, or use backend mps."
                )
            self._note(switched)
            mig_gpu.switch(True)
        for gmi, place in gmis:
            profile_id = mig_gpu.profile_id(place, device)
            step = {"gpu": mig_gpu.uuid, "profile_id": profile_id, "start": place.start}
            number = self._note(step)
            try:
                self._refuse_if_noted(gmi, mig_gpu.uuid, place.start)
                instance_id = mig_gpu.make(profile_id, place.start)
            except GmiError:
                self._strike(number)  # not made: what is there is somebody else's
                raise
            # From here on it is known by its id; only then is it given what a process can see, so
            # that an instance with that is never taken for ours by its place alone.
            self._note({**step, "instance": instance_id})
            self._strike(number)
            self._give(gmi, mig_gpu.fill(instance_id, device))

    def _refuse_if_noted(self, gmi: GmiSpec, gpu_uuid: str, start: int) -> None:
        """Raises GmiError if another run has noted the instance at this place as its own."""
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

    def _note(self, what: dict[str, Any]) -> int:
        number = self._lease.note(what)
        self._noted[number] = what
        return number

    def _strike(self, number: int) -> None:
        self._lease.undone(number)
        del self._noted[number]


def make_slices(gmis: Sequence[GmiSpec], topology: Topology) -> MigSlices:
    """Finds the instances of the GMIs, and makes those that do not exist (as root).

    `check` lets a layout name such only with hardware.allow_create. After GmiError all is undone.
    """
    slices = MigSlices()
    try:
        for device in topology.devices:
            if specs := [gmi for gmi in gmis if gmi.gpu_id == device.index]:
                slices.take(device, specs)
    except BaseException as error:
        try:
            slices.release()
        except GmiError as left:
            error.add_note(f"and not all of it could be undone: {left}")
        raise
    return slices


def _places(gmis: Sequence[GmiSpec]) -> list[MigSlice]:
    """Returns where each is, in order; SliceError unless each has an instance of its own."""
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
                f"{_instance_text(gmi)} is GMI {other}'s too. Give each an instance of its own."
            )
    return list(seen)


def _instance_text(gmi: GmiSpec) -> str:
    where = f"{gmi.mig.profile} at {gmi.mig.start}" if gmi.mig else "without a place"
    return f"GmiSpec {gmi.gmi_id}: MIG instance {where} of GPU {gmi.gpu_id}"


def _pids_text(pids: Sequence[int]) -> str:
    return ", ".join(map(str, pids))
