"""Classes whose instances are actors, and the handles by which they are called."""

from __future__ import annotations

import dataclasses
import inspect
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from . import options, packing, refs
from .options import ActorOptions
from .protocol import THREAD_VARIABLES, SpawnRequest
from .rundir import working_directory
from .session import running

if TYPE_CHECKING:
    from .actor_table import Actor

T = TypeVar("T")

_ASYNC_CONCURRENCY: Final = 1000  # calls at once, if nothing is said


class RemoteClass(Generic[T]):
    """A class whose instances are actors: `.remote(...)` starts one in a process of its own."""

    def __init__(self, cls: type[T], chosen: ActorOptions) -> None:
        self._cls = cls
        self._options = chosen

    def options(self, **changes: Any) -> RemoteClass[T]:
        """The same class with other `ActorOptions`."""
        return RemoteClass(self._cls, options.changed(self._options, changes))

    def __repr__(self) -> str:
        return f"RemoteClass({self._cls.__name__})"

    def remote(self, *args: Any, **kwargs: Any) -> ActorHandle:
        """Starts an actor and returns at once; an error in `__init__` comes with its first call."""
        from .functions import new_task

        runtime, chosen, cls = running(), self._options, self._cls
        if chosen.checkpoint_every and not (hasattr(cls, "save") and hasattr(cls, "restore")):
            raise TypeError(
                f"checkpoint_every={chosen.checkpoint_every}: {cls.__name__} needs methods "
                "save(self) and restore(self, state)."
            )
        body = packing.pack_plain(cls, f"the class {cls.__qualname__}")
        setup = packing.pack_plain(chosen.setup, "setup") if chosen.setup else b""
        label = f"{chosen.name or cls.__name__}.__init__"
        task = new_task(label, b"", "__init__", args, kwargs, 1)
        name = chosen.name or f"{cls.__name__}-{task.id.hex()[:6]}"
        num_threads = chosen.num_threads or max(1, len(chosen.cores))
        request = SpawnRequest(
            title=f"actor {name}",
            environment={
                **os.environ,
                **dict.fromkeys(THREAD_VARIABLES, str(num_threads)),
                **chosen.env,
            },
            cores=tuple(chosen.cores),
            num_threads=num_threads,
            log=str(Path(chosen.log).absolute()) if chosen.log else "",
            directory=working_directory(),
            sys_path=tuple(sys.path),
        )
        concurrency = chosen.max_concurrency
        if concurrency == 1 and _has_async(cls):
            concurrency = _ASYNC_CONCURRENCY
        plain = dataclasses.replace(chosen, setup=None, max_concurrency=concurrency)
        methods = _methods(cls)
        actor = runtime.start_actor(task, name, cls.__name__, methods, plain, body, setup, request)
        return ActorHandle(task.id, name, cls.__name__, methods, actor)

    def __call__(self, *args: Any, **kwargs: Any) -> T:
        raise TypeError(
            f"{self._cls.__name__} is a remote class. Start an actor of it with "
            f"{self._cls.__name__}.remote(...)."
        )


def _methods(cls: type) -> dict[str, int | str]:
    """What can be called, and how many results each gives."""
    return {
        name: "streaming"
        if inspect.isgeneratorfunction(member) or inspect.isasyncgenfunction(member)
        else 1
        for name, member in inspect.getmembers(cls, callable)
        if not name.startswith("_")
    }


def _has_async(cls: type) -> bool:
    return any(
        inspect.iscoroutinefunction(member) or inspect.isasyncgenfunction(member)
        for _, member in inspect.getmembers(cls)
    )


class ActorHandle:
    """An actor: `handle.method.remote(...)` calls it. Each caller's calls run in order.

    Handles can be passed to calls and returned. An actor ends when it has answered and nobody has
    a handle of it any more, by `stop` or `kill`, or with the runtime.
    """

    def __init__(
        self,
        id: bytes,
        name: str,
        class_name: str,
        methods: Mapping[str, int | str],
        actor: Actor | None,
    ) -> None:
        self._id = id
        self._name = name
        self._class_name = class_name
        self._methods = methods
        self._actor = actor  # in the driver, which can do more with it than call

    def __getattr__(self, name: str) -> ActorMethod:
        if name.startswith("_") or name not in self._methods:
            raise AttributeError(f"{self._class_name} has no method {name!r} to call.")
        return ActorMethod(self, name, options.returns(self._methods[name]))

    def __repr__(self) -> str:
        actor = self._actor
        if actor is None:
            return f"ActorHandle({self._name})"
        return f"ActorHandle({self._name}, {'dead' if actor.dead else f'pid {actor.pid}'})"

    def __hash__(self) -> int:
        return hash(self._id)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ActorHandle) and other._id == self._id

    def __reduce__(self) -> tuple[Any, ...]:
        packed = packing.packing()
        if packed is None:
            raise TypeError(
                f"{self!r} cannot be pickled here: it means something only to this runtime. "
                "Pass it to a call."
            )
        packed.refs.append(self._id)
        return received, (self._id, self._name, self._class_name, self._methods)

    def __del__(self) -> None:
        if refs.holder is not None and self.__dict__.get("_id"):
            refs.holder.note(self._id, -1)


class ActorMethod:
    """One method of one actor."""

    __slots__ = ("_handle", "_name", "_returns")

    def __init__(self, handle: ActorHandle, name: str, returns: int) -> None:
        self._handle = handle
        self._name = name
        self._returns = returns

    def options(self, num_returns: int | str) -> ActorMethod:
        """The same method, giving so many references; "streaming" for a generator."""
        return ActorMethod(self._handle, self._name, options.returns(num_returns))

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Sends the call and returns at once: an ObjectRef, or as many as `num_returns` says.

        The arguments are copied before it returns.
        """
        from .functions import new_task, references

        handle = self._handle
        runtime = running()
        name = f"{handle._name}.{self._name}"
        task = new_task(name, handle._id, self._name, args, kwargs, self._returns)
        return references(runtime.submit(task), self._returns)

    def __repr__(self) -> str:
        return f"ActorMethod({self._handle._name}.{self._name})"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(
            f"{self._name} is a method of an actor. Call it with {self._name}.remote(...), and "
            "get() what that gives."
        )


def received(
    id: bytes, name: str, class_name: str, methods: Mapping[str, int | str]
) -> ActorHandle:
    """A handle that came with a value, or by name."""
    runtime = running()
    runtime.note(id, 1)
    return ActorHandle(id, name, class_name, methods, runtime.actor(id))


def get_actor(name: str) -> ActorHandle:
    """A handle of the living actor that was started with `options(name=...)`.

    ValueError names those there are, if there is none of this name.
    """
    return received(*running().request("actor", name))
