"""What is said of a machine: what works, what is not there, what is broken; and the trials."""

import contextlib
import dataclasses
import os
import re
import sys
from datetime import timedelta

import psutil
import pynvml
import pytest

import boxes
import fake_gpus
import fake_nvml
from fake_mig import put
from gmi_drl.gmi import GmiError, discover, health
from gmi_drl.gmi.backends.mps import MpsBackend
from gmi_drl.gmi.backends.trial import trial_layout, try_backend
from gmi_drl.gmi.discover import look
from gmi_drl.gmi.health import (
    HostResources,
    backend_findings,
    gpu_findings,
    host_findings,
    left_behind,
    this_host,
)
from gmi_drl.gmi.lease import Lease
from gmi_drl.placement import Topology


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Makes a machine of these GPUs, for NVML, CUDA and MPS alike; returns its topology."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def make(*gpus, mps="", **fields):
        fake_nvml.install(monkeypatch, *gpus, **fields)
        fake_gpus.install(monkeypatch, tmp_path, discover(), mps)
        return discover()

    return make


def by_name(findings):
    return {finding.name: finding for finding in findings}


def said(topology):
    return by_name(gpu_findings(look(), topology))


def test_a_machine_that_is_well(machine):
    found = said(machine(*boxes.dgx_a100()))
    assert {finding.state for finding in found.values()} == {"ok"}
    assert found["GPUs"].value == "8 x NVIDIA A100-SXM4-80GB"
    assert found["driver"].value == "580.159.03, runs CUDA up to 13.0"
    assert found["peer access"].value == "all 8 GPUs read each other's memory"
    assert found["processes on GPUs"].value == "none"


def test_gpus_that_do_not_reach_each_other(machine):
    found = said(machine(*boxes.v100()))["peer access"]
    assert (found.state, found.value) == ("ok", "16 of 28 pairs")
    assert found.why.startswith("such as GPU 0 and GPU 5 (system)")
    assert said(machine(*boxes.a30()))["peer access"].state == "not here"
    assert said(machine(*boxes.h200()))["peer access"].value == "one GPU"


def test_a_lost_gpu_is_broken_and_named(machine):
    found = said(machine(*boxes.falling(0)))["GPUs"]
    assert (found.state, found.value) == ("broken", "7 x NVIDIA A100-SXM4-80GB")
    assert found.why == "GPU 2: GPU is lost"
    assert "Xid" in found.remedy


def test_hidden_gpus_are_no_fault(machine, monkeypatch):
    topology = machine(*boxes.a30())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    found = said(topology)["GPUs"]
    assert (found.state, found.value) == ("ok", "1 x NVIDIA A30")
    assert found.why == "GPU 0 is not in CUDA_VISIBLE_DEVICES=1"


@pytest.mark.parametrize(
    ("fields", "words", "remedy"),
    [
        ({"mig": True}, "in MIG mode and has no instance", "-mig 0"),
        ({"compute_mode": pynvml.NVML_COMPUTEMODE_PROHIBITED}, "prohibited", "-c 0"),
    ],
)
def test_a_gpu_that_nobody_can_use_is_broken(machine, fields, words, remedy):
    gpus = [dataclasses.replace(gpu, **fields) for gpu in boxes.h200()]
    found = said(machine(*gpus))["GPUs"]
    assert found.state == "broken"
    assert words in found.why
    assert f"nvidia-smi -i {gpus[0].uuid}" in found.remedy
    assert remedy in found.remedy


def test_other_peoples_processes_are_told_by_name_where_they_are_seen(machine):
    gpus = boxes.in_use()
    gpus[0].processes[0].pid = os.getpid()
    found = said(machine(*gpus))["processes on GPUs"]
    assert found.state == "ok"
    assert f"{os.getpid()} ({psutil.Process().name()} of " in found.value
    assert "5151, mps, 2.0 GiB" in found.value
    gpus[0].compute_mode = pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS
    found = said(machine(*gpus))["processes on GPUs"]
    assert (found.state, found.why[:5]) == ("broken", "GPU 0")


@pytest.mark.parametrize(
    ("code", "driver_is_there", "on_the_bus", "state", "words"),
    [
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, False, 0, "not here", "Driver Not Loaded"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, False, 2, "not here", "there are 2 NVIDIA devices"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, True, 1, "broken", "version mismatch"),
    ],
)
def test_a_driver_that_does_not_answer(
    monkeypatch, tmp_path, code, driver_is_there, on_the_bus, state, words
):
    fake_nvml.install(monkeypatch, error=code)
    for number in range(on_the_bus):
        device = tmp_path / f"0000:0{number}:00.0"
        device.mkdir()
        (device / "vendor").write_text("0x10de\n")
        (device / "class").write_text("0x030200\n")
    monkeypatch.setattr(health, "_PCI", tmp_path)
    monkeypatch.setattr(health, "_DRIVER", [tmp_path] if driver_is_there else [])
    found = by_name(gpu_findings(look(), discover()))["driver"]
    assert found.state == state
    assert words in found.why


@pytest.mark.parametrize(("backend", "count"), [("direct", "1 GMI"), ("mps", "2 GMIs")])
def test_a_backend_is_tried_on_all_gpus_and_leaves_nothing(machine, backend, count):
    found = try_backend(backend, machine(*boxes.a30()))
    assert found.startswith(f"{count} on each of 2 GPUs started and verified in ")


@pytest.mark.slow  # it imports torch
def test_threads_of_one_process_are_tried_in_one(machine, monkeypatch):
    monkeypatch.setenv("FAKE_CUDA_TORCH", "1")
    assert try_backend("green", machine(*boxes.h200())).startswith("2 GMIs started")


def test_instances_that_exist_are_tried_and_gpus_without_are_not(machine):
    cut, whole = boxes.a30(("2g.12gb", 0), ("2g.12gb", 2))
    whole.mig, whole.gpu_instances = False, []
    topology = machine(cut, whole)
    assert [gmi.gpu_id for gmi in trial_layout("mig", topology).gmis] == [0]
    assert [gmi.gpu_id for gmi in trial_layout("mps", topology).gmis] == [1, 1]
    assert try_backend("mig", topology).startswith("1 GMI started")


def test_instances_in_use_are_let_be_and_no_fault(machine):
    first, second = gpus = boxes.a30()
    for gpu in gpus:
        gpu.mig = True
    put(first, "2g.12gb", 0, in_use_by=[4242])
    put(first, "1g.6gb", 2)  # smaller, and idle
    put(second, "4g.24gb", 0, in_use_by=[5151])
    found = try_backend("mig", machine(*gpus))
    assert re.fullmatch(
        r"1 GMI started and verified in .* s; all of GPU 1 are in use, not tried", found
    )
    lease = Lease("mig")  # another run, whose process is not there yet
    with contextlib.closing(lease):
        number = lease.note({"gpu": first.uuid, "uses": 2})
        (mig,) = (one for one in backend_findings(machine(*gpus), try_backend) if "mig" in one.name)
        assert (mig.state, mig.value) == ("ok", "all instances are in use, not tried")
        lease.undone(number)


@pytest.mark.parametrize(
    ("mps", "words"),
    [("refuse", "MPS daemon of GPU"), ("clients=1", "808")],
)
def test_a_backend_that_is_there_and_does_not_work_is_broken(machine, mps, words):
    others = (("mig", "none"), ("green", "none"))
    topology = dataclasses.replace(machine(*boxes.h200(), mps=mps), unusable=others)
    found = by_name(backend_findings(topology, try_backend))
    assert found["backend direct"].state == "ok"
    assert found["backend mps"].state == "broken"
    assert words in found["backend mps"].why
    assert not found["backend mps"].why.startswith("gmi_drl.")  # a sentence, no traceback


def test_a_gpu_that_hangs_is_given_up(machine, monkeypatch, tmp_path):
    (tmp_path / "cuda" / "bindings").mkdir(parents=True)
    (tmp_path / "cuda" / "bindings" / "__init__.py").write_text("import time; time.sleep(60)")
    topology = machine(*boxes.h200())
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(GmiError, match=r"GMI 0 on GPU 0 has not entered its slice within 0.5 s"):
        try_backend("direct", topology, timedelta(seconds=0.5))


def test_a_process_that_is_killed_on_its_way_is_told(machine, monkeypatch, tmp_path):
    (tmp_path / "cuda" / "bindings").mkdir(parents=True)
    (tmp_path / "cuda" / "bindings" / "__init__.py").write_text(
        "import os; os.kill(os.getpid(), 9)"
    )
    topology = machine(*boxes.h200())
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(GmiError, match=r"gmi 0 .* was killed by SIGKILL"):
        try_backend("direct", topology)


def test_what_cannot_be_used_is_not_tried(machine):
    topology = dataclasses.replace(
        machine(*boxes.h200()), unusable=(("green", "the driver is old; update it"),)
    )
    tried = []
    found = by_name(backend_findings(topology, lambda name, _: tried.append(name) or "fine"))
    assert tried == ["direct", "mps", "mig"]
    green = found["backend green"]
    assert (green.state, green.why, green.remedy) == ("not here", "the driver is old", "update it")
    cores = by_name(backend_findings(Topology.from_cores([0]), try_backend))
    assert [f.state for f in cores.values()] == ["ok", *["not here"] * 4]


def test_what_killed_runs_left_is_removed(monkeypatch):
    monkeypatch.setattr(MpsBackend, "undo", lambda *_: True)
    lease = Lease("mps")
    lease.note({"device_uuid": "GPU-1", "index": 0})
    os.close(lease._lock)  # as when its launcher is killed
    os.close(lease._file)
    found = left_behind()
    assert (found.state, found.value) == ("ok", "1, now removed")
    assert left_behind().value == "nothing"


HOST = HostResources(
    cores=(0, 1, 2, 3), quota_cores=None, nodes={0: frozenset(range(4))}, mem_bytes=8 << 30,
    mem_limit_bytes=None, shm_bytes=64 << 20, max_files=1024, max_locked_bytes=None,
)  # fmt: skip
CORES = Topology.from_cores(range(4))


@pytest.mark.parametrize(
    ("changes", "name", "state", "words"),
    [
        ({}, "/dev/shm", "ok", "needs none"),
        ({"quota_cores": 1.5}, "cores", "ok", "time of 1.5 of them.*hardware.cores to 1 of"),
        ({"mem_limit_bytes": 1 << 30}, "memory", "ok", "1.0 GiB.*the machine has 8.0 GiB"),
        ({"memfd_error": "Operation not permitted"}, "shared memory", "broken", "seccomp"),
        ({"max_files": 64}, "open files", "broken", "ulimit -n"),
        ({"max_locked_bytes": 8 << 20}, "locked memory", "ok", "8 MiB"),
    ],
)
def test_limits_of_a_host(changes, name, state, words):
    found = by_name(host_findings(dataclasses.replace(HOST, **changes), CORES))[name]
    assert found.state == state
    text = f"{found.value} {found.why} {found.remedy}"
    assert re.search(words, text), text


def test_gpus_without_peer_access_need_shared_memory_for_nccl(machine):
    small = by_name(host_findings(HOST, machine(*boxes.a30())))["/dev/shm"]
    assert (small.state, small.value) == ("broken", "64 MiB")
    assert "docker run --shm-size=1g" in small.remedy
    for host, box in (
        (dataclasses.replace(HOST, shm_bytes=1 << 30), boxes.a30()),
        (HOST, boxes.dgx_a100()),
        (HOST, boxes.h200()),
    ):
        assert by_name(host_findings(host, machine(*box)))["/dev/shm"].state == "ok"


def test_a_gpu_at_a_node_whose_cores_are_not_ours(machine, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    nodes = {0: frozenset(range(64)), 1: frozenset(range(64, 128))}
    found = by_name(
        host_findings(dataclasses.replace(HOST, nodes=nodes), machine(*boxes.dgx_a100()))
    )["NUMA"]
    assert found.value == "node 0: cores 0-63; node 1: cores 64-127"
    assert "GPU 4 is at node 1, of whose cores this process may use none" in found.why


def test_this_host_is_read(monkeypatch, tmp_path):
    found = this_host()
    assert set(found.cores) == os.sched_getaffinity(0)
    assert found.mem_bytes == psutil.virtual_memory().total
    assert found.memfd_error == ""
    group = tmp_path / "box"
    group.mkdir()
    (group / "cpu.max").write_text("max 100000\n")
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    (group / "memory.max").write_text("1048576\n")
    monkeypatch.setattr(health, "cgroup_folders", lambda _: [group, tmp_path])
    found = this_host()
    assert (found.quota_cores, found.mem_limit_bytes) == (1.5, 1 << 20)
