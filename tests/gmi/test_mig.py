"""GMIs in MIG instances: those that exist, those that are made, and what is never destroyed."""

import contextlib
import dataclasses
import json
import os
import pickle
import re
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path

import pynvml
import pytest

import bodies_gmi
import bodies_mig
import boxes
import fake_gpus
import fake_nvml
from fake_mig import FakeGpuInstance, maximal_combinations, put
from fake_nvml import FakeProcess
from fork_context import CONTEXT
from gmi_drl.gmi import Gang, GmiError, SliceError, discover, lease
from gmi_drl.gmi.backends import mig
from gmi_drl.gmi.backends.mig.mig_gpu import MigError
from gmi_drl.gmi.lease import Lease, LeaseNotes
from gmi_drl.placement import GmiSpec, Layout, MigSlice, Topology
from gmi_drl.placement.mig import placements, profiles_of

GIB = 1 << 30


@pytest.fixture
def machine(monkeypatch):
    """Makes a machine of these GPUs; returns its driver."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(mig, "IN_USE_TIMEOUT", timedelta(milliseconds=300))
    return lambda *gpus, **more: fake_nvml.install(monkeypatch, *gpus, **more)


@pytest.fixture
def h200(machine):
    """One GPU in MIG mode, with two instances in it that exist."""
    (gpu,) = boxes.h200()
    gpu.mig = True
    put(gpu, "3g.71gb", 4)
    put(gpu, "1g.18gb", 0)
    machine(gpu)
    return gpu


def spec(gpu, gmi_id, profile, start):
    where = profile and MigSlice(profile, start)
    return GmiSpec(
        gmi_id, 0, ("trainer",), "mig", fake_gpus.CORES, 4, device_uuid=gpu.uuid, mig=where
    )


@contextlib.contextmanager
def prepared(*gmis):
    slices = mig.MigSlices(gmis, discover(backend="mig"))
    try:
        yield slices
    finally:
        slices.release()


def refused(*gmis):
    """The text of what prepare raises."""
    with pytest.raises(GmiError) as error:
        mig.MigSlices(gmis, discover(backend="mig"))
    return str(error.value)


def names(gpu):
    return sorted((gi.start, gi.profile_id) for gi in gpu.gpu_instances)


def test_instances_that_exist_need_no_root_and_stay(h200):
    pynvml.nvmlLib.root = False
    topology = discover(backend="mig")
    gmis = bodies_mig.specs(topology, 2)
    slices = mig.MigSlices(gmis, topology)
    for gmi, its in zip(gmis, topology.devices[0].mig, strict=True):
        environment = slices.environment(gmi)
        assert environment["CUDA_VISIBLE_DEVICES"] == its.uuid
        assert environment["CUDA_MPS_PIPE_DIRECTORY"] == "/proc/sys"  # no daemon is there
        assert environment["OMP_NUM_THREADS"] == str(len(gmi.cores))
    slices.fence_all([(gmis[0], os.getpid())])
    slices.release()
    slices.release()  # again is fine
    assert names(h200) == [(0, 19), (4, 9)]


def test_instances_are_made_where_the_layout_says_and_all_is_as_before_after_it(machine):
    plain, shared = bodies_mig.two_a100()
    machine(plain, shared)
    topology = discover(backend="mig")
    gmis = bodies_mig.specs(topology, 2, 35 * GIB)
    slices = mig.MigSlices(gmis, topology)
    assert plain.mig
    # By the profile's id: 9 and 5; the numbers they are asked for by are 2 and 3.
    assert names(plain) == [(0, 9), (4, 9)]
    assert names(shared) == [(0, 5), (4, 9)]
    seen = {its.uuid for device in discover(backend="mig").devices for its in device.mig}
    assert {slices.environment(gmi)["CUDA_VISIBLE_DEVICES"] for gmi in gmis} == seen
    slices.release()
    assert bodies_mig._state([plain, shared]) == bodies_mig._state(bodies_mig.two_a100())


@pytest.mark.parametrize("box", ["a30", "dgx_a100", "dgx_h100", "h200", "b200"])
def test_every_part_is_cut_into_its_smallest_instances_and_healed(machine, box):
    gpu = getattr(boxes, box)()[0]
    machine(gpu)
    topology = discover(backend="mig")
    gmis = bodies_mig.specs(topology, 4 if box == "a30" else 7)
    with prepared(*gmis):
        assert len(gpu.gpu_instances) == len(gmis)
    assert (gpu.mig, gpu.gpu_instances) == (False, [])


@pytest.mark.parametrize(("box", "count"), [("a30", 4), ("dgx_a100", 38)])
def test_every_full_combination_can_be_made(machine, box, count):
    gpu = getattr(boxes, box)()[0]
    gpu.mig = True
    machine(gpu)
    profiles = {
        profile.name: profile for profile in profiles_of(discover(backend="mig").devices[0])
    }
    combinations = maximal_combinations(tuple(profiles.values()))
    assert len(combinations) == count
    for combination in combinations:
        places = placements([profiles[name] for name in combination])
        gmis = [spec(gpu, n, its.profile, its.start) for n, its in enumerate(places)]
        with prepared(*gmis):
            made = [(gi.start, gi.profile_id) for gi in gpu.gpu_instances]
            assert made == [(its.start, profiles[its.profile].profile_id) for its in places]
        assert gpu.gpu_instances == []


@pytest.mark.parametrize(
    ("profile", "start", "why"),
    [
        ("2g.35gb", 0, "INSUFFICIENT_RESOURCES. Another instance lies there"),
        ("2g.35gb", 3, r"of profile 14 at 3 .*; it can begin at \[0, 2, 4\]"),
        ("5g.90gb", 0, "MIG profile '5g.90gb'; there is 1g.18gb, .* Use one of them"),
        (None, 0, "GmiSpec 1: backend mig without mig"),
        ("3g.71gb", 4, "MIG instance 3g.71gb at 4 of GPU 0 is GMI 0's too"),
    ],
)
def test_what_cannot_be_is_said_and_nothing_is_left_of_it(h200, profile, start, why):
    text = refused(spec(h200, 0, "3g.71gb", 4), spec(h200, 1, profile, start))
    assert re.search(why, text), text
    assert names(h200) == [(0, 19), (4, 9)]


def test_without_root_the_commands_are_said(machine):
    gpu = boxes.dgx_a100()[0]
    machine(gpu, root=False)
    text = refused(spec(gpu, 0, "3g.40gb", 4), spec(gpu, 1, "2g.20gb", 0))
    assert "NVML says NO_PERMISSION. It needs root" in text
    assert text.splitlines()[1:] == [
        f"  sudo nvidia-smi -i {gpu.uuid} -mig 1",
        f"  sudo nvidia-smi mig -i {gpu.uuid} -cgi 14:0,9:4 -C",
    ]


def test_mig_mode_is_not_switched_on_under_others(machine):
    gpu = boxes.dgx_a100()[0]
    lib = machine(gpu)
    gpu.processes = [FakeProcess(4242)]
    gmi = spec(gpu, 0, "7g.80gb", 0)
    assert "cannot be switched on while process 4242 holds the GPU. End it" in refused(gmi)
    gpu.processes = []
    lib.hidden = {gpu.uuid}  # as monitors do, which NVML does not list
    assert "MIG mode on: NVML says IN_USE. Something holds the GPU" in refused(gmi)
    assert (gpu.mig, gpu.mig_pending) == (False, None)


def test_an_instance_in_use_is_not_taken_and_one_that_is_gone_is_told(h200):
    gmi = spec(h200, 0, "3g.71gb", 4)
    h200.gpu_instances[0].compute_instances[0].in_use_by = [4242]
    assert "GmiSpec 0: MIG instance 3g.71gb at 4 of GPU 0" in refused(gmi)
    assert "is in use by process 4242. End it" in refused(gmi)
    before = discover(backend="mig")
    del h200.gpu_instances[0]
    with pytest.raises(GmiError, match=r"gone since the devices were looked at. Launch again"):
        mig.MigSlices([gmi], before)


def test_errors_cross_processes():
    error = pickle.loads(pickle.dumps(MigError("GPU-1: it", "IN_USE")))
    assert (error.what, error.code) == ("GPU-1: it", "IN_USE")
    assert str(error).startswith("GPU-1: it: NVML says IN_USE. Something holds")


def test_a_lost_gpu(h200):
    before = discover(backend="mig")
    h200.error = pynvml.NVML_ERROR_GPU_IS_LOST
    with pytest.raises(GmiError, match=r"GPU_IS_LOST\. The GPU has fallen off the bus"):
        mig.MigSlices([spec(h200, 0, "3g.71gb", 4)], before)


def test_two_runs_at_once_do_not_share_an_instance(h200):
    exists, made = spec(h200, 0, "3g.71gb", 4), spec(h200, 0, "2g.35gb", 2)
    with prepared(exists), prepared(made):
        assert "3g.71gb at 4 of GPU 0 is another run's (its notes: " in refused(exists)
        assert "is another run's" in refused(made)  # by now it exists
        assert len(h200.gpu_instances) == 3
    with prepared(exists):
        pass


def test_of_two_runs_at_once_neither_undoes_what_the_other_makes(machine):
    gpu = boxes.dgx_a100()[0]
    lib = machine(gpu)
    before = discover(backend="mig")
    first, other = spec(gpu, 0, "3g.40gb", 4), spec(gpu, 0, "3g.40gb", 0)
    slices = mig.MigSlices([first], before)
    with pytest.raises(GmiError, match="is another run's"):
        mig.MigSlices([first], before)  # planned when the place was free
    gpu.gpu_instances.append(FakeGpuInstance(9, 9, 0, 4))  # not filled yet: it is being made
    with pytest.raises(GmiError, match="INSUFFICIENT_RESOURCES"):
        mig.MigSlices([other], before)
    assert names(gpu) == [(0, 9), (4, 9)]
    del gpu.gpu_instances[1]
    last = mig.MigSlices([other], before)
    slices.release()
    assert (lib.gpus[0].mig, names(gpu)) == (True, [(0, 9)])
    last.release()
    assert (gpu.mig, gpu.gpu_instances) == (False, [])


def test_what_is_still_in_use_is_waited_for_and_else_left_to_the_next_run(machine, monkeypatch):
    gpu = boxes.dgx_a100()[0]
    machine(gpu)
    gmi = spec(gpu, 0, "3g.40gb", 4)
    slices = mig.MigSlices([gmi], discover(backend="mig"))
    users = gpu.gpu_instances[0].compute_instances[0].in_use_by
    users.append(4242)
    with pytest.raises(GmiError, match=r"destroying MIG instance 1: NVML says IN_USE"):
        slices.release()
    slices.release()  # what is left is the next run's
    assert gpu.mig
    assert names(gpu) == [(4, 9)]
    (swept,) = lease.sweep()
    assert "IN_USE" in swept.error
    monkeypatch.setattr(mig, "IN_USE_TIMEOUT", timedelta(seconds=20))
    thread = threading.Timer(0.1, users.clear)  # an end that takes its time
    thread.start()
    (swept,) = lease.sweep()
    thread.join()
    assert (swept.error, gpu.mig, gpu.gpu_instances) == ("", False, [])


def test_what_others_made_since_is_theirs(machine):
    gpu = boxes.dgx_a100()[0]
    machine(gpu)
    gpu.mig = True
    place = {"gpu": gpu.uuid, "profile_id": 9, "start": 4}
    put(gpu, "1g.10gb", 0)
    half_made = FakeGpuInstance(2, 9, 4, 4)

    def left(*notes, same_boot=True):
        return LeaseNotes("mig", Path("/nowhere"), notes, same_boot)

    put(gpu, "3g.40gb", 4)  # its id is 2, and it is filled: not of one who was killed before that
    for notes in ([place], [place | {"instance": 5}], [{"gpu": gpu.uuid, "uses": 4}]):
        assert not mig.MigBackend().undo(left({"gpu": gpu.uuid, "mode": True}, *notes))
        assert names(gpu) == [(0, 19), (4, 9)]
    mig.MigBackend().undo(
        left(place | {"instance": 2}, same_boot=False)
    )  # before the machine was started anew
    assert names(gpu) == [(0, 19), (4, 9)]
    gone = place | {"gpu": "GPU-gone"}
    mig.MigBackend().undo(
        left(gone, same_boot=False)
    )  # nothing of a GPU that was taken out is left
    with pytest.raises(GmiError, match="NOT_FOUND"):
        mig.MigBackend().undo(left(gone))
    gpu.gpu_instances[1] = half_made
    assert mig.MigBackend().undo(left(place))
    assert names(gpu) == [(0, 19)]
    assert gpu.mig  # it is in somebody's use by now


def test_a_failed_step_after_others_is_undone(h200):
    pynvml.nvmlLib.refuses = {
        "nvmlGpuInstanceCreateComputeInstance": pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES
    }
    assert "compute instance" in refused(spec(h200, 0, "2g.35gb", 2))
    assert names(h200) == [(0, 19), (4, 9)]


def test_a_launcher_killed_at_any_step_leaves_what_the_next_run_undoes():
    body = "import bodies_mig, private_leases; bodies_mig.die_at_every_step()"
    child = subprocess.run(
        [sys.executable, "-c", body], capture_output=True, text=True, timeout=50,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    assert child.returncode == 0, child.stderr
    died, undone, sweeps_died = json.loads(child.stdout)
    assert died > 60
    assert undone > 40
    assert sweeps_died > 8


def told(gmi, device, environment):
    """What a process of the GMI saw: its SMs, or the error's text."""
    receive, send = CONTEXT.Pipe(duplex=False)
    its = environment | {"FAKE_CUDA": os.environ["FAKE_CUDA"]}
    process = CONTEXT.Process(target=bodies_mig.look, args=(gmi, device, its, send))
    process.start()
    send.close()
    try:
        assert receive.poll(30)
        return receive.recv()
    finally:
        process.kill()
        process.join()
        receive.close()


def test_a_gmi_verifies_its_instance(h200, monkeypatch, tmp_path):
    gmi = spec(h200, 0, "2g.35gb", 2)
    with prepared(gmi) as slices:
        topology = discover(backend="mig")
        device, environment = topology.devices[0], slices.environment(gmi)
        fake_gpus.install(monkeypatch, tmp_path, topology)
        assert told(gmi, device, environment) == 32
        other = environment | {"CUDA_VISIBLE_DEVICES": device.mig[0].uuid}
        assert "Something sets CUDA_VISIBLE_DEVICES after" in told(gmi, device, other)
        assert "no device is visible" in told(
            gmi, device, environment | {"CUDA_VISIBLE_DEVICES": ""}
        )
        assert "GMI_DRL_MIG is not in the env" in told(
            gmi, device, environment | {mig.INSTANCE: ""}
        )
        shrunk = [dataclasses.replace(its, sm_count=30) for its in device.mig]
        changed = dataclasses.replace(device, mig=tuple(shrunk))
        fake_gpus.install(monkeypatch, tmp_path, Topology((changed,)))
        assert "32 SMs; CUDA sees 30. The instance was changed" in told(gmi, device, environment)
        smaller = [dataclasses.replace(its, mem_bytes=GIB) for its in device.mig]
        changed = dataclasses.replace(device, mig=tuple(smaller))
        fake_gpus.install(monkeypatch, tmp_path, Topology((changed,)))
        assert "bytes of memory; CUDA sees 1073741824" in told(gmi, device, environment)


def test_the_driver_says_how_much_memory_there_is(h200):
    more = dataclasses.replace(spec(h200, 0, "2g.35gb", 2), mem_bytes=33 * GIB)
    assert "mem_bytes=35433480192; 2g.35gb has 34896609280 here" in refused(more)
    assert names(h200) == [(0, 19), (4, 9)]


def test_a_gang_lives_in_instances_made_for_it(machine, monkeypatch, tmp_path):
    gpu = boxes.dgx_a100()[0]
    machine(gpu)
    topology = discover(backend="mig")
    gmis = bodies_mig.specs(topology, 2)
    with prepared(*gmis):  # to know what the driver will call them: the same again
        fake_gpus.install(monkeypatch, tmp_path, discover(backend="mig"))
    with Gang(Layout("tcg", topology, tuple(gmis)), bodies_gmi.Stepper, max_restarts=1) as gang:
        first = gang.call("pid", timeout=timedelta(seconds=30))
        assert len(gpu.gpu_instances) == 2
        os.kill(first[0], 9)
        assert gang.call("pid", timeout=timedelta(seconds=30))[1] == first[1]
    assert (gpu.mig, gpu.gpu_instances) == (False, [])


def test_others_hold_what_living_launchers_have_noted():
    mine, other = Lease("mig"), Lease("mig")
    try:
        number = other.note({"gpu": "a"})
        assert [left.notes for left in mine.others()] == [({"gpu": "a"},)]
        other.undone(number)
    finally:
        other.close()
        mine.close()


def test_a_gmi_without_a_gpu_cannot_be_in_an_instance(h200):
    lost = dataclasses.replace(spec(h200, 0, "3g.71gb", 4), device_uuid=None)
    with pytest.raises(SliceError, match="without device_uuid"):
        mig.MigSlices([lost], discover(backend="mig"))
