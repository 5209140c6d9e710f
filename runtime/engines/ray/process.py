"""Runs tasks, and holds actors, in the worker processes of Ray."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import functools
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
from gmi_drl.runtime.errors import ActorDiedError, TaskCancelledError
from gmi_drl.runtime.process import child_setup, worker
from gmi_drl.runtime.wire import packing
from gmi_drl.runtime.wire.protocol import CallFailure

from . import nodes
from .calls import ActorBuild, Call, Raised, part_of
from .engine import RayEngine
from .functions import Functions
from .keeper import JournaledCall, Value

_STOP_POLL_S: Final = 0.1  # between two questions whether the launcher has asked for an end
_RECORDS_S: Final = 0.05  # for which records wait for others, to be sent with them
_ANSWERS_KEPT: Final = 1000  # of replayed calls, whose callers may not have had them
_functions = Functions()
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


def run_task(call: Call, retries: tuple[bytes, int], body: Sequence[Any], *inputs: Value) -> Any:
    """Runs one call of a function."""
    engine = _engine(call.namespace)
    with _task(engine, call, body, inputs) as (function, args, kwargs):
        should_retry = functools.partial(_should_retry, call, *retries)
        return _to_values(engine, call, _evaluate(call, function, args, kwargs, should_retry))


def run_task_streaming(
    call: Call, retries: tuple[bytes, int], body: Sequence[Any], *inputs: Value
) -> Iterator[Value]:
    """Runs one call of a generator, and gives what it yields on the way."""
    engine = _engine(call.namespace)
    with _task(engine, call, body, inputs) as (function, args, kwargs):
        should_retry = functools.partial(_should_retry, call, *retries)
        for item in _items(function, args, kwargs, should_retry):
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
        called = _functions.get(call.function)
        if called is None:
            code = ray.get(body[0])
            called = packing.unpack(code, f"the function {call.name}")
            _functions.keep(call.function, called, len(code))
        _enter(call)
        handler = signal.signal(signal.SIGINT, interrupt) if in_main else None
        try:
            yield called, args, kwargs
        finally:
            if in_main:
                signal.signal(signal.SIGINT, handler)
            del args, kwargs
    except (SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        if interrupted and isinstance(error, TaskCancelledError):
            raise KeyboardInterrupt from None  # by which Ray knows that it was cancelled
        raise _raised(error) from None
    finally:
        engine.adopt({})


def _enter(
    call: Call, build: ActorBuild | None = None, restarts: int = 0, replayed: bool = False
) -> None:
    """Makes a call the context of the code that runs now."""
    runtime = ray.get_runtime_context()
    resources, gpus = runtime.get_assigned_resources(), ray.get_gpu_ids()
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


def _evaluate(
    call: Call, function: Callable[..., Any], args: Any, kwargs: Any,
    should_retry: Callable[[Exception], bool],
) -> Any:  # fmt: skip
    """Calls a function, as often as it should be; returns its result.

    Of a generator that raises, and has to give several results, it returns what it has yielded, and
    the exception in place of the others.
    """
    while True:
        yielded: list[Any] = []
        try:
            value = function(*args, **kwargs)
            if not inspect.isgenerator(value):
                return value
            yielded.extend(value)
            return yielded
        except Exception as error:
            if should_retry(error):
                continue
            if call.returns <= 1 or not yielded:
                raise
            missing = max(0, call.returns - len(yielded))
            return yielded[: call.returns] + [_raised(error)] * missing


def _items(
    function: Callable[..., Any], args: Any, kwargs: Any, should_retry: Callable[[Exception], bool]
) -> Iterator[Any]:
    """Yields what a generator yields; one that is begun again, what it has not yielded before."""
    given = 0
    while True:
        try:
            for number, item in enumerate(function(*args, **kwargs), 1):
                if number > given:
                    given = number
                    yield item
            return
        except Exception as error:
            if not should_retry(error):
                raise


def _should_retry(call: Call, errors: Any, limit: int, error: Exception) -> bool:
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


def _raised(error: BaseException) -> Raised:
    """Returns what carries an exception to the caller."""
    return error if isinstance(error, Raised) else Raised(worker.call_failure(error))


def _to_value(engine: RayEngine, call: Call, value: Any) -> Value:
    if value is None:
        return b"", {}
    if isinstance(value, Raised):
        return value, {}
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
        self._lock = threading.Lock()
        self._records: list[bytes] = []  # that were not sent yet
        self._sent: Any = None  # Ray's reference of the keeper's answer to those sent last

    def post_record(self, record: bytes) -> None:
        with self._lock:
            self._records.append(record)
            if len(self._records) > 1:
                return
        timer = threading.Timer(_RECORDS_S, self._send_records)
        timer.daemon = True
        timer.start()

    def _send_records(self) -> None:
        with self._lock:
            if self._records:
                self._sent = self._engine.keeper.emit.remote(self._actor, self._records)
                self._records = []

    def told(self) -> Any:
        """Sends what was not sent; returns Ray's reference of its arrival, None if none ever was.

        A call is answered after that, so that its records are there when its result is: also those
        that another call of a concurrent actor has sent.
        """
        self._send_records()
        return self._sent

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
        self._process = _Process(engine, self._id)
        worker.enter(self._process)
        try:
            self._start(call, inputs)
        except SystemExit:
            raise
        except BaseException as error:
            raised = _raised(error)
            engine.ask_keeper("failed", self._id, raised.failure)
            raise raised from None

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
        child_setup.use_cores(build.cores)
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
        if group and threading.current_thread() is not threading.main_thread():
            threading.current_thread().name = f"{group} of {self._build.name}"
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

    def _limit(self, call: Call) -> int:
        """Returns how often a call is made again; unlimited if it is negative."""
        limit = self._option(call, "max_task_retries")
        return self._build.max_task_retries if limit is None else int(limit)

    def _counts_crashes(self, call: Call) -> bool:
        """Tells whether a call is not made again after some crashes while it runs."""
        return self._build.is_restarted and self._limit(call) >= 0

    def _note_end(self, call: Call) -> None:
        """Notes that a call is over whose start was noted."""
        if self._counts_crashes(call):
            self._engine.keeper.ended.remote(self._id, call.id)

    def _given_up(self, call: Call, crashes: int) -> tuple[bool, Any] | None:
        """Returns what a call gives of which the actor has died too often."""
        limit = self._limit(call)
        if crashes <= limit:
            return None
        reason = (
            f"{call.name} was running, and max_task_retries={limit} of it are used up. The actor "
            "was restarted, and goes on without this call"
        )
        error = packing.pack_exception(ActorDiedError(self._build.name, reason=reason))
        return False, Raised(packing.pack(CallFailure(error, "", time.monotonic())).body)

    def _should_retry(self, call: Call, error: Exception) -> bool:
        """Tells whether a method that raised this is called again."""
        limit = self._limit(call)
        if limit < 0 and self._option(call, "max_task_retries") is None:
            limit = METHOD_RETRIES
        return _should_retry(call, self._option(call, "retry_exceptions"), limit, error)

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
            answer = self._note_start(call) or self._answer(call, inputs)
            self._note_end(call)
            if self._count_call() and (state := self._checkpoint()) is not None:
                self._engine.ask_keeper("note", self._id, state, None)
            return _value_or_raise(answer)
        kept = self._known_answer(call) or self._note_start(call)
        if kept is None:
            state = self._checkpoint() if self._checkpoint_due() else None
            kept = self._answer(call, inputs)
            self._since = 1 if state is not None else self._since + 1
            journaled = JournaledCall(dataclasses.replace(call, inputs=()), call.inputs)
            self._engine.ask_keeper("note", self._id, state, journaled)
        return _value_or_raise(kept)

    def stream(self, call: Call, *inputs: Value) -> Iterator[Value]:
        """Runs one call of a generator, and gives what it yields on the way."""
        if (given_up := self._note_start(call)) is not None:
            raise given_up[1]
        try:
            method, args, kwargs = self._begin(call, inputs, False)
            for item in _items(method, args, kwargs, functools.partial(self._should_retry, call)):
                yield _to_value(self._engine, call, item)
        except (SystemExit, GeneratorExit):
            raise
        except BaseException as error:
            raise _raised(error) from None
        finally:
            self._engine.adopt({})
            self._wait_for_records()
            if self._is_journaled:
                journaled = JournaledCall(dataclasses.replace(call, inputs=()), call.inputs)
                self._since += 1
                self._engine.ask_keeper("note", self._id, None, journaled)
            else:
                self._note_end(call)

    def _note_start(self, call: Call) -> tuple[bool, Any] | None:
        """Notes that a call starts, if crashes of it count; returns what it gives if given up."""
        if not self._counts_crashes(call):
            return None
        return self._given_up(call, self._engine.ask_keeper("begins", self._id, call.id))

    def _answer(
        self, call: Call, inputs: Sequence[Value], replayed: bool = False
    ) -> tuple[bool, Any]:
        """Runs a call: (True, its packed result) or (False, what it raised)."""
        try:
            method, args, kwargs = self._begin(call, inputs, replayed)
            should_retry = functools.partial(self._should_retry, call)
            value = _evaluate(call, method, args, kwargs, should_retry)
            if call.returns == STREAMING:
                return True, None
            return True, _to_values(self._engine, call, value)
        except SystemExit:
            raise
        except BaseException as error:
            return False, _raised(error)
        finally:
            self._engine.adopt({})
            self._wait_for_records()

    def _wait_for_records(self) -> None:
        if (told := self._process.told()) is not None:
            ray.get(told)


class AsyncShell(_Shell):
    """Holds an actor with async methods, which run concurrently."""

    async def call(self, call: Call, *inputs: Value) -> Any:
        """Runs one call of a method."""
        answer = await self._note_start(call) or await self._answer(call, inputs)
        self._note_end(call)
        if self._count_call() and (state := self._checkpoint()) is not None:
            await self._engine.keeper.note.remote(self._id, state, None)
        return _value_or_raise(answer)

    async def stream(self, call: Call, *inputs: Value) -> AsyncIterator[Value]:
        """Runs one call of a generator, and gives what it yields on the way."""
        if (given_up := await self._note_start(call)) is not None:
            raise given_up[1]
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
            raise _raised(error) from None
        finally:
            self._note_end(call)
            await self._wait_for_records()

    async def _note_start(self, call: Call) -> tuple[bool, Any] | None:
        """Notes that a call starts, if crashes of it count; returns what it gives if given up."""
        if not self._counts_crashes(call):
            return None
        return self._given_up(call, await self._engine.keeper.begins.remote(self._id, call.id))

    async def _answer(self, call: Call, inputs: Sequence[Value]) -> tuple[bool, Any]:
        try:
            method, args, kwargs = self._begin(call, inputs, False)
            should_retry = functools.partial(self._should_retry, call)
            while True:
                try:
                    value = _evaluate(call, method, args, kwargs, should_retry)
                    value = await value if inspect.isawaitable(value) else value
                    return True, _to_values(self._engine, call, value)
                except Exception as error:
                    if not should_retry(error):
                        raise
        except SystemExit:
            ray.actor.exit_actor()
            raise
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            return False, _raised(error)
        finally:
            await self._wait_for_records()

    async def _wait_for_records(self) -> None:
        if (told := self._process.told()) is not None:
            await told


def _value_or_raise(answer: tuple[bool, Any]) -> Any:
    """Returns an answer, or raises it."""
    if not answer[0]:
        raise answer[1]
    return answer[1]
