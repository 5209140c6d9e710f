"""Reads the options of an environment from a config, and lists all faults at once."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar, get_args, get_type_hints

from gmi_drl.placement.faults import closest

from .errors import EnvSpecError

T = TypeVar("T")


def unknown_option(where: str, name: str, known: Iterable[str]) -> str:
    """Returns the fault "there is no such option", with the closest name and all known ones."""
    known = sorted(known)
    hint = f" Did you mean {near}?" if (near := closest(name, known)) else ""
    listed = ", ".join(known) if known else "none"
    return f"{where}: unknown option {name!r}.{hint} Known: {listed}."


def unknown_options(where: str, given: Iterable[str], known: Collection[str]) -> list[str]:
    """Returns the fault of each option in `given` that is not `known`."""
    return [unknown_option(where, name, known) for name in given if name not in known]


def unknown_arguments(
    where: str,
    function: Callable[..., Any],
    given: Iterable[str],
    besides: Collection[str] = (),
    first: int = 0,
) -> list[str]:
    """Returns the fault of each option that `function` does not take, and that is not `besides`.

    Its parameters count from number `first` on.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())[first:]
    except ValueError:  # what is written in C need not tell its parameters
        return []
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return []
    return unknown_options(where, given, [*(p.name for p in parameters), *besides])


def parse_options(kind: type[T], given: Mapping[str, Any], where: str) -> tuple[T, list[str]]:
    """Returns an instance of the dataclass `kind` filled from `given`, and all faults.

    Lists become tuples and whole numbers floats where the field wants them. A faulty entry keeps
    the field's default, so that every fault can be listed, also those that `kind.faults` tells.
    """
    hints = get_type_hints(kind)
    names = [f.name for f in dataclasses.fields(kind)]  # type: ignore[arg-type]
    faults: list[str] = []
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name not in names:
            faults.append(unknown_option(where, name, names))
            continue
        fitted, fits = _fit(hints[name], value)
        if fits:
            values[name] = fitted
        else:
            expected = _type_text(hints[name])
            faults.append(f"{where}: {name}={value!r}; must be {expected}. Write {expected}.")
    options = kind(**values)
    if hasattr(options, "faults"):
        faults += options.faults(where)
    return options, faults


def checked_options(kind: type[T], env_id: str, given: Mapping[str, Any]) -> T:
    """Returns the options of `env_id`; raises EnvSpecError with every fault."""
    options, faults = parse_options(kind, given, f"env {env_id}")
    if faults:
        raise EnvSpecError(*faults)
    return options


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _fit(hint: Any, value: Any) -> tuple[Any, bool]:
    if hint is bool:
        return value, isinstance(value, bool)
    if hint is int:
        return value, isinstance(value, int) and not isinstance(value, bool)
    if hint is float:
        return (float(value), True) if _is_number(value) else (value, False)
    if hint is str:
        return value, isinstance(value, str)
    if hint == tuple[float, float]:
        pair = isinstance(value, list | tuple) and len(value) == 2 and all(map(_is_number, value))
        return ((float(value[0]), float(value[1])), True) if pair else (value, False)
    fitting = [_fit(arm, value) for arm in get_args(hint)]  # a union
    return next(((v, True) for v, ok in fitting if ok), (value, False))


def _type_text(hint: Any) -> str:
    texts = {
        bool: "true or false", int: "a whole number", float: "a number", str: "a text",
        tuple[float, float]: "two numbers, [low, high]", type(None): "null",
    }  # fmt: skip
    return texts.get(hint) or " or ".join(_type_text(arm) for arm in get_args(hint))
