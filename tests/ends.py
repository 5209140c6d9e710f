"""Processes at the ends of links and boards: shared memory goes to them with their arguments."""

from multiprocessing import reduction

from fork_context import CONTEXT
from gmi_drl.runtime import Memfd


def _passed(memfd):
    return _received, (reduction.DupFd(memfd.fd), memfd.name)


def _received(fd, name):
    return Memfd(fd.detach(), name)


reduction.ForkingPickler.register(Memfd, _passed)


def _main(body, args):
    import torch

    torch.set_num_threads(1)
    body(*args)


class Ends:
    """Named processes, all of which are gone when the block is left."""

    def __init__(self):
        self._processes = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self._processes.values():
            process.kill()
            process.join()

    def start(self, name, body, *args):
        self._processes[name] = CONTEXT.Process(target=_main, args=(body, args))
        self._processes[name].start()

    def kill(self, name):
        self._processes[name].kill()
        self._processes[name].join()

    def join(self, name, within_s=30.0):
        process = self._processes[name]
        process.join(within_s)
        assert process.exitcode is not None, f"{name} has not ended after {within_s} s"
        assert process.exitcode == 0, f"{name} ended with {process.exitcode}"
