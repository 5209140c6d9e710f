"""Shares out a machine's devices among launches that run side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from gmi_drl.errors import GmiDrlError
from gmi_drl.gmi import discover
from gmi_drl.gmi.backends.mps import shared_daemons
from gmi_drl.placement import Config, Device, counted
from gmi_drl.placement.config.config import HardwareConfig
from gmi_drl.placement.slicing import hardware_of_parts, part_of, why_no_parts
from gmi_drl.placement.topology import Topology, share


class SeedsError(GmiDrlError, ValueError):
    """Says why seeds cannot be trained as asked."""

    command_exit_code = 2


@dataclass(frozen=True)
class DeviceShare:
    """Holds one launch's share: settings of `hardware`, and variables of its process."""

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
    launches than GPUs share each of them: by MPS, or else in turns.
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
    gpus = hardware.num_gpus or len(devices) // number or 1
    if gpus * number <= len(devices):
        parts = [devices[index * gpus : (index + 1) * gpus] for index in range(number)]
        return [_whole(part) for part in parts]
    if gpus > 1 or (why := why_no_parts(hardware, topology)):
        needed = f" of {counted(gpus, 'GPU')} each" if gpus > 1 else ""
        remedy = ", or set hardware.num_gpus: 1: launches of one GPU can share it" * (gpus > 1)
        raise SeedsError(
            f"parallel={number}{needed}; {counted(len(devices), 'GPU')} can be used here"
            f"{'' if gpus > 1 else f', and {why}'}. Lower it{remedy}."
        )
    launches = -(-number // len(devices))  # on each GPU, at most
    places = [(devices[index % len(devices)], index // len(devices)) for index in range(number)]
    settings = hardware_of_parts(hardware, topology, launches)
    return [_part(part_of(device, launches, place), settings) for device, place in places]


def _whole(devices: Sequence[Device]) -> DeviceShare:
    cores = sorted({core for device in devices for core in device.cores})
    names = ",".join(device.uuid or str(device.index) for device in devices)
    return DeviceShare({"num_gpus": len(devices), "cores": cores}, {"CUDA_VISIBLE_DEVICES": names})


def _part(device: Device, hardware: Mapping[str, str | int | float]) -> DeviceShare:
    cores = {"cores": list(device.cores)}
    return DeviceShare({**hardware, **cores}, {"CUDA_VISIBLE_DEVICES": str(device.uuid)})


def shared_gpus(shares: Iterable[DeviceShare]) -> AbstractContextManager[dict[str, str]]:
    """Runs an MPS daemon for each GPU that launches share; yields variables for these launches."""
    uuids = {
        share.environment["CUDA_VISIBLE_DEVICES"]
        for share in shares
        if "gpu_share" in share.hardware and share.hardware["backend"] == "mps"
    }
    return shared_daemons(sorted(uuids))
