"""Streams and events of a GPU that is as late as it may be: it works when somebody waits for it.

Nothing is done in a stream before it is waited for, and then no more than that needs: what has not
been ordered by an event happens in the worst order. Written to torch 2.11's CUDAEvent.h and the
CUDA runtime's documentation of events and IPC, errors included. Several threads may use one device.
"""

import itertools
import threading
from collections import deque

_HANDLE_BYTES = 64


class Late:
    """One device. `default` is its default stream, `current` that of the calling thread."""

    def __init__(self):
        self.lock = threading.RLock()
        self._thread = threading.local()
        self._streams = {}
        self._done = 0  # borders that the device has passed, 1 ms apart
        self._handles = {}  # of events that other processes may open
        self._numbers = itertools.count(1)
        self.default = Stream(self, "default")

    @property
    def current(self):
        return getattr(self._thread, "stream", self.default)

    @current.setter
    def current(self, stream):
        self._thread.stream = stream

    def put(self, work):
        """Queues `work` in the current stream."""
        self.current.put(work)

    def stream_at(self, number):
        """The stream whose cuda_stream is `number`."""
        return self._streams[number]

    def finish(self):
        """Does all that is queued."""
        for stream in list(self._streams.values()):
            stream.run()

    def event(self, **options):
        """torch.cuda.Event on this device."""
        return Event(self, **options)

    def opened(self, device, handle):
        """torch.cuda.Event.from_ipc_handle."""
        if handle not in self._handles:
            raise RuntimeError("CUDA error: invalid resource handle")
        made = Event(self, interprocess=True)
        made._border = self._handles[handle]
        return made

    def handle_of(self, border):
        handle = next(self._numbers).to_bytes(_HANDLE_BYTES, "little")
        self._handles[handle] = border
        return handle

    def tick(self):
        self._done += 1
        return float(self._done)


class Stream:
    def __init__(self, device, name):
        self.device, self.name, self._queue = device, name, deque()
        self.cuda_stream = next(device._numbers)
        device._streams[self.cuda_stream] = self

    def put(self, work):
        self._queue.append(work)

    def record_event(self, event=None):
        event = event or Event(self.device)
        event.record(self)
        return event

    def wait_event(self, event):
        event.wait(self)

    def wait_stream(self, other):
        self.wait_event(other.record_event())

    def synchronize(self):
        self.run()

    def query(self):
        return not self._queue

    def run(self, until=None):
        """Does what is queued, up to the `_Passing` `until`, and first what it has to wait for."""
        with self.device.lock:
            while self._queue and not (until is not None and until.at_ms is not None):
                self._queue.popleft()()


class _Passing:
    """One record of an event; `at_ms` when the device has come to it."""

    def __init__(self, stream):
        self.stream, self.at_ms = stream, None

    def __call__(self):
        self.at_ms = self.stream.device.tick()

    def reach(self):
        if self.at_ms is None:
            self.stream.run(until=self)


class _Border:
    """What an event is, in all processes that have it: its last record."""

    def __init__(self):
        self.last = None


class Event:
    def __init__(
        self, device, enable_timing=False, blocking=False, interprocess=False, external=False
    ):
        if enable_timing and interprocess:
            raise RuntimeError("CUDA error: invalid argument")  # cudaEventInterprocess has none
        self._device, self._timed, self._shared = device, enable_timing, interprocess
        self._border = None  # torch makes an event when it is first recorded or exported

    def _made(self):
        if self._border is None:
            self._border = _Border()
        return self._border

    def record(self, stream=None):
        stream = stream or self._device.current
        passing = self._made().last = _Passing(stream)
        stream.put(passing)

    def wait(self, stream=None):
        """What `stream` is given from here on waits for the last record there has been so far."""
        last = self._border.last if self._border else None
        if last is not None:
            (stream or self._device.current).put(last.reach)

    def query(self):
        return self._border is None or self._border.last is None or self.at_ms is not None

    def synchronize(self):
        if self._border is not None and self._border.last is not None:
            self._border.last.reach()

    @property
    def at_ms(self):
        return None if self._border is None or not self._border.last else self._border.last.at_ms

    def elapsed_time(self, other):
        if not (self._timed and other._timed):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._border is None or other._border is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        if not (self.query() and other.query()):
            raise RuntimeError("Both events must be completed before calculating elapsed time.")
        return other.at_ms - self.at_ms

    def ipc_handle(self):
        if not self._shared:
            raise RuntimeError("CUDA error: invalid argument")
        return self._device.handle_of(self._made())
