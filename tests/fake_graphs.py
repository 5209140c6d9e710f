"""torch.cuda's streams, graphs and events without a GPU: what was called, in order.

Written to torch's documentation and its CUDAGraph.cpp: a capture that CUDA has invalidated is ended
by an error.
"""

import itertools
from contextlib import contextmanager

import torch


class FakeCuda:
    def __init__(self, monkeypatch):
        self.calls, self.invalid = [], False
        self._names = itertools.count()
        self.default = self.current = FakeStream(self, "default")
        self._time_ms = 0.0
        for name in ("graph_pool_handle", "empty_cache", "current_stream", "default_stream"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))
        monkeypatch.setattr(torch.cuda, "Stream", lambda device: FakeStream(self, "own"))
        monkeypatch.setattr(torch.cuda, "stream", self.stream)
        monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: FakeGraph(self))
        monkeypatch.setattr(torch.cuda, "Event", lambda **_: FakeEvent(self))

    def graph_pool_handle(self):
        return (0, next(self._names))

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

    def tick(self):
        self._time_ms += 1.0
        return self._time_ms


class FakeStream:
    def __init__(self, cuda, name):
        self._cuda, self.name = cuda, name

    def wait_stream(self, other):
        self._cuda.calls.append((self.name, "waits for", other.name))

    def synchronize(self):
        self._cuda.calls.append((self.name, "synchronize"))


class FakeGraph:
    def __init__(self, cuda):
        self._cuda, self._handle = cuda, None
        self.replays, self.gone = 0, False

    def capture_begin(self, pool=None, capture_error_mode="global"):
        assert self._cuda.current is not self._cuda.default
        assert capture_error_mode == "thread_local"
        self._handle = pool
        self._cuda.calls.append(("begin", pool))

    def capture_end(self):
        if self._cuda.invalid:
            self._cuda.invalid = False
            raise RuntimeError("operation failed due to a previous error during capture")
        self._cuda.calls.append(("end", self._handle))

    def replay(self):
        self.replays += 1

    def reset(self):
        self.gone = True


class FakeEvent:
    """Every record is one millisecond after the one before, wherever that was."""

    def __init__(self, cuda):
        self._cuda, self.at_ms = cuda, None

    def record(self):
        self.at_ms = self._cuda.tick()

    def synchronize(self):
        self._cuda.calls.append(("event", self.at_ms))

    def elapsed_time(self, other):
        return other.at_ms - self.at_ms
