"""Finding devices: GPUs from a driver that is not there, or groups of cores."""

import os

import pynvml
import pytest

import fake_nvml
from fake_nvml import FakeGpu
from gmi_drl.gmi import DiscoveryError, discover

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


def test_more_gpus_than_cores_share_them(monkeypatch):
    fake_nvml.install(monkeypatch, *gpus(4))
    assert [d.cores for d in discover(cores=CORES[:1]).devices] == [tuple(CORES[:1])] * 4


@pytest.mark.parametrize("cores", [[], [4000]])
def test_cores_that_are_not_ours(cores):
    with pytest.raises(DiscoveryError, match="this process may use"):
        discover(backend="cpu", cores=cores)


def test_no_devices_make_no_sense():
    with pytest.raises(DiscoveryError, match="num_gpus=0; it must be 1 or more"):
        discover(num_gpus=0)
