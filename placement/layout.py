"""A Layout: which GMIs there are, where each one lies, and which roles it holds."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Final

from .topology import Device, Topology

_FORMAT: Final = 1  # of the JSON text; raised when an older reader could not understand it


class LayoutError(ValueError):
    """A Layout that contradicts itself, or a text that is not one."""


@dataclass(frozen=True)
class GmiSpec:
    """One GMI: its share of a device and what it does there."""

    gmi_id: int
    gpu_id: int  # index of its device in the topology
    roles: tuple[str, ...]
    backend: str  # "cpu" or "direct"
    cores: tuple[int, ...]
    num_env: int  # 0 without a simulator
    sm_percent: int | None = None
    device_uuid: str | None = None


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
                    f"GmiSpec {gmi.gmi_id}: gpu_id={gmi.gpu_id}; there are {devices} devices, "
                    "counted from 0. Choose one of them."
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

    def to_json(self) -> str:
        """The layout as text that `from_json` reads."""
        return json.dumps({"format": _FORMAT, **asdict(self)}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Layout:
        """The layout `to_json` wrote; LayoutError if the text is not one."""
        try:
            data = json.loads(text)
            if data["format"] != _FORMAT:
                raise LayoutError(
                    f"layout format {data['format']!r}; this gmi-drl reads {_FORMAT}. "
                    "Use the version of gmi-drl that wrote it."
                )
            devices = [Device(**_tuples(device)) for device in data["topology"]["devices"]]
            gmis = [GmiSpec(**_tuples(gmi)) for gmi in data["gmis"]]
            return cls(str(data["template"]), Topology(tuple(devices)), tuple(gmis))
        except LayoutError:
            raise
        except (ValueError, TypeError, KeyError) as error:
            raise LayoutError(
                f"this text is no layout ({type(error).__name__}: {error}). It may be damaged: "
                "make it anew from the config."
            ) from error


def _tuples(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(v) if isinstance(v, list) else v for key, v in fields.items()}
