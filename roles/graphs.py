"""Work of torch on a GPU captured once as a CUDA graph, and launched with one call from then on.

What is captured must launch the same kernels on the same memory whatever the numbers are: no value
read, no shape that values decide, no copy from the host. It reads and writes tensors made outside.
What it allocates itself is good until the next replay of any graph of its pool.

Not yet run on hardware.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

import torch
from torch import Tensor

_log = logging.getLogger(__name__)

# Captures of one process take turns, as GMIs may be threads of it: while a stream is captured
# nobody may wait for its whole device. Reentrant, for captures that are made of several.
ONE_AT_A_TIME: Final = threading.RLock()
# torch's allocator of pinned memory may keep a reference to a graph whose capture was broken off.
_BROKEN: Final[list[Any]] = []


def graphs_on(device: torch.device, wanted: bool) -> bool:
    """Whether work on `device` is to be captured: it is `wanted` (`run.capture`), and can be."""
    return wanted and device.type == "cuda"


def static_on(device: torch.device, wanted: bool | None = None) -> bool:
    """Whether work on `device` goes the way of a GPU: launches alone, the same ones each time.

    As `wanted`; None: on all devices but the CPU.
    """
    return device.type != "cpu" if wanted is None else wanted


class Pool:
    """Where the graphs of one owner are captured, and the memory that they share.

    One stream at a time may replay graphs of a pool, in any order. Captured on the stream that is
    torch's current one when the pool is made, where that can be (a stream of a green context: the
    graph then keeps to its SMs), else on one of its own.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        here = torch.cuda.current_stream(device)
        apart = here == torch.cuda.default_stream(device)
        self.stream = _new_stream(device) if apart else here
        self._handle = torch.cuda.graph_pool_handle()
        self._graphs = 0  # that hold it

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Within, this thread works on `stream`, after all it has queued before, and alone
        captures. What it queues later waits for what is queued within."""
        here = torch.cuda.current_stream(self.device)
        with ONE_AT_A_TIME:
            self.stream.wait_stream(here)
            try:
                with torch.cuda.stream(self.stream):
                    yield
            finally:
                here.wait_stream(self.stream)

    def wait(self) -> None:
        """Until what this thread has queued is done."""
        torch.cuda.current_stream(self.device).synchronize()

    def record(self, run: Callable[[], object], generators: Sequence[torch.Generator]) -> Any:
        """The CUDAGraph of `run`, which is not executed. To be called within `at_work`.

        RuntimeError if it cannot be captured; the stream, the allocator and the generators are
        then as they were.
        """
        if not self._graphs:  # a handle is spent when the last graph of it has gone
            self._handle = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        for generator in generators:
            graph.register_generator_state(generator)
        self.stream.synchronize()
        torch.cuda.empty_cache()  # in a capture the allocator cannot give back what it caches
        try:
            # Other threads (of the exchange, of the log) may call CUDA meanwhile.
            graph.capture_begin(pool=self._handle, capture_error_mode="thread_local")
            try:
                run()
            finally:
                graph.capture_end()
        except RuntimeError:
            self._mend(graph, generators)
            raise
        self._graphs += 1
        return graph

    def let_go(self, graph: Any) -> None:
        """Release a graph of `record`, when what this thread has queued is done."""
        self.wait()
        graph.reset()
        self._graphs -= 1

    def _mend(self, graph: Any, generators: Sequence[torch.Generator]) -> None:
        """Undo what a capture that failed has left behind.

        torch ends its bookkeeping after CUDA has ended the capture, so not at all if CUDA reports
        the failure there: allocations would be made as in a capture, and generators (the device's
        own one too) refuse to draw until a capture with them succeeds.
        """
        index = torch.cuda.current_device()  # that of the stream
        with suppress(RuntimeError):  # it has come so far
            torch._C._cuda_endAllocateToPool(index, self._handle)
            torch._C._cuda_releasePool(index, self._handle)
        graph.reset()
        _BROKEN.append(graph)
        flag = torch.zeros(1, device=self.device)
        small = torch.cuda.CUDAGraph()
        for generator in generators:
            small.register_generator_state(generator)
        with suppress(RuntimeError):  # worse than one capture: the next kernel will say so
            small.capture_begin(capture_error_mode="thread_local")
            try:
                flag.zero_()
            finally:
                small.capture_end()


class Graph:
    """`run` as a CUDA graph; calling it replays it on torch's current stream, and does not wait.

    Making it runs `run` `warm_up` times first (kernels are compiled and loaded, libraries take
    their workspaces), and waits for the device. What these runs change in the tensors `keep` and in
    `generators` is put back; all else that they change must not matter yet. `generators` are those
    that `run` draws from, without the device's own.

    Where capturing fails, the log says why, and a call runs `run` itself. An empty `run` is
    replayed as nothing, after a warning of torch. `close` waits for this stream and lets the
    memory go.
    """

    def __init__(
        self,
        run: Callable[[], object],
        device: torch.device,
        generators: Sequence[torch.Generator] = (),
        warm_up: int = 2,
        *,
        keep: Sequence[Tensor] = (),
        pool: Pool | None = None,
        name: str = "",
    ) -> None:
        self._run = run
        self._graph: Any = None
        self._pool = pool or Pool(device)
        kept = [(tensor.detach(), tensor.detach().clone()) for tensor in keep]
        states = [generator.get_state() for generator in generators]
        with self._pool.at_work():
            for _ in range(warm_up):
                run()
            try:
                self._graph = self._pool.record(run, generators)
            except RuntimeError as error:
                # What the work did wrong comes first, then that the capture cannot be ended.
                reason = error.__context__ or error
                _log.warning(
                    "%s is not captured as a CUDA graph: %s. Its kernels are launched one by one, "
                    "which is slower; run.capture: false asks for that.",
                    name or getattr(run, "__qualname__", run),
                    str(reason).partition("\n")[0],
                )
            for tensor, before in kept:
                tensor.copy_(before)
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)

    @property
    def captured(self) -> bool:
        """Whether a call is a replay."""
        return self._graph is not None

    def __call__(self) -> None:
        if self._graph is None:
            self._run()
        else:
            self._graph.replay()

    def close(self) -> None:
        """Let the graph and its memory go; a call runs `run` from then on."""
        if self._graph is not None:
            self._pool.let_go(self._graph)
            self._graph = None


def _new_stream(device: torch.device) -> torch.cuda.Stream:
    made: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return made
