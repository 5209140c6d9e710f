"""Classes whose instances are actors, and the handles by which they are called."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from . import packing
from .link import ActorLink
from .protocol import THREAD_VARIABLES, SpawnRequest
from .refs import ObjectRef
from .session import running

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """How an actor's process is set up; all of it happens before any of the user's code runs.

    `env`: variables added to the launcher's. `cores`: what it may run on (empty: all).
    `num_threads`: for torch, OpenMP and BLAS (None: one per core given, else one). `log`: where
    its output is appended (None: a file that goes with the actor). `setup`: called in the actor
    before its class is unpickled.
    """

    name: str = ""
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    cores: Sequence[int] = ()
    num_threads: int | None = None
    log: Path | str | None = None
    setup: Callable[[], Any] | None = None


class RemoteClass(Generic[T]):
    """A class whose instances are actors: `.remote(...)` starts one in a process of its own."""

    def __init__(self, cls: type[T], options: Options) -> None:
        self._cls = cls
        self._options = options

    def options(self, **changes: Any) -> RemoteClass[T]:
        """The same class with other `Options`."""
        return RemoteClass(self._cls, dataclasses.replace(self._options, **changes))

    def remote(self, *args: Any, **kwargs: Any) -> ActorHandle:
        """Starts an actor and returns at once; an error in `__init__` comes with its first call."""
        runtime = running()
        options = self._options
        body = packing.pack_plain(self._cls, f"the class {self._cls.__qualname__}")
        setup = packing.pack_plain(options.setup, "setup") if options.setup else b""
        number = runtime.next_number()
        name = options.name or f"{self._cls.__name__}-{number}"
        num_threads = options.num_threads or max(1, len(options.cores))
        log = options.log or runtime.server.directory / f"{number}.log"
        request = SpawnRequest(
            name=name,
            environment={
                **os.environ,
                **dict.fromkeys(THREAD_VARIABLES, str(num_threads)),
                **options.env,
            },
            cores=tuple(options.cores),
            num_threads=num_threads,
            log=str(Path(log).absolute()),
            directory=os.getcwd(),
            sys_path=tuple(sys.path),
        )
        arguments = packing.pack((args, kwargs), f"an argument of {name}.__init__")
        link = runtime.spawn(
            number, request, options.log is not None, packing.pack((setup, body)), arguments
        )
        return ActorHandle(self._cls, link)

    def __call__(self, *args: Any, **kwargs: Any) -> T:
        raise TypeError(
            f"{self._cls.__name__} is a remote class. Start an actor of it with "
            f"{self._cls.__name__}.remote(...)."
        )


def remote(cls: type[T]) -> RemoteClass[T]:
    """Makes actors of a class; also as a decorator."""
    if not isinstance(cls, type):
        raise TypeError(f"remote() takes a class, not {cls!r}.")
    return RemoteClass(cls, Options())


class ActorHandle:
    """An actor: `handle.method.remote(...)` calls it. Calls run one at a time, in order.

    The actor lives until `stop`, `kill` or `shutdown`, whether or not its handle is kept.
    """

    def __init__(self, cls: type, link: ActorLink) -> None:
        self._cls = cls
        self._link = link

    def __getattr__(self, name: str) -> ActorMethod:
        if name.startswith("_") or not callable(getattr(self._cls, name, None)):
            raise AttributeError(f"{self._cls.__name__} has no method {name!r} to call.")
        return ActorMethod(self._link, name)

    def __repr__(self) -> str:
        state = "dead" if self._link.dead else f"pid {self._link.pid}"
        return f"ActorHandle({self._link.name}, {state})"

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(f"{self!r} cannot be sent to another process.")


class ActorMethod:
    """One method of one actor."""

    __slots__ = ("_link", "_name")

    def __init__(self, link: ActorLink, name: str) -> None:
        self._link = link
        self._name = name

    def remote(self, *args: Any, **kwargs: Any) -> ObjectRef:
        """Sends the call and returns at once. The arguments are copied before it returns."""
        what = f"an argument of {self._link.name}.{self._name}"
        packed = packing.pack((self._name, args, kwargs), what)
        return ObjectRef(running().call(self._link, self._name, packed))
