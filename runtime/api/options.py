"""Defines the options of calls and actors, as `.options(...)` sets them."""

from __future__ import annotations

import dataclasses
import numbers
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gmi_drl.runtime.driver.task import STREAMING
from gmi_drl.runtime.errors import NotOnThisEngine


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """Holds the options of a function's calls.

    `num_cpus`, `num_gpus`, `resources`: what a call holds while it runs; fractions are fine.
    `num_returns`: how many references a call returns; "streaming" for a generator. `max_retries`:
    how often it is run again when its process dies, or it raises one of `retry_exceptions` (True:
    any). `device`: where it must run (None: anywhere), `host`: the address of the host of a cluster
    where it must run (empty: any).
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
        object.__setattr__(self, "retry_exceptions", _exceptions(self.retry_exceptions))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActorOptions:
    """Holds the options of an actor: how its process is set up, and what it may do.

    `name`: for errors, and for `get_actor`, in its `namespace` (default: that of `init`); with
    `get_if_exists` an existing actor of this name is returned. `env`: variables added to the
    launcher's. `cores`: those it may run on (empty: all). `num_threads`: for torch, OpenMP and BLAS
    (None: one per core given, else one). `log`: the file its output is appended to (None: one that
    is removed with the actor). `setup`: called before its class is unpickled.

    `num_cpus`, `num_gpus`, `resources`, `device`, `host`: what it holds for life, and where.
    `max_restarts`: how often its process is replaced when it crashes (-1: always). An actor that
    runs one call at a time is then built again, and the calls it had answered since its last
    checkpoint are run again. `checkpoint_every`: after so many methods `save()` returns the state
    that `restore(state)` continues from. `max_task_retries`: how many crashes a running call
    survives by being run again, before it fails with an ActorDiedError and the actor goes on (-1:
    any number).
    `max_concurrency`: calls at once, in threads, or in an event loop if it has async methods (None:
    one; or up to 1,000 in an event loop). An actor that runs several at once restarts from its last
    checkpoint, and calls it had answered since are not run again. `concurrency_groups`: names for
    `@method(concurrency_group=...)`, with the number of calls of each that run at once.
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
    """Holds the options of an actor's method, set by `@method(...)` and `.options(...)`.

    `num_returns`: how many references a call returns (None: one, or "streaming" of a generator).
    `concurrency_group`: one of the class's; empty: `max_concurrency` counts. `retry_exceptions`:
    those after which it is called again, in its turn, with the state that it left (True: all).
    `max_task_retries`: how many crashes of its process a call survives (None: as the actor's, -1:
    any number), and how often it is called again when it raises (None: as the actor's, or
    `METHOD_RETRIES` times if that is -1; -1: for ever).
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
        object.__setattr__(self, "retry_exceptions", _exceptions(self.retry_exceptions))


METHOD_RETRIES: Final = 3  # the default, of a method that raises one of retry_exceptions


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


def method_option(cls: type, method: str, chosen: Mapping[str, Any] | None, name: str) -> Any:
    """Returns an option that a call was given (`chosen`), or else its method in the class."""
    if chosen and name in chosen:
        return chosen[name]
    return getattr(method_options(getattr(cls, method, None)), name)


def no_group(what: str, group: str, chosen: Any) -> str:
    """Returns the text of an error of an unknown concurrency group; `chosen` has the known ones."""
    groups = ", ".join(sorted(chosen.concurrency_groups)) or "none"
    return (
        f"{what}: concurrency_group={group!r}; the actor has {groups}. Name it in its "
        "concurrency_groups."
    )


def _exceptions(chosen: Any) -> bool | tuple[type[BaseException], ...]:
    """Returns `retry_exceptions` as a bool or a tuple of classes; TypeError for anything else."""
    if isinstance(chosen, bool):
        return chosen
    classes = tuple(chosen) if isinstance(chosen, Iterable) else (None,)
    if not all(isinstance(cls, type) and issubclass(cls, BaseException) for cls in classes):
        raise TypeError(
            f"retry_exceptions={chosen!r}; it must be True, False, or classes of exceptions. Give "
            "these in a tuple, such as (OSError,)."
        )
    return classes


def check_whole_number(name: str, number: Any, least: int) -> None:
    """Raises TypeError or ValueError unless an option is a whole number, `least` or more."""
    if not isinstance(number, numbers.Integral) or isinstance(number, bool):
        raise TypeError(f"{name}={number!r}; it must be a whole number. Give an int.")
    if number < least:
        note = " (-1: for ever)" * (least == -1)
        raise ValueError(f"{name}={number}; it must be {least} or more{note}.")


def check(options: TaskOptions | ActorOptions) -> None:
    """Raises ValueError for demands that make no sense."""
    # Not at the top: who only loads a policy imports no scheduler.
    from gmi_drl.runtime.scheduler.resources import to_units

    if not isinstance(options.resources, Mapping):
        raise TypeError(
            f'resources={options.resources!r}; it must be names with amounts, such as {{"arm": 1}}.'
        )
    to_units(demand(options))
    check_names(options.resources)


def check_names(resources: Mapping[str, float]) -> None:
    """Raises ValueError for resources that have options of their own."""
    for name in ("CPU", "GPU"):
        if name in resources:
            raise ValueError(f"resources={dict(resources)}: use num_{name.lower()}s.")


def check_host(options: TaskOptions | ActorOptions) -> None:
    """Raises NotOnThisEngine for another host than this one, as engine local has no other."""
    if options.host and options.host not in ("localhost", "127.0.0.1", socket.gethostname()):
        raise NotOnThisEngine(
            f"host={options.host!r}: engine local has this host alone. Leave it out, or call "
            'init(engine="ray", address=...).'
        )


def demand(options: TaskOptions | ActorOptions) -> dict[str, float]:
    """Returns the resources that a call or an actor holds."""
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
    """Returns the options with changes; TypeError for an unknown option names the known ones."""
    names = {field.name for field in dataclasses.fields(options)}
    unknown = sorted(set(changes) - names)
    if unknown:
        raise TypeError(f"unknown option {unknown[0]!r}. There are: {', '.join(sorted(names))}.")
    return dataclasses.replace(options, **changes)


_DEFAULT: Final = MethodOptions()
