"""Defines how calls and actors are to be run, as `.options(...)` sets it."""

from __future__ import annotations

import dataclasses
import numbers
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gmi_drl.runtime.driver.task import STREAMING
from gmi_drl.runtime.errors import NotOnThisEngine


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """Says how a function's calls are run.

    `num_cpus`, `num_gpus`, `resources`: what a call holds while it runs; fractions are fine.
    `num_returns`: how many references it gives; "streaming" for a generator. `max_retries`: how
    often it is begun again when its process dies; when it raises, only what `retry_exceptions` says
    (True: whatever it is). `device`: where it must run (None: anywhere), `host`: the address of the
    host of a cluster on which (empty: any).
    """

    name: str = ""
    num_cpus: float = 1.0
    num_gpus: float = 0.0
    resources: Mapping[str, float] = dataclasses.field(default_factory=dict)
    num_returns: int | str = 1
    max_retries: int = 3
    retry_exceptions: bool | tuple[type[Exception], ...] = False
    device: int | None = None
    host: str = ""

    def __post_init__(self) -> None:
        check(self)
        check_whole_number("max_retries", self.max_retries, -1)
        returns(self.num_returns)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActorOptions:
    """Says how an actor's process is set up, before any of the user's code runs.

    `name`: what errors call it, and `get_actor` finds it by, in its `namespace` (default: that of
    `init`); with `get_if_exists` the actor that has this name is given, if there is one. `env`:
    variables added to the launcher's. `cores`: what it may run on (empty: all). `num_threads`: for
    torch, OpenMP and BLAS (None: one per core given, else one). `log`: where its output is appended
    (None: a file that goes with the actor). `setup`: called before its class is unpickled.

    `num_cpus`, `num_gpus`, `resources`, `device`, `host`: what it holds for life, and where.
    `max_restarts`: how often its process is replaced when it dies unasked (-1: always). An actor
    that runs one call at a time is then built again, and the calls it had answered since its last
    checkpoint are run again; `checkpoint_every` methods, `save()` gives what `restore(state)` goes
    on from. `max_task_retries`: at how many crashes a call may have been running and is run again,
    before it fails with an ActorDiedError and the actor goes on without it (-1: at all).
    `max_concurrency`: calls at once, in threads, or in an event loop if it has async methods (None:
    one; or up to 1,000 in an event loop). One that runs several at once begins from its last
    checkpoint, and calls it had answered since are not run again. `concurrency_groups`: names that
    `@method(concurrency_group=...)` may give, and how many calls of each run at once, beside those
    of no group.
    """

    name: str = ""
    namespace: str = ""
    get_if_exists: bool = False
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    cores: Sequence[int] = ()
    num_threads: int | None = None
    log: Path | str | None = None
    setup: Callable[[], Any] | None = None
    num_cpus: float = 0.0
    num_gpus: float = 0.0
    resources: Mapping[str, float] = dataclasses.field(default_factory=dict)
    device: int | None = None
    host: str = ""
    max_restarts: int = 0
    max_task_retries: int = -1
    checkpoint_every: int = 0
    max_concurrency: int | None = None
    concurrency_groups: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        check(self)
        check_whole_number("max_restarts", self.max_restarts, -1)
        check_whole_number("max_task_retries", self.max_task_retries, -1)
        check_whole_number("checkpoint_every", self.checkpoint_every, 0)
        if self.max_concurrency is not None:
            check_whole_number("max_concurrency", self.max_concurrency, 1)
        if self.num_threads is not None:
            check_whole_number("num_threads", self.num_threads, 1)
        for name, number in self.concurrency_groups.items():
            if not name:
                raise ValueError(f"concurrency_groups={dict(self.concurrency_groups)}: name each.")
            check_whole_number(f"concurrency_groups[{name!r}]", number, 1)
        if not self.name and (self.get_if_exists or self.namespace):
            raise ValueError(
                f"get_if_exists={self.get_if_exists}, namespace={self.namespace!r}: an actor is "
                "found by its name. Give it one."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class MethodOptions:
    """Says how an actor's method is run; `@method(...)` and `.options(...)` of a method set it.

    `num_returns`: how many references a call gives (None: one, or "streaming" of a generator).
    `concurrency_group`: one of the class's; empty: `max_concurrency` counts. `retry_exceptions`:
    what it is called again for when it raises that, in its turn, with the state that it left (True:
    all). `max_task_retries`: at how many crashes of its process it is run again (None: as the
    actor's, -1: at all), and how often after what it raises (None: as the actor's, or
    `METHOD_RETRIES` times if that says -1; -1: for ever).
    """

    num_returns: int | str | None = None
    concurrency_group: str = ""
    max_task_retries: int | None = None
    retry_exceptions: bool | tuple[type[Exception], ...] = False

    def __post_init__(self) -> None:
        if self.num_returns is not None:
            returns(self.num_returns)
        if self.max_task_retries is not None:
            check_whole_number("max_task_retries", self.max_task_retries, -1)
        if not isinstance(self.retry_exceptions, bool):
            object.__setattr__(self, "retry_exceptions", tuple(self.retry_exceptions))


METHOD_RETRIES: Final = 3  # of a call that raises what is retried, if nothing is said


def method(function: Any = None, **chosen: Any) -> Any:
    """Sets options of one method of an actor's class; a decorator. See `MethodOptions`."""
    options = changed(MethodOptions(), chosen)

    def decorate(function: Any) -> Any:
        function.__gmi_drl_method__ = options
        return function

    return decorate if function is None else decorate(function)


def method_options(function: Any) -> MethodOptions:
    """Returns what `@method` has set; the defaults if it was not used."""
    options: MethodOptions = getattr(function, "__gmi_drl_method__", _DEFAULT)
    return options


_DEFAULT: Final = MethodOptions()


def no_group(what: str, group: str, chosen: Any) -> str:
    """Says why a method cannot be in a concurrency group; `chosen` has those there are."""
    groups = ", ".join(sorted(chosen.concurrency_groups)) or "none"
    return (
        f"{what}: concurrency_group={group!r}; the actor has {groups}. Name it in its "
        "concurrency_groups."
    )


def check_whole_number(name: str, number: Any, least: int) -> None:
    """Raises TypeError or ValueError unless it is a whole number, and large enough."""
    if not isinstance(number, numbers.Integral) or isinstance(number, bool):
        raise TypeError(f"{name}={number!r}; it must be a whole number. Give an int.")
    if number < least:
        note = " (-1: for ever)" * (least == -1)
        raise ValueError(f"{name}={number}; it must be {least} or more{note}.")


def check(options: TaskOptions | ActorOptions) -> None:
    """Raises ValueError for demands that make no sense."""
    for name, amount in demand(options).items():
        if not amount > 0:
            raise ValueError(f"{name}={amount}; a call cannot want less than nothing.")
    for name in ("CPU", "GPU"):
        if name in options.resources:
            raise ValueError(f"resources={dict(options.resources)}: use num_{name.lower()}s.")


def check_host(options: TaskOptions | ActorOptions) -> None:
    """Raises NotOnThisEngine for a host that is not this one, the only one of engine local."""
    if options.host and options.host not in ("localhost", "127.0.0.1", socket.gethostname()):
        raise NotOnThisEngine(
            f"host={options.host!r}: engine local has this host alone. Leave it out, or call "
            'init(engine="ray", address=...).'
        )


def demand(options: TaskOptions | ActorOptions) -> dict[str, float]:
    """Returns everything it holds, by resource."""
    amounts = {"CPU": options.num_cpus, "GPU": options.num_gpus, **options.resources}
    return {name: amount for name, amount in amounts.items() if amount}


def returns(num_returns: int | str) -> int:
    """Returns the number of results; STREAMING for a generator."""
    if num_returns == "streaming":
        return STREAMING
    if not isinstance(num_returns, int) or num_returns < 1:
        raise ValueError(f'num_returns={num_returns!r}; it must be 1 or more, or "streaming".')
    return num_returns


def changed(options: Any, changes: Mapping[str, Any]) -> Any:
    """Returns the options with changes; TypeError names an unknown one and those there are."""
    names = {field.name for field in dataclasses.fields(options)}
    unknown = sorted(set(changes) - names)
    if unknown:
        raise TypeError(f"unknown option {unknown[0]!r}. There are: {', '.join(sorted(names))}.")
    return dataclasses.replace(options, **changes)
