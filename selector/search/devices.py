"""Deals out devices to the trials of a search: cores of its own to each, or a GPU of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from gmi_drl.gmi import DiscoveryError
from gmi_drl.launcher.plan.planning import find_devices
from gmi_drl.placement import Config, Device, Fault, Layout, Topology, check, counted, layout_of
from gmi_drl.roles.envs import check_env

from .faults import search_faults
from .ranges import Ranges, applied

_BACKENDS: Final = ("auto", "cpu", "direct")  # a trial has its GPU to itself


def trial_devices(config: Config) -> list[Device]:
    """The devices to deal out, for a config without `placement_faults`."""
    assert config.search is not None
    settings, topology = config.search, find_devices(config)
    cores = _cores_of(topology)
    if cores is None:
        return list(topology.devices[: settings.trials_at_once])
    number = settings.trials_at_once or len(cores) // settings.cores
    return list(Topology.from_cores(cores[: number * settings.cores], number).devices)


def layout_on(device: Device, config: Config) -> Layout:
    """The one GMI of a trial on a device."""
    return layout_of(*_alone(device, config))


def _alone(device: Device, config: Config) -> tuple[Config, Topology]:
    """The config and the devices as they are for a trial on a device."""
    on_gpu = {"backend": "direct"} if device.kind == "gpu" else {}
    hardware = config.hardware.model_copy(update={"num_gpus": 1, **on_gpu})
    return config.model_copy(update={"hardware": hardware}), Topology((replace(device, index=0),))


def placement_faults(config: Config) -> list[Fault | str]:
    """Every reason this machine cannot search as `config` says."""
    faults: list[Fault | str] = [*search_faults(config)]
    faults += check_env(config.env.id, config.env.adapter, config.env.options)
    backend = config.hardware.backend
    if backend not in _BACKENDS:
        faults.append(
            Fault("hardware.backend", backend, "each trial of a search has a GPU to itself",
                  f"Use {', '.join(_BACKENDS)}.")
        )  # fmt: skip
    try:
        topology = find_devices(config)
    except DiscoveryError as error:
        return [*faults, str(error)]
    if not faults:
        faults += _room(config, topology)
    if not faults and config.search is not None:
        first = applied(config, Ranges(config.search.ranges, config.search.seed).draw(0))
        faults += check(*_alone(trial_devices(config)[0], first))
    return faults


def _room(config: Config, topology: Topology) -> Iterator[Fault]:
    assert config.search is not None
    settings, cores = config.search, _cores_of(topology)
    if cores is None:
        there, what = len(topology.devices), "GPUs"
    elif settings.cores > len(cores):
        yield Fault(
            "search.cores", settings.cores, f"the machine has {counted(len(cores), 'core')}",
            f"Use {len(cores)} or fewer.",
        )  # fmt: skip
        return
    else:
        there, what = len(cores) // settings.cores, f"groups of {settings.cores} cores"
    if settings.trials_at_once is not None and settings.trials_at_once > there:
        yield Fault(
            "search.trials_at_once", settings.trials_at_once, f"there are {there} {what}, and "
            "each trial has its own",
            f"Use {there} or fewer, or leave it out for all.",
        )  # fmt: skip


def _cores_of(topology: Topology) -> list[int] | None:
    """All cores, where devices are groups of them; None on GPUs."""
    if any(device.kind == "gpu" for device in topology.devices):
        return None
    return sorted(core for device in topology.devices for core in device.cores)
