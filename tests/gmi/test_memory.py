"""What a GMI's process holds of its device, against doubles of torch's, warp's and JAX's counts."""

import os
import pickle
import resource
import sys
import types

import pytest
import torch
from torch.cuda._utils import _get_device_index

import fake_gpus
import fake_nvml
from fake_gpus import GIB
from fake_nvml import FakeGpu, FakeProcess
from gmi_drl.gmi import DeviceMemoryError
from gmi_drl.gmi.usage import memory as gmi_memory
from gmi_drl.gmi.usage.memory import DeviceMemory
from gmi_drl.placement import Layout, Topology

CUDA = torch.device("cuda")
STARTS_JAX = "gmi_drl.roles.envs.mjx.start"


class Counts:
    """What the libraries of a process count, in bytes, and what torch was told to keep to."""

    def __init__(self):
        self.torch = self.warp = self.jax = 0
        self.graphs = {}  # the driver's own counts, by the names of CUgraphMem_attribute
        self.fractions = []
        self.allocator = "native"


@pytest.fixture
def counts(monkeypatch, tmp_path):
    its = Counts()
    fake_gpus.install(monkeypatch, tmp_path, fake_gpus.topology())
    from cuda.bindings import driver

    monkeypatch.setattr(driver, "graph_mem", its.graphs)
    monkeypatch.setattr(gmi_memory, "_WARNED", set())

    def stats(device):
        return {"reserved_bytes": {"all": {"peak": its.torch}}}

    def told(fraction, device):
        _get_device_index(device)  # as torch's own: refuses a device without an index
        its.fractions.append(fraction)

    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: its.allocator)
    total = types.SimpleNamespace(total_memory=80 * GIB)
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", stats)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: total)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", told)
    warp = types.SimpleNamespace(get_mempool_used_mem_high=lambda device: its.warp)
    mine = types.SimpleNamespace(
        platform="gpu", local_hardware_id=0, memory_stats=lambda: {"peak_bytes_in_use": its.jax}
    )
    monkeypatch.setitem(sys.modules, "warp", warp)
    started = types.SimpleNamespace(runtime=object())  # else that of the real one, if it is here
    monkeypatch.setitem(sys.modules, "warp._src.context", started)
    monkeypatch.setitem(sys.modules, "jax", types.SimpleNamespace(local_devices=lambda: [mine]))
    monkeypatch.setitem(sys.modules, STARTS_JAX, types.SimpleNamespace(started=True))
    return its


def memory(backend, per_gpu, said=None, **share):
    machine = fake_gpus.topology()
    gmis = tuple(fake_gpus.specs(backend, machine, per_gpu, **share))
    warn = pytest.fail if said is None else said.append
    return DeviceMemory(Layout("tcg_ex", machine, gmis), 0, CUDA, warn)


@pytest.mark.parametrize(
    ("backend", "per_gpu", "of_the_gpu"),
    [("direct", 1, None), ("direct", 2, 0.5), ("direct", 8, 0.125), ("green", 4, 1.0)],
)
def test_torch_is_held_to_the_share_of_the_process(counts, backend, per_gpu, of_the_gpu):
    memory(backend, per_gpu).bound()
    if of_the_gpu is None:
        assert counts.fractions == []  # nobody else is there
    else:
        assert counts.fractions == [pytest.approx(of_the_gpu * 79 / 80, rel=1e-6)]


def test_under_mps_the_daemon_holds_it_and_torch_is_told_nothing(counts):
    memory("mps", 2, mem_bytes=20 * GIB).bound()
    assert counts.fractions == []


def test_the_peak_is_what_all_libraries_hold(counts):
    counts.torch, counts.warp, counts.jax = 3 * GIB, 2 * GIB, 1 * GIB
    assert memory("mps", 2).look() == 6 * GIB
    counts.allocator = "cudaMallocAsync"  # then torch and warp have one pool between them
    counts.torch = 5 * GIB
    assert memory("mps", 2).look() == 6 * GIB


def test_what_warps_graphs_allocate_is_no_pools_and_counts(counts, monkeypatch):
    counts.torch, counts.warp = 3 * GIB, 2 * GIB
    counts.graphs |= {"CU_GRAPH_MEM_ATTR_USED_MEM_HIGH": 4 * GIB}
    counts.graphs |= {"CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH": 7 * GIB}
    assert memory("mps", 2).look() == 9 * GIB
    counts.allocator = "cudaMallocAsync"
    assert memory("mps", 2).look() == 7 * GIB
    said = []
    counts.torch = 9 * GIB
    memory("direct", 8, said).look()
    assert "(torch 9.00 GiB, warp 0.00 GiB, graphs 4.00 GiB, jax 0.00 GiB)" in said[0]
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)  # then it is not known
    assert memory("mps", 2).look() == 9 * GIB


def test_a_library_that_was_not_imported_is_not_asked(counts, monkeypatch):
    counts.torch = counts.warp = counts.jax = GIB
    monkeypatch.delitem(sys.modules, "warp")
    monkeypatch.delitem(sys.modules, "jax")
    assert memory("direct", 2).look() == GIB
    assert "warp" not in sys.modules


def test_warp_is_not_started_by_asking_it(counts, monkeypatch):
    """The fork server imports it, also for GMIs that make no environments."""
    counts.torch = counts.warp = GIB
    counts.graphs |= {"CU_GRAPH_MEM_ATTR_USED_MEM_HIGH": GIB}
    context = types.SimpleNamespace(runtime=None)  # as warp has it before wp.init()
    monkeypatch.setitem(sys.modules, "warp._src.context", context)
    assert memory("direct", 2).look() == GIB
    context.runtime = object()
    assert memory("direct", 2).look() == 3 * GIB


def test_jax_is_not_started_by_asking_it(counts, monkeypatch):
    counts.torch = counts.jax = GIB
    sys.modules[STARTS_JAX].started = False
    monkeypatch.setattr(sys.modules["jax"], "local_devices", pytest.fail)
    assert memory("direct", 2).look() == GIB
    monkeypatch.delitem(sys.modules, STARTS_JAX)
    assert memory("direct", 2).look() == GIB


def test_on_cores_it_is_the_resident_memory():
    machine = Topology.from_cores([0], 1)
    gmis = tuple(fake_gpus.specs("cpu", machine, 1))
    mine = DeviceMemory(Layout("tcg_ex", machine, gmis), 0, torch.device("cpu"), pytest.fail)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    held = bytearray(before + (32 << 20))  # more than has ever been there
    held[:: resource.getpagesize()] = b"\1" * len(held[:: resource.getpagesize()])
    assert mine.look() >= before + (32 << 20)
    assert mine.process_bytes() == 0


def test_a_gmi_beyond_its_share_is_told_once_with_a_remedy(counts):
    said = []
    mine = memory("direct", 8, said)
    counts.torch = 9 * GIB
    mine.look()
    assert said == []
    counts.warp = 2 * GIB
    mine.look()
    mine.look()
    (text,) = said
    for part in ("gmi 0", "11.00 GiB", "warp 2.00 GiB", "9.88 GiB", "Lower env.num_env"):
        assert part in text
    assert "layout.gmi_per_gpu" in text


def test_gmis_that_are_threads_of_one_process_warn_once(counts):
    counts.torch, said = 81 * GIB, []
    for gmi in (memory("green", 4, said), memory("green", 4, said)):
        gmi.look()
    assert len(said) == 1


def test_a_module_of_the_users_that_has_a_librarys_name_counts_nothing(counts, monkeypatch):
    counts.torch, counts.jax = GIB, GIB
    monkeypatch.setitem(sys.modules, "warp", types.SimpleNamespace())
    assert memory("mps", 2).look() == 2 * GIB


def test_what_the_driver_says_of_this_process_is_told_where_it_says_it(monkeypatch, counts):
    mine = memory("mps", 2)
    gpu = FakeGpu(uuid=fake_gpus.device().uuid)
    gpu.processes = [FakeProcess(1, "mps", GIB), FakeProcess(os.getpid(), "mps", 3 * GIB)]
    fake_nvml.install(monkeypatch, gpu)
    assert mine.process_bytes() == 3 * GIB
    gpu.processes[1] = FakeProcess(os.getpid(), "mps", None)
    assert mine.process_bytes() == 0
    gpu.processes.clear()  # a container that is given ids of its own
    assert mine.process_bytes() == 0


class XlaRuntimeError(RuntimeError):
    """As jaxlib calls it."""


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("CUDA error: out of memory\nCompile with TORCH_USE_CUDA_DSA"),
        RuntimeError("Failed to allocate 8589934592 bytes on device 'cuda:0'"),
        XlaRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes."),
    ],
)
def test_what_libraries_say_becomes_one_error_with_share_peak_and_remedy(counts, error):
    counts.torch = 19 * GIB
    mine = memory("mps", 4, mem_bytes=20 * GIB)
    wrapped = ValueError("the role's own words")
    wrapped.__cause__ = error
    for raised in (error, wrapped):
        found = mine.explained(raised)
        assert (found.gmi_id, found.share_bytes, found.peak_bytes) == (0, 20 * GIB, 19 * GIB)
        for part in ("20.00 GiB", "its limit", "19.00 GiB", "Lower env.num_env", "backend mps"):
            assert part in str(found)
        assert str(error).splitlines()[0] in str(found)
    again = pickle.loads(pickle.dumps(found))
    assert isinstance(again, DeviceMemoryError)
    assert (str(again), vars(again)) == (str(found), vars(found))


def test_other_errors_are_left_as_they_are(counts):
    mine = memory("direct", 2)
    assert mine.explained(RuntimeError("Failed to allocate 8 bytes on device 'cpu'")) is None
    assert mine.explained(KeyError("memory")) is None
