"""A Layout: which GMIs there are, where each one lies, and which roles it holds."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from gmi_drl.errors import GmiDrlError

from .counted import counted
from .topology import Topology, format_cores

_FORMAT: Final = 2  # of the JSON text; raised when an older reader could not understand it


class LayoutError(GmiDrlError, ValueError):
    """A Layout that contradicts itself, or a text that is not one."""

    command_exit_code = 2


@dataclass(frozen=True)
class MigSlice:
    """A place for a MIG instance on its GPU."""

    profile: str  # "3g.40gb"
    start: int  # its first memory slice


@dataclass(frozen=True)
class GmiSpec:
    """One GMI: its share of a device and what it does there."""

    gmi_id: int
    gpu_id: int  # index of its device in the topology
    roles: tuple[str, ...]
    backend: str  # cpu, direct, mps, mig or green
    cores: tuple[int, ...]
    num_env: int  # 0 without a simulator
    sm_percent: int | None = None  # of the device's SMs, at most; None: no limit
    mem_bytes: int | None = None  # of the device's memory, at most; None: no limit
    device_uuid: str | None = None  # of its GPU
    mig: MigSlice | None = None  # backend mig: the instance it is in, or that is to be made


@dataclass(frozen=True)
class Layout:
    """All GMIs of a run, in the order of their ids, 0 to n - 1. LayoutError if they are not."""

    template: str
    topology: Topology
    gmis: tuple[GmiSpec, ...]

    def __post_init__(self) -> None:
        devices = len(self.topology.devices)
        indices = [device.index for device in self.topology.devices]
        if indices != list(range(devices)):
            raise LayoutError(f"devices {indices}; their indices must be 0 to {devices - 1}.")
        ids = [gmi.gmi_id for gmi in self.gmis]
        if ids != list(range(len(ids))) or not ids:
            raise LayoutError(
                f"GMI ids {ids}; they must be 0, 1, 2 ... in this order, one or more."
            )
        for gmi in self.gmis:
            if not 0 <= gmi.gpu_id < devices:
                raise LayoutError(
                    f"GmiSpec {gmi.gmi_id}: gpu_id={gmi.gpu_id}; the layout has "
                    f"{counted(devices, 'device')}, counted from 0. Choose one of them."
                )

    @property
    def mpl(self) -> list[list[int]]:
        """GMI ids on each device, in device order (the paper's MPL)."""
        return [
            [gmi.gmi_id for gmi in self.gmis if gmi.gpu_id == device.index]
            for device in self.topology.devices
        ]

    def holding(self, role: str) -> tuple[GmiSpec, ...]:
        """The GMIs that hold a role, in the order of their ids; the trainers reduce gradients."""
        return tuple(gmi for gmi in self.gmis if role in gmi.roles)

    def mpl_of(self, role: str) -> list[list[int]]:
        """`mpl` of the GMIs that hold a role alone; a device without any has an empty list."""
        return [[i for i in device if role in self.gmis[i].roles] for device in self.mpl]

    def gmi(self, gmi_id: int) -> GmiSpec:
        """The GMI with this id; LayoutError names those there are."""
        if not 0 <= gmi_id < len(self.gmis):
            raise LayoutError(
                f"GMI {gmi_id}; this layout has GMIs 0 to {len(self.gmis) - 1}. Use one of them."
            )
        return self.gmis[gmi_id]

    def diff(self, other: Layout) -> list[str]:
        """What `other` has changed, a line each; [] if it is the same on the same devices."""
        lines = list(_changes("", _plain(self), _plain(other)))
        for mine, theirs in zip(self.topology.devices, other.topology.devices, strict=False):
            if mine != theirs:
                lines.append(f"device {mine.index}: {mine.name} -> {theirs.name}")
        devices = [len(layout.topology.devices) for layout in (self, other)]
        if devices[0] != devices[1]:
            lines.append(f"devices: {devices[0]} -> {devices[1]}")
        for gmi, now in zip(self.gmis, other.gmis, strict=False):
            lines += _changes(f"GMI {gmi.gmi_id}: ", _plain(gmi), _plain(now))
        common = min(len(self.gmis), len(other.gmis))
        for sign, gmis in (("-", self.gmis[common:]), ("+", other.gmis[common:])):
            for gmi in gmis:
                shown = ", ".join(f"{key} {value}" for key, value in _plain(gmi).items() if value)
                lines.append(f"{sign} GMI {gmi.gmi_id}: {shown}")
        return lines

    def to_json(self) -> str:
        """The layout as text that `from_json` reads."""
        return json.dumps({"format": _FORMAT, **asdict(self)}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Layout:
        """The layout `to_json` wrote; LayoutError if the text is not one."""
        try:
            data = json.loads(text)
            if not isinstance(data, dict) or data.pop("format", None) != _FORMAT:
                raise LayoutError(
                    f"this text is no layout of format {_FORMAT}, which this gmi-drl reads. Use "
                    "the version of gmi-drl that wrote it, or make it anew from the config."
                )
            return _reader().validate_python(data)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            rule = first.get("ctx", {}).get("error")
            if isinstance(rule, LayoutError):
                raise rule from None
            what = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        except json.JSONDecodeError as error:
            what = f"not JSON: {error}"
        raise LayoutError(
            f"this text is no layout ({what}). It may be damaged: make it anew from the config."
        )


# device_uuid goes with gpu_id.
_SHOWN: Final = {"gpu_id": "device", "mem_bytes": "memory", "gmi_id": "", "device_uuid": ""}


def _plain(value: Layout | GmiSpec) -> dict[str, str]:
    """What a person reads of it; "" for what is not set."""
    if isinstance(value, Layout):
        return {"template": value.template}
    found = {}
    for field in fields(value):
        its: Any = getattr(value, field.name)
        name = _SHOWN.get(field.name, field.name)
        if not name:
            continue
        if its is None:
            text = ""
        elif name == "cores":
            text = format_cores(its)
        elif name == "memory":
            text = f"{its / 2**30:.4g} GiB"
        elif isinstance(its, MigSlice):
            text = f"{its.profile} at {its.start}"
        else:
            text = "+".join(its) if isinstance(its, tuple) else str(its)
        found[name] = text
    return found


def _changes(what: str, before: dict[str, str], after: dict[str, str]) -> Iterator[str]:
    for key, old in before.items():
        if old != after[key]:
            yield f"{what}{key} {old or 'none'} -> {after[key] or 'none'}"


@functools.cache
def _reader() -> TypeAdapter[Layout]:
    return TypeAdapter(Layout)
