"""Reads and writes layouts as YAML that people edit: `layout: file.yaml` in a config.

    version: 1
    template: tcg_ex
    gmis:
      - {gmi: 0, gpu: 0, roles: [simulator, agent, trainer], backend: mps, sm_percent: 70}
      - {gmi: 1, gpu: 0, roles: [simulator, agent, trainer], backend: mps, sm_percent: 30}

The file names devices by their numbers and says what each GMI gets; the devices themselves are
those of the machine it is read on. Shares that it leaves out are even (`slicing`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field

from gmi_drl.placement.config.config import BackendName, HardwareConfig
from gmi_drl.placement.config.schema import parsed
from gmi_drl.placement.config.section import Int, Section, as_tuple, broken

from .faults import ConfigError, Fault, counted
from .layout import GmiSpec, Layout, MigSlice
from .slicing import sliced
from .templates import TemplateName
from .topology import Topology, format_cores

_VERSION: Final = 1
_ROLES: Final = ("simulator", "agent", "trainer")  # in the order of the papers' templates
_UNITS: Final = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "MB": 10**6, "GB": 10**9}
_MOST_BYTES: Final = 1 << 50
_HEAD: Final = """\
# A layout of gmi-drl: which GMIs there are, their devices and their shares. Edit it, and name it in
# a config as `layout: FILE`. What a GMI leaves out of sm_percent, memory, mig and cores it gets by
# an even share of what is left; num_env is that of the config.
"""


def _cores(value: Any) -> Any:
    """Reads [0, 1, 2, 8], or 0-2,8 as text."""
    if isinstance(value, str):
        parts = [re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", part) for part in value.split(",")]
        ranges = [(int(part[1]), int(part[2] or part[1])) for part in parts if part is not None]
        if len(ranges) < len(parts) or any(first > last for first, last in ranges):
            raise broken("must be cores, as 0-3,8 or a list", "Leave it out for an even share.")
        return tuple(core for first, last in ranges for core in range(first, last + 1))
    return (value,) if type(value) is int else as_tuple(value)


def _memory(value: Any) -> Any:
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([A-Za-z]*)", value) if isinstance(value, str) else None
    if match is not None and match[2] in _UNITS:
        nbytes = float(match[1]) * _UNITS[match[2]]  # may be infinite
        value = int(nbytes) if nbytes <= _MOST_BYTES else _MOST_BYTES + 1
    elif isinstance(value, str):
        raise broken(
            "must be bytes, or a number with a unit",
            f"For example 12 GiB; units are {', '.join(filter(None, _UNITS))}.",
        )
    if type(value) is int and value > _MOST_BYTES:
        raise broken("is more than any device has", "For example 12 GiB.")
    return value


def _version(value: Any) -> Any:
    """Refuses true and 1.0, which Literal[1] takes for 1."""
    if type(value) is not int:
        raise broken(f"must be {_VERSION}", f"Write `version: {_VERSION}` at the top.")
    return value


class _Mig(Section):
    profile: str = Field(min_length=1)
    """for example 3g.40gb."""
    start: Int = Field(ge=0, le=7)
    """its first memory slice."""


class _Gmi(Section):
    gmi: Int | None = Field(default=None, ge=0)
    gpu: Int = Field(ge=0)
    """the number of its device, from 0."""
    roles: Annotated[
        tuple[Literal["simulator", "agent", "trainer"], ...], BeforeValidator(as_tuple)
    ]
    """its roles, for example [simulator, agent, trainer]."""
    backend: BackendName | None = None
    sm_percent: Int | None = Field(default=None, ge=1)
    memory: Annotated[Int, BeforeValidator(_memory), Field(ge=1)] | None = None
    mig: _Mig | None = None
    num_env: Int | None = Field(default=None, ge=0)
    cores: Annotated[tuple[Annotated[int, Field(ge=0)], ...], BeforeValidator(_cores)] | None = None


class LayoutFile(Section):
    """A parsed layout file, without the devices of a machine."""

    version: Annotated[Literal[1], BeforeValidator(_version)]
    """1."""
    template: TemplateName
    """the template whose roles it has, for example tcg_ex."""
    gmis: Annotated[tuple[_Gmi, ...], BeforeValidator(as_tuple), Field(min_length=1)]
    """a list with gpu and roles of each GMI."""

    @property
    def most_on_a_device(self) -> int:
        """Returns the number of GMIs on the device that has most."""
        devices = [gmi.gpu for gmi in self.gmis]
        return max(map(devices.count, devices))

    def on(self, topology: Topology, num_env: int, backend: str) -> Layout:
        """Returns the layout on these devices; `num_env` and `backend` where the file says nothing.

        Shares that the file leaves out are for `sliced`. ConfigError for what this machine lacks.
        """
        if faults := list(self._faults(topology)):
            raise ConfigError(faults)
        specs = []
        for number, gmi in enumerate(self.gmis):
            num_simulated = num_env if "simulator" in gmi.roles else 0
            spec = GmiSpec(
                gmi_id=number,
                gpu_id=gmi.gpu,
                roles=tuple(sorted(set(gmi.roles), key=_ROLES.index)),
                backend=gmi.backend or backend,
                cores=gmi.cores or (),
                num_env=num_simulated if gmi.num_env is None else gmi.num_env,
                sm_percent=gmi.sm_percent,
                mem_bytes=gmi.memory,
                device_uuid=topology.devices[gmi.gpu].uuid,
                mig=None if gmi.mig is None else MigSlice(gmi.mig.profile, gmi.mig.start),
            )
            specs.append(spec)
        return Layout(self.template, topology, tuple(specs))

    def _faults(self, topology: Topology) -> Iterator[Fault]:
        count = len(topology.devices)
        for number, gmi in enumerate(self.gmis):
            if gmi.gpu >= count:
                yield Fault(
                    f"GmiSpec {number}: gpu", gmi.gpu,
                    f"this machine has {counted(count, 'device')}, counted from 0",
                    "Lower it, or set hardware.num_gpus, which makes groups of the cores."
                    if all(device.kind == "cpu" for device in topology.devices)
                    else "Lower it, or make a layout for this machine: gmi-drl plan --layout.",
                )  # fmt: skip
            if gmi.gmi not in (None, number):
                yield Fault(
                    f"GmiSpec {number}: gmi", gmi.gmi, "GMIs are numbered from 0 in their order",
                    f"Write {number}, or leave it out.",
                )  # fmt: skip


def parse_layout(text: str, source: str = "the layout") -> LayoutFile:
    """Returns the file in `text`; ConfigError has every fault, with its line in `source`."""
    return parsed(LayoutFile, text, source, "Write one with gmi-drl plan --layout.")


def read_layout(path: Path | str) -> LayoutFile:
    """Returns `parse_layout` of a file; ConfigError also when it cannot be read."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        remedy = "Write one with gmi-drl plan --layout, or leave it out."
        raise ConfigError([Fault("layout.file", str(path), f"{reason}", remedy)]) from None
    return parse_layout(text, str(path))


def from_yaml(text: str, topology: Topology, num_env: int, backend: str = "cpu") -> Layout:
    """Returns the Layout in a text, on these devices, with every share filled in.

    ConfigError for a text that is none, LayoutError where cores or instances are too few.
    """
    return sliced(parse_layout(text).on(topology, num_env, backend), HardwareConfig())


def to_yaml(layout: Layout) -> str:
    """Returns the layout as text to edit. Environments are written where GMIs differ in them."""
    numbers = {gmi.num_env for gmi in layout.holding("simulator")}
    without_cores = [gmi if gmi.backend == "cpu" else replace(gmi, cores=()) for gmi in layout.gmis]
    default_layout = sliced(replace(layout, gmis=tuple(without_cores)), HardwareConfig())
    lines = [_HEAD + f"version: {_VERSION}", f"template: {layout.template}", "gmis:"]
    for gmi, default in zip(layout.gmis, default_layout.gmis, strict=True):
        lines.append(f"  - gmi: {gmi.gmi_id}")
        keys: list[tuple[str, Any]] = [
            ("gpu", gmi.gpu_id),
            ("roles", f"[{', '.join(gmi.roles)}]"),
            ("backend", gmi.backend),
            ("sm_percent", gmi.sm_percent),
            ("memory", None if gmi.mem_bytes is None else _size(gmi.mem_bytes)),
            ("mig", gmi.mig and f"{{profile: {gmi.mig.profile}, start: {gmi.mig.start}}}"),
            ("num_env", gmi.num_env if len(numbers) > 1 else None),
        ]
        if gmi.backend == "cpu" or gmi.cores != default.cores:
            keys.append(("cores", format_cores(gmi.cores)))
        lines += [f"    {key}: {value}" for key, value in keys if value is not None]
    return "\n".join([*lines, ""])


def _size(mem_bytes: int) -> str:
    for unit in ("GiB", "MiB"):
        if mem_bytes % _UNITS[unit] == 0:
            return f"{mem_bytes // _UNITS[unit]} {unit}"
    return str(mem_bytes)
