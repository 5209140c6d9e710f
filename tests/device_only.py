"""Modes that stand for a GPU where there is none: what may not happen there, and what a graph does.

`DeviceOnly` refuses what would wait for a GPU. `RecordedPool` is a `Pool` whose graphs are lists of
torch operations with the tensors they had: a replay does them again on the same memory, as a CUDA
graph does, and runs no Python.
"""

import warnings
from contextlib import contextmanager

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten

_WAITS = (
    "_local_scalar", "nonzero", "lift_fresh", "masked_select", "where.Scalar", "is_nonzero",
    "aten.equal.", "unique", "repeat_interleave.Tensor", "_assert_async", "argwhere",
)  # fmt: skip


class _NoReading(TorchFunctionMode):
    """Refuses what reads a tensor on the CPU without an operation."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        assert name not in ("tolist", "numpy", "cpu", "__array__"), name
        return func(*args, **(kwargs or {}))


class DeviceOnly(TorchDispatchMode):
    """Refuses what would wait for a GPU, copy from the host, or have a shape that values decide."""

    def __enter__(self):
        self._no_reading = _NoReading()
        self._no_reading.__enter__()
        return super().__enter__()

    def __exit__(self, *error):
        self._no_reading.__exit__(*error)
        return super().__exit__(*error)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = str(func)
        for word in _WAITS:
            assert word not in name, name
        if "index" in name and isinstance(args[1], (list, tuple)):
            assert not any(t.dtype == torch.bool for t in args[1] if t is not None), name
        return func(*args, **(kwargs or {}))


@contextmanager
def on_the_host():
    """Within, neither mode sees what is done: something that has tests of its own."""
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        yield


@contextmanager
def nothing_waits():
    """Within, what waits for a real GPU is an error, where torch notices it."""
    with warnings.catch_warnings():
        # Told once in a process, whatever the mode is set to.
        warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype feature")
        try:
            torch.cuda.set_sync_debug_mode("error")
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")


class _Recorder(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result


class _Replay:
    def __init__(self, calls):
        self._calls, self.replays = calls, 0

    @torch.no_grad()
    def replay(self):
        self.replays += 1
        for func, args, kwargs, before in self._calls:
            after = func(*args, **kwargs)
            for new, old in zip(tree_flatten(after)[0], tree_flatten(before)[0], strict=True):
                if isinstance(new, torch.Tensor) and new.data_ptr() != old.data_ptr():
                    old.copy_(new)

    def reset(self):
        self._calls = []


class RecordedPool:
    """`refuses`: the number of the capture that fails, from 0."""

    def __init__(self, refuses=None):
        self.graphs, self._refuses = [], refuses

    @contextmanager
    def at_work(self):
        yield

    def let_go(self, graph):
        graph.reset()

    def record(self, run):
        """Runs once, which capturing does not: what that changes must be kept, or not matter."""
        with DeviceOnly(), _Recorder() as recorder:
            run()
        if self._refuses == len(self.graphs):
            raise RuntimeError("operation not permitted when stream is capturing\nand more")
        self.graphs.append(_Replay(recorder.calls))
        return self.graphs[-1]
