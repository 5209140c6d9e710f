"""Runs calls of functions in the worker processes of Ray."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gmi_drl.runtime.driver.function_table import RecentFunctions
from gmi_drl.runtime.process import worker
from gmi_drl.runtime.wire import packing

from . import calling, interrupts
from .calls import Call
from .keeper import Value

_functions = RecentFunctions()
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
            value = calling.to_value(call, item)
            with interrupts.left_to_ray():
                yield value


@contextlib.contextmanager
def _prepared(
    call: Call, body: Sequence[Any], inputs: Sequence[Value]
) -> Iterator[Callable[[], Any]]:
    """Yields the function of a call with its arguments, and passes its exception to the caller."""
    engine = calling.engine_here(call.namespace)
    calling.enter(call)
    try:
        with interrupts.Interruptible():
            args, kwargs = calling.arguments(call, inputs)
            assert isinstance(call.function, bytes)
            called = _functions.get(call.function)
            if called is None:
                code = interrupts.get(body[0])
                called = packing.unpack(code, f"the function {call.name}")
                _functions.keep(call.function, called, len(code))
            try:
                yield functools.partial(called, *args, **kwargs)
            finally:
                del args, kwargs
    except (SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        if interrupts.is_end_of_cancelled(error):
            raise KeyboardInterrupt from None  # by which Ray knows that it was cancelled
        raise calling.raised(error) from None
    finally:
        engine.objects.adopt({})
