"""torch.cuda's streams, graphs and events without a GPU: what was called, in order.

Written to torch's documentation and its CUDAGraph.cpp: a capture that CUDA has invalidated is ended
by an error, and while a stream is captured nobody waits for it. Streams and events are those of
fake_streams.py; what torch computes is done at once, all the same.
"""

from contextlib import contextmanager

import torch

from device_only import Recorder
from fake_streams import Event, Late, Stream


class FakeCuda(Late):
    def __init__(self, monkeypatch):
        self.calls, self.invalid, self.pools = [], False, {}
        super().__init__()
        self.default = FakeStream(self, "default")
        for name in ("graph_pool_handle", "empty_cache", "current_stream", "default_stream"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))
        monkeypatch.setattr(torch.cuda, "Stream", lambda device: FakeStream(self, "own"))
        monkeypatch.setattr(torch.cuda, "stream", self.stream)
        monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: FakeGraph(self))
        monkeypatch.setattr(torch.cuda, "Event", lambda **options: FakeEvent(self, **options))

    def graph_pool_handle(self):
        return (0, next(self._numbers))

    def empty_cache(self):
        self.calls.append("empty_cache")

    def current_stream(self, device=None):
        return self.current

    def default_stream(self, device=None):
        return self.default

    @contextmanager
    def stream(self, stream):
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before


class FakeStream(Stream):
    capturing = False

    def wait_stream(self, other):
        self.device.calls.append((self.name, "waits for", other.name))
        super().wait_stream(other)

    def synchronize(self):
        self.device.calls.append((self.name, "synchronize"))
        if self.capturing:
            self.device.invalid = True
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        super().synchronize()


class FakeGraph:
    """A list of torch operations. Graphs of one pool use the same memory."""

    def __init__(self, cuda):
        self._cuda, self._handle, self._recorder = cuda, None, None
        self.replays, self.gone = 0, False

    def capture_begin(self, pool=None, capture_error_mode="global"):
        self._stream = self._cuda.current
        assert self._stream is not self._cuda.default
        assert capture_error_mode == "thread_local"
        assert self._stream.query(), "a stream that is captured has nothing left to do"
        self._handle, self._stream.capturing = pool, True
        self._cuda.calls.append(("begin", pool))
        self._recorder = Recorder()
        self._recorder.__enter__()

    def capture_end(self):
        self._recorder.__exit__(None, None, None)
        self._stream.capturing = False
        if self._cuda.invalid:
            self._cuda.invalid, self._recorder = False, None
            raise RuntimeError("operation failed due to a previous error during capture")
        self._cuda.calls.append(("end", self._handle))
        self._cuda.pools.setdefault(self._handle, []).append(self)

    def replay(self):
        assert self._recorder is not None, "a graph that was not captured, or was reset"
        self.replays += 1
        for graph in self._cuda.pools[self._handle]:
            graph._recorder.spoil()
        self._recorder.replay()

    def reset(self):
        """torch frees the memory with the last graph of a pool, while the device may be at work."""
        assert self._cuda.current.query(), "a graph that the device may be at"
        self._cuda.pools[self._handle].remove(self)
        self._recorder, self.gone = None, True


class FakeEvent(Event):
    def synchronize(self):
        super().synchronize()
        self._device.calls.append(("event", self.at_ms))
