"""Finding devices: GPUs from a driver that is not there, or groups of cores."""

import dataclasses
import itertools
import os
import re
import subprocess
import sys

import pynvml
import pytest

import boxes
import fake_nvml
from fake_mig import FakeComputeInstance
from fake_nvml import FakeGpu
from gmi_drl.gmi import DiscoveryError, discover, nvml
from gmi_drl.gmi.backends.backend import GPU_BACKENDS, System, unusable
from gmi_drl.placement import Device

CORES = sorted(os.sched_getaffinity(0))


@pytest.fixture(autouse=True)
def _all_visible(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def gpus(number, **fields):
    return [FakeGpu(uuid=f"GPU-{index:08x}-0000", **fields) for index in range(number)]


def no_driver(monkeypatch):
    fake_nvml.install(monkeypatch, error=pynvml.NVML_ERROR_DRIVER_NOT_LOADED)


@pytest.mark.parametrize("backend", ["auto", "cpu"])
def test_without_a_driver_the_device_is_all_cores(monkeypatch, backend):
    no_driver(monkeypatch)
    (device,) = discover(backend=backend).devices
    assert (device.kind, device.cores, device.uuid) == ("cpu", tuple(CORES), None)


def test_without_gpus_a_number_of_them_means_groups_of_cores(monkeypatch):
    fake_nvml.install(monkeypatch)
    devices = discover(num_gpus=2).devices
    assert [device.kind for device in devices] == ["cpu", "cpu"]
    assert devices[0].cores + devices[1].cores == tuple(CORES)


def test_two_gpus(monkeypatch):
    fake_nvml.install(monkeypatch, *gpus(2))
    topology = discover()
    assert [
        (d.index, d.kind, d.name, d.uuid, d.sm_count, d.mem_bytes) for d in topology.devices
    ] == [
        (0, "gpu", "NVIDIA H200", "GPU-00000000-0000", 132, 141 << 30),
        (1, "gpu", "NVIDIA H200", "GPU-00000001-0000", 132, 141 << 30),
    ]
    assert all(set(d.cores) <= set(CORES) and d.cores for d in topology.devices)


def test_fewer_gpus_than_there_are(monkeypatch):
    fake_nvml.install(monkeypatch, *gpus(3))
    assert len(discover(num_gpus=2).devices) == 2
    with pytest.raises(DiscoveryError, match=r"num_gpus=4; 3 can be used.*Lower it"):
        discover(num_gpus=4)


def test_cpu_leaves_the_gpus_alone(monkeypatch):
    fake_nvml.install(monkeypatch, *gpus(2))
    assert discover(backend="cpu").devices[0].kind == "cpu"


@pytest.mark.parametrize(
    ("number", "error", "why"),
    [
        (0, 0, "the driver lists none"),
        (2, pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "NVML: Driver Not Loaded"),
    ],
)
def test_a_backend_that_needs_a_gpu_says_why_there_is_none(monkeypatch, number, error, why):
    fake_nvml.install(monkeypatch, *gpus(number), error=error)
    with pytest.raises(DiscoveryError, match=rf"backend=direct; .*{why}.*Use backend cpu"):
        discover(backend="direct")


def test_a_gpu_that_a_run_has_lost_is_left_out(monkeypatch):
    fake_nvml.install(monkeypatch, *gpus(3))
    first, *others = discover().devices
    topology = discover(num_gpus=2, without={first.uuid})
    assert [one.uuid for one in topology.devices] == [one.uuid for one in others]
    assert topology.left_out == ("GPU 0: this run has lost it",)
    with pytest.raises(DiscoveryError, match="this run has lost it"):
        discover(num_gpus=3, without={first.uuid})


def test_a_lost_gpu_is_left_out_and_named_when_it_is_missed(monkeypatch):
    lost, good = gpus(2)
    lost.error = pynvml.NVML_ERROR_GPU_IS_LOST
    fake_nvml.install(monkeypatch, lost, good)
    (device,) = discover().devices
    assert (device.index, device.uuid) == (0, good.uuid)
    with pytest.raises(DiscoveryError, match="GPU 0: GPU is lost"):
        discover(num_gpus=2)


@pytest.mark.parametrize(
    ("visible", "expected"),
    [("1", [1]), ("0,1", [0, 1]), ("GPU-00000001", [1]), ("-1", []), ("", [])],
)
def test_cuda_visible_devices_is_respected(monkeypatch, visible, expected):
    fake_nvml.install(monkeypatch, *gpus(2))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = [device.uuid for device in discover().devices if device.kind == "gpu"]
    assert found == [f"GPU-{index:08x}-0000" for index in expected]


@pytest.mark.parametrize(
    ("capability", "num_cores", "sm_count"),
    [((8, 0), 6912, 108), ((7, 0), 5120, 80), ((8, 9), 18176, 142), ((9, 0), 0, None)],
)
def test_sm_count(monkeypatch, capability, num_cores, sm_count):
    fake_nvml.install(monkeypatch, FakeGpu(capability=capability, num_cores=num_cores))
    assert discover().devices[0].sm_count == sm_count


def test_gpus_take_the_cores_on_their_side(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    sides = [0b00001111, 0b00001111, 0b11110000]
    fake_nvml.install(monkeypatch, *(FakeGpu(uuid=f"GPU-{m}", cpu_mask=(m,)) for m in sides))
    cores = [device.cores for device in discover().devices]
    assert cores == [(0, 1), (2, 3), (4, 5, 6, 7)]


def test_a_driver_that_does_not_name_cores_names_their_node(monkeypatch, tmp_path):
    for node, cores in ((0, "0-2,4"), (1, "3,5-7")):
        (tmp_path / f"node{node}").mkdir()
        (tmp_path / f"node{node}" / "cpulist").write_text(f"{cores}\n")
    monkeypatch.setattr(nvml, "_NODES", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    fake_nvml.install(
        monkeypatch, *(FakeGpu(uuid=f"GPU-{n}", numa_node=n) for n in range(2)),
    )  # fmt: skip
    assert [device.cores for device in discover().devices] == [(0, 1, 2, 4), (3, 5, 6, 7)]


def test_a_node_is_known_from_the_pci_bus_where_nvml_does_not_say(monkeypatch, tmp_path):
    (tmp_path / "0000:3b:00.0").mkdir()
    (tmp_path / "0000:3b:00.0" / "numa_node").write_text("1\n")
    monkeypatch.setattr(nvml, "_PCI", tmp_path)
    fake_nvml.install(monkeypatch, FakeGpu(pci="00000000:3B:00.0"))
    assert discover().devices[0].numa_node == 1
    (tmp_path / "0000:3b:00.0" / "numa_node").write_text("-1\n")
    assert discover().devices[0].numa_node is None


def test_more_gpus_than_cores_share_them(monkeypatch):
    fake_nvml.install(monkeypatch, *gpus(4))
    assert [d.cores for d in discover(cores=CORES[:1]).devices] == [tuple(CORES[:1])] * 4


@pytest.mark.parametrize("cores", [[], [4000]])
def test_cores_that_are_not_ours(cores):
    with pytest.raises(DiscoveryError, match="this process may use"):
        discover(backend="cpu", cores=cores)


@pytest.mark.parametrize(
    ("machine", "sms", "capability", "mig", "link"),
    [
        (boxes.dgx_a100, 108, (8, 0), False, "NVLink x12"),
        (boxes.dgx_h100, 132, (9, 0), False, "NVLink x18"),
        (boxes.b200, 148, (10, 0), False, "NVLink x18"),
        (boxes.h200, 132, (9, 0), False, None),
        (boxes.a30, 56, (8, 0), False, "system"),
        (boxes.v100, 80, (7, 0), None, "NVLink x1"),
    ],
)
def test_machines(monkeypatch, machine, sms, capability, mig, link):
    fake_nvml.install(monkeypatch, *(gpus := machine()))
    topology = discover()
    assert [d.uuid for d in topology.devices] == [gpu.uuid for gpu in gpus]
    first, last = topology.devices[0], topology.devices[-1]
    assert (first.sm_count, first.capability, first.mig_mode) == (sms, capability, mig)
    assert first.compute_mode == "default"
    assert topology.cuda == (13, 0)
    assert (first.numa_node, last.numa_node) == (0, 0 if len(gpus) == 1 else 1)
    assert topology.links[0][0] == ""
    assert link is None or topology.links[0][1] == link


def test_a_mesh_of_nvlinks_is_counted_pair_by_pair(monkeypatch):
    fake_nvml.install(monkeypatch, *boxes.v100())
    topology = discover()
    assert topology.links[0] == (
        "", "NVLink x1", "NVLink x1", "NVLink x2", "NVLink x2", "system", "system", "system",
    )  # fmt: skip
    assert topology.peers[0] == (True,) * 5 + (False,) * 3
    for i, j in itertools.combinations(range(8), 2):
        assert topology.links[i][j] == topology.links[j][i]


def test_ways_over_pcie_and_links_that_are_down(monkeypatch):
    gpus = boxes.box(8, [None, None])
    fake_nvml.install(monkeypatch, *gpus)
    links = discover(num_gpus=5).links
    assert [len(row) for row in links] == [5] * 5
    assert links[0] == ("", "PCIe switch", "NUMA node", "NUMA node", "system")


def test_mig_instances(monkeypatch):
    gpus = boxes.a30(("2g.12gb", 0), ("1g.6gb", 2), ("1g.6gb", 3))
    fake_nvml.install(monkeypatch, *gpus)
    device = discover().devices[1]
    assert [(its.profile, its.start, its.size, its.sm_count) for its in device.mig] == [
        ("2g.12gb", 0, 2, 28), ("1g.6gb", 2, 1, 14), ("1g.6gb", 3, 1, 14),
    ]  # fmt: skip
    assert len({its.uuid for its in device.mig}) == 3
    assert 5 << 30 < device.mig[1].mem_bytes < 6 << 30


def test_users_who_may_not_know_places_get_possible_ones(monkeypatch):
    gpu = boxes.h200()[0]
    gpu.mig = True
    for profile, start in (("1g.18gb", 5), ("3g.71gb", 0), ("1g.35gb", 6)):
        boxes.put(gpu, profile, start)
    fake_nvml.install(monkeypatch, gpu, root=False)
    found = discover().devices[0].mig
    covered = [s for its in found for s in range(its.start, its.start + its.size)]
    assert len(covered) == len(set(covered)) == 7
    assert sorted(its.profile for its in found) == ["1g.18gb", "1g.35gb", "3g.71gb"]


def test_compute_instances_share_the_place_of_their_gpu_instance(monkeypatch):
    gpu = boxes.h200()[0]
    gpu.mig = True
    held = boxes.put(gpu, "3g.71gb", 4)
    held.compute_instances = [
        FakeComputeInstance(0, 0, "MIG-one", [99]), FakeComputeInstance(1, 1, "MIG-two"),
    ]  # fmt: skip
    fake_nvml.install(monkeypatch, gpu)
    device = discover().devices[0]
    assert [(m.uuid, m.profile, m.start, m.sm_count) for m in device.mig] == [
        ("MIG-one", "1c.3g.71gb", 4, 20), ("MIG-two", "2c.3g.71gb", 4, 40),
    ]  # fmt: skip
    assert [process.pid for process in device.processes] == [99]


def test_processes_that_are_there(monkeypatch):
    fake_nvml.install(monkeypatch, *boxes.in_use())
    first, second = (device.processes for device in discover().devices)
    assert [(p.pid, p.kind, p.mem_bytes) for p in first] == [
        (77, "graphics", None), (4242, "compute", 30 << 30),
    ]  # fmt: skip
    assert [(p.pid, p.kind) for p in second] == [(5151, "mps")]


def test_a_gpu_that_falls_off_the_bus_at_any_moment_is_left_out_and_named(monkeypatch):
    after, gpus = 0, boxes.falling(0)
    while True:
        gpus = boxes.falling(after)
        fake_nvml.install(monkeypatch, *gpus)
        topology = discover()
        uuids = [device.uuid for device in topology.devices]
        if gpus[2].asked <= after:  # it lasted until the end
            break
        assert uuids == [gpu.uuid for gpu in gpus if gpu is not gpus[2]]
        assert topology.left_out == ("GPU 2: GPU is lost",)
        assert [device.index for device in topology.devices] == list(range(7))
        assert [len(row) for row in (*topology.links, *topology.peers)] == [7] * 14
        after += 1
    assert len(uuids) == 8
    assert after > 50


def test_an_old_driver_knows_less(monkeypatch):
    """Every question but those without which there is no device may be new to a driver."""
    for name in dir(fake_nvml.FakeLib):
        if name.startswith("nvmlDeviceGet") and not name.endswith(
            ("Count_v2", "ByIndex_v2", "UUID", "Name", "MemoryInfo")
        ):
            monkeypatch.setattr(
                fake_nvml.FakeLib, name, lambda *_: pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
            )
    fake_nvml.install(monkeypatch, *boxes.dgx_a100())
    topology = discover()
    assert len(topology.devices) == 8
    blank = Device(0, "gpu", "", ())
    for name in ("sm_count", "capability", "compute_mode", "mig_mode", "mig", "processes"):
        assert getattr(topology.devices[0], name) == getattr(blank, name)
    assert topology.links[0][1] == "unknown"


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("1,0", [1, 0]),
        ("0,5,1", [0]),  # as CUDA does: nothing behind what it does not know
        ("GPU-0000000", []),  # it fits both
        ("GPU-00000001,0", [1, 0]),
        ("MIG-gone", []),
    ],
)
def test_visible_devices_are_read_as_cuda_reads_them(monkeypatch, visible, expected):
    fake_nvml.install(monkeypatch, *gpus(2))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    topology = discover()
    found = [device.uuid for device in topology.devices if device.kind == "gpu"]
    assert found == [f"GPU-{index:08x}-0000" for index in expected]
    assert len(topology.left_out) == 2 - len(expected)


def test_visible_mig_devices_are_all_that_is_seen_of_their_gpu(monkeypatch):
    gpus = boxes.a30(("2g.12gb", 0), ("2g.12gb", 2))
    uuid = gpus[1].gpu_instances[1].compute_instances[0].uuid
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", uuid)
    fake_nvml.install(monkeypatch, *gpus)
    (device,) = discover().devices
    assert (device.uuid, [its.uuid for its in device.mig]) == (gpus[1].uuid, [uuid])


GPU = Device(0, "gpu", "H200", (), capability=(9, 0), compute_mode="default", mig_mode=False)
WHOLE = System((13, 0))


@pytest.mark.parametrize(
    ("changes", "system", "allow_create", "backend", "words"),
    [
        ({}, WHOLE, False, "mig", "no MIG instance.*MIG mode is off.*allow_create: true"),
        ({"mig_mode": None}, WHOLE, True, "mig", "of a kind without MIG"),
        ({"mig_mode": True}, WHOLE, True, "mps", "is cut by MIG.*use mig"),
        ({"mig_mode": True}, WHOLE, True, "direct", "is cut by MIG"),
        ({"capability": (6, 1)}, WHOLE, True, "mps", "capability 6.1.*from 7.0"),
        ({}, dataclasses.replace(WHOLE, sandbox="gVisor"), True, "mps", "gVisor"),
        (
            {},
            dataclasses.replace(WHOLE, missing_programs=("server",)),
            True,
            "mps",
            "server is not on",
        ),
        *(
            ({}, dataclasses.replace(WHOLE, bindings=False), True, name, r"pip install -e '\.\[cud")
            for name in GPU_BACKENDS
        ),
        ({}, System((12, 9)), True, "green", "CUDA 12.9.*from 13.0 on; update the driver"),
        ({"compute_mode": "prohibited"}, WHOLE, True, "direct", "prohibited; nvidia-smi -c 0"),
    ],
)
def test_backends_that_cannot_be_used_say_why(changes, system, allow_create, backend, words):
    one = dataclasses.replace(GPU, **changes)
    found = dict(unusable([one], system, allow_create))
    assert re.search(words, found[backend])
    if changes:  # and a GPU that can is enough
        assert backend not in dict(unusable([one, GPU], WHOLE, True))


def test_what_can_be_used_is_not_named():
    assert unusable([GPU], WHOLE, allow_create=True) == ()


def test_without_gpus_no_backend_for_gpus_can_be_used(monkeypatch):
    no_driver(monkeypatch)
    found = dict(discover().unusable)
    assert set(found) == {"direct", "mps", "mig", "green"}
    assert "Driver Not Loaded" in found["mps"]


def test_no_devices_make_no_sense():
    with pytest.raises(DiscoveryError, match="num_gpus=0; it must be 1 or more"):
        discover(num_gpus=0)


@pytest.mark.gpu
def test_what_nvml_says_is_what_cuda_says():
    pytest.importorskip("cuda.bindings")
    code = (
        "from gmi_drl.gmi import cuda_driver as c; c.start();"
        "print(c.device_count(), c.device_uuid(), c.sm_count())"
    )
    for device in discover(backend="direct").devices:
        if device.mig_mode:  # it is not seen as a whole
            continue
        ended = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "CUDA_VISIBLE_DEVICES": device.uuid},
            capture_output=True, text=True, timeout=50, check=True,
        )  # fmt: skip
        count, uuid, sms = ended.stdout.split()
        assert (int(count), int(sms)) == (1, device.sm_count)
        assert uuid.removeprefix("GPU-") in device.uuid.lower()
