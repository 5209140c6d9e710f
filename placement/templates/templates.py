"""Layouts by name. A template says which roles share a GMI, and how GMIs share the devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from gmi_drl.placement.backends import choose_backend
from gmi_drl.placement.config.config import Config
from gmi_drl.placement.layout import GmiSpec, Layout, LayoutError
from gmi_drl.placement.layout_yaml import read_layout
from gmi_drl.placement.slicing import core_share, sliced
from gmi_drl.placement.topology import Device, Topology

Roles = tuple[str, ...]

_SERVING: Final[Roles] = ("simulator", "agent")
_ALL: Final[Roles] = ("simulator", "agent", "trainer")
# The roles of each template, by GMI. One class plays all roles of a GMI, named by the last of them.
GMIS: Final[dict[str, tuple[Roles, ...]]] = {
    "tcg_ex": (_ALL,),
    "tdg_ex": (_SERVING, ("trainer",)),
    "decoupled": (_SERVING, ("trainer",)),
    "tcg": (_SERVING,),
    "tdg": (("simulator",), ("agent",)),
}
# The templates that can run a mode, its own first.
OF_MODE: Final = {"sync": ("tcg_ex", "tdg_ex"), "async": ("decoupled",), "serving": ("tcg", "tdg")}


def tcg_ex(topology: Topology, gmi_per_gpu: int, num_env: int, backend: str = "cpu") -> Layout:
    """Simulator, agent and trainer together in each of `gmi_per_gpu` GMIs on every device.

    Co-located roles hand experience over without a transfer; only gradients leave a GMI (GMI-DRL,
    section 5). A device's cores are split evenly between its GMIs. On a group of cores no two
    GMIs share one (LayoutError if there are too few); beside a GPU they do when they must.
    """
    return _filled("tcg_ex", topology, gmi_per_gpu, num_env, backend, lambda device, place: _ALL)


def tdg_ex(topology: Topology, gmi_per_gpu: int, num_env: int, backend: str = "cpu") -> Layout:
    """Synchronous training with a trainer GMI on each device, the last of its `gmi_per_gpu`.

    The others of the device simulate and infer for it, and wait while it trains (GMI-DRL's TDG_EX,
    which it compares TCG_EX against).
    """
    if gmi_per_gpu < 2:
        raise LayoutError(
            f"template tdg_ex: gmi_per_gpu={gmi_per_gpu}; one GMI of a device trains, and one or "
            "more simulate for it. Use 2 or more, or template tcg_ex."
        )

    def roles(device: Device, place: int) -> Roles:
        return GMIS["tdg_ex"][place == gmi_per_gpu - 1]

    return _filled("tdg_ex", topology, gmi_per_gpu, num_env, backend, roles)


def tcg(topology: Topology, gmi_per_gpu: int, num_env: int, backend: str = "cpu") -> Layout:
    """Serving: simulator and agent together in each GMI, and no trainer (GMI-DRL, section 5)."""
    return _filled("tcg", topology, gmi_per_gpu, num_env, backend, lambda device, place: _SERVING)


def tdg(topology: Topology, gmi_per_gpu: int, num_env: int, backend: str = "cpu") -> Layout:
    """Serving: simulators and agents in GMIs of their own, which GMI-DRL compares TCG against.

    `gmi_per_gpu` is even. GMIs 2 k and 2 k + 1 lie on one device and are a pair: the simulator, and
    the agent that acts for its environments.
    """
    if gmi_per_gpu % 2:
        raise LayoutError(
            f"template tdg: gmi_per_gpu={gmi_per_gpu}; a simulator and its agent are two GMIs of "
            "one device. Use an even number."
        )
    pair = GMIS["tdg"]
    return _filled(
        "tdg", topology, gmi_per_gpu, num_env, backend, lambda device, place: pair[place % 2]
    )


def decoupled(
    topology: Topology,
    gmi_per_gpu: int,
    num_env: int,
    backend: str = "cpu",
    trainer_gpus: int = 1,
) -> Layout:
    """Simulator and agent together on some devices, trainers on the last `trainer_gpus` of them.

    Each side has whole devices, so that training takes nothing from simulation (GMI-DRL's
    asynchronous training).
    """
    first = len(topology.devices) - trainer_gpus
    if first < 1:
        raise LayoutError(
            f"template decoupled: trainer_gpus={trainer_gpus} of {len(topology.devices)} devices; "
            "one or more must be left for simulation. Lower it, or use more devices."
        )

    def roles(device: Device, place: int) -> Roles:
        return GMIS["decoupled"][device.index >= first]

    return _filled("decoupled", topology, gmi_per_gpu, num_env, backend, roles)


def layout_of(config: Config, topology: Topology) -> Layout:
    """The Layout that a settled config means on these devices; run `check` first.

    That of its file, if it names one: ConfigError with what is wrong in it. LayoutError where a
    device has too few cores or MIG instances.
    """
    assert config.is_settled, "auto is found by tuning"
    if config.layout.file is not None:
        read = read_layout(config.layout.file)
        backend = _backend(config, topology, read.most_on_a_device)
        return sliced(read.on(topology, config.env.num_env, backend), config.hardware)
    template, per_gpu = template_of(config), config.layout.gmi_per_gpu
    common = (topology, per_gpu, config.env.num_env, backend_of(config, topology))
    if template == "decoupled":
        layout = decoupled(*common, config.layout.trainer_gpus)
    else:
        layout = _ALIKE[template](*common)
    return sliced(layout, config.hardware)


def template_of(config: Config) -> str:
    """The template that `layout.template` means in the config's mode; a file has one of its own."""
    wanted = config.layout.template
    return OF_MODE[config.mode][0] if wanted == "auto" else wanted


def num_trainers(config: Config, topology: Topology) -> int:
    """How many GMIs of the config's template hold a trainer, and so reduce gradients together."""
    devices = len(topology.devices)
    per_gpu = config.layout.gmi_per_gpu
    training = {
        "tcg_ex": devices * per_gpu,
        "tdg_ex": devices,
        "decoupled": min(devices, config.layout.trainer_gpus) * per_gpu,
    }
    return training.get(template_of(config), 0)


def backend_of(config: Config, topology: Topology) -> str:
    """The backend that `hardware.backend` means on these devices, for a template."""
    return _backend(config, topology, config.layout.gmi_per_gpu)


def naming_roles(template: str) -> Sequence[str]:
    """The roles by which a config names the classes of a template's GMIs, one for each kind."""
    return [roles[-1] for roles in GMIS[template]]


def _backend(config: Config, topology: Topology, gmi_per_gpu: int) -> str:
    wanted = config.hardware.backend
    return wanted if wanted != "auto" else choose_backend(config.mode, topology, gmi_per_gpu)[0]


def _filled(
    template: str,
    topology: Topology,
    gmi_per_gpu: int,
    num_env: int,
    backend: str,
    roles: Callable[[Device, int], Roles],
) -> Layout:
    """`gmi_per_gpu` GMIs on each device; `roles` says what each holds."""
    gmis: list[GmiSpec] = []
    for device in topology.devices:
        for place in range(gmi_per_gpu):
            its = roles(device, place)
            gmis.append(
                GmiSpec(
                    gmi_id=len(gmis),
                    gpu_id=device.index,
                    roles=its,
                    backend=backend,
                    cores=core_share(device, gmi_per_gpu, place),
                    num_env=num_env if "simulator" in its else 0,
                    device_uuid=device.uuid,
                )
            )
    return Layout(template, topology, tuple(gmis))


_ALIKE: Final = {
    "tcg_ex": tcg_ex,
    "tdg_ex": tdg_ex,
    "tcg": tcg,
    "tdg": tdg,
}  # on every device
