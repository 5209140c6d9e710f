"""The slice of one GMI: what its environment says, and that the process checks what it got."""

import os
import platform
import subprocess
import sys

import pytest
import torch

from gmi_drl.gmi import GmiError, SliceError, backend_of
from gmi_drl.placement import Device, GmiSpec, Topology

CORES = tuple(sorted(os.sched_getaffinity(0)))
DEVICE = Device(0, "cpu", "CPU", CORES)


def spec(backend="cpu", cores=CORES, uuid=None):
    return GmiSpec(3, 0, ("trainer",), backend, cores, 8, device_uuid=uuid)


def environment_of(one):
    topology = Topology((DEVICE,))
    return backend_of(one.backend).prepare([one], topology).environment(one)


@pytest.fixture
def _same_threads_after():
    threads, cores = torch.get_num_threads(), os.sched_getaffinity(0)
    yield
    torch.set_num_threads(threads)
    os.sched_setaffinity(0, cores)


def test_an_unknown_backend_names_the_known_ones():
    with pytest.raises(GmiError, match="'gpu'; there is cpu, direct"):
        backend_of("gpu")


def test_thread_counts_are_in_the_environment_and_no_gpu():
    environment = environment_of(spec(cores=(0, 1, 2)))
    assert environment.pop("CUDA_VISIBLE_DEVICES") == ""
    assert set(environment.values()) == {"3"}
    assert "OMP_NUM_THREADS" in environment


@pytest.mark.usefixtures("_same_threads_after")
def test_a_slice_that_was_entered_is_verified():
    cpu = backend_of("cpu")
    for cores in (CORES[:1], CORES):
        cpu.enter(spec(cores=cores), DEVICE)
        cpu.verify(spec(cores=cores), DEVICE)
        assert os.sched_getaffinity(0) == set(cores)
        assert torch.get_num_threads() == len(cores)


@pytest.mark.usefixtures("_same_threads_after")
def test_other_cores_or_threads_are_found_out():
    cpu = backend_of("cpu")
    cpu.enter(spec(cores=CORES[:1]), DEVICE)
    torch.set_num_threads(3)
    with pytest.raises(SliceError, match="GmiSpec 3: 1 threads for torch; it has 3"):
        cpu.verify(spec(cores=CORES[:1]), DEVICE)
    with pytest.raises(SliceError, match=r"GmiSpec 3: cores=\[4000\]; the process runs on"):
        cpu.verify(spec(cores=(4000,)), DEVICE)
    with pytest.raises(SliceError, match=r"cores=\[4000\]; the system refuses"):
        cpu.enter(spec(cores=(4000,)), DEVICE)


_FAULTS = """
import resource
import numpy as np
from gmi_drl.gmi.backends.cpu import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        arrays = [np.ones(2**17) for _ in range(8)]
        del arrays
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

before = faults()
keep_freed_memory()
faults()
print(before, faults())
"""


def test_arrays_on_cpu_cores_get_the_memory_of_those_before():
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("not glibc")
    told = subprocess.run(
        [sys.executable, "-c", _FAULTS], capture_output=True, text=True, timeout=60, check=True
    )
    before, after = map(int, told.stdout.split())
    assert after < 500 < before
