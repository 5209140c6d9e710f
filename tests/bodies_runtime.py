"""Classes whose instances run in other processes in tests of runtime and gmi."""

import os
import signal
import subprocess
import sys
import threading
import time

from gmi_drl import runtime

SEEN_AT_IMPORT = os.environ.get("GMI_DRL_TEST_VARIABLE")


class WithFields(ValueError):
    """An exception with an attribute and a constructor of its own."""

    def __init__(self, value, rule):
        super().__init__(f"{value}: {rule}")
        self.value = value


class HoldsLock(Exception):
    """An exception that cannot be pickled."""

    def __init__(self):
        super().__init__("it holds a lock")
        self.lock = threading.Lock()


class ForgetsArguments(Exception):
    """An exception that pickles, and then cannot be rebuilt."""

    def __init__(self, a, b):
        super().__init__("two things are needed")


class Unmovable(Exception):
    """An exception of which nothing can be pickled."""

    def __str__(self):
        return "lock"


class Probe:
    """Does what a test wants to see done in another process."""

    def __init__(self, fail=None):
        self.count = 0
        if fail == "raise":
            raise WithFields(3, "not while building")
        if fail == "exit":
            sys.exit(4)

    def add(self, number=1):
        self.count += number
        return self.count

    def echo(self, *args, **kwargs):
        return (*args, kwargs) if kwargs or len(args) != 1 else args[0]

    def pid(self):
        return os.getpid()

    def raises(self, kind, *args):
        raise kind(*args)

    def raise_os_error(self):
        os.stat("/no/such/file")

    def raise_unmovable(self):
        raise Unmovable(threading.Lock())

    def leave(self, code):
        sys.exit(code)

    def die(self, how):
        print("about to die", flush=True)
        if isinstance(how, int):
            os._exit(how)
        os.kill(os.getpid(), getattr(signal, how))
        time.sleep(60)  # the signal comes before this ends

    def print_lines(self, number):
        for line in range(number):
            print(f"line {line}")

    def lock(self):
        return threading.Lock()

    def sleep(self, duration_s):
        runtime.emit("sleeping")
        time.sleep(duration_s)  # until it is stopped

    def sleep_until_asked(self):
        runtime.emit("waiting")
        while not runtime.stop_requested():
            time.sleep(0.005)  # between two looks
        return "asked"

    def deaf(self):
        """Ignores being asked, and SIGTERM."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        runtime.emit("deaf")
        while True:
            time.sleep(1)  # until it is killed

    def tell(self, number):
        for index in range(number):
            runtime.emit({"index": index})

    def tell_object(self, value):
        return runtime.emit(value)

    def tell_lock(self):
        runtime.emit(threading.Lock())

    def zeros(self, nbytes):
        return bytearray(nbytes)

    def array(self, length):
        import numpy as np

        return np.arange(length)

    def write_first(self, array):
        array[0] = 7
        return array

    def share(self, memfd):
        memfd.map(0, 5)[:] = b"hello"
        made = runtime.Memfd.create("made")
        made.resize(3)
        made.map(0, 3)[:] = b"abc"
        return made

    def grandchildren(self):
        """A child in this group, and one in a session of its own, that ignores SIGTERM."""
        code = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True)\n"
        pids = []
        for new_session in (False, True):
            child = subprocess.Popen(
                [sys.executable, "-S", "-c", code + "time.sleep(100)"],
                stdout=subprocess.PIPE,
                start_new_session=new_session,
            )
            child.stdout.readline()
            child.stdout.close()
            child.returncode = 0  # no warning that nobody waits for it
            pids.append(child.pid)
        return pids

    def surroundings(self):
        """What the process has been given."""
        import random

        import torch

        return {
            "affinity": os.sched_getaffinity(0),
            "threads": torch.get_num_threads(),
            "omp": os.environ["OMP_NUM_THREADS"],
            "variable_at_import": SEEN_AT_IMPORT,
            "environment": dict(os.environ),
            "group": os.getpgid(0),
            "session": os.getsid(0),
            "parent": os.getppid(),
            "directory": os.getcwd(),
            "random": random.random(),
            "torch_random": float(torch.rand(1)),
            "cuda_started": torch.cuda.is_initialized(),
        }

    def multiply(self, size):
        import torch

        return float((torch.ones(size, size) @ torch.ones(size, size)).sum())

    def open_sockets(self):
        """How many sockets this process has open."""
        names = []
        for fd in os.listdir("/proc/self/fd"):
            try:
                names.append(os.readlink(f"/proc/self/fd/{fd}"))
            except OSError:
                continue
        return sum(name.startswith("socket:") for name in names)

    def leave_thread(self):
        """A thread that is not a daemon and does not end."""
        threading.Thread(target=time.sleep, args=(60,)).start()
