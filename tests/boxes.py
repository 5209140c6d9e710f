"""Machines as their drivers describe them, for `fake_nvml`: names, sizes and links are NVIDIA's."""

import pynvml

from fake_mig import put
from fake_nvml import FakeGpu, FakeProcess

GIB = 1 << 30
# NVLink pairs of the hybrid cube mesh of DGX-1 (V100), with their numbers of links; six a GPU.
_MESH = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2,
    (2, 6): 1, (3, 7): 1, (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
}  # fmt: skip


def box(count, links=(), **fields):
    """`count` GPUs of a kind on two sides of a machine, which see each other's memory.

    `links`: what each GPU's NVLinks go to ("switch"). Each side has half of 128 cores.
    """
    addresses = [f"00000000:{0x07 + 8 * place:02X}:00.0" for place in range(count)]
    uuids = [f"GPU-{place:08x}-1111-2222-3333-444444444444" for place in range(count)]
    gpus = []
    for place in range(count):
        side = place * 2 // count
        near = {address: _ancestor(place, other, count) for other, address in enumerate(addresses)}
        gpus.append(
            FakeGpu(
                uuid=uuids[place], pci=addresses[place], numa_node=side, nvlinks=tuple(links),
                cpu_mask=((1 << 64) - 1, 0) if side == 0 else (0, (1 << 64) - 1), near=near,
                reaches=tuple(uuids), **fields,
            )
        )  # fmt: skip
    return gpus


def _ancestor(place, other, count):
    if place * 2 // count != other * 2 // count:
        return pynvml.NVML_TOPOLOGY_SYSTEM
    if place // 2 == other // 2:
        return pynvml.NVML_TOPOLOGY_SINGLE
    return pynvml.NVML_TOPOLOGY_NODE


def dgx_a100():
    return box(
        8, ["switch"] * 12, name="NVIDIA A100-SXM4-80GB", num_cores=6912, capability=(8, 0),
        mem_bytes=80 * GIB, mig=False,
    )  # fmt: skip


def dgx_h100():
    return box(
        8, ["switch"] * 18, name="NVIDIA H100 80GB HBM3", num_cores=16896, capability=(9, 0),
        mem_bytes=80 * GIB, mig=False,
    )  # fmt: skip


def h200():
    return box(
        1, name="NVIDIA H200", num_cores=16896, capability=(9, 0), mem_bytes=141 * GIB, mig=False
    )


def b200():
    return box(
        8, ["switch"] * 18, name="NVIDIA B200", num_cores=18944, capability=(10, 0),
        mem_bytes=180 * GIB, mig=False,
    )  # fmt: skip


def a30(*instances):
    """Two of them, without NVLink; in MIG mode, with these instances on each, if there are any."""
    gpus = box(
        2, name="NVIDIA A30", num_cores=3584, capability=(8, 0), mem_bytes=24 * GIB,
        mig=bool(instances),
    )  # fmt: skip
    for gpu in gpus:
        gpu.reaches = (gpu.uuid,)
        for profile, start in instances:
            put(gpu, profile, start)
    return gpus


def v100():
    """DGX-1: a mesh of NVLinks in which not every GPU reaches every other, and no MIG."""
    gpus = box(
        8, name="Tesla V100-SXM2-32GB", num_cores=5120, capability=(7, 0), mem_bytes=32 * GIB
    )
    for (a, b), count in _MESH.items():
        for one, other in ((gpus[a], gpus[b]), (gpus[b], gpus[a])):
            one.nvlinks += (other.pci,) * count
    for gpu in gpus:
        gpu.reaches = tuple(one.uuid for one in gpus if one.pci in gpu.nvlinks)
    return gpus


def falling(after, place=2):
    """A DGX A100, one of whose GPUs falls off the bus after so many questions about it."""
    gpus = dgx_a100()
    gpus[place].lost_after = after
    return gpus


def in_use():
    """Two H100 that others compute on, one of them under MPS, and one draws."""
    gpus = dgx_h100()[:2]
    gpus[0].processes = [FakeProcess(4242, mem_bytes=30 * GIB), FakeProcess(77, "graphics", None)]
    gpus[1].processes = [FakeProcess(5151, "mps", 2 * GIB)]
    return gpus
