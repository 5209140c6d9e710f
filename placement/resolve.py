"""Resolves a config: `auto` to numbers, the template and the backend, and then its Layout."""

from __future__ import annotations

from typing import Any, Final

from gmi_drl.placement.config.config import Config

from .config.section import AUTO
from .layout import Layout
from .layout_yaml import read_layout
from .mig import whole_instances
from .slicing import sliced
from .templates import Shape
from .topology import Device, Topology

_VOLTA = (7, 0)  # the first whose MPS limits SMs
_AMPERE = (8, 0)  # the first with MIG
_NUM_ENV: Final = 64  # the number of environments for `auto` before tuning


def choose_backend(mode: str, topology: Topology, gmi_per_gpu: int) -> tuple[str, str]:
    """Returns the backend that `auto` means for `gmi_per_gpu` GMIs (at most) on a device, and why.

    By GMI-DRL's rules (section 3.2) training shares a GPU by MPS, whose processes reduce gradients
    in its memory; serving takes MIG, which isolates them, where instances exist. Compute capability
    7.0 up to 8.0 has only MPS, and older ones have neither.
    """
    gpus = [device for device in topology.devices if device.kind == "gpu"]
    if not gpus:
        return "cpu", "there is no GPU"
    text = f"{gmi_per_gpu} GMIs on each GPU" if gmi_per_gpu > 1 else "one GMI on each GPU"
    unusable = dict(topology.unusable)
    if all(gpu.mig_mode for gpu in gpus):
        num_instances = min(len(whole_instances(gpu)) for gpu in gpus)
        if mode == "serving" and num_instances >= gmi_per_gpu:
            return "mig", f"serving wants GMIs isolated, and there are MIG instances for {text}"
        return "mig", "the GPUs are in MIG mode, where nothing but their instances can be used"
    if gpus[0].share < 1:
        text += ", beside other runs"
    elif gmi_per_gpu == 1:
        return "direct", f"{text} has it to itself"
    old = next((gpu for gpu in gpus if _before(gpu, _VOLTA)), None)
    if old is not None:
        return "direct", (
            f"GPU {old.index} is of compute capability {_dotted(old)}; MPS limits SMs from 7.0 on"
        )
    if "mps" in unusable:
        reason = f"there is no MPS here ({unusable['mps']})"
        if len(gpus) == 1 and gpus[0].share == 1 and "green" not in unusable:
            return "green", f"{reason}, and one GPU can be cut within one process"
        return "direct", reason
    if mode == "serving":
        first = next((gpu for gpu in gpus if _before(gpu, _AMPERE)), None)
        if first is not None:
            return "mps", f"compute capability {_dotted(first)} of GPU {first.index} has no MIG"
        return "mps", f"{text}, and there are no MIG instances for them"
    return "mps", f"{text}, which train: MPS limits their SMs and memory, and lets them share both"


def _before(gpu: Device, capability: tuple[int, int]) -> bool:
    return gpu.capability is not None and gpu.capability < capability


def _dotted(gpu: Device) -> str:
    return ".".join(map(str, gpu.capability or ()))


def resolved(
    config: Config, *, gmi_per_gpu: int | None = None, num_env: int | None = None
) -> Config:
    """Returns `config` with these numbers in place of its own."""
    changes: dict[str, Any] = {}
    if gmi_per_gpu is not None:
        changes["layout"] = config.layout.model_copy(update={"gmi_per_gpu": gmi_per_gpu})
    if num_env is not None:
        changes["env"] = config.env.model_copy(update={"num_env": num_env})
    return config.model_copy(update=changes)


def simplest(config: Config) -> Config:
    """Returns `config` with the fewest GMIs and 64 environments where it says `auto`."""
    least_gmis = config.template.least_gmis
    return resolved(
        config,
        gmi_per_gpu=least_gmis if config.layout.gmi_per_gpu == AUTO else None,
        num_env=_NUM_ENV if config.env.num_env == AUTO else None,
    )


def config_of_host(config: Config, host: int) -> Config:
    """Returns the config by which GMIs are placed on a host: one that only samples has no trainers.

    `host` is its rank in the config's cluster; 0 without one.
    """
    if config.cluster is None or host < config.cluster.training_hosts:
        return config
    layout = config.layout.model_copy(update={"trainer_gpus": 0})
    return config.model_copy(update={"layout": layout})


def shape_of(config: Config, topology: Topology) -> Shape:
    """Returns the numbers by which the config's template fills these devices, of one host."""
    return Shape(
        topology, config.layout.gmi_per_gpu, config.layout.trainer_gpus, config.sampling_hosts > 0
    )


def backend_of(config: Config, topology: Topology, gmi_per_gpu: int | None = None) -> str:
    """Returns the backend that `hardware.backend` means on these devices.

    `gmi_per_gpu`: that of the config's template, unless another one is given.
    """
    if config.hardware.backend != "auto":
        return config.hardware.backend
    return choose_backend(config.mode, topology, gmi_per_gpu or config.layout.gmi_per_gpu)[0]


def layout_of(config: Config, topology: Topology) -> Layout:
    """Returns the Layout that a resolved config means on a host's devices; run `check` first.

    It is that of the config's layout file, if there is one; ConfigError for faults in that.
    LayoutError where a device has too few cores or MIG instances.
    """
    assert config.is_resolved, "auto is found by tuning"
    num_env = config.env.num_env
    if config.layout.file is not None:
        file = read_layout(config.layout.file)
        layout = file.on(topology, num_env, backend_of(config, topology, file.most_on_a_device))
    else:
        gmi_per_gpu, backend = config.layout.gmi_per_gpu, backend_of(config, topology)
        template, trainer_gpus = config.template, config.layout.trainer_gpus
        layout = template(
            topology, gmi_per_gpu, num_env, backend, trainer_gpus,
            others_sample=config.sampling_hosts > 0,
        )  # fmt: skip
    return sliced(layout, config.hardware)
