"""Reads a hardware file: what a host and its network do, each figure with its unit and source.

    version: 1
    name: my-box
    device: {name: NVIDIA L40S, count: 4, sm_count: 142, mem_gib: 45, capability: "8.9"}
    figures:
      infer_step_us: {value: 220, basis: assumed, source: as an H100, low: 110, high: 440}
      ...
    tasks:
      Ant-v5: {adapter: warp, observation: 105, action: 8, step_us: {...}, env_step_ns: {...}}

`basis` is measured, published or assumed; `low` and `high` bound what is not known, and the spread
of a projection comes of them. Files with names are in `machines/`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, Literal, Self

import numpy as np
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from gmi_drl.placement import ConfigError, Device, Fault, Topology
from gmi_drl.placement.config.load import read_text
from gmi_drl.placement.config.schema import parsed
from gmi_drl.placement.config.section import Int, Section, broken

_MACHINES: Final = Path(__file__).parent / "machines"
_CORES: Final = 8  # of each GPU; no GMI of a GPU is limited by them here


class Figure(Section):
    """One number of a hardware file."""

    value: float = Field(ge=0)
    """the number."""
    basis: Literal["measured", "published", "assumed"]
    """measured, published or assumed."""
    source: str = Field(pattern=r"\S")
    """Where the number is from."""
    low: float = Field(default_factory=lambda data: data.get("value", 0.0), ge=0)
    high: float = Field(default_factory=lambda data: data.get("value", 0.0), ge=0)

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if not self.low <= self.value <= self.high:
            shown = f"{self.low:g}, {self.value:g} and {self.high:g}"
            raise broken(f"low, value and high are {shown}, and must rise", "Put them in order.")
        return self

    def drawn(self, rng: np.random.Generator) -> Figure:
        """Returns it with a value from its range, most likely near `value`."""
        if self.low == self.high:
            return self
        value = float(rng.triangular(self.low, self.value, self.high))
        return self.model_copy(update={"value": value})


def _above_zero(figure: Figure) -> Figure:
    if not figure.low:
        raise broken(f"value={figure.value:g} must be above 0, and so its low", "Raise them.")
    return figure


AboveZero = Annotated[Figure, AfterValidator(_above_zero)]


class _WithFigures(Section):
    """A section some of whose keys are figures; the unit is the end of a key."""

    def items(self) -> list[tuple[str, Figure]]:
        """Lists the figures that are given, by their keys."""
        return [(key, value) for key, value in self if isinstance(value, Figure)]

    def drawn(self, rng: np.random.Generator) -> Self:
        """Returns it with each figure from its range."""
        return self.model_copy(update={key: figure.drawn(rng) for key, figure in self.items()})


class TaskCosts(_WithFigures):
    """Says what one environment costs on the device."""

    adapter: str
    """as env.adapter."""
    observation: Int = Field(ge=1)
    """its numbers."""
    action: Int = Field(ge=1)
    """its numbers."""
    step_us: Figure
    """a step of the simulator, whatever num_env is."""
    env_step_ns: Figure
    """more for each environment."""


class Figures(_WithFigures):
    """Says how fast a device, a host and the network are.

    The last two groups may be absent: a machine of one GPU has no links within it, and one whose
    network is not described is one host.
    """

    infer_step_us: Figure
    """a step of the policy, whatever num_env is."""
    infer_env_parameter_ps: Figure
    """more for each environment, and each parameter of the network."""
    update_us: Figure
    """a gradient step, whatever its samples are."""
    update_sample_parameter_ps: Figure
    """more for each sample, and each parameter."""
    crowding_percent: Figure
    """more of the fixed times, for each further GMI at work on the GPU."""
    reduce_us: Figure
    """a reduction among GMIs of one GPU."""
    reduce_each_mb_us: Figure
    """more for each MB of gradient."""
    experience_us: Figure
    """sending a segment to a trainer."""
    experience_each_mb_us: Figure
    """more for each MB of it."""
    jitter_percent: Figure
    """standard deviation of a GMI's times from one to the next, of their mean."""
    spread_percent: Figure
    """the same among GPUs of a kind."""
    failures_per_host_day: Figure
    """losses of a host."""
    recovery_s: Figure
    """from a loss to training again, without what is trained twice."""
    price_usd_per_gpu_hour: Figure
    """what an hour of a GPU costs."""

    within_base_us: Figure | None = None
    """an all-reduce, whatever its ranks are."""
    within_step_us: Figure | None = None
    """a step of it from GPU to GPU of a host."""
    within_bandwidth_gb_per_s: AboveZero | None = None
    """what a GPU sends to another one of its host."""

    between_step_us: Figure | None = None
    """a step of it from host to host."""
    between_bandwidth_gb_per_s: AboveZero | None = None
    """what a host sends to another one."""
    hosts_max: AboveZero | None = None
    """hosts that these figures were said of."""

    @model_validator(mode="after")
    def _check_groups(self) -> Self:
        begun = {key for key, _ in self.items()}
        if begun & {*WITHIN_FIGURES, *BETWEEN_FIGURES}:
            self.require(WITHIN_FIGURES)
        if begun & {*BETWEEN_FIGURES}:
            self.require(BETWEEN_FIGURES)
        return self

    def require(self, keys: Sequence[str]) -> None:
        """Raises what a validator does where one of these figures is not given."""
        if missing := [key for key in keys if getattr(self, key) is None]:
            raise broken(f"lacks {', '.join(missing)}", f"Write all of {', '.join(keys)}.")


WITHIN_FIGURES: Final = [key for key in Figures.model_fields if key.startswith("within_")]
BETWEEN_FIGURES: Final = [
    key for key in Figures.model_fields if key.startswith("between_") or key == "hosts_max"
]


class HardwareDevice(Section):
    """The GPUs of a host, which are alike."""

    name: str
    """what NVML calls it."""
    count: Int = Field(ge=1)
    """GPUs of a host."""
    sm_count: Int = Field(ge=1)
    """its SMs."""
    mem_gib: float = Field(ge=1)
    """its memory."""
    capability: Annotated[str, BeforeValidator(str)] = Field(pattern=r"^\d+\.\d+$")
    """Quote it, as "8.0"."""


class Hardware(Section):
    """Hosts that are alike."""

    version: Literal[1]
    """1."""
    name: str
    """what the machine is called."""
    device: HardwareDevice
    """its GPUs."""
    figures: Figures
    """what they do."""
    tasks: dict[str, TaskCosts] = Field(min_length=1)
    """environments, by their ids, as Ant-v5."""

    @field_validator("figures")
    @classmethod
    def _check_links(cls, value: Figures, info: ValidationInfo) -> Figures:
        if "device" in info.data and info.data["device"].count > 1:
            value.require(WITHIN_FIGURES)
        return value

    def __getitem__(self, key: str) -> float:
        figure: Figure = getattr(self.figures, key)
        return figure.value

    @property
    def hosts_max(self) -> int:
        """Returns how many hosts there are figures for."""
        return 1 if self.figures.hosts_max is None else int(self.figures.hosts_max.value)

    def drawn(self, rng: np.random.Generator) -> Hardware:
        """Returns one of the machines that this one may be: each figure from its range."""
        figures = self.figures.drawn(rng)
        tasks = {key: task.drawn(rng) for key, task in self.tasks.items()}
        return self.model_copy(update={"figures": figures, "tasks": tasks})

    def topology(self, num_gpus: int | None = None) -> Topology:
        """Returns the devices of one host, for the layout of a config."""
        device = self.device
        major, minor = map(int, device.capability.split("."))
        return Topology(
            tuple(
                Device(
                    index=index, kind="gpu", name=device.name,
                    cores=tuple(range(index * _CORES, (index + 1) * _CORES)),
                    sm_count=device.sm_count, mem_bytes=round(device.mem_gib * 2**30),
                    capability=(major, minor), compute_mode="default", mig_mode=False,
                )
                for index in range(min(num_gpus or device.count, device.count))
            )
        )  # fmt: skip


def known_machines() -> list[str]:
    """Lists the machines that have a file here."""
    return sorted(path.stem for path in _MACHINES.glob("*.yaml"))


def machine_of(text: str) -> tuple[Hardware, int]:
    """Reads `--on`: dgx-a100, 32xdgx-h100, my-hardware.yaml or 4xmy-hardware.yaml.

    Returns the hardware and the number of hosts; ConfigError with every fault.
    """
    match = None if Path(text).is_file() else re.fullmatch(r"(\d+)x(.+)", text)
    count, name = (int(match[1]), match[2]) if match else (1, text)
    if Path(name).suffix in (".yaml", ".yml") or "/" in name:
        path = Path(name)
    else:
        path = _MACHINES / f"{name}.yaml"
    known = known_machines()
    if not path.is_file():
        remedy = f"Use {', '.join(known)}, or the path of a hardware file that ends in .yaml."
        raise ConfigError([Fault("--on", text, "no such machine", remedy)])
    hardware = read_hardware(path)
    if count < 1:
        raise ConfigError([Fault("--on", text, "one host or more", f"Use 1x{name}.")])
    if count > hardware.hosts_max:
        rule = f"{hardware.name} has network figures for {hardware.hosts_max} hosts"
        if hardware.figures.hosts_max is None:
            rule = f"{hardware.name} has no figures of a network, so it is one host"
        remedy = f"Use {hardware.hosts_max} or fewer, or write {', '.join(BETWEEN_FIGURES)} of it."
        raise ConfigError([Fault("--on", text, rule, remedy)])
    return hardware, count


def read_hardware(path: Path) -> Hardware:
    """Reads a hardware file; ConfigError with every fault of it."""
    remedy = "Write version, name, device, figures and tasks."
    return parsed(Hardware, read_text(path), str(path), remedy)
