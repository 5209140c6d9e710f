"""Defines a Layout: which GMIs there are, where each one lies, and which roles it holds."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final

from pydantic import TypeAdapter, ValidationError

from gmi_drl.errors import GmiDrlError

from .faults import counted
from .topology import Topology

_FORMAT: Final = 2  # of the JSON text; raised when older readers cannot read it


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
    mig: MigSlice | None = None  # backend mig: its instance, which may have to be made


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
        """Returns the GMI ids on each device, in device order (the paper's MPL)."""
        return [
            [gmi.gmi_id for gmi in self.gmis if gmi.gpu_id == device.index]
            for device in self.topology.devices
        ]

    @property
    def hosts(self) -> int:
        """Returns the number of hosts that the GMIs are on."""
        return self.topology.hosts

    def host_of(self, gmi_id: int) -> int:
        """Returns the rank of the host that a GMI is on."""
        return self.topology.devices[self.gmi(gmi_id).gpu_id].host

    def on_host(self, host: int) -> tuple[GmiSpec, ...]:
        """Returns the GMIs of a host, in the order of their ids."""
        return tuple(gmi for gmi in self.gmis if self.host_of(gmi.gmi_id) == host)

    @classmethod
    def joined(cls, hosts: Sequence[Layout]) -> Layout:
        """Returns the layouts of several hosts as one; GMIs and devices are counted on."""
        gmis: list[GmiSpec] = []
        devices = 0
        for part in hosts:
            num_gmis = len(gmis)
            gmis += [
                replace(gmi, gmi_id=num_gmis + gmi.gmi_id, gpu_id=devices + gmi.gpu_id)
                for gmi in part.gmis
            ]
            devices += len(part.topology.devices)
        topology = Topology.joined([part.topology for part in hosts])
        return cls(hosts[0].template, topology, tuple(gmis))

    def of_host(self, host: int) -> Layout:
        """Returns the layout of one host, its GMIs and devices numbered from 0."""
        gmis = self.on_host(host)
        devices = [device.index for device in self.topology.devices if device.host == host]
        return Layout(
            self.template,
            self.topology.of_host(host),
            tuple(
                replace(gmi, gmi_id=index, gpu_id=devices.index(gmi.gpu_id))
                for index, gmi in enumerate(gmis)
            ),
        )

    def holding(self, role: str) -> tuple[GmiSpec, ...]:
        """Returns the GMIs that hold a role, in the order of their ids."""
        return tuple(gmi for gmi in self.gmis if role in gmi.roles)

    def mpl_of(self, role: str) -> list[list[int]]:
        """Returns `mpl` of the GMIs that hold a role; a device without any has an empty list."""
        return [[i for i in device if role in self.gmis[i].roles] for device in self.mpl]

    def gmi(self, gmi_id: int) -> GmiSpec:
        """Returns the GMI with this id; LayoutError names those there are."""
        if not 0 <= gmi_id < len(self.gmis):
            raise LayoutError(
                f"GMI {gmi_id}; this layout has GMIs 0 to {len(self.gmis) - 1}. Use one of them."
            )
        return self.gmis[gmi_id]

    def to_json(self) -> str:
        """Returns the layout as text that `from_json` reads."""
        return json.dumps({"format": _FORMAT, **asdict(self)}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Layout:
        """Returns the layout `to_json` wrote; LayoutError if the text is not one."""
        try:
            data = json.loads(text)
            if not isinstance(data, dict) or data.pop("format", None) != _FORMAT:
                raise LayoutError(
                    f"this text is no layout of format {_FORMAT}, which this gmi-drl reads. Use "
                    "the version of gmi-drl that wrote it, or make it anew from the config."
                )
            return _reader().validate_python(data)
        except ValidationError as error:
            detail = error.errors(include_url=False)[0]
            rule = detail.get("ctx", {}).get("error")
            if isinstance(rule, LayoutError):
                raise rule from None
            reason = f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}"
        except json.JSONDecodeError as error:
            reason = f"not JSON: {error}"
        raise LayoutError(
            f"this text is no layout ({reason}). It may be damaged: make it anew from the config."
        )


@functools.cache
def _reader() -> TypeAdapter[Layout]:
    return TypeAdapter(Layout)
