"""What an error of a launch says of a candidate: which limit it ran into, in a line for people."""

import errno

import pytest

from gmi_drl.gmi import DiscoveryError, GmiDied, GmiTimeout, SliceError
from gmi_drl.placement import ConfigError, Device, Fault, GmiSpec, Layout, LayoutError, Topology
from gmi_drl.placement.layout import MigSlice
from gmi_drl.runtime import ForkServerError, ObjectStoreFullError
from gmi_drl.runtime.errors import task_error
from gmi_drl.selector.tune.profile.candidate_run import classify

TRACE = 'Traceback (most recent call last):\n  File "a.py", line 1, in run\n'
CUDA = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has ..."


def raised(text, cause=None):
    """A GMI that raised; the launcher may not know the class."""
    error = GmiDied(1, "simulator+agent+trainer", error=f"{TRACE}{text}\n")
    error.__cause__ = None if cause is None else task_error(cause, TRACE, "gmi1.run()")
    return error


def layout(**fields):
    gmi = {"gpu_id": 0, "roles": ("simulator",), "backend": "mps", "cores": (0,), "num_env": 4}
    gpu = Device(0, "gpu", "NVIDIA H200", (0,), uuid="GPU-1")
    return Layout("tcg", Topology((gpu,)), tuple(GmiSpec(i, **gmi, **fields) for i in range(2)))


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("MemoryError", MemoryError()),
        ("numpy.core._exceptions._ArrayMemoryError: Unable to allocate 9 GiB", MemoryError("9")),
        (
            "RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: you tried",
            None,
        ),
        ("OSError: [Errno 12] Cannot allocate memory", OSError(12, "Cannot allocate memory")),
        ("mujoco.FatalError: Could not allocate memory", None),
    ],
)
def test_host_memory(text, cause):
    failed = classify(raised(text, cause))
    assert failed.reason == "memory"
    assert failed.text == f"gmi 1 (simulator+agent+trainer): host memory ran out: {text}"


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({}, "the memory of GPU 0 ran out"),
        ({"mem_bytes": 20 << 30}, "its limit of 20.0 GiB of GPU 0 (backend mps) is reached"),
        ({"mig": MigSlice("3g.71gb", 0)}, "the memory of its MIG instance 3g.71gb ran out"),
    ],
)
def test_device_memory_says_which_limit(fields, limit):
    failed = classify(raised(CUDA), layout(**fields))
    assert failed.reason == "memory"
    assert limit in failed.text
    assert failed.text.endswith(CUDA)


def test_device_memory_of_other_libraries():
    for text in (
        "RuntimeError: CUDA error: out of memory",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate",
        "cuda.CudaError: CUDA_ERROR_OUT_OF_MEMORY",
    ):
        assert "device memory ran out" in classify(raised(text)).text


def test_the_kernels_kill_is_told_from_any_other():
    killed = GmiDied(0, "trainer", signal=9)
    assert classify(killed, oom_kills=1).reason == "memory"
    assert classify(killed, oom_kills=0).reason == "crash"
    assert "SIGKILL" in classify(killed, oom_kills=0).text


def test_what_ended_a_gmi_from_outside_is_told_and_not_what_it_printed():
    why = "it went down with the fork server (pid 7), which was killed by SIGKILL"
    failed = classify(GmiDied(0, "trainer", signal=9, log_tail="all is well", reason=why))
    assert failed.text == f"gmi 0 (trainer) was killed by SIGKILL: {why}"
    assert failed.reason == "crash"
    why = "it hung in phase rollout: no progress for 20 s; process 7 sleeps"
    assert classify(GmiDied(0, "trainer", signal=9, reason=why)).reason == "hang"


def test_a_crash_tells_its_last_words():
    failed = classify(GmiDied(2, "agent", exit_code=3, log_tail="starting\nphysics exploded\n"))
    assert (failed.reason, failed.text) == (
        "crash", "gmi 2 (agent) exited with code 3: physics exploded",
    )  # fmt: skip
    aborted = GmiDied(2, "agent", signal=6, log_tail="terminate called: std::bad_alloc\n")
    assert classify(aborted).reason == "memory"
    failed = classify(raised("ValueError: 512 environments\nare too many", ValueError("x")))
    assert failed.reason == "crash"
    assert "ValueError: 512 environments" in failed.text


@pytest.mark.parametrize("cause", [TimeoutError("late"), None])
def test_who_waited_in_vain_found_a_hang(cause):
    text = "gmi_drl.comm.errors.ReduceTimeout: reduce timed out after 30 s: rank 2 has not arrived"
    failed = classify(raised(text, cause))
    assert failed.reason == "hang"
    assert "rank 2 has not arrived" in failed.text


def test_what_was_refused_keeps_its_first_reason_and_counts_the_others():
    faults = [Fault("env.num_env", 7, "does not divide", "Use 8."), "no GPU", "no cores"]
    failed = classify(ConfigError(faults))
    assert failed.reason == "refused"
    assert failed.text == "env.num_env=7; does not divide. Use 8. (and 2 more)"
    for error in (LayoutError("GMI ids"), SliceError("cores"), DiscoveryError("no driver")):
        assert classify(error).reason == "refused"
    assert classify(GmiTimeout("slow to start")).reason == "hang"


def test_memory_of_the_launcher_and_the_store():
    for error in (MemoryError(), OSError(errno.ENOMEM, "no"), ObjectStoreFullError("full of x")):
        assert classify(error).reason == "memory"
    assert "object store" in classify(raised("x", ObjectStoreFullError("full"))).text


def test_trouble_of_our_own_is_no_candidates():
    for error in (ForkServerError("died"), OSError(errno.ENOSPC, "disk"), ZeroDivisionError()):
        assert classify(error) is None


def test_a_line_stays_a_line():
    failed = classify(raised("ValueError: " + "very " * 200 + "long"))
    assert len(failed.text) <= 300
    assert "\n" not in failed.text
