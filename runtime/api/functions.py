"""Makes tasks of functions: `.remote(...)` runs a call in a worker process."""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, overload

from gmi_drl.runtime import ids
from gmi_drl.runtime.driver.task import STREAMING, TaskSpec
from gmi_drl.runtime.process.connection import INLINE_BYTES
from gmi_drl.runtime.wire import packing
from gmi_drl.runtime.wire.closures import Code, pack_function

from . import options, signatures
from .actors import RemoteClass
from .call_context import context
from .generators import ObjectRefGenerator
from .options import ActorOptions, TaskOptions
from .refs import ObjectRef, running

C = TypeVar("C")


class RemoteFunction:
    """A function whose calls run in worker processes, several at once, on any device.

    It is run again when its process dies or its result is lost, so its arguments alone
    should decide its result.
    """

    def __init__(self, function: Callable[..., Any], chosen: TaskOptions) -> None:
        functools.update_wrapper(self, function)
        self._function, self._options = function, chosen
        self._prepare()

    def _prepare(self) -> None:
        chosen = self._options
        self._name = chosen.name or self._function.__qualname__
        self._demand = options.demand(chosen)
        self._returns = options.returns(chosen.num_returns)
        self._code: Code | None = None
        self._parameters = signatures.parameters(self._function)

    def options(self, **changes: Any) -> RemoteFunction:
        """Returns the same function with other `TaskOptions`."""
        return RemoteFunction(self._function, options.changed(self._options, changes))

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Submits a call and returns at once: an ObjectRef, or as many as `num_returns` says.

        The arguments are copied. References among them are waited for; the function sees their
        values. With `num_returns="streaming"` it gives an ObjectRefGenerator.
        """
        runtime, code = running(), self._code
        runtime.check(self._options)
        signatures.check(self._name, self._parameters, args, kwargs)
        if code is None or not code.is_for(runtime):
            code = pack_function(self._function, f"the function {self._name}", runtime)
            self._code = code
        task = new_task(
            self._name, b"", code.id, args, kwargs, returns=self._returns, chosen=self._options,
            demand=self._demand, captured=code.refs,
        )  # fmt: skip
        return references(runtime.submit(task, code), self._returns)

    def __repr__(self) -> str:
        return f"RemoteFunction({self._name})"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(
            f"{self._name} is a remote function. Call it with {self._name}.remote(...), or the "
            f"function itself with {self._name}.__wrapped__(...)."
        )

    def __getstate__(self) -> tuple[Any, ...]:
        return self._function, self._options

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._function, self._options = state
        self.__dict__["__wrapped__"] = self._function
        self._prepare()


def new_task(
    name: str, actor: bytes, function: bytes | str, args: tuple[Any, ...], kwargs: dict[str, Any],
    *, returns: int, chosen: TaskOptions | Mapping[str, Any] | None = None,
    demand: dict[str, float] | None = None, captured: Sequence[bytes] = (),
) -> TaskSpec:  # fmt: skip
    """Makes the TaskSpec of a call; `captured` are the references in the function itself."""
    caller = context()
    inputs: list[bytes] = []
    arguments = body_id = b""
    refs = captured
    memfds: Any = None
    if args or kwargs:
        if any(type(arg) is ObjectRef for arg in args) or (
            kwargs and any(type(arg) is ObjectRef for arg in kwargs.values())
        ):
            args = tuple(_to_input(arg, inputs) for arg in args)
            kwargs = {key: _to_input(arg, inputs) for key, arg in kwargs.items()}
        packed = packing.pack((args, kwargs), lambda: f"an argument of {name}")
        refs, memfds = [*packed.refs, *captured], packed.memfds
        if packed.nbytes <= INLINE_BYTES or memfds:
            arguments = packed.body
    parent = b"" if caller.cancelled else caller.task_id
    callee = actor + function.encode() if isinstance(function, str) else function
    id = ids.task(caller.task_id, next(caller.calls), callee, arguments)
    if (args or kwargs) and not arguments:
        body_id = ids.arguments(id)
        running().put(body_id, packed, f"the arguments of {name}")
    task = TaskSpec(
        id, actor, name, parent, function, arguments=arguments, body_id=body_id, inputs=inputs,
        refs=refs, returns=returns, options=chosen, demand=demand or {}, submitted_s=time.time(),
    )  # fmt: skip
    task.keep = memfds
    return task


def references(slots: Sequence[Any], returns: int) -> Any:
    """Wraps the slots of a call in what `.remote(...)` returns."""
    if returns == 1:
        return ObjectRef(slots[0])
    if returns == STREAMING:
        return ObjectRefGenerator(ObjectRef(slots[0]))
    return [ObjectRef(slot) for slot in slots]


def _to_input(argument: Any, inputs: list[bytes]) -> Any:
    if type(argument) is not ObjectRef:
        return argument
    if not argument.id:
        raise TypeError(
            f"{argument!r} is known in this process only. Give the call what get() returns for it."
        )
    inputs.append(argument.id)
    return packing.Input(len(inputs) - 1)


@overload
def remote(target: type[C]) -> RemoteClass[C]: ...  # type: ignore[overload-overlap]
@overload
def remote(target: Callable[..., Any]) -> RemoteFunction: ...
@overload
def remote(**chosen: Any) -> Callable[[Any], Any]: ...
def remote(target: Any = None, **chosen: Any) -> Any:
    """Makes tasks of a function, or actors of a class; with options it is a decorator."""
    if target is None:
        if not chosen:
            raise TypeError("remote() takes a function or a class, or options for one.")
        return functools.partial(remote, **chosen)
    if isinstance(target, type):
        return RemoteClass(target, options.changed(ActorOptions(), chosen))
    if not inspect.isroutine(target) and not isinstance(target, functools.partial):
        raise TypeError(f"remote() takes a function or a class, not {target!r}.")
    if inspect.iscoroutinefunction(target) or inspect.isasyncgenfunction(target):
        raise TypeError(
            f"{getattr(target, '__qualname__', target)} is an async function; a task is an "
            "ordinary one, or a method of an actor. Call asyncio.run() inside of it, or make an "
            "actor of a class that has it as a method."
        )
    if inspect.isgeneratorfunction(target):
        chosen = {"num_returns": "streaming", **chosen}
    if not hasattr(target, "__qualname__"):
        chosen = {"name": repr(target), **chosen}
    return RemoteFunction(target, options.changed(TaskOptions(), chosen))
