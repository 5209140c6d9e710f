"""The calls that users make: start the runtime, turn a class into actors, wait for results."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Generic, TypeVar, overload

from . import packing
from .driver import Runtime
from .errors import ActorRuntimeError, NotRunningError
from .link import ActorLink
from .protocol import THREAD_VARIABLES, Kind, Ready, SpawnRequest
from .refs import ObjectRef, get_value, seconds, wait_for

T = TypeVar("T")

_TERM_S: Final = 0.5  # between SIGTERM and SIGKILL
_DEATH_S: Final = 5.0  # how long a process may take to die of SIGKILL

_runtime: Runtime | None = None
_changing = threading.RLock()


def init(preload: Sequence[str] = ()) -> None:
    """Starts the process that forks the actors, and returns at once.

    It imports the modules named in `preload` once, for all actors; one that does not import is
    skipped. Ends with `shutdown`, which also runs when the interpreter exits.
    """
    global _runtime
    with _changing:
        if _runtime is not None:
            raise ActorRuntimeError("init() was called before. Call shutdown() first.")
        _runtime = Runtime(preload)


def is_initialized() -> bool:
    """Whether `init` has been called, and `shutdown` has not."""
    return _runtime is not None


def shutdown(grace: timedelta = timedelta(seconds=1)) -> None:
    """Stops every actor and the fork server; nothing is left. Does nothing when not running."""
    global _runtime
    with _changing:
        if _runtime is None:
            return
        try:
            if _runtime.ready.done:  # else no actor has been forked yet
                _stop(_runtime, _runtime.links(), grace, "the runtime was shut down")
        finally:
            runtime, _runtime = _runtime, None
            runtime.close()


def preloaded(timeout: timedelta | float | None = None) -> Ready:
    """What the fork server has imported; waits until it has."""
    ready: Ready = get(ObjectRef(_running().ready), timeout)
    return ready


def run_directory() -> Path:
    """A private directory (0700) with a short path, for sockets; it goes with the runtime."""
    return _running().server.directory


def _running() -> Runtime:
    if _runtime is None:
        raise NotRunningError("the runtime is not running. Call gmi_drl.runtime.init() first.")
    return _runtime


@atexit.register
def _at_exit() -> None:
    if _runtime is not None and _runtime.owner_pid == os.getpid():
        shutdown()


def _after_fork() -> None:
    global _runtime, _changing
    if _runtime is not None:
        with contextlib.suppress(OSError):
            _runtime.forget()
    _runtime, _changing = None, threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


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
        runtime = _running()
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
        return ObjectRef(_running().call(self._link, self._name, packed))


@overload
def get(refs: ObjectRef, timeout: timedelta | float | None = None) -> Any: ...
@overload
def get(refs: Sequence[ObjectRef], timeout: timedelta | float | None = None) -> list[Any]: ...
def get(refs: ObjectRef | Sequence[ObjectRef], timeout: timedelta | float | None = None) -> Any:
    """The result, or the list of results in the order of the references.

    Raises what the call raised (TaskError), ActorDiedError, or GetTimeoutError when `timeout` has
    passed for all of them together.
    """
    limit_s = seconds(timeout)
    deadline_s = None if limit_s is None else time.monotonic() + limit_s
    if isinstance(refs, ObjectRef):
        return get_value(refs, deadline_s, limit_s)
    return [get_value(ref, deadline_s, limit_s) for ref in refs]


def wait(
    refs: Sequence[ObjectRef], num_returns: int = 1, timeout: timedelta | float | None = None
) -> tuple[list[ObjectRef], list[ObjectRef]]:
    """Waits for the first `num_returns` results: (ready, the others), both in the given order."""
    if not 0 < num_returns <= len(refs):
        raise ValueError(f"num_returns={num_returns}; it must be between 1 and {len(refs)}.")
    return wait_for(refs, num_returns, timeout)


def process_id(handle: ActorHandle) -> int | None:
    """The pid of the actor's process; None until it is forked."""
    return handle._link.pid


def death(handle: ActorHandle) -> ObjectRef:
    """A reference that is ready when the actor has ended; its value is the ActorDiedError."""
    return ObjectRef(handle._link.death_slot)


def log_tail(handle: ActorHandle) -> str:
    """The last 40 lines the actor has printed; empty when its log is empty or gone."""
    return handle._link.log_tail()


def request_stop(handle: ActorHandle) -> None:
    """Only asks: `stop_requested()` is true in the actor from now on."""
    if _runtime is not None:
        _runtime.ask(handle._link, Kind.ASK_STOP)


def stop(
    handles: ActorHandle | Iterable[ActorHandle],
    grace: timedelta = timedelta(seconds=5),
    reason: str = "it was stopped",
) -> None:
    """Ends actors and returns when they are gone.

    Each is asked (`stop_requested()`) and may finish the call it runs; queued calls fail. After
    `grace` its process group gets SIGTERM, and half a second later SIGKILL.
    """
    if _runtime is not None:
        actors = [handles] if isinstance(handles, ActorHandle) else list(handles)
        _stop(_runtime, [actor._link for actor in actors], grace, reason)


def kill(
    handles: ActorHandle | Iterable[ActorHandle], reason: str = "it was killed by kill()"
) -> None:
    """Ends actors with SIGKILL, with all they have started, and returns when they are gone."""
    if _runtime is not None:
        actors = [handles] if isinstance(handles, ActorHandle) else list(handles)
        _signal(_runtime, [actor._link for actor in actors], signal.SIGKILL, _DEATH_S, reason)


def _stop(runtime: Runtime, links: list[ActorLink], grace: timedelta, reason: str) -> None:
    for link in links:
        runtime.ask(link, Kind.CLOSE, reason)
    _await_deaths(links, grace.total_seconds())
    _signal(runtime, links, signal.SIGTERM, _TERM_S, reason)
    _signal(runtime, links, signal.SIGKILL, _DEATH_S, reason)


def _signal(
    runtime: Runtime, links: list[ActorLink], number: int, wait_s: float, reason: str
) -> None:
    alive = [link for link in links if not link.dead]
    for link in alive:
        runtime.signal(link, number, reason)
    _await_deaths(alive, wait_s)


def _await_deaths(links: list[ActorLink], wait_s: float) -> None:
    if links:
        wait_for([ObjectRef(link.death_slot) for link in links], len(links), wait_s)


def records(handle: ActorHandle | None = None) -> list[Any]:
    """What actors have emitted since the last call, of one or of all, each actor's in order."""
    if handle is not None:
        links = [handle._link]
    else:
        links = _runtime.links() if _runtime is not None else []
    found = []
    for link in links:
        with contextlib.suppress(IndexError):
            while True:
                found.append(link.records.popleft().load(f"a record of {link.name}"))
        if _runtime is not None:
            _runtime.drained(link)
    return found


def dropped_records(handle: ActorHandle) -> int:
    """How many of its records were lost because the launcher did not fetch them in time."""
    return handle._link.dropped
