"""Work of torch on a GPU captured once as a CUDA graph, and launched with one call from then on.

What is captured must launch the same kernels on the same memory whatever the numbers are: no value
read, no shape that values decide, no copy from the host. It reads and writes tensors made outside.
What it allocates itself is good until the next replay of any graph of its pool.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from .errors import CaptureError

if TYPE_CHECKING:
    from .envs.protocol import VecEnv

# Captures of one process take turns, as GMIs may be threads of it: while a stream is captured
# nobody may wait for its whole device. Reentrant, for captures that are made of several.
ONE_AT_A_TIME: Final = threading.RLock()


def graphs_on(device: torch.device, wanted: bool) -> bool:
    """Tells whether work on `device` is captured: it is `wanted` (`run.capture`), and can be."""
    return wanted and device.type == "cuda"


def static_on(device: torch.device, wanted: bool | None = None) -> bool:
    """Tells whether work goes the way of a GPU, the same launches each time; None: by `device`."""
    return device.type != "cpu" if wanted is None else wanted


class Pool:
    """The place where one owner's graphs are captured, and the memory that they share.

    One stream at a time may replay graphs of a pool, in any order. Captured on the stream that is
    torch's current one when the pool is made, where that can be (a stream of a green context: the
    graph then keeps to its SMs), else on one of its own.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        current = torch.cuda.current_stream(device)
        is_default = current == torch.cuda.default_stream(device)
        self.stream: torch.cuda.Stream = current
        if is_default:
            self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._handle: Any = None
        self._graphs = 0  # that hold it

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Lets this thread work on `stream`, and alone capture, within the block.

        That work comes after all it has queued before, and what it queues later waits for it.
        """
        current = torch.cuda.current_stream(self.device)
        with ONE_AT_A_TIME:
            self.stream.wait_stream(current)
            try:
                with torch.cuda.stream(self.stream):
                    yield
            finally:
                current.wait_stream(self.stream)

    def wait(self) -> None:
        """Waits until what this thread has queued is done."""
        torch.cuda.current_stream(self.device).synchronize()

    def record(self, run: Callable[[], object]) -> Any:
        """Returns the CUDAGraph of `run`, which is not executed; to be called within `at_work`.

        RuntimeError if it cannot be captured; the process may then not be able to use the device.
        """
        if not self._graphs:  # a handle is spent when the last graph of it has gone
            self._handle = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        self.stream.synchronize()
        torch.cuda.empty_cache()  # in a capture the allocator cannot give back what it caches
        # Other threads (of the exchange, of the log) may call CUDA meanwhile.
        graph.capture_begin(pool=self._handle, capture_error_mode="thread_local")
        try:
            run()
        finally:
            graph.capture_end()
        self._graphs += 1
        return graph

    def let_go(self, graph: Any) -> None:
        """Releases a graph of `record`, when what this thread has queued is done."""
        self.wait()
        graph.reset()
        self._graphs -= 1


class Graph:
    """`run` as a CUDA graph; calling it replays it on torch's current stream, and does not wait.

    Making it runs `run` `warm_up` times first, in which kernels are compiled and libraries take
    their workspaces, and waits for the device. What these runs change in the tensors `keep` is put
    back; all else that they change must not matter yet.

    CaptureError, by `name`, if it cannot be captured. An empty `run` is replayed as nothing, after
    a warning of torch. `close` waits for this stream and lets the memory go.
    """

    def __init__(
        self,
        run: Callable[[], object],
        device: torch.device,
        warm_up: int = 2,
        *,
        keep: Sequence[Tensor] = (),
        pool: Pool | None = None,
        name: str = "",
    ) -> None:
        self._pool = pool or Pool(device)
        saved = [(tensor.detach(), tensor.detach().clone()) for tensor in keep]
        with self._pool.at_work():
            for _ in range(warm_up):
                run()
            try:
                self._graph = self._pool.record(run)
            except RuntimeError as error:
                # What the work did wrong comes first, then that the capture cannot be ended.
                cause = error.__context__ or error
                if isinstance(cause, torch.OutOfMemoryError):
                    raise cause from None
                message = str(cause).partition("\n")[0]
                work = name or getattr(run, "__qualname__", str(run))
                raise CaptureError(work, f"{type(cause).__name__}: {message}") from cause
            for tensor, content in saved:
                tensor.copy_(content)

    def __call__(self) -> None:
        self._graph.replay()

    def close(self) -> None:
        """Lets the graph and its memory go; it is not called again."""
        if self._graph is not None:
            self._pool.let_go(self._graph)
            self._graph = None


def capture_steps(env: VecEnv, pool: Pool) -> None:
    """Has `env` capture its steps as graphs of `pool`, if they are torch's: it has `capture`."""
    if (capture := getattr(env, "capture", None)) is not None:
        capture(pool)
