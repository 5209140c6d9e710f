"""Modes that stand for a GPU where there is none: what may not happen there, and what a graph does.

`DeviceOnly` refuses what would wait for a GPU. `RecordedPool` is a `Pool` whose graphs are lists of
torch operations with the tensors they had: a replay does them again on the same memory, as a CUDA
graph does, and runs no Python. What a graph allocated itself is spoilt by the next replay of any
graph of its pool: torch gives the memory of one to the others.
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


class Recorder(TorchDispatchMode):
    """Within, torch's operations are noted. What they changed is as before when it is left, as
    capturing executes nothing. `spoil` is what becomes of memory that they allocated."""

    def __init__(self):
        super().__init__()
        self.calls, self.own = [], []
        self._changed, self._places = [], set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        for tensor in _written(func, args, kwargs):
            if _place(tensor) not in self._places:
                self._changed.append((tensor.detach(), tensor.detach().clone()))
        given = {_place(t) for t in _tensors((args, kwargs))}
        result = func(*args, **kwargs)
        for tensor in _tensors(result):
            if _place(tensor) not in given | self._places:
                self._places.add(_place(tensor))
                self.own.append(tensor)
        self.calls.append((func, args, kwargs, result))
        return result

    def __exit__(self, *error):
        found = super().__exit__(*error)
        with torch.no_grad():
            for tensor, before in reversed(self._changed):
                tensor.copy_(before)
        self.spoil()
        return found

    @torch.no_grad()
    def spoil(self):
        """Other work has used that memory since: NaN, or what no count or index is."""
        for tensor in self.own:
            value = float("nan") if tensor.is_floating_point() else 113
            tensor.fill_(True if tensor.dtype == torch.bool else value)

    @torch.no_grad()
    def replay(self):
        for func, args, kwargs, before in self.calls:
            after = func(*args, **kwargs)
            for new, old in zip(_tensors(after), _tensors(before), strict=True):
                if new.data_ptr() != old.data_ptr():
                    old.copy_(new)


def _tensors(tree):
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, torch.Tensor)]


def _place(tensor):
    return tensor.untyped_storage().data_ptr()


def _written(func, args, kwargs):
    """The tensors that a call of `func` changes, by its schema."""
    for index, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            named = kwargs.get(argument.name)
            yield from _tensors(args[index] if index < len(args) else named)


class _Replay:
    def __init__(self, pool, recorder):
        self._pool, self._recorder, self.replays = pool, recorder, 0

    def replay(self):
        assert self._recorder is not None, "a graph that was reset"
        self.replays += 1
        for graph in self._pool.graphs:
            graph.spoil()
        self._recorder.replay()

    def spoil(self):
        if self._recorder is not None:
            self._recorder.spoil()

    def reset(self):
        self._recorder = None


class RecordedPool:
    """Graphs of a pool use the same memory: a replay of one spoils what all allocated themselves.

    `refuses`: the number of the capture that fails, from 0.
    """

    device = torch.device("cpu")

    def __init__(self, refuses=None):
        self.graphs, self._refuses = [], refuses

    @contextmanager
    def at_work(self):
        yield

    def let_go(self, graph):
        graph.reset()

    def record(self, run):
        """The graph of `run`, which leaves no trace, as capturing executes nothing."""
        with DeviceOnly(), Recorder() as recorder:
            run()
        if self._refuses == len(self.graphs):
            raise RuntimeError("operation not permitted when stream is capturing\nand more")
        self.graphs.append(_Replay(self, recorder))
        return self.graphs[-1]
