"""Reads the options of an environment from a config, and lists all faults at once."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar, get_args, get_type_hints

from .errors import EnvSpecError

T = TypeVar("T")
_CUTOFF: Final = 0.75  # of likeness: what is less like is another name, and no slip


def closest(name: str, known: Iterable[str], limit: int = 3) -> list[str]:
    """Returns the names of `known` most like `name`, best first, ignoring case."""
    by_lower = {k.lower(): k for k in known}
    return [
        by_lower[m]
        for m in difflib.get_close_matches(name.lower(), by_lower, n=limit, cutoff=_CUTOFF)
    ]


def unknown_option(where: str, name: str, known: Iterable[str]) -> str:
    """Returns the fault "there is no such option", with the closest name and all known ones."""
    known = sorted(known)
    near = closest(name, known, 1)
    hint = f" Did you mean {near[0]}?" if near else ""
    listed = ", ".join(known) if known else "none"
    return f"{where}: unknown option {name!r}.{hint} Known: {listed}."


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
            wanted = _words(hints[name])
            faults.append(f"{where}: {name}={value!r}; must be {wanted}. Write {wanted}.")
    options = kind(**values)
    if hasattr(options, "faults"):
        faults += options.faults(where)
    return options, faults


def checked_options(kind: type[T], env_id: str, given: Mapping[str, Any]) -> T:
    """Returns the options of `env_id`; raises EnvSpecError with every fault."""
    options, faults = parse_options(kind, given, f"env {env_id}")
    if faults:
        raise EnvSpecError(faults)
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


def _words(hint: Any) -> str:
    words = {
        bool: "true or false",
        int: "a whole number",
        float: "a number",
        str: "a text",
        tuple[float, float]: "two numbers, [low, high]",
        type(None): "null",
    }
    return words.get(hint) or " or ".join(_words(arm) for arm in get_args(hint))
