"""How much memory a GMI may hold: an instance's, a limit's, or an equal part of what is left."""

import dataclasses

import pytest

from gmi_drl.placement import Device, GmiSpec, GpuProcess, Layout, MigInstance, MigSlice, Topology
from gmi_drl.placement.slicing import RESERVE_BYTES, memory_share

GIB = 1 << 30
H200 = Device(0, "gpu", "NVIDIA H200", (0,), uuid="GPU-1", mem_bytes=141 * GIB,
              capability=(9, 0), mig_mode=True)  # fmt: skip


def layout(device, *gmis, backend="direct"):
    specs = (GmiSpec(i, 0, ("trainer",), backend, (0,), 1, **gmi) for i, gmi in enumerate(gmis))
    return Layout("tcg_ex", Topology((device,)), tuple(specs))


@pytest.mark.parametrize("count", [1, 2, 8])
def test_gmis_without_a_limit_share_evenly_what_others_leave(count):
    held = dataclasses.replace(H200, processes=(GpuProcess(1, "compute", 20 * GIB),))
    shares = [memory_share(layout(held, *[{}] * count), i).nbytes for i in range(count)]
    assert len(set(shares)) == 1
    assert 141 * GIB - RESERVE_BYTES - 20 * GIB - sum(shares) in range(count)


def test_a_limit_is_the_share_and_the_others_have_the_rest():
    one = layout(H200, {"mem_bytes": 40 * GIB}, {}, {}, backend="mps")
    assert memory_share(one, 0).nbytes == 40 * GIB
    assert memory_share(one, 1) == memory_share(one, 2)
    assert memory_share(one, 1).nbytes == 50 * GIB


def test_a_mig_instance_has_its_own_memory_and_one_to_be_made_that_of_its_profile():
    there = MigInstance("MIG-1", "3g.71gb", 0, 4, 69 * GIB)
    one = layout(
        dataclasses.replace(H200, mig=(there,)),
        {"mig": MigSlice("3g.71gb", 0)}, {"mig": MigSlice("1g.18gb", 4)}, backend="mig",
    )  # fmt: skip
    assert memory_share(one, 0).nbytes == 69 * GIB
    assert 14 * GIB < memory_share(one, 1).nbytes < 18 * GIB


def test_cores_have_no_share_nor_has_a_gpu_that_does_not_say():
    cores = layout(Device(0, "cpu", "cores", (0,)), {}, backend="cpu")
    assert memory_share(cores, 0) is None
    assert memory_share(layout(dataclasses.replace(H200, mem_bytes=None), {}), 0) is None
