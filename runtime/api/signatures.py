"""Checks the arguments of calls; the signatures of methods travel with an actor's handle."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

_ANY: Final = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}

Parameters = tuple[tuple[str, int, bool], ...] | None  # name, kind, whether it is optional


class Method(NamedTuple):
    """Describes one method to a handle."""

    num_returns: int | str
    parameters: Parameters
    max_task_retries: int | None = None  # None: the actor's
    concurrency_group: str = ""


def parameters(function: Callable[..., Any], bound: bool = False) -> Parameters:
    """Returns a function's parameters (`bound`: without the first); None if unknown or any."""
    try:
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):  # of native code
        return None
    params = list(signature.parameters.values())
    if bound and params and params[0].kind not in _ANY:
        del params[0]
    if {p.kind for p in params} == _ANY:
        return None
    return tuple((p.name, int(p.kind), p.default is not p.empty) for p in params)


def bound_method(instance: Any, name: str) -> Any:
    """Returns a method of an object's class; attributes of the object do not count."""
    cls = type(instance)
    for base in cls.__mro__:
        if name in base.__dict__:
            member = base.__dict__[name]
            return member.__get__(instance, cls) if hasattr(member, "__get__") else member
    return getattr(instance, name)


def has_async(cls: type) -> bool:
    """Returns whether the actors of a class run their calls in an event loop."""
    return any(
        inspect.iscoroutinefunction(member) or inspect.isasyncgenfunction(member)
        for _, member in inspect.getmembers(cls)
    )


def check(what: str, known: Parameters, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raises TypeError if a call cannot be made with these arguments."""
    if known is None or (not kwargs and _fits(known, len(args))):
        return
    signature = inspect.Signature(
        [
            inspect.Parameter(
                name, inspect._ParameterKind(kind), default=None if optional else inspect._empty
            )
            for name, kind, optional in known
        ]
    )
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{what}: {error}. It takes {_signature_text(known)}.") from None


def _fits(declared: tuple[tuple[str, int, bool], ...], number: int) -> bool:
    """Returns whether so many positional arguments, and no others, will do."""
    required = maximum = 0
    for _, kind, optional in declared:
        if kind < _VAR_POSITIONAL:
            required, maximum = required + (not optional), maximum + 1
        elif kind == _VAR_POSITIONAL:
            maximum = number
        elif kind == _KEYWORD_ONLY and not optional:
            return False
    return required <= number <= maximum


def _signature_text(declared: tuple[tuple[str, int, bool], ...]) -> str:
    stars = {_VAR_POSITIONAL: "*", int(inspect.Parameter.VAR_KEYWORD): "**"}
    shown = [stars.get(kind, "") + name + "=..." * optional for name, kind, optional in declared]
    return f"({', '.join(shown)})"


_KEYWORD_ONLY: Final = int(inspect.Parameter.KEYWORD_ONLY)
_VAR_POSITIONAL: Final = int(inspect.Parameter.VAR_POSITIONAL)
