"""Layouts by name. A template says which roles share a GMI, and how GMIs share the devices."""

from __future__ import annotations

from typing import Final

from .config import Config
from .layout import GmiSpec, Layout, LayoutError
from .topology import Device, Topology, share

# The roles of each template; in TCG_EX one class plays them all, named by its trainer.
ROLES: Final[dict[str, tuple[str, ...]]] = {"tcg_ex": ("simulator", "agent", "trainer")}


def tcg_ex(topology: Topology, gmi_per_gpu: int, num_env: int, backend: str = "cpu") -> Layout:
    """Simulator, agent and trainer together in each of `gmi_per_gpu` GMIs on every device.

    Co-located roles hand experience over without a transfer; only gradients leave a GMI (GMI-DRL,
    section 5). A device's cores are split evenly between its GMIs. On a group of cores no two
    GMIs share one (LayoutError if there are too few); beside a GPU they do when they must.
    """
    gmis: list[GmiSpec] = []
    for device in topology.devices:
        for place in range(gmi_per_gpu):
            gmis.append(
                GmiSpec(
                    gmi_id=len(gmis),
                    gpu_id=device.index,
                    roles=ROLES["tcg_ex"],
                    backend=backend,
                    cores=_cores(device, gmi_per_gpu, place),
                    num_env=num_env,
                    device_uuid=device.uuid,
                )
            )
    return Layout("tcg_ex", topology, tuple(gmis))


def layout_of(config: Config, topology: Topology) -> Layout:
    """The Layout that a config means on these devices; run `check` first."""
    return _TEMPLATES[config.layout.template](
        topology,
        config.layout.gmi_per_gpu,
        config.env.num_env,
        backend_of(config, topology),
    )


def backend_of(config: Config, topology: Topology) -> str:
    """The backend that `hardware.backend` means on these devices."""
    if config.hardware.backend != "auto":
        return config.hardware.backend
    return "direct" if any(device.kind == "gpu" for device in topology.devices) else "cpu"


def _cores(device: Device, gmis: int, place: int) -> tuple[int, ...]:
    cores = share(device.cores, gmis, place)
    if cores or (device.kind == "gpu" and not device.cores):
        return cores
    if device.kind == "cpu":
        raise LayoutError(
            f"device {device.index} ({device.name}): {gmis} GMIs; it has {len(device.cores)} "
            "cores, and each GMI needs one. Lower layout.gmi_per_gpu."
        )
    begin = place * len(device.cores) // gmis
    return device.cores[begin : begin + 1]


_TEMPLATES: Final = {"tcg_ex": tcg_ex}
