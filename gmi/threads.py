"""Runs GMIs as threads of one process, each on its own slice.

They crash together, take turns at Python (one GIL), and share torch's state: the default
random generator, the allocator of GPU memory, `torch.use_deterministic_algorithms`.
"""

from __future__ import annotations

import concurrent.futures.thread
import contextvars
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, Final

from gmi_drl import runtime
from gmi_drl.runtime.process.worker import exit_code

from .backends.backend import take_slice

if TYPE_CHECKING:
    from gmi_drl.placement.layout import GmiSpec
    from gmi_drl.placement.topology import Device

_HIDDEN_FILES: Final = (__file__, concurrent.futures.thread.__file__)


class ThreadHost:
    """The actor of several GMIs of one device. `members`: specs, and the arguments of bodies."""

    def __init__(
        self, body: type, members: Sequence[tuple[GmiSpec, tuple[Any, ...]]], device: Device
    ) -> None:
        self._threads = {
            spec.gmi_id: ThreadPoolExecutor(1, f"gmi{spec.gmi_id}") for spec, _ in members
        }
        entered: dict[int, Future[Any]] = {}
        for spec, _ in members:  # one after the other, as shares are given out in this order
            entered[spec.gmi_id] = self._submit(spec.gmi_id, take_slice, spec, device)
            wait([entered[spec.gmi_id]])
        self._bodies = {
            spec.gmi_id: self._submit(spec.gmi_id, _build, entered[spec.gmi_id], body, args)
            for spec, args in members
        }
        wait(self._bodies.values())

    def call(self, gmi_id: int, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Calls a method of one GMI's body in its thread, and waits for the answer.

        Errors of entering the GMI's slice, or of building its body, are raised here, so that they
        count as this GMI's and not as its neighbours'.
        """
        body = _result_of(self._bodies[gmi_id])
        return _result_of(self._submit(gmi_id, getattr(body, method), *args, **kwargs))

    def _submit(
        self, gmi_id: int, function: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Future[Any]:
        """Runs a function in the thread of a GMI, in a copy of this context, labelled so."""
        context = contextvars.copy_context()
        context.run(runtime.label_records, gmi_id)
        executor = self._threads[gmi_id]
        return executor.submit(context.run, _run_to_exit, function, *args, **kwargs)


def _build(entered: Future[Any], body: type, args: tuple[Any, ...]) -> Any:
    """Builds a body; raises the error of entering its slice if there was one."""
    if error := entered.exception():
        raise error
    return body(*args)


def _result_of(future: Future[Any]) -> Any:
    """Waits for the result; raises its error without the frames of how it was run."""
    error = future.exception()
    if error is None:
        return future.result()
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in _HIDDEN_FILES:
        trace = trace.tb_next
    raise error.with_traceback(trace or error.__traceback__)


def _run_to_exit(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Runs a function; sys.exit in it ends the process, as in a GMI with one of its own."""
    try:
        return function(*args, **kwargs)
    except SystemExit as leaving:
        code = exit_code(leaving)
        sys.stderr.flush()
        sys.stdout.flush()
        os._exit(code)
