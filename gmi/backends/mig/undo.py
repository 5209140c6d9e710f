"""Undoes what the notes of a run say it has changed of MIG: by the run itself, or by the next one.

A note is one of {"gpu", "mode": True}, MIG mode was switched on; {"gpu", "profile_id", "start"}, an
instance is made there; the same with "instance", its id; {"gpu", "uses": start}, an instance that
exists is used. `gpu` is a UUID. What is found otherwise than the notes say is somebody else's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, Final

from gmi_drl.gmi.errors import GmiError

from .mig_gpu import GpuInstance, MigError, MigGpu, retry_while_in_use

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
