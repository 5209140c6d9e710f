"""Lists the ways of cutting a device, and the numbers of environments to try in each.

How many GMIs, by which backend, with how much over-commitment, evenly or not. In a row `num_env`
rises by powers of two and the half steps between. Algorithm `paper` (GMI-DRL, Algorithm 2) knows
powers of two alone, of both, and the backend that `auto` means.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from gmi_drl.placement import AUTO, Config, Fault, Topology, choose_backend, template_of
from gmi_drl.placement.resolve import shape_of
from gmi_drl.placement.templates import Roles

from .candidate import DeviceSplit

_COUNTS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)  # GMIs of a device
_GPU_BACKENDS: Final = ("direct", "mps", "mig", "green")
_OVERCOMMIT: Final = 2.0  # 100 / (0.5 n) percent for each of n GMIs, as NVIDIA suggests for MPS
_NUM_ENV: Final = {"gpu": (128, 65_536), "cpu": (4, 4_096)}  # the range that `null` means


def rows_of(
    config: Config, topology: Topology, works: Sequence[str] | None
) -> Iterator[DeviceSplit]:
    """All rows, the fewest GMIs first. `works`: see `space_of`."""
    cores = min((len(device.cores) for device in topology.devices), default=0)
    for count in _counts(config, topology, cores):
        for backend in _backends(config, topology, works, count):
            if backend != "mps":
                yield DeviceSplit(count, backend)
                continue
            given = config.hardware.sm_overcommit
            yield DeviceSplit(count, backend, given)
            if count < 2 or config.tune.algorithm == "paper":
                continue
            if given == 1.0:
                yield DeviceSplit(count, backend, _OVERCOMMIT)
            shape = replace(shape_of(config, topology), gmi_per_gpu=count)
            for percents in _unequal(template_of(config).planned(shape)[0]):
                yield DeviceSplit(count, backend, 1.0, percents)


def unused_counts(config: Config) -> Fault | None:
    """A fault where `tune.gmi_per_gpu` asks for numbers of GMIs that are not free."""
    given, own = config.tune.gmi_per_gpu, config.layout.gmi_per_gpu
    if given is None or own == AUTO or config.env.num_env != AUTO or set(given) == {own}:
        return None
    return Fault(
        "tune.gmi_per_gpu", list(given), f"no other number than layout.gmi_per_gpu, {own}, is "
        "tried where that is a number and env.num_env is auto",
        "Use layout.gmi_per_gpu: auto, or leave tune.gmi_per_gpu out.",
    )  # fmt: skip


def _counts(config: Config, topology: Topology, cores: int) -> list[int]:
    """How many GMIs of a device to try, the fewest first."""
    if config.layout.gmi_per_gpu != AUTO and config.env.num_env == AUTO:
        return [config.layout.gmi_per_gpu]
    given = config.tune.gmi_per_gpu
    if given is not None:
        own = config.layout.gmi_per_gpu
        return sorted({*given, own} if own != AUTO else {*given})
    on_cores = any(device.kind == "cpu" for device in topology.devices)
    # Each GMI is a process that drives its GPU from a core: with fewer cores they take turns there.
    most = cores if on_cores else max(2, cores)
    counts = {count for count in _COUNTS if template_of(config).least_gmis <= count <= most}
    if config.tune.algorithm == "paper":
        return sorted(count for count in counts if count & (count - 1) == 0)
    if on_cores and cores >= template_of(config).least_gmis:
        counts.add(cores)  # a core for each
    if template_of(config).least_gmis <= config.layout.gmi_per_gpu <= most:  # not auto
        counts.add(config.layout.gmi_per_gpu)  # what is to be beaten
    return sorted(counts)


def _backends(
    config: Config, topology: Topology, works: Sequence[str] | None, count: int
) -> Sequence[str]:
    """One, unless the config leaves it open and several GMIs are to share a GPU."""
    if config.hardware.backend != "auto":
        return [config.hardware.backend]
    meant = choose_backend(config.mode, topology, count)[0]
    if meant == "cpu" or count == 1 or config.tune.algorithm == "paper":
        return [meant]
    usable = works
    if usable is None:
        usable = [name for name in _GPU_BACKENDS if name not in dict(topology.unusable)]
    return [meant, *(name for name in _GPU_BACKENDS if name in usable and name != meant)]


def _unequal(device: Sequence[Roles]) -> Iterator[tuple[int, ...]]:
    """Yields shares of a device's SMs where its GMIs have different roles: two thirds for the one.

    The roles' needs differ (GMI-DRL, Table 3), and which needs more the measurement says. Thirds
    are the step after halves; over-commitment covers what lies between, as idle SMs are lent then.
    """
    kinds = list(dict.fromkeys(device))
    if len(kinds) == 2:
        for both in ((67, 33), (33, 67)):
            of_kind = dict(zip(kinds, both, strict=True))
            yield tuple(max(1, of_kind[roles] // device.count(roles)) for roles in device)


def ladder_of(config: Config, topology: Topology) -> list[int]:
    """The `num_env` of a row, rising."""
    if config.env.num_env != AUTO and config.layout.gmi_per_gpu == AUTO:
        return [config.env.num_env]
    kind = "gpu" if any(device.kind == "gpu" for device in topology.devices) else "cpu"
    least, most = _NUM_ENV[kind]
    # A bound that is given alone moves the other if it must.
    least = config.tune.min_num_env or min(least, config.tune.max_num_env or least)
    most = config.tune.max_num_env or max(most, least)
    sizes: list[int] = []
    power = 1
    while power <= most:
        steps = (power,) if config.tune.algorithm == "paper" else (power, power * 3 // 2)
        sizes += [num for num in steps if least <= num <= most and num not in sizes]
        power *= 2
    if config.tune.algorithm != "paper" and least <= config.env.num_env <= most:  # not auto
        sizes = sorted({*sizes, config.env.num_env})  # what is to be beaten
    return sizes or [least]
