"""torch.cuda as far as the probe's clients call it, with the CPU as the device.

Everything is done when it is asked for, so that nothing waits; what a stream or an event refuses it
refuses as torch documents. `green` streams are those of the fake driver's green contexts.
"""

import contextlib
import itertools
import threading
import types

import torch

_FACTORIES = ("empty", "full", "ones", "rand", "zeros")
WHOLE = tuple(range(132))


class CudaOnCpu:
    """`refuses_green`: events cannot be recorded on green streams. `host_error`: of registering."""

    def __init__(self, patch, sms_of, refuses_green=False, host_error=0):
        self.refuses_green, self.host_error = refuses_green, host_error
        self._sms_of, self._here = sms_of, threading.local()
        self._addresses, self._default = itertools.count(1), Stream(self, 0)
        for name in _FACTORIES:
            patch.setattr(torch, name, self._on_cpu(getattr(torch, name)))
        cuda = {
            "Stream": lambda: Stream(self, next(self._addresses)),
            "ExternalStream": lambda address: Stream(self, address, green=True),
            "Event": lambda **options: Event(self, **options),
            "set_stream": lambda stream: setattr(self._here, "stream", stream),
            "current_stream": lambda device=None: self.current(),
            "stream": self._stream,
            "synchronize": lambda: None,
            "is_initialized": lambda: True,
            "_sleep": lambda cycles: self.current().advance(cycles / 1e6),
            "_compile_kernel": lambda source, name: self._mark,
            "cudart": lambda: types.SimpleNamespace(
                cudaHostRegister=lambda address, nbytes, flags: self.host_error,
                cudaHostUnregister=lambda address: 0,
            ),
        }
        for name, what in cuda.items():
            patch.setattr(torch.cuda, name, what)

    def current(self):
        return getattr(self._here, "stream", self._default)

    def _on_cpu(self, factory):
        def make(*args, device=None, **options):
            assert device is None or torch.device(device).type in ("cuda", "cpu")
            return factory(*args, **options)

        return make

    @contextlib.contextmanager
    def _stream(self, stream):
        before = self.current()
        self._here.stream = stream
        yield
        self._here.stream = before

    def _mark(self, grid, block, args):
        """Stands in for the kernel that marks its SMs."""
        assert len(grid) == len(block) == 3
        stream = self.current()
        args[0][list(self._sms_of(stream.cuda_stream) if stream.green else WHOLE)] = 1


class Stream:
    def __init__(self, cuda, address, green=False):
        self.cuda_stream, self.green, self.at_ms = address, green, 0.0
        self._cuda = cuda

    def advance(self, ms):
        self.at_ms += ms

    def wait_event(self, event):
        event.wait(self)

    def synchronize(self):
        pass


class Event:
    def __init__(self, cuda, enable_timing=False, blocking=False, interprocess=False):
        self._cuda, self._timed, self._shared, self._at_ms = cuda, enable_timing, interprocess, None

    def record(self, stream=None):
        stream = stream or self._cuda.current()
        if stream.green and self._cuda.refuses_green:
            raise RuntimeError("CUDA error: invalid resource handle\nCompile with advice")
        self._at_ms = stream.at_ms

    def wait(self, stream):
        assert self._at_ms is not None  # CUDA would not wait for anything
        stream.at_ms = max(stream.at_ms, self._at_ms)

    def synchronize(self):
        pass

    def elapsed_time(self, other):
        if not (self._timed and other._timed):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        return other._at_ms - self._at_ms

    def ipc_handle(self):
        assert self._shared
        return bytes(64)
