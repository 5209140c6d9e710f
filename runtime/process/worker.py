"""Runs calls inside a process: a worker's tasks, or the methods of one actor.

Calls run in order in the main thread. An actor with `max_concurrency` runs them in that many
threads instead, and one with async methods in an event loop.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import contextvars
import dataclasses
import functools
import inspect
import itertools
import os
import pickle
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from gmi_drl.runtime import ids
from gmi_drl.runtime.api import call_context, refs, signatures
from gmi_drl.runtime.api.options import METHOD_RETRIES, method_option, no_group
from gmi_drl.runtime.driver.task import STREAMING
from gmi_drl.runtime.errors import TaskCancelledError, truncate, truncate_texts
from gmi_drl.runtime.wire import closures, framing, packing
from gmi_drl.runtime.wire.protocol import STAMP, Build, CallFailure, Kind, Place

from . import child_setup
from .connection import INLINE_BYTES, Connection, place_value

_HIDDEN_FILES: Final = [__file__, closures.__file__]  # hidden from tracebacks
_ONE_CPU: Final = ({"CPU": 1.0}, ())  # and no GPU
_here: WorkerProcess | None = None
_label: contextvars.ContextVar[Any] = contextvars.ContextVar("gmi_drl_label")


class Labelled(NamedTuple):
    """A record with the label of who emitted it in an actor of several."""

    label: Any
    record: Any


def emit(record: Any) -> bool:
    """Sends `record` to the launcher, which finds it in `records()`; never waits.

    It is pickled before this returns. When the launcher does not keep up, the oldest records are
    dropped and counted. Returns False outside an actor.
    """
    if _here is None:
        return False
    label = _label.get(None)
    if label is not None:
        record = Labelled(label, record)
    _here.post_record(packing.pack_plain(record, "the record"))
    return True


def label_records(label: Any) -> None:
    """Has records that this thread or asyncio task emits from here on be `Labelled` so."""
    _label.set(label)


def stop_requested() -> bool:
    """Returns True once the launcher has asked this actor to come to an end."""
    return _here is not None and _here.stop_requested()


def set_title(text: str) -> None:
    """Makes ps show `gmi-drl: <text>` for this process, if it is one of the runtime's."""
    if _here is not None:
        _here.set_title(text)


class WorkerProcess(Protocol):
    """Is what code in a process of the runtime can use of it, on either engine."""

    def post_record(self, record: bytes) -> None:
        """Sends a record to the launcher; never waits."""

    def stop_requested(self) -> bool:
        """Returns whether the launcher has asked this actor to come to an end."""

    def set_title(self, text: str) -> None:
        """Sets what ps shows of this process."""


def hide_frames_of(file: str) -> None:
    """Leaves the frames of this file out of tracebacks: they tell the user nothing."""
    _HIDDEN_FILES.append(file)


def enter(process: WorkerProcess) -> None:
    """Makes this process one whose code can emit records."""
    global _here
    _here = process


def run(connection: Connection, prepare: Callable[[], None]) -> int:
    """Serves the connection until told to end, after `prepare`; returns the exit code."""
    worker = Worker(connection)
    enter(worker)
    refs.current = connection
    try:
        code = worker.serve(prepare)
    except SystemExit as leaving:
        code = exit_code(leaving)
    refs.current = None
    connection.sender.close()
    threading._shutdown()  # type: ignore[attr-defined]  # as at the end of any Python process
    atexit._run_exitfuncs()
    return code


def _leave(connection: Connection, code: int) -> None:
    """Ends the process from a thread that runs a call; calls in other threads are cut off."""
    refs.current = None
    connection.sender.close()
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def exit_code(leaving: SystemExit) -> int:
    """Returns the exit code of a sys.exit; an argument that is no number is printed."""
    if leaving.code is None:
        return 0
    if isinstance(leaving.code, int):
        return leaving.code & 0xFF
    print(leaving.code, file=sys.stderr)
    return 1


class ArrivedCall:
    """Holds a received call, with what its process needs to run it."""

    __slots__ = ("_arguments", "_attempt", "_details", "_failures", "_function", "_inputs",
                 "_message", "_replayed", "_retries", "_worker", "name", "number", "returns",
                 "sequence", "task", "yielded")  # fmt: skip

    def __init__(self, worker: Worker, message: framing.Message) -> None:
        self._worker = worker
        self._message = message
        self._retries = 0
        self.yielded: list[Any] = []  # by a generator whose call returns several results
        self.number = message.id
        (
            self.task, self.name, self._function, self.returns, self._arguments, self._inputs,
            self.sequence, self._attempt, self._failures, self._replayed, self._details,
        ) = pickle.loads(message.body)  # fmt: skip

    def target(self) -> Any:
        function = self._function
        if isinstance(function, str):
            method = signatures.bound_method(self._worker.instance, function)
            group = self.option("concurrency_group")
            if group and group not in self._worker.build.concurrency_groups:
                raise ValueError(no_group(self.name, group, self._worker.build))
            return method
        functions = self._worker.connection.functions
        if isinstance(body := functions[function], bytes):
            functions[function] = packing.unpack(body, f"the function {self.name}")
        return functions[function]

    def option(self, name: str) -> Any:
        """Returns an option of this call, else of its method in the class."""
        return method_option(type(self._worker.instance), self._function, self._details, name)

    def should_retry(self, error: Exception) -> bool:
        """Returns whether a method that raised this is called again, as its next attempt.

        Its calls get new ids, so that they are made anew. A rebuilt actor repeats all attempts, so
        that its state is the same.
        """
        if not isinstance(self._function, str) or isinstance(error, TaskCancelledError):
            return False
        limit = self.option("max_task_retries")
        if limit is None:
            limit = self._worker.build.max_task_retries
            if limit < 0:  # unlimited retries are meant for crashes, not for exceptions
                limit = METHOD_RETRIES
        error_classes = self.option("retry_exceptions")
        if isinstance(error_classes, bytes):
            error_classes = packing.unpack(error_classes, f"the retry_exceptions of {self.name}")
        error_classes = (Exception,) if error_classes is True else error_classes or ()
        if not isinstance(error, error_classes) or 0 <= limit <= self._retries:
            return False
        self._retries += 1
        context = call_context.context()
        call_context.enter(dataclasses.replace(context, attempt=context.attempt + 1))
        return True

    def arguments(self) -> tuple[Sequence[Any], dict[str, Any]]:
        """Returns its arguments, with values in place of references."""
        if not self._arguments and not self._inputs:
            return (), {}
        connection = self._worker.connection

        def what() -> str:
            return f"an argument of {self.name}"

        # Each place is viewed once, as the end of its view unpins it.
        views = {id: connection.view(id, place) for id, place in dict(self._inputs).items()}
        body = connection.view(ids.arguments(self.task), self._arguments)
        inputs = [packing.unpack(views[id], what) for id, _ in self._inputs]
        args, kwargs = packing.unpack(body, what, self._message.fds or (), inputs)
        self._arguments, self._inputs = b"", ()
        return args, kwargs

    def enter(self, task: bytes = b"") -> None:
        """Makes this call the context of the code that runs now; `task` replaces its id."""
        build = self._worker.build
        resources, gpu_ids = build.resources, build.gpu_ids
        if not build.actor:
            resources, gpu_ids = self._details or _ONE_CPU
        calls = itertools.count(self._failures << 32)  # each attempt's calls get other ids
        context = call_context.Context(
            task_id=task or self.task, name=self.name, attempt=self._attempt,
            actor_id=build.actor, actor_name=build.name, restarts=build.restarts,
            device=build.device, replayed=self._replayed, resources=resources, gpu_ids=gpu_ids,
            calls=calls,
        )  # fmt: skip
        call_context.enter(context)


class Worker:
    """Runs the calls that arrive over a connection."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.build = Build(0)
        self.instance: Any = None
        self._titled = ""  # the name in the process's title

    def post_record(self, record: bytes) -> None:
        self.connection.sender.post(record)

    def stop_requested(self) -> bool:
        return self.connection.stop.is_set()

    def set_title(self, text: str) -> None:
        child_setup.set_title(text)

    def serve(self, prepare: Callable[[], None]) -> int:
        """Runs calls until told to end; returns the exit code."""
        connection = self.connection
        connection.listen()
        try:
            prepare()
            connection.pump(lambda: connection.build is not None, None)
            if connection.build is None:
                return 0
            self.build = build = pickle.loads(connection.build.body)
            connection.namespace = build.namespace
            context = call_context.Context(ids.root(), "worker", device=build.device)
            call_context.set_default(context)
            if build.cls and not self._build_actor(build):
                return 0
        except SystemExit:
            raise
        except BaseException as error:
            self._fail(1, error, time.time())  # an actor's first call is its creation
            return 1
        if signatures.has_async(type(self.instance)):
            self._serve_async()
        elif build.max_concurrency > 1 or build.concurrency_groups:
            self._serve_threads()
        else:
            while (message := connection.next_call()) is not None:
                self._answer(message, interruptible=True)
                del message  # its arguments may be large
        return 0

    def _build_actor(self, build: Build) -> bool:
        """Builds the actor; False if the driver was gone before that."""
        if build.setup:
            packing.unpack(build.setup, f"the setup of actor {build.name}")()
        cls = packing.unpack(build.cls, f"the class of actor {build.name}")
        message = self.connection.next_call()
        if message is None:
            return False
        began_s = time.time()
        call = ArrivedCall(self, message)
        args, kwargs = call.arguments()
        # A concurrent actor is not rebuilt by replay, so that its calls here need no fixed ids.
        is_concurrent = build.max_concurrency > 1 or build.concurrency_groups
        call.enter(ids.root() if is_concurrent else b"")
        self.instance = cls(*args, **kwargs)
        if build.sequence:
            id = ids.result(build.actor, build.sequence)
            view = self.connection.view(id, build.state or self.connection.request("pin", id))
            self.instance.restore(packing.unpack(view, f"the saved state of {build.name}"))
        self._reply_value(call, None, began_s, time.time() - began_s)
        return True

    def _serve_threads(self) -> None:
        build = self.build

        def answer(message: framing.Message) -> None:
            try:
                self._answer(message)
            except SystemExit as leaving:  # the pool would swallow it
                _leave(self.connection, exit_code(leaving))

        with contextlib.ExitStack() as stack:
            pools = {
                group: stack.enter_context(
                    concurrent.futures.ThreadPoolExecutor(number, f"gmi_drl-calls {group}".strip())
                )
                for group, number in {"": build.max_concurrency, **build.concurrency_groups}.items()
            }
            while (message := self.connection.next_call()) is not None:
                pools[self._group(message)].submit(answer, message)
            for pool in pools.values():  # calls that wait for a thread are not run any more
                pool.shutdown(wait=False, cancel_futures=True)

    def _group(self, message: framing.Message) -> str:
        """Returns the concurrency group of a call; "" if unknown, which `target` refuses."""
        groups = self.build.concurrency_groups
        if not groups:
            return ""
        group = ArrivedCall(self, message).option("concurrency_group")
        return group if group in groups else ""

    def _serve_async(self) -> None:
        async def answer(message: framing.Message) -> None:
            async with semaphores[self._group(message)]:
                await self._answer_async(message)

        async def serve() -> None:
            while (message := await queue.get()) is not None:
                number = message.id
                context = contextvars.copy_context()
                task = asyncio.create_task(answer(message), context=context)
                running[number] = task, context
                task.add_done_callback(functools.partial(done, number))
                cancel(number)
            tasks = [task for task, _ in running.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)  # they may have to clean up

        def done(number: int, task: asyncio.Task[None]) -> None:
            del running[number]
            if task.cancelled():  # while it waited for its turn
                self._fail(number, TaskCancelledError("the call was cancelled"), time.time())

        def cancel(number: int) -> None:
            if number in running and number in self.connection.cancelled:
                self.connection.cancelled.discard(number)
                task, context = running[number]
                context.run(call_context.mark_cancelled)
                task.cancel()

        def receive() -> None:
            while (message := self.connection.next_call()) is not None:
                loop.call_soon_threadsafe(queue.put_nowait, message)
            with contextlib.suppress(RuntimeError):  # the loop has ended with an error
                loop.call_soon_threadsafe(queue.put_nowait, None)

        loop = asyncio.new_event_loop()
        running: dict[int, tuple[asyncio.Task[None], contextvars.Context]] = {}
        self.connection.cancel = lambda number: loop.call_soon_threadsafe(cancel, number)
        limits = {"": self.build.max_concurrency, **self.build.concurrency_groups}
        semaphores = {group: asyncio.Semaphore(number) for group, number in limits.items()}
        queue: asyncio.Queue[framing.Message | None] = asyncio.Queue()
        threading.Thread(target=receive, name="gmi_drl-receive", daemon=True).start()
        self.connection.reads = True
        asyncio.set_event_loop(loop)
        loop.run_until_complete(serve())
        loop.close()

    def _answer(self, message: framing.Message, interruptible: bool = False) -> None:
        began_s = time.time()
        connection = self.connection
        try:
            call = ArrivedCall(self, message)
            args, kwargs = call.arguments()
            function = call.target()
            call.enter()
            if self.instance is None and self._titled != call.name:
                self._titled = call.name
                child_setup.set_title(f"worker: {call.name}")
            if interruptible:
                connection.running = message.id
            connection.check_cancelled(message.id)
            value = self._value(call, function, args, kwargs)
            connection.running = 0
            del args, kwargs
            self._reply_value(call, value, began_s, time.time() - began_s)
        except SystemExit:
            raise
        except BaseException as error:
            connection.running = 0
            self._fail(message.id, error, began_s)
        else:
            self._checkpoint(call)

    async def _answer_async(self, message: framing.Message) -> None:
        began_s = time.time()
        try:
            call = ArrivedCall(self, message)
            args, kwargs = call.arguments()
            function = call.target()
            call.enter()
            value = await self._awaited_value(call, function, args, kwargs)
            self._reply_value(call, value, began_s, time.time() - began_s)
        except SystemExit:
            raise
        except asyncio.CancelledError:
            self._fail(message.id, TaskCancelledError("the call was cancelled"), began_s)
        except BaseException as error:
            self._fail(message.id, error, began_s)
        else:
            self._checkpoint(call)

    def _value(
        self, call: ArrivedCall, function: Callable[..., Any], args: Any, kwargs: dict[str, Any]
    ) -> Any:
        """Returns the result of a call; items of a generator are sent as they are yielded."""
        while True:
            try:
                value = function(*args, **kwargs)
                if call.returns == STREAMING and not inspect.isasyncgen(value):
                    index = 0
                    for index, item in enumerate(value, 1):
                        self._send_item(call, index, item)
                    return index
                if call.returns > 1 and inspect.isgenerator(value):
                    call.yielded = []
                    call.yielded.extend(value)  # kept even if it raises later
                    return call.yielded
                return value
            except Exception as error:
                if not call.should_retry(error):
                    self._send_yielded(call)
                    raise

    async def _awaited_value(
        self, call: ArrivedCall, function: Callable[..., Any], args: Any, kwargs: dict[str, Any]
    ) -> Any:
        """Returns what `_value` does, in an event loop."""
        while True:
            try:
                value = self._value(call, function, args, kwargs)
                if inspect.isasyncgen(value) and call.returns == STREAMING:
                    index = 0
                    async for item in value:
                        index += 1
                        self._send_item(call, index, item)
                    return index
                if inspect.isasyncgen(value) and call.returns > 1:
                    call.yielded = []
                    async for item in value:
                        call.yielded.append(item)
                    return call.yielded
                return await value if inspect.isawaitable(value) else value
            except Exception as error:
                if not call.should_retry(error):
                    self._send_yielded(call)
                    raise

    def _send_yielded(self, call: ArrivedCall) -> None:
        """Sends what a generator with several results has yielded before it raised."""
        yielded, call.yielded = call.yielded[: call.returns], []
        for index, value in enumerate(yielded):
            self._send_item(call, index, value)

    def _send_item(self, call: ArrivedCall, index: int, item: Any) -> None:
        place, mentioned, memfds = self._place(call, index, item)
        data = pickle.dumps((index, place, mentioned), 5)
        fds = [memfd.fd for memfd in memfds]
        self.connection.sender.send(framing.frame(Kind.ITEM, call.number, data, len(fds)), fds)

    def _place(
        self, call: ArrivedCall, index: int, value: Any
    ) -> tuple[Place, list[bytes], list[Any]]:
        if value is None:
            return b"", [], []
        label = f"the result of {call.name}"
        packed = packing.pack(value, label)
        place = place_value(self.connection, ids.result(call.task, index), packed, label)
        return place, packed.refs, packed.memfds

    def _reply_value(self, call: ArrivedCall, value: Any, began_s: float, run_s: float) -> None:
        sender, stamp = self.connection.sender, STAMP.pack(began_s, run_s)
        if call.returns <= 1:
            if value is None:
                sender.send(framing.frame(Kind.RESULT, call.number, stamp))
                return
            packed = packing.pack(value, lambda: f"the result of {call.name}")
            if packed.nbytes <= INLINE_BYTES and not packed.refs:
                fds = [memfd.fd for memfd in packed.memfds]
                body = stamp + packed.body
                sender.send(framing.frame(Kind.RESULT, call.number, body, len(fds)), fds)
                return
            what = f"the result of {call.name}"
            place = place_value(self.connection, ids.result(call.task), packed, what)
            results = [(place, packed.refs)]
        else:
            values = several(call.name, value, call.returns)
            results = [self._place(call, i, value)[:2] for i, value in enumerate(values)]
        body = stamp + pickle.dumps(results, 5)
        sender.send(framing.frame(Kind.RESULTS, call.number, body))

    def _fail(self, number: int, error: BaseException, began_s: float) -> None:
        body = STAMP.pack(began_s, time.time() - began_s) + call_failure(error)
        self.connection.sender.send(framing.frame(Kind.ERROR, number, body))

    def _checkpoint(self, call: ArrivedCall) -> None:
        interval = self.build.checkpoint_every
        if not interval or call.sequence % interval:
            return
        build = self.build
        try:
            packed = packing.pack(self.instance.save(), f"what {build.name}.save gave")
            id = ids.result(build.actor, call.sequence)
            place = place_value(self.connection, id, packed, f"a checkpoint of {build.name}")
        except Exception:  # the log of calls since the last checkpoint stays
            traceback.print_exc()
            return
        data = pickle.dumps((call.sequence, place, packed.refs), 5)
        self.connection.sender.send(framing.frame(Kind.CHECKPOINT, 0, data))


def several(name: str, value: Any, returns: int) -> list[Any]:
    """Returns the results of a call that gives several; ValueError unless it gave as many."""
    values = list(value) if isinstance(value, Iterable) else [] if value is None else [value]
    if len(values) != returns:
        raise ValueError(
            f"{name} gave {len(values)} values; it was called with num_returns={returns}. Return "
            "as many, in a tuple or list."
        )
    return values


def call_failure(error: BaseException) -> bytes:
    """Prints what a call has raised, and packs it for its caller."""
    raised_s = time.monotonic()
    text = truncate("".join(traceback.format_exception(_without_our_frames(error))))
    with contextlib.suppress(OSError):  # the log's disk may be full; the caller still learns it
        print(text, file=sys.stderr, end="", flush=True)
    error.__traceback__ = None
    with contextlib.suppress(Exception):  # the class may forbid new attributes
        truncate_texts(error)
    return packing.pack(CallFailure(packing.pack_exception(error), text, raised_s)).body


def _without_our_frames(error: BaseException) -> BaseException:
    """Returns the error with a traceback that begins at the user's code, if it has any."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in _HIDDEN_FILES:
        trace = trace.tb_next
    return error.with_traceback(trace) if trace is not None else error
