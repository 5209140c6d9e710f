"""Does what calls of functions and of methods need alike, in a worker process of Ray."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import ray

from gmi_drl.runtime.api import call_context, refs
from gmi_drl.runtime.errors import TaskCancelledError
from gmi_drl.runtime.process import worker
from gmi_drl.runtime.wire import packing

from .calls import ActorBuild, Call, Raised, part_of
from .keeper import Value

if TYPE_CHECKING:
    from .engine import RayEngine

worker.hide_frames_of(__file__)


def engine_here(namespace: str) -> RayEngine:
    """Returns the runtime of this process, which begins with the first call that it is given."""
    from .engine import RayEngine  # which imports what runs calls

    if refs.current is None:
        refs.current = RayEngine(namespace)
        paths = refs.current.keeper.ask("sys_path")
        sys.path += [path for path in paths if path not in sys.path]
        call_context.set_default(None)
    engine = refs.current
    assert isinstance(engine, RayEngine)
    return engine


def enter(
    call: Call, build: ActorBuild | None = None, restarts: int = 0, replayed: bool = False
) -> None:
    """Makes a call the context of the code that runs now."""
    runtime = ray.get_runtime_context()
    resources, gpus = runtime.get_assigned_resources(), ray.get_gpu_ids()
    calls = itertools.count(int.from_bytes(os.urandom(8), "little"))  # each attempt's are others
    context = call_context.Context(
        task_id=call.id, calls=calls, name=call.name,
        resources=dict(resources), gpu_ids=tuple(gpus),
        actor_id=b"" if build is None else build.id,
        actor_name="" if build is None else build.name, restarts=restarts, replayed=replayed,
    )  # fmt: skip
    call_context.enter(context)


def arguments(call: Call, inputs: Sequence[Value]) -> tuple[Any, Any]:
    """Returns a call's arguments, with values in place of references."""
    mentions = dict(call.mentions)
    for _, more_mentions in inputs:
        mentions.update(more_mentions)
    engine_here(call.namespace).objects.adopt(mentions)
    body: packing.Part = call.arguments
    if call.arguments_stored:
        body, inputs = part_of(inputs[0]), inputs[1:]
    for value in inputs:
        if isinstance(value[0], Raised):  # one of several results, which was not given
            raise value[0]
    if not len(body):
        return (), {}

    def what() -> str:
        return f"an argument of {call.name}"

    values = [packing.unpack(part_of(value), what) for value in inputs]
    args, kwargs = packing.unpack(body, what, (), values)
    return args, kwargs


def evaluate(
    call: Call, function: Callable[[], Any], should_retry: Callable[[Exception], bool]
) -> Any:
    """Calls a function, as often as it should be; returns its result.

    Of a generator that raises, and has to give several results, it returns what it has yielded, and
    the exception in place of the others.
    """
    while True:
        yielded: list[Any] = []
        try:
            value = function()
            if not inspect.isgenerator(value):
                return value
            yielded.extend(value)
            return yielded
        except Exception as error:
            if not should_retry(error):
                return _completed(call, yielded, error)


async def evaluate_async(
    call: Call, function: Callable[[], Any], should_retry: Callable[[Exception], bool]
) -> Any:
    """Does what `evaluate` does, in an event loop."""
    while True:
        yielded: list[Any] = []
        try:
            value = function()
            if inspect.isasyncgen(value) and call.returns > 1:
                async for item in value:
                    yielded.append(item)
                return yielded
            if inspect.isgenerator(value):
                yielded.extend(value)
                return yielded
            return await value if inspect.isawaitable(value) else value
        except Exception as error:
            if not should_retry(error):
                return _completed(call, yielded, error)


def _completed(call: Call, yielded: list[Any], error: Exception) -> list[Any]:
    """Returns what a generator yielded before it raised, and the exception for what is missing.

    Raises it where that is all there is.
    """
    if call.returns <= 1 or not yielded:
        raise error
    missing = max(0, call.returns - len(yielded))
    return yielded[: call.returns] + [raised(error)] * missing


def items_of(
    function: Callable[[], Any], should_retry: Callable[[Exception], bool]
) -> Iterator[Any]:
    """Yields what a generator yields; one that is begun again, what it has not yielded before."""
    given = 0
    while True:
        try:
            for number, item in enumerate(function(), 1):
                if number > given:
                    given = number
                    yield item
            return
        except Exception as error:
            if not should_retry(error):
                raise


def should_retry(call: Call, errors: Any, limit: int, error: Exception) -> bool:
    """Tells whether a call that raised this is made again, as its next attempt.

    `errors` are the exceptions that allow it, packed if the process may not know their classes.
    """
    context = call_context.context()
    if isinstance(error, TaskCancelledError) or 0 <= limit <= context.attempt:
        return False
    if isinstance(errors, bytes):
        errors = packing.unpack(errors, f"the retry_exceptions of {call.name}")
    if not isinstance(error, (Exception,) if errors is True else tuple(errors or ())):
        return False
    call_context.enter(dataclasses.replace(context, attempt=context.attempt + 1))
    return True


def raised(error: BaseException) -> Raised:
    """Returns what carries an exception to the caller."""
    return error if isinstance(error, Raised) else Raised(worker.call_failure(error))


def to_value(call: Call, result: Any) -> Value:
    """Returns a result as it is passed to Ray."""
    if result is None:
        return b"", {}
    if isinstance(result, Raised):
        return result, {}
    packed = packing.pack(result, f"the result of {call.name}")
    return engine_here(call.namespace).objects.to_value(packed)


def to_values(call: Call, result: Any) -> Any:
    """Returns a result as it is passed to Ray; a list if the call returns several."""
    if call.returns == 1:
        return to_value(call, result)
    return [to_value(call, item) for item in worker.several(call.name, result, call.returns)]
