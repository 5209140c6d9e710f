"""Launchers that make MIG instances, and are killed while they do; and a GMI's process."""

import itertools
import json
import mmap
import os
import pickle
import signal
import sys
import traceback

import pynvml

import boxes
import fake_gpus
from fake_mig import put
from fake_nvml import FakeLib
from gmi_drl.gmi import GmiError, cuda_driver, discover, lease
from gmi_drl.gmi.backends import mig
from gmi_drl.placement import GmiSpec
from gmi_drl.placement.mig import mig_slices

# What is counted as a step of the launcher beside its changes of MIG: all that others can see.
_STEPS = ("os.", "open", "fcntl.", "shutil.")


def two_a100():
    """One without MIG mode; one in MIG mode, half of it somebody's."""
    plain, shared = boxes.dgx_a100()[:2]
    shared.mig = True
    put(shared, "3g.40gb", 4)
    return [plain, shared]


def specs(topology, per_gpu, mem_bytes=None):
    """GMIs in instances of which some do not exist."""
    places = [
        (device, its)
        for device in topology.devices
        for its in mig_slices(device, per_gpu, mem_bytes, allow_create=True)
    ]
    return [
        GmiSpec(
            gmi_id, device.index, ("trainer",), "mig", device.cores, 4, device_uuid=device.uuid,
            mig=its,
        )
        for gmi_id, (device, its) in enumerate(places)
    ]  # fmt: skip


def die_at_every_step():
    """Lives of a launcher, each killed one step later than the one before.

    After each the next run sweeps, and the GPUs must be as they were. So must they be when sweeps
    are killed too, each one step later. Prints how many launchers died, after how many there was
    something to undo, and how many sweeps died.
    """
    undone = 0
    with mmap.mmap(-1, 1 << 16) as driver:  # what it knows outlives the launcher
        for step in itertools.count(1):
            _keep(driver, two_a100())
            if not _dies(_launch, driver, step):
                break
            undone += _state(pickle.loads(driver)) != _state(two_a100())
            assert not _dies(_sweep, driver, None), step
            _assert_healed(driver, step)
        _keep(driver, two_a100())
        assert _dies(_launch, driver, "before nvmlComputeInstanceDestroy")  # when all is made
        for sweeps in itertools.count(1):
            if not _dies(_sweep, driver, sweeps):
                break
        _assert_healed(driver, sweeps)
    print(json.dumps([step - 1, undone, sweeps - 1]))


def _assert_healed(driver, step):
    gpus = pickle.loads(driver)
    assert _state(gpus) == _state(two_a100()), (step, gpus)
    assert not os.listdir(lease._BASE), step


def _dies(life, driver, step):
    """Whether a process with this life is killed: at that step, if it takes so many."""
    pid = os.fork()
    if not pid:
        try:
            life(driver, step)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, -signal.SIGKILL), code
    return code != 0


def _launch(driver, step):
    arm = _install(driver, step)
    topology = discover(backend="mig")
    gmis = specs(topology, 2, 35 << 30)
    arm()
    mig.MigSlices(gmis, topology).release()


def _sweep(driver, step):
    _install(driver, step)()
    swept = lease.sweep()
    assert not any(each.error for each in swept), swept


def _install(driver, step):
    """The driver in this process; returns what begins to count steps, up to the one to die at."""
    gpus, steps = pickle.loads(driver), 0
    pynvml.nvmlLib = FakeLib(gpus)
    pynvml._nvmlGetFunctionPointer_cache = {}
    pynvml._LoadNvmlLibrary = lambda: None

    def count(what=""):
        nonlocal steps
        _keep(driver, gpus)
        steps += 1
        if step in (steps, what):
            os.kill(os.getpid(), signal.SIGKILL)

    def fsync(fd, fsync=os.fsync):  # of each note
        count()
        fsync(fd)
        count()

    def arm():
        pynvml.nvmlLib.stepped = count
        os.fsync = fsync
        sys.addaudithook(lambda event, _: event.startswith(_STEPS) and count())

    return arm


def _keep(driver, gpus):
    driver.seek(0)
    driver.write(pickle.dumps(gpus))


def _state(gpus):
    return [(gpu.mig, gpu.mig_pending, gpu.gpu_instances) for gpu in gpus]


def look(spec, device, environment, send):
    """A GMI's process: takes its slice; sends the SMs it sees, or the error's text."""
    os.environ.update(environment)
    fake_gpus.forget_cuda()
    try:
        mig.MigBackend().enter(spec, device)
        mig.MigBackend().verify(spec, device)
    except GmiError as error:
        send.send(f"{type(error).__name__}: {error}")
    else:
        send.send(cuda_driver.sm_count())
