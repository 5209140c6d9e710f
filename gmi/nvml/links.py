"""Reads how the GPUs of a machine reach each other, from NVML."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from .nvml import bus_id, query

_P2P_READ: Final = 0  # nvidia-ml-py 12 and 13 have the tuple (0,) as NVML_P2P_CAPS_INDEX_READ
_ROUTES: Final = {  # nvmlGpuTopologyLevel_t
    0: "same board", 10: "PCIe switch", 20: "PCIe switches", 30: "host bridge", 40: "NUMA node",
    50: "system",
}  # fmt: skip

LinkTable = tuple[tuple[str, ...], ...]
PeerTable = tuple[tuple[bool, ...], ...]


def read_links(nvml: Any, handles: Sequence[Any]) -> tuple[LinkTable, PeerTable]:
    """Reads `Topology.links` and `Topology.peers` of these GPUs; NVMLError when one is lost.

    Through NVSwitch every GPU reaches every other by all the links that it has.
    """
    ports = [_ports(nvml, handle) for handle in handles]
    addresses = [_address(nvml, handle) for handle in handles]
    links, peers = [], []
    for i, one in enumerate(handles):
        row, reached = [], []
        for j, other in enumerate(handles):
            if i == j:
                row.append("")
                reached.append(True)
                continue
            direct = ports[i][1].get(addresses[j] or "", 0)
            count = direct + min(ports[i][0], ports[j][0])
            row.append(f"NVLink x{count}" if count else _route(nvml, one, other))
            status = query(nvml, nvml.nvmlDeviceGetP2PStatus, one, other, _P2P_READ)
            reached.append(status == nvml.NVML_P2P_STATUS_OK)
        links.append(tuple(row))
        peers.append(tuple(reached))
    return tuple(links), tuple(peers)


def _ports(nvml: Any, handle: Any) -> tuple[int, dict[str, int]]:
    """Counts the NVLinks of a GPU that are up: to switches, and to each GPU by its PCI address."""
    to_switch, to_gpu = 0, dict[str, int]()
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        state = query(nvml, nvml.nvmlDeviceGetNvLinkState, handle, link)
        if state is None:  # it has no more, or none at all
            break
        if not state:
            continue
        kind = query(nvml, nvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link)
        remote = query(nvml, nvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
        if kind == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
            to_switch += 1
        elif remote is not None and kind in (None, nvml.NVML_NVLINK_DEVICE_TYPE_GPU):
            address = bus_id(remote)
            to_gpu[address] = to_gpu.get(address, 0) + 1
    return to_switch, to_gpu


def _address(nvml: Any, handle: Any) -> str | None:
    pci = query(nvml, nvml.nvmlDeviceGetPciInfo_v3, handle)
    return None if pci is None else bus_id(pci)


def _route(nvml: Any, one: Any, other: Any) -> str:
    """Returns the way over PCIe, by what is the nearest thing that both hang on."""
    level = query(nvml, nvml.nvmlDeviceGetTopologyCommonAncestor, one, other)
    return _ROUTES.get(level, "unknown")
