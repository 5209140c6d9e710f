"""Runs GMIs as threads of one process: each in a thread of its own, on its slice.

They crash together, take turns at Python (one GIL), and have torch's state in common: the default
random generator, the allocator of GPU memory, `torch.use_deterministic_algorithms`.
"""

from __future__ import annotations

import concurrent.futures.thread
import contextvars
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from gmi_drl import runtime

from .backends.backend import take_slice

if TYPE_CHECKING:
    from gmi_drl.placement.layout import GmiSpec
    from gmi_drl.placement.topology import Device

_OURS: Final = (__file__, concurrent.futures.thread.__file__)


class ThreadHost:
    """The actor of several GMIs of one device. `members`: each spec, and what its body is given."""

    def __init__(
        self, body: type, members: Sequence[tuple[GmiSpec, tuple[Any, ...]]], device: Device
    ) -> None:
        self._threads = {spec.gmi_id: _GmiThread(spec.gmi_id) for spec, _ in members}
        for spec, _ in members:  # one after the other: shares are dealt out in this order
            self._threads[spec.gmi_id].begin(take_slice, spec, device).exception()
        built = [self._threads[spec.gmi_id].build(body, args) for spec, args in members]
        for one in built:
            one.exception()

    def call(self, gmi_id: int, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Calls a method of one GMI's body in its thread, and waits for the answer.

        What kept that GMI from its slice, or its body from being built, is raised here: the error
        then is of this GMI, and of none of its fellows.
        """
        return self._threads[gmi_id].call(method, args, kwargs)


class _GmiThread:
    """The thread of one GMI."""

    def __init__(self, gmi_id: int) -> None:
        self._gmi_id = gmi_id
        self._executor = ThreadPoolExecutor(1, f"gmi{gmi_id}")
        self._begun: list[Future[Any]] = []  # what has to succeed before it can be called
        self._body: Any = None

    def begin(self, step: Callable[..., Any], *args: Any) -> Future[Any]:
        """Runs one step of its beginning, if those before it have succeeded."""
        future = self._submit(self._after_those_before, step, args, list(self._begun))
        self._begun.append(future)
        return future

    def build(self, body: type, args: tuple[Any, ...]) -> Future[Any]:
        """Builds the body."""

        def make() -> None:
            self._body = body(*args)

        return self.begin(make)

    def call(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        for step in self._begun:
            _outcome(step)
        return _outcome(self._submit(getattr(self._body, method), *args, **kwargs))

    @staticmethod
    def _after_those_before(
        step: Callable[..., Any], args: tuple[Any, ...], before: list[Future[Any]]
    ) -> None:
        # They have ended: this thread runs them in turn.
        if all(one.exception() is None for one in before):
            step(*args)

    def _submit(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
        """Runs it in the context of this call, as code of this GMI."""
        context = contextvars.copy_context()
        context.run(runtime.label_records, self._gmi_id)
        return self._executor.submit(context.run, _ending, function, *args, **kwargs)


def _outcome(future: Future[Any]) -> Any:
    """Returns what came of it, waited for; its error without the frames of how it was run."""
    error = future.exception()
    if error is None:
        return future.result()
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in _OURS:
        trace = trace.tb_next
    raise error.with_traceback(trace or error.__traceback__)


def _ending(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Returns a GMI that calls sys.exit ends its process, as one with a process of its own does."""
    try:
        return function(*args, **kwargs)
    except SystemExit as leaving:
        if not isinstance(leaving.code, int | None):
            print(leaving.code, file=sys.stderr)
        sys.stderr.flush()
        sys.stdout.flush()
        os._exit(leaving.code & 0xFF if isinstance(leaving.code, int) else int(bool(leaving.code)))
