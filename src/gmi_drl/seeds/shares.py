"""Shares out a machine's devices among launches that run side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gmi_drl.errors import GmiDrlError
from gmi_drl.gmi import discover
from gmi_drl.placement import Config, Device, counted
from gmi_drl.placement.topology import share


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
    `hardware.num_gpus`, and on CPU cores all that it may use: then they run one after another.
    """
    if parallel == 1:
        return [DeviceShare({}, {})]
    hardware = config.hardware
    devices = discover(None, hardware.backend, hardware.cores).devices
    if devices[0].kind == "cpu":
        return _shares_of_cores(devices[0].cores, min(parallel or 1, count))
    if parallel is None:
        parallel = len(devices) // hardware.num_gpus if hardware.num_gpus else 1
    return _shares_of_gpus(devices, hardware.num_gpus, min(max(1, parallel), count))


def _shares_of_cores(cores: tuple[int, ...], number: int) -> list[DeviceShare]:
    if number == 1:
        return [DeviceShare({}, {})]
    if number > len(cores):
        raise SeedsError(
            f"parallel={number}; {counted(len(cores), 'core')} can be used here. Lower it."
        )
    parts = [share(cores, number, index) for index in range(number)]
    return [DeviceShare({"cores": list(part)}, {}) for part in parts]


def _shares_of_gpus(
    devices: tuple[Device, ...], num_gpus: int | None, number: int
) -> list[DeviceShare]:
    if number == 1:
        return [DeviceShare({}, {})]
    each = num_gpus or len(devices) // number
    if each * number > len(devices) or not each:
        needed = f" of {counted(each, 'GPU')} each" if each else ""
        raise SeedsError(
            f"parallel={number}{needed}; {counted(len(devices), 'GPU')} can be used here. Lower it."
        )
    shares = []
    for index in range(number):
        part = devices[index * each : (index + 1) * each]
        cores = sorted({core for device in part for core in device.cores})
        names = ",".join(device.uuid or str(device.index) for device in part)
        hardware = {"num_gpus": each, "cores": cores}
        shares.append(DeviceShare(hardware, {"CUDA_VISIBLE_DEVICES": names}))
    return shares
