"""Runs tasks, and holds actors, in the worker processes of Ray."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import inspect
import itertools
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import ray

from gmi_drl.runtime.api import call_context, refs
from gmi_drl.runtime.api.options import METHOD_RETRIES, method_options, no_group
from gmi_drl.runtime.driver.task import STREAMING
from gmi_drl.runtime.errors import TaskCancelledError
from gmi_drl.runtime.process import child_setup, worker
from gmi_drl.runtime.wire import packing

from . import nodes
from .calls import ActorBuild, Call, Raised, part_of
from .engine import RayEngine
from .keeper import JournaledCall, Value

_STOP_POLL_S: Final = 0.1  # between two questions whether the launcher has asked for an end
_ANSWERS_KEPT: Final = 1000  # of replayed calls, whose callers may not have had them
_functions: dict[bytes, Any] = {}
worker.hide_frames_of(__file__)


def _engine(namespace: str) -> RayEngine:
    """Returns the runtime of this process, which begins with the first call that it is given."""
    if refs.current is None:
        refs.current = RayEngine(namespace)
        paths = refs.current.ask_keeper("sys_path")
        sys.path += [path for path in paths if path not in sys.path]
        call_context.set_default(None)
    engine = refs.current
    assert isinstance(engine, RayEngine)
    return engine


def run_task(call: Call, retries: tuple[int, bytes], body: Sequence[Any], *inputs: Value) -> Any:
    """Runs one call of a function."""
    engine = _engine(call.namespace)
    with _task(engine, call, body, inputs) as (function, args, kwargs):
        limit, errors = retries[0], packing.unpack(retries[1])
        return _to_values(engine, call, _evaluate(function, args, kwargs, errors, limit))


def run_task_streaming(
    call: Call, retries: tuple[int, bytes], body: Sequence[Any], *inputs: Value
) -> Iterator[Value]:
    """Runs one call of a generator, and gives what it yields on the way."""
    engine = _engine(call.namespace)
    with _task(engine, call, body, inputs) as (function, args, kwargs):
        for item in function(*args, **kwargs):
            yield _to_value(engine, call, item)


@contextlib.contextmanager
def _task(
    engine: RayEngine, call: Call, body: Sequence[Any], inputs: Sequence[Value]
) -> Iterator[tuple[Any, Any, Any]]:
    """Surrounds a call of a function: sets its context, and passes its exception to the caller."""
    interrupted = False

    def interrupt(*_: Any) -> None:
        nonlocal interrupted
        interrupted = True
        raise TaskCancelledError(f"{call.name} was cancelled")

    in_main = threading.current_thread() is threading.main_thread()
    try:
        args, kwargs = _arguments(engine, call, inputs)
        assert isinstance(call.function, bytes)
        if call.function not in _functions:
            code = ray.get(body[0])
            _functions[call.function] = packing.unpack(code, f"the function {call.name}")
        _enter(call)
        handler = signal.signal(signal.SIGINT, interrupt) if in_main else None
        try:
            yield _functions[call.function], args, kwargs
        finally:
            if in_main:
                signal.signal(signal.SIGINT, handler)
            del args, kwargs
    except (SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        if interrupted and isinstance(error, TaskCancelledError):
            raise KeyboardInterrupt from None  # by which Ray knows that it was cancelled
        raise Raised(worker.call_failure(error)) from None
    finally:
        engine.adopt({})


def _enter(
    call: Call, build: ActorBuild | None = None, restarts: int = 0, replayed: bool = False
) -> None:
    """Makes a call the context of the code that runs now."""
    runtime = ray.get_runtime_context()
    resources, gpus = runtime.get_assigned_resources(), runtime.get_accelerator_ids().get("GPU", ())
    context = call_context.Context(
        task_id=call.id, calls=_call_numbers(), name=call.name,
        resources=dict(resources), gpu_ids=tuple(gpus),
        actor_id=b"" if build is None else build.id,
        actor_name="" if build is None else build.name, restarts=restarts, replayed=replayed,
    )  # fmt: skip
    call_context.enter(context)


def _call_numbers() -> itertools.count[int]:
    """Returns numbers for a call's own calls, such that each attempt makes other ids."""
    return itertools.count(int.from_bytes(os.urandom(8), "little"))


def _arguments(engine: RayEngine, call: Call, inputs: Sequence[Value]) -> tuple[Any, Any]:
    """Returns a call's arguments, with values in place of references."""
    mentions = dict(call.mentions)
    for _, more_mentions in inputs:
        mentions.update(more_mentions)
    engine.adopt(mentions)
    body: packing.Part = call.arguments
    if call.arguments_stored:
        body, inputs = part_of(inputs[0]), inputs[1:]
    if not len(body):
        return (), {}

    def what() -> str:
        return f"an argument of {call.name}"

    values = [packing.unpack(part_of(value), what) for value in inputs]
    args, kwargs = packing.unpack(body, what, (), values)
    return args, kwargs


def _evaluate(function: Callable[..., Any], args: Any, kwargs: Any, errors: Any, limit: int) -> Any:
    """Calls a function, again if it raises what is `wanted`, at most `limit` times."""
    while True:
        try:
            value = function(*args, **kwargs)
            return list(value) if inspect.isgenerator(value) else value
        except Exception as error:
            if not _should_retry(error, errors, limit):
                raise


def _should_retry(error: Exception, errors: Any, limit: int) -> bool:
    """Tells whether a call that raised this is made again, as its next attempt."""
    errors = (Exception,) if errors is True else errors or ()
    context = call_context.context()
    if isinstance(error, TaskCancelledError) or not isinstance(error, errors):
        return False
    if 0 <= limit <= context.attempt:
        return False
    call_context.enter(dataclasses.replace(context, attempt=context.attempt + 1))
    return True


def _to_value(engine: RayEngine, call: Call, value: Any) -> Value:
    if value is None:
        return b"", {}
    return engine.to_value(packing.pack(value, f"the result of {call.name}"))


def _to_values(engine: RayEngine, call: Call, value: Any) -> Any:
    """Returns a result as it is passed to Ray; a list if the call returns several."""
    if call.returns == 1:
        return _to_value(engine, call, value)
    values = list(value) if isinstance(value, Iterable) else [] if value is None else [value]
    if len(values) != call.returns:
        raise ValueError(
            f"{call.name} gave {len(values)} values; it was called with "
            f"num_returns={call.returns}. Return as many, in a tuple or list."
        )
    return [_to_value(engine, call, item) for item in values]


class _Process:
    """Is the `worker.WorkerProcess` of the code that runs in an actor."""

    def __init__(self, engine: RayEngine, actor: str) -> None:
        self._engine, self._actor = engine, actor
        self._stop, self._looked_s = False, 0.0

    def post_record(self, record: bytes) -> None:
        self._engine.keeper.emit.remote(self._actor, record)

    def stop_requested(self) -> bool:
        now_s = time.monotonic()
        if not self._stop and now_s - self._looked_s > _STOP_POLL_S:
            self._looked_s = now_s
            self._stop = bool(self._engine.ask_keeper("stop_requested", self._actor))
        return self._stop

    def set_title(self, text: str) -> None:
        ray._raylet.setproctitle(f"gmi-drl: {text}")


class _Shell:
    """Holds an object of the user's class: builds, checkpoints and rebuilds it.

    If an actor runs one call at a time and may be restarted, the keeper notes each call before its
    answer is sent. A new process runs the noted calls again, as engine local does, so that no
    answered call is lost. A call that was noted, but not answered, Ray sends again, and finds its
    answer here. `save()` is called before the first call after each k-th, and its result is noted
    with that call, in one message.
    """

    def __init__(self, build: ActorBuild, call: Call, *inputs: Value) -> None:
        self._build, self._restarts, self._since = build, 0, 0
        self._engine = engine = _engine(call.namespace)
        self._id = str(ray.get_runtime_context().get_actor_id())
        self._counting = threading.Lock()
        self._answers: collections.OrderedDict[bytes, tuple[bool, Any]] = collections.OrderedDict()
        worker.enter(_Process(engine, self._id))
        try:
            self._start(call, inputs)
        except SystemExit:
            raise
        except BaseException as error:
            failure = worker.call_failure(error)
            engine.ask_keeper("failed", self._id, failure)
            raise Raised(failure) from None

    def _start(self, call: Call, inputs: Sequence[Value]) -> Sequence[JournaledCall]:
        """Builds the object; returns the calls that have to be run again."""
        build, engine = self._build, self._engine
        state, journal = None, []
        if build.is_restarted:
            self._restarts, state, journal = engine.ask_keeper(
                "started", self._id, os.getpid(), nodes.address()
            )
        if build.log:
            child_setup.open_log(build.log)
        if build.cores:
            os.sched_setaffinity(0, build.cores)
        if torch := sys.modules.get("torch"):
            torch.set_num_threads(build.num_threads)
        if build.setup:
            packing.unpack(build.setup, f"the setup of actor {build.name}")()
        args, kwargs = _arguments(engine, call, inputs)
        cls = packing.unpack(build.cls, f"the class of actor {build.name}")
        _enter(call, build, self._restarts)
        self._instance = cls(*args, **kwargs)
        if state is not None:
            engine.adopt(state[1])
            saved = packing.unpack(part_of(state), f"the saved state of {build.name}")
            self._instance.restore(saved)
        engine.adopt({})
        return journal

    @property
    def _is_journaled(self) -> bool:
        return self._build.is_restarted and not self._build.is_concurrent

    def _keep_answer(self, journaled: JournaledCall, answer: tuple[bool, Any]) -> None:
        self._since += 1
        self._answers[journaled.call.id] = answer
        if len(self._answers) > _ANSWERS_KEPT:
            self._answers.popitem(last=False)

    def _known_answer(self, call: Call) -> tuple[bool, Any] | None:
        """Returns the answer of a replayed call whose first answer may have been lost."""
        return self._answers.pop(call.id, None) if self._answers else None

    def _begin(self, call: Call, inputs: Sequence[Value], replayed: bool) -> tuple[Any, Any, Any]:
        """Returns the method of a call, and its arguments."""
        args, kwargs = _arguments(self._engine, call, inputs)
        instance, cls = self._instance, type(self._instance)
        _enter(call, self._build, self._restarts, replayed=replayed)
        group = self._option(call, "concurrency_group")
        if group and group not in self._build.concurrency_groups:
            raise ValueError(no_group(call.name, group, self._build))
        assert isinstance(call.function, str)
        for base in cls.__mro__:  # attributes of the instance do not count
            if call.function in base.__dict__:
                member = base.__dict__[call.function]
                method = member.__get__(instance, cls) if hasattr(member, "__get__") else member
                return method, args, kwargs
        return getattr(instance, call.function), args, kwargs

    def _option(self, call: Call, name: str) -> Any:
        if call.chosen and name in call.chosen:
            return call.chosen[name]
        return getattr(
            method_options(getattr(type(self._instance), str(call.function), None)), name
        )

    def _retries(self, call: Call) -> tuple[Any, int]:
        """Returns the exceptions after which a method is called again, and how often."""
        errors = self._option(call, "retry_exceptions")
        if isinstance(errors, bytes):
            errors = packing.unpack(errors, f"the retry_exceptions of {call.name}")
        limit = self._option(call, "max_task_retries")
        if limit is None:
            limit = self._build.max_task_retries
            limit = METHOD_RETRIES if limit < 0 else limit
        return errors, limit

    def _checkpoint_due(self) -> bool:
        interval = self._build.checkpoint_every
        return interval > 0 and self._since >= interval

    def _checkpoint(self) -> Value | None:
        """Returns a checkpoint; None if it fails, and the journal goes on."""
        try:
            name = self._build.name
            packed = packing.pack(self._instance.save(), f"what {name}.save gave")
            return self._engine.to_value(packed)
        except Exception:
            traceback.print_exc()
            return None

    def _count_call(self) -> bool:
        """Counts a call of a concurrent actor; returns whether a checkpoint is due."""
        if not self._build.checkpoint_every or not self._build.is_restarted:
            return False
        with self._counting:
            self._since += 1
            due = self._checkpoint_due()
            self._since = 0 if due else self._since
            return due

    def end(self) -> None:
        """Ends the actor after its earlier calls."""
        ray.actor.exit_actor()


class Shell(_Shell):
    """Holds an actor without async methods."""

    def _start(self, call: Call, inputs: Sequence[Value]) -> Sequence[JournaledCall]:
        journal = super()._start(call, inputs)
        for journaled in journal:
            answer = self._answer(journaled.call, ray.get(list(journaled.inputs)), True)
            self._keep_answer(journaled, answer)
        return journal

    def call(self, call: Call, *inputs: Value) -> Any:
        """Runs one call of a method."""
        if not self._is_journaled:
            answer = self._answer(call, inputs)
            if self._count_call() and (state := self._checkpoint()) is not None:
                self._engine.ask_keeper("note", self._id, state, None)
            return _value_or_raise(answer)
        kept = self._known_answer(call)
        if kept is None:
            state = self._checkpoint() if self._checkpoint_due() else None
            kept = self._answer(call, inputs)
            self._since = 1 if state is not None else self._since + 1
            journaled = JournaledCall(dataclasses.replace(call, inputs=()), call.inputs)
            self._engine.ask_keeper("note", self._id, state, journaled)
        return _value_or_raise(kept)

    def stream(self, call: Call, *inputs: Value) -> Iterator[Value]:
        """Runs one call of a generator, and gives what it yields on the way."""
        try:
            method, args, kwargs = self._begin(call, inputs, False)
            for item in method(*args, **kwargs):
                yield _to_value(self._engine, call, item)
        except (SystemExit, GeneratorExit):
            raise
        except BaseException as error:
            raise Raised(worker.call_failure(error)) from None
        finally:
            self._engine.adopt({})
            if self._is_journaled:
                journaled = JournaledCall(dataclasses.replace(call, inputs=()), call.inputs)
                self._since += 1
                self._engine.ask_keeper("note", self._id, None, journaled)

    def _answer(
        self, call: Call, inputs: Sequence[Value], replayed: bool = False
    ) -> tuple[bool, Any]:
        """Runs a call: (True, its packed result) or (False, what it raised)."""
        try:
            method, args, kwargs = self._begin(call, inputs, replayed)
            value = _evaluate(method, args, kwargs, *self._retries(call))
            if call.returns == STREAMING:
                return True, None
            return True, _to_values(self._engine, call, value)
        except SystemExit:
            raise
        except BaseException as error:
            return False, Raised(worker.call_failure(error))
        finally:
            self._engine.adopt({})


class AsyncShell(_Shell):
    """Holds an actor with async methods, which run concurrently."""

    async def call(self, call: Call, *inputs: Value) -> Any:
        """Runs one call of a method."""
        answer = await self._answer(call, inputs)
        if self._count_call() and (state := self._checkpoint()) is not None:
            await self._engine.keeper.note.remote(self._id, state, None)
        return _value_or_raise(answer)

    async def stream(self, call: Call, *inputs: Value) -> AsyncIterator[Value]:
        """Runs one call of a generator, and gives what it yields on the way."""
        try:
            method, args, kwargs = self._begin(call, inputs, False)
            items = method(*args, **kwargs)
            if inspect.isasyncgen(items):
                async for item in items:
                    yield _to_value(self._engine, call, item)
            else:
                for item in items:
                    yield _to_value(self._engine, call, item)
        except (SystemExit, GeneratorExit):
            raise
        except BaseException as error:
            raise Raised(worker.call_failure(error)) from None

    async def _answer(self, call: Call, inputs: Sequence[Value]) -> tuple[bool, Any]:
        try:
            method, args, kwargs = self._begin(call, inputs, False)
            errors, limit = self._retries(call)
            while True:
                try:
                    value = method(*args, **kwargs)
                    value = await value if inspect.isawaitable(value) else value
                    return True, _to_values(self._engine, call, value)
                except Exception as error:
                    if not _should_retry(error, errors, limit):
                        raise
        except SystemExit:
            ray.actor.exit_actor()
            raise
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            return False, Raised(worker.call_failure(error))


def _value_or_raise(answer: tuple[bool, Any]) -> Any:
    """Returns an answer, or raises it."""
    if not answer[0]:
        raise answer[1]
    return answer[1]
