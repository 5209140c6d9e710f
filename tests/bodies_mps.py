"""What processes on fake GPUs run, and launchers that are killed."""

import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path

import fake_gpus
from gmi_drl.gmi import backend_of, lease
from gmi_drl.gmi.backends.mps import MpsBackend
from gmi_drl.gmi.faults import DEVICE_FAULT, DEVICE_LOST


def client(spec, device, environment, send, body=None, *args):
    """A GMI's process: takes its slice, sends what it saw or the error's text; then `body`."""
    os.environ.update(environment)
    fake_gpus.forget_cuda()
    from gmi_drl.gmi import cuda_driver

    backend = backend_of(spec.backend)
    try:
        backend.enter(spec, device)
        backend.verify(spec, device)
    except Exception as error:
        send.send(f"{type(error).__name__}: {error}")
        return
    send.send((cuda_driver.mps_enabled(), cuda_driver.sm_count()))
    if body is not None:
        body(send, *args)


def hold(send):
    """Stays a client until it is killed, or told by SIGTERM."""
    signal.pause()


def hold_until(send, event):
    """Stays a client until `event`; sends the CUresult of a call that waits for the GPU."""
    event.wait(30)
    send.send(synchronize())


def work(send, seconds):
    """Has work under way for so long; sends a word when it has, and what it then sees."""
    from cuda.bindings import driver

    driver.fake_work(seconds)
    send.send("at work")
    send.send(synchronize())
    signal.pause()


def synchronize():
    """The CUresult of a call that waits for the GPU."""
    from cuda.bindings import driver

    return int(driver.cuCtxSynchronize()[0])


class Computer:
    """A GMI that computes until it is asked to stop; `faulted` in it is fatal for its GPU."""

    def __init__(self, spec):
        self.spec = spec

    def pid(self):
        return os.getpid()

    def faulted_once(self, path):
        """Causes a fault the first time; in the life after it, whether it computes, and its pid."""
        if _is_first(path):
            self.faulted()
        return synchronize(), os.getpid()

    def lost(self):
        """Leaves as where CUDA says that the GPU itself is at fault, in every life."""
        os._exit(DEVICE_LOST)

    def faulted(self):
        """Causes a fault in each life."""
        from cuda.bindings import driver

        driver.fake_fault()
        os._exit(DEVICE_FAULT)

    def compute(self, path):
        """In the first life goes on until it is asked to stop; in a later one as above."""
        from gmi_drl import runtime

        if _is_first(path):
            while not runtime.stop_requested():
                synchronize()
        return synchronize(), os.getpid()

    def leave_at_a_fault(self, path):
        """In the first life computes until the GPU has a fault, and ends as one that notices it."""
        if _is_first(path):
            while synchronize() == 0:
                time.sleep(0.005)  # between two calls
            os._exit(DEVICE_FAULT)
        return synchronize(), os.getpid()

    def leave_when(self, path):
        """In the first life ends as one that notices a fault, when `path` is there."""
        if _is_first(f"{path}.lived"):
            while not Path(path).exists():
                time.sleep(0.005)  # between two looks
            os._exit(DEVICE_FAULT)
        return synchronize(), os.getpid()

    def work_until_asked(self, folder, seconds):
        """Work on the GPU, so many seconds at a time, until it is asked to stop."""
        from cuda.bindings import driver

        from gmi_drl import runtime

        while not runtime.stop_requested():
            driver.fake_work(seconds)
            Path(folder, str(os.getpid())).touch()
            synchronize()

    def deaf(self, folder):
        """Computes, and listens to nobody."""
        from cuda.bindings import driver

        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        driver.fake_work(3600.0)
        Path(folder, str(os.getpid())).touch()
        while True:
            synchronize()


def _is_first(path):
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


# What is counted as a step of the launcher: what it changes, and its waits; not that it looks.
_STEPS = ("os.", "open", "subprocess.", "shutil.", "fcntl.", "time.sleep", "signal.")


def die_at_every_step(machine, gmis):
    """Lives of a launcher's slices, each killed one step later than the one before; then at times.

    After each the next run sweeps, and nothing may be there. Prints how many died at a step, and of
    how many of all something was undone.
    """
    steps = undone = 0
    while _dies(machine, gmis, at_step=steps + 1):
        steps += 1
        undone += _next_run_finds_nothing(steps)
    for moment in range(20):
        _dies(machine, gmis, after_s=0.01 * (1 + moment))
        undone += _next_run_finds_nothing(f"moment {moment}")
    print(json.dumps([steps, undone]))


def _next_run_finds_nothing(where):
    swept = lease.sweep()
    assert not any(each.error for each in swept), (where, swept)
    assert not fake_gpus.mps_pids(), where
    assert not os.listdir(lease._BASE), where
    return any(each.lease.notes for each in swept)


def _dies(machine, gmis, **when):
    pid = os.fork()
    if not pid:
        try:
            _live(machine, gmis, **when)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, -signal.SIGKILL, -signal.SIGALRM), code
    return code != 0


def _live(machine, gmis, at_step=0, after_s=0.0):
    steps, me = 0, os.getpid()

    def count(event, args):
        nonlocal steps
        looks = event.startswith(("os.listdir", "os.scandir")) or "/proc/" in str(args[:1])
        if event.startswith(_STEPS) and not looks and os.getpid() == me:
            steps += 1
            if steps == at_step:
                os.kill(me, signal.SIGKILL)

    sys.addaudithook(count)
    signal.setitimer(signal.ITIMER_REAL, after_s)  # nobody handles SIGALRM: it kills
    MpsBackend().prepare(gmis, machine).release()
