"""Shares out a machine's devices among launches that run side by side."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gmi_drl.errors import GmiDrlError
from gmi_drl.gmi import discover, lease
from gmi_drl.placement import Config, Device, counted
from gmi_drl.placement.config.config import HardwareConfig
from gmi_drl.placement.slicing import core_share
from gmi_drl.placement.topology import Topology, share


class SeedsError(GmiDrlError, ValueError):
    """Says why seeds cannot be trained as asked."""

    command_exit_code = 2


@dataclass(frozen=True)
class DeviceShare:
    """What one launch has of the machine: settings of `hardware`, and variables of its process."""

    hardware: Mapping[str, Any]
    environment: Mapping[str, str]

    def of(self, config: Config, seed: int) -> dict[str, Any]:
        """Returns a config with this seed, on these devices."""
        settings = config.model_dump(mode="json")
        settings["run"]["seed"] = seed
        settings["hardware"].update(self.hardware)
        return settings


def device_shares(config: Config, count: int, parallel: int | None) -> list[DeviceShare]:
    """Returns a share for each of the launches that run side by side, at most `count`.

    `parallel` None: as many as there are devices for. A config takes all GPUs unless it says
    `hardware.num_gpus`, and on CPU cores all that it may use: then they run one after another. More
    launches than GPUs share each of them by MPS.
    """
    if parallel == 1:
        return [DeviceShare({}, {})]
    hardware = config.hardware
    topology = discover(None, hardware.backend, hardware.cores)
    devices = topology.devices
    if devices[0].kind == "cpu":
        return _shares_of_cores(devices[0].cores, min(parallel or 1, count))
    if parallel is None:
        parallel = len(devices) // hardware.num_gpus if hardware.num_gpus else 1
    return _shares_of_gpus(topology, hardware, min(max(1, parallel), count))


def _shares_of_cores(cores: tuple[int, ...], number: int) -> list[DeviceShare]:
    if number == 1:
        return [DeviceShare({}, {})]
    if number > len(cores):
        raise SeedsError(
            f"parallel={number}; {counted(len(cores), 'core')} can be used here. Lower it."
        )
    parts = [share(cores, number, index) for index in range(number)]
    return [DeviceShare({"cores": list(part)}, {}) for part in parts]


def _shares_of_gpus(topology: Topology, hardware: HardwareConfig, number: int) -> list[DeviceShare]:
    """Gives each launch GPUs of its own; where they are too few, and each takes one, a part."""
    devices = topology.devices
    if number == 1:
        return [DeviceShare({}, {})]
    each = hardware.num_gpus or len(devices) // number or 1
    if each * number <= len(devices):
        parts = [devices[index * each : (index + 1) * each] for index in range(number)]
        return [_whole(part) for part in parts]
    if each > 1 or (why := _why_not_shared(topology, hardware)):
        needed = f" of {counted(each, 'GPU')} each" if each > 1 else ""
        raise SeedsError(
            f"parallel={number}{needed}; {counted(len(devices), 'GPU')} can be used here"
            f"{'' if each > 1 else f', and {why}'}. Lower it."
        )
    launches = -(-number // len(devices))  # on each GPU, at most
    places = [(devices[index % len(devices)], index // len(devices)) for index in range(number)]
    return [_part(device, launches, place) for device, place in places]


def _why_not_shared(topology: Topology, hardware: HardwareConfig) -> str:
    """Says why launches cannot share a GPU, or nothing."""
    if hardware.backend not in ("auto", "mps"):
        return f"launches share one by backend mps alone, not {hardware.backend}"
    why = dict(topology.unusable).get("mps")
    return f"backend mps, by which launches share one, cannot be used: {why}" if why else ""


def _whole(devices: Sequence[Device]) -> DeviceShare:
    cores = sorted({core for device in devices for core in device.cores})
    names = ",".join(device.uuid or str(device.index) for device in devices)
    return DeviceShare({"num_gpus": len(devices), "cores": cores}, {"CUDA_VISIBLE_DEVICES": names})


def _part(device: Device, parts: int, place: int) -> DeviceShare:
    hardware = {
        "backend": "mps",
        "num_gpus": 1,
        "gpu_share": 1 / parts,
        "cores": list(core_share(device, parts, place)),
    }
    return DeviceShare(hardware, {"CUDA_VISIBLE_DEVICES": str(device.uuid)})


@contextlib.contextmanager
def shared_gpus(shares: Iterable[DeviceShare]) -> Iterator[dict[str, str]]:
    """Runs an MPS daemon for each GPU that launches share; yields variables for these launches."""
    uuids = {
        share.environment["CUDA_VISIBLE_DEVICES"]
        for share in shares
        if "gpu_share" in share.hardware
    }
    if not uuids:
        yield {}
        return
    from gmi_drl.gmi.backends.mps import Daemons

    for swept in lease.sweep():
        if swept.error:
            warnings.warn(f"{swept.lease.directory}: {swept.error}", stacklevel=3)
    daemons = Daemons()
    try:
        for uuid in sorted(uuids):
            daemons.start(uuid)
        yield daemons.environment
    finally:
        daemons.release()
