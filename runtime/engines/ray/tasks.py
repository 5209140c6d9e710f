"""Runs calls of functions in the worker processes of Ray."""

from __future__ import annotations

import contextlib
import functools
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ray

from gmi_drl.runtime.errors import TaskCancelledError
from gmi_drl.runtime.process import worker
from gmi_drl.runtime.wire import packing

from . import calling
from .calls import Call
from .functions import Functions
from .keeper import Value

_functions = Functions()
worker.hide_frames_of(__file__)


def run_task(call: Call, retries: tuple[bytes, int], body: Sequence[Any], *inputs: Value) -> Any:
    """Runs one call of a function."""
    with _prepared(call, body, inputs) as function:
        should_retry = functools.partial(calling.should_retry, call, *retries)
        return calling.to_values(call, calling.evaluate(call, function, should_retry))


def run_task_streaming(
    call: Call, retries: tuple[bytes, int], body: Sequence[Any], *inputs: Value
) -> Iterator[Value]:
    """Runs one call of a generator, and gives what it yields on the way."""
    with _prepared(call, body, inputs) as function:
        should_retry = functools.partial(calling.should_retry, call, *retries)
        for item in calling.items_of(function, should_retry):
            yield calling.to_value(call, item)


@contextlib.contextmanager
def _prepared(
    call: Call, body: Sequence[Any], inputs: Sequence[Value]
) -> Iterator[Callable[[], Any]]:
    """Yields the function of a call with its arguments, and passes its exception to the caller."""
    engine, interrupted = calling.engine_here(call.namespace), False

    def interrupt(*_: Any) -> None:
        nonlocal interrupted
        interrupted = True
        raise TaskCancelledError(f"{call.name} was cancelled")

    in_main = threading.current_thread() is threading.main_thread()
    try:
        args, kwargs = calling.arguments(call, inputs)
        assert isinstance(call.function, bytes)
        called = _functions.get(call.function)
        if called is None:
            code = ray.get(body[0])
            called = packing.unpack(code, f"the function {call.name}")
            _functions.keep(call.function, called, len(code))
        calling.enter(call)
        handler = signal.signal(signal.SIGINT, interrupt) if in_main else None
        try:
            yield functools.partial(called, *args, **kwargs)
        finally:
            if in_main:
                signal.signal(signal.SIGINT, handler)
            del args, kwargs
    except (SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        if interrupted and isinstance(error, TaskCancelledError):
            raise KeyboardInterrupt from None  # by which Ray knows that it was cancelled
        raise calling.raised(error) from None
    finally:
        engine.objects.adopt({})
