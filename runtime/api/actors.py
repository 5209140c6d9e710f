"""Makes actors of classes, and calls them by handles."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from gmi_drl.runtime.errors import NameTakenError
from gmi_drl.runtime.process.run_directory import working_directory
from gmi_drl.runtime.wire import packing
from gmi_drl.runtime.wire.closures import pack_class
from gmi_drl.runtime.wire.protocol import THREAD_VARIABLES, SpawnRequest

from . import options, refs, signatures
from .call_context import context
from .options import ActorOptions
from .refs import running
from .signatures import Method

if TYPE_CHECKING:
    from gmi_drl.runtime.driver.processes import Actor
    from gmi_drl.runtime.engines.ray.actors import RayActor

T = TypeVar("T")

_ASYNC_CONCURRENCY: Final = 1000  # calls at once by default


class RemoteClass(Generic[T]):
    """A class whose instances are actors: `.remote(...)` starts one in a process of its own."""

    def __init__(self, cls: type[T], chosen: ActorOptions) -> None:
        self._cls, self._options = cls, chosen
        self._methods: dict[str, Method] | None = None  # found at the first start
        self._parameters: signatures.Parameters = None

    def options(self, **changes: Any) -> RemoteClass[T]:
        """Returns the same class with other `ActorOptions`."""
        return RemoteClass(self._cls, options.changed(self._options, changes))

    def __repr__(self) -> str:
        return f"RemoteClass({self._cls.__name__})"

    def __getattr__(self, name: str) -> Any:
        """Returns a static method or class method, which runs in this process."""
        if name.startswith("_"):  # pickle asks for it before there is a class
            raise AttributeError(name)
        member = inspect.getattr_static(self._cls, name, None)
        if isinstance(member, staticmethod | classmethod):
            return getattr(self._cls, name)
        raise AttributeError(
            f"{self!r} has no static method {name!r}. Other methods are called on an actor: start "
            "one with .remote(...)."
        )

    def remote(self, *args: Any, **kwargs: Any) -> ActorHandle:
        """Starts an actor and returns at once; an error in `__init__` comes with its first call.

        With `get_if_exists` it returns the actor that has the name already, if there is one.
        """
        chosen = self._options
        if not chosen.get_if_exists:
            return self._start(args, kwargs)
        counted = False
        while True:
            with contextlib.suppress(ValueError):
                handle = get_actor(chosen.name, chosen.namespace)
                if not counted:  # as a start would, so that a replay makes the same ids
                    next(context().calls)
                return handle
            try:
                return self._start(args, kwargs)
            except NameTakenError:  # another start was faster, and its actor may be gone already
                counted = True

    def _start(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ActorHandle:
        from .functions import new_task

        runtime, chosen, cls = running(), self._options, self._cls
        runtime.check(chosen)
        if chosen.checkpoint_every and not (hasattr(cls, "save") and hasattr(cls, "restore")):
            raise TypeError(
                f"checkpoint_every={chosen.checkpoint_every}: {cls.__name__} needs methods "
                "save(self) and restore(self, state)."
            )
        for name, member in inspect.getmembers(cls, callable):
            group = options.method_options(member).concurrency_group
            if group and group not in chosen.concurrency_groups:
                raise ValueError(options.no_group(f"{cls.__name__}.{name}", group, chosen))
        if self._methods is None:
            self._methods, self._parameters = _methods(cls), signatures.parameters(cls)
        methods = self._methods
        signatures.check(cls.__name__, self._parameters, args, kwargs)
        code = pack_class(cls, f"the class {cls.__qualname__}", runtime)
        setup = packing.pack_plain(chosen.setup, "setup") if chosen.setup else b""
        label = f"{chosen.name or cls.__name__}.__init__"
        task = new_task(label, b"", "__init__", args, kwargs, returns=1, captured=code.refs)
        name = chosen.name or f"{cls.__name__}-{task.id.hex()[:6]}"
        num_threads = chosen.num_threads or max(1, len(chosen.cores))
        threads = dict.fromkeys(THREAD_VARIABLES, str(num_threads))
        request = SpawnRequest(
            title=f"actor {name}", environment={**os.environ, **threads, **chosen.env},
            cores=tuple(chosen.cores), num_threads=num_threads,
            log=str(Path(chosen.log).absolute()) if chosen.log else "",
            directory=working_directory(), sys_path=tuple(sys.path),
        )  # fmt: skip
        concurrency = chosen.max_concurrency or (
            _ASYNC_CONCURRENCY if signatures.has_async(cls) else 1
        )
        namespace = chosen.namespace or (runtime.namespace if chosen.name else "")
        resolved = dataclasses.replace(
            chosen, setup=None, max_concurrency=concurrency, namespace=namespace
        )
        actor = runtime.start_actor(
            task, name=name, class_name=cls.__name__, methods=methods, options=resolved,
            cls=code.body, setup=setup, request=request,
        )  # fmt: skip
        return ActorHandle(task.id, name, cls.__name__, methods, actor)

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        name = self._cls.__name__
        raise TypeError(
            f"{name} is a remote class, from which none can be derived. Derive yours from the "
            f"class itself, and make both remote: Remote{name} = runtime.remote({name})."
        )

    def __call__(self, *args: Any, **kwargs: Any) -> T:
        raise TypeError(
            f"{self._cls.__name__} is a remote class. Start an actor of it with "
            f"{self._cls.__name__}.remote(...)."
        )


def _methods(cls: type) -> dict[str, Method]:
    """Returns the methods that can be called, by name."""
    methods = {}
    for name, member in inspect.getmembers(cls, callable):
        if not name.startswith("_"):
            chosen = options.method_options(member)
            is_generator = inspect.isgeneratorfunction(member) or inspect.isasyncgenfunction(member)
            num_returns = chosen.num_returns or ("streaming" if is_generator else 1)
            has_self = inspect.isfunction(inspect.getattr_static(cls, name))
            parameters = signatures.parameters(member, bound=has_self)
            methods[name] = Method(
                num_returns, parameters, chosen.max_task_retries, chosen.concurrency_group
            )
    return methods


class ActorHandle:
    """An actor: `handle.method.remote(...)` calls it. Each caller's calls run in order.

    It ends once it has answered its calls and no handle is left, by `stop` or `kill`, or with the
    runtime. Handles can be passed to calls and returned.
    """

    def __init__(
        self, id: bytes, name: str, class_name: str, methods: Mapping[str, Method],
        actor: Actor | RayActor | None,
    ) -> None:  # fmt: skip
        self._id, self._name, self._class_name, self._methods = id, name, class_name, methods
        self._actor = actor  # only in the driver, which can do more with it

    def __getattr__(self, name: str) -> ActorMethod:
        if name.startswith("_") or name not in self._methods:
            raise AttributeError(f"{self._class_name} has no method {name!r} to call.")
        return ActorMethod(self, name, options.returns(self._methods[name].num_returns))

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
        packed.mention(self._id, self)
        return received, (self._id, self._name, self._class_name, self._methods)

    def __del__(self) -> None:
        if refs.current is not None and self.__dict__.get("_id"):
            refs.current.note(self._id, -1)


class ActorMethod:
    """One method of one actor."""

    __slots__ = ("_handle", "_name", "_options", "_returns")

    def __init__(
        self, handle: ActorHandle, name: str, returns: int, chosen: Mapping[str, Any] | None = None
    ) -> None:
        self._handle, self._name, self._returns = handle, name, returns
        self._options = chosen  # options that differ from the class's

    def options(self, **changes: Any) -> ActorMethod:
        """Returns the same method with other `MethodOptions`; others stay as they are."""
        chosen = options.changed(options.MethodOptions(), changes)
        returns = self._returns
        if chosen.num_returns is not None:
            returns = options.returns(chosen.num_returns)
        changes.pop("num_returns", None)
        if "retry_exceptions" in changes:  # only the process of the call has to know them
            changes["retry_exceptions"] = packing.pack_plain(
                chosen.retry_exceptions, f"the retry_exceptions of {self._name}"
            )
        changed = {**(self._options or {}), **changes}
        return ActorMethod(self._handle, self._name, returns, changed or None)

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Sends the call and returns at once: an ObjectRef, or as many as `num_returns` says."""
        from .functions import new_task, references

        handle = self._handle
        runtime = running()
        signatures.check(self._name, handle._methods[self._name].parameters, args, kwargs)
        name = f"{handle._name}.{self._name}"
        task = new_task(
            name, handle._id, self._name, args, kwargs, returns=self._returns, chosen=self._options
        )
        return references(runtime.submit(task), self._returns)

    def __repr__(self) -> str:
        return f"ActorMethod({self._handle._name}.{self._name})"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(
            f"{self._name} is a method of an actor. Call it with {self._name}.remote(...), and "
            "get() what that gives."
        )


def received(id: bytes, name: str, class_name: str, methods: Mapping[str, Method]) -> ActorHandle:
    """Makes a handle that came with a value."""
    runtime = running()
    runtime.note(id, 1)
    return ActorHandle(id, name, class_name, methods, runtime.actor(id))


def get_actor(name: str, namespace: str = "") -> ActorHandle:
    """Returns a handle of the living actor that was started with `options(name=...)`.

    It is looked for in `namespace`, or in that of `init`. Without one a ValueError names others.
    """
    runtime = running()
    key = namespace or runtime.namespace, name
    while True:
        id, name, class_name, methods = runtime.request("actor", *key)
        actor = runtime.actor(id)
        if actor is None:  # for the driver's own handle this was counted already
            runtime.note(id, 1)
        handle = ActorHandle(id, name, class_name, methods, actor)
        # The count may have come after the actor's end, but not if the name is still the actor's.
        if actor is not None or runtime.request("actor", *key)[0] == id:
            return handle
