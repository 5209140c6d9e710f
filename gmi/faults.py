"""Handles fatal faults of a GPU: a process that has lost CUDA ends, and so do its neighbours.

It ends with an exit code of its own, and is restarted where the run allows it; when the device
itself is lost, by CUDA or by the driver, the run may go on without the device. Under MPS the fault
reaches every client of the server, which takes no new client until all have left (MPS guide, "Error
Containment"), so clients that do not notice are killed.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from gmi_drl import runtime
from gmi_drl.runtime import ActorDiedError, ActorHandle

from .backends.backend import backend_of
from .discover import look

if TYPE_CHECKING:
    from gmi_drl.placement.layout import GmiSpec
    from gmi_drl.placement.topology import Topology


DEVICE_FAULT: Final = 86  # exit code of a GMI whose process has lost its GPU
DEVICE_LOST: Final = 87  # exit code of one whose GPU no process can use any more
# What CUDA says of faults of the device: cudaErrorECCUncorrectable, cudaErrorNvlinkUncorrectable.
_OF_DEVICE: Final = ("uncorrectable ECC error", "uncorrectable NVLink error")


def fatal_fault() -> str:
    """Returns why CUDA is unusable in this process, if torch has started it; else ""."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return ""
    try:
        torch.cuda.current_stream().query()
    except Exception as error:  # after a fault each call raises its error
        return str(error) or type(error).__name__
    return ""


def leave_if_faulted(error: BaseException) -> None:
    """Ends this process, with the traceback of `error` in its log, if it has lost its GPU.

    It ends at once, as if killed, since any cleanup that waits for the GPU might wait for ever.
    """
    if fault := fatal_fault():
        traceback.print_exception(error)
        sys.stderr.flush()
        is_lost = any(words.lower() in fault.lower() for words in _OF_DEVICE)
        os._exit(DEVICE_LOST if is_lost else DEVICE_FAULT)


class LostDevices:
    """Finds by the deaths of GMIs which devices are lost to all processes.

    `deaths_of` gives how the processes of a GMI have ended.
    """

    def __init__(
        self, gmis: Iterable[GmiSpec], topology: Topology,
        deaths_of: Callable[[int], Sequence[ActorDiedError]],
    ) -> None:  # fmt: skip
        self._specs, self._topology, self._deaths_of = list(gmis), topology, deaths_of
        self._num_checked: dict[int, int] = {}
        self._lost: dict[int, str] = {}

    def look(self) -> Mapping[int, str]:
        """Returns the lost devices by index, each with how that was noticed."""
        for spec in self._specs:
            if spec.gpu_id in self._lost:
                continue
            deaths = self._deaths_of(spec.gmi_id)
            new_deaths = deaths[self._num_checked.get(spec.gmi_id, 0) :]
            self._num_checked[spec.gmi_id] = len(deaths)
            codes = [death.exit_code for death in new_deaths]
            if DEVICE_LOST in codes:
                self._lost[spec.gpu_id] = f"gmi {spec.gmi_id} met an uncorrectable error of it"
            elif DEVICE_FAULT in codes and not self._is_listed(spec.gpu_id):
                self._lost[spec.gpu_id] = "the driver does not list it any more"
        return self._lost

    def _is_listed(self, gpu_id: int) -> bool:
        uuid = self._topology.devices[gpu_id].uuid
        machine = look()
        # Nothing is known where the driver cannot be asked.
        return bool(machine.why_not) or any(device.uuid == uuid for device in machine.devices)


_POLL_S: Final = 0.1  # between two checks for deaths


class FaultWaves:
    """Watches the deaths of GMIs: a fatal fault ends all GMIs of its device once.

    `handles` may still be filled; `is_dead` says whether a GMI has died for good.
    """

    def __init__(
        self, gmis: Sequence[GmiSpec], handles: Mapping[int, ActorHandle],
        is_dead: Callable[[int], bool], fence: Callable[[Iterable[int]], None],
    ) -> None:  # fmt: skip
        self._specs = {spec.gmi_id: spec for spec in gmis}
        self._handles, self._is_dead, self._fence = handles, is_dead, fence
        self._num_checked: dict[int, int] = {}  # deaths of each GMI that were checked for faults
        self._waves: dict[int, dict[int, int]] = {}  # by device: deaths of each GMI before it

    def spread(self) -> None:
        """Kills the GMIs that share the MPS server of a GPU with a fatal fault, to be restarted.

        The server takes new clients once all have left: each GMI dies once, of the fault or here.
        """
        for gmi_id, handle in self._handles.items():
            deaths, spec = runtime.deaths(handle), self._specs[gmi_id]
            new_deaths = deaths[self._num_checked.get(gmi_id, 0) :]
            self._num_checked[gmi_id] = len(deaths)
            if (
                any(death.exit_code in (DEVICE_FAULT, DEVICE_LOST) for death in new_deaths)
                and backend_of(spec.backend).faults_spread
                and spec.gpu_id not in self._waves
            ):
                self._waves[spec.gpu_id] = self._end_neighbours(spec)
        for gpu_id, counts in list(self._waves.items()):
            if all(self._num_deaths(gmi_id) > count for gmi_id, count in counts.items()):
                del self._waves[gpu_id]
                for gmi_id, count in counts.items():  # deaths in this wave begin no other
                    self._num_checked[gmi_id] = max(self._num_checked.get(gmi_id, 0), count + 1)

    def look_s(self, left_s: float | None) -> float | None:
        """Returns how long to wait before `spread` is called again, as a restart ends no wait."""
        if not any(backend_of(spec.backend).faults_spread for spec in self._specs.values()):
            return left_s
        return _POLL_S if left_s is None else min(left_s, _POLL_S)

    def _end_neighbours(self, faulted: GmiSpec) -> dict[int, int]:
        """Kills other GMIs of the device that have not died; returns their earlier deaths."""
        neighbours = [
            spec.gmi_id
            for spec in self._specs.values()
            if spec.gpu_id == faulted.gpu_id and spec.gmi_id != faulted.gmi_id
        ]
        counts = {id: self._num_checked.get(id, 0) for id in neighbours}
        not_faulted = [id for id, count in counts.items() if self._num_deaths(id) == count]
        self._fence(not_faulted)
        reason = f"it shared a GPU with gmi {faulted.gmi_id}, which had a fatal fault there"
        for id in not_faulted:
            if self._num_deaths(id) == counts[id]:  # it may have noticed in the meantime
                runtime.kill(self._handles[id], reason, no_restart=False)
        return counts

    def _num_deaths(self, gmi_id: int) -> int:
        return len(runtime.deaths(self._handles[gmi_id])) + self._is_dead(gmi_id)
