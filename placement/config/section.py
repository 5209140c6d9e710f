"""Defines the base of the config's sections, and the types of their values."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer
from pydantic_core import PydanticCustomError

# Hidden layers by name: a usual small network, and the six of the GMI-DRL paper (its Table 6).
NETWORKS: Final[dict[str, tuple[int, ...]]] = {
    "mlp": (64, 64),
    "ant": (256, 128, 64),
    "anymal": (256, 128, 64),
    "ballbalance": (256, 128, 64),
    "frankacabinet": (256, 128, 64),
    "humanoid": (200, 400, 100),
    "shadowhand": (512, 512, 512, 256),
}


# Networks for images, with the dense layers behind their convolutions.
CONVOLUTIONAL: Final[dict[str, tuple[int, ...]]] = {"nature": (512,), "impala": (256,)}


def hidden_sizes(network: str | tuple[int, ...] | list[int]) -> tuple[int, ...]:
    """Returns the sizes themselves, or the dense layers of the preset with this name.

    A network of the user's has none.
    """
    if is_own_network(network):
        return ()
    return {**NETWORKS, **CONVOLUTIONAL}[network] if isinstance(network, str) else tuple(network)


def is_own_network(network: str | tuple[int, ...] | list[int]) -> bool:
    """Tells whether a network is the user's, as module:Class."""
    return isinstance(network, str) and re.match(CLASS_PATTERN, network) is not None


# The value of `auto` for numbers that `gmi-drl tune` finds; it is less than any such number.
AUTO: Final = 0
CLASS_PATTERN: Final = r"^[^\W\d][\w.]*:[^\W\d]\w*$"  # module:Class, of any letters


class Section(BaseModel):
    """A section of the config. Strict, and never changed."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, validate_default=False
    )


def to_whole_number(value: Any) -> Any:
    """Returns a float such as 1e6, as people write a million, as a whole number."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def as_tuple(value: Any) -> Any:
    """Returns a list as a tuple."""
    return tuple(value) if isinstance(value, list) else value


def pair(value: Any) -> Any:
    """Returns a list of two as a tuple; refuses other values."""
    bounds = as_tuple(value)
    if not isinstance(bounds, tuple) or len(bounds) != 2:
        raise broken("must be two numbers", "Write [lowest, highest].")
    return bounds


def broken(rule: str, remedy: str) -> PydanticCustomError:
    """Returns the error that a validator raises: the rule that is broken, and the remedy."""
    return PydanticCustomError("gmi_drl", "{rule}", {"rule": rule, "remedy": remedy})


def named_entries(noun: str, pattern: str, remedy: str) -> BeforeValidator:
    """Returns a validator of lists of names, or of one name with its options: {name: {...}}."""

    def check(value: Any) -> Any:
        for entry in value if isinstance(value, list | tuple) else ():
            name, options = entry, None
            if isinstance(entry, dict) and len(entry) == 1:
                ((name, options),) = entry.items()
            is_named = isinstance(name, str) and re.match(pattern, name)
            if not is_named or not isinstance(options, dict | None):
                raise broken(f"has {entry!r}, which is no {noun}", remedy)
        return as_tuple(value)

    return BeforeValidator(check)


def as_network(value: Any) -> Any:
    """Returns the layers that `network` names, a list as a tuple; refuses other values."""
    sizes = as_tuple(value)
    if isinstance(sizes, str) and (sizes in {*NETWORKS, *CONVOLUTIONAL} or is_own_network(sizes)):
        return sizes
    if isinstance(sizes, tuple) and sizes and all(type(s) is int and s > 0 for s in sizes):
        return sizes
    raise broken(
        "must be a preset, a list of hidden layer sizes, or module:Class",
        f"Use one of {', '.join([*NETWORKS, *CONVOLUTIONAL])}, or for example [256, 128, 64].",
    )


def _count(value: Any) -> Any:
    if value == "auto":
        return AUTO
    count = to_whole_number(value)
    if type(count) is not int:
        raise broken("must be a whole number, or auto", _COUNT_REMEDY)
    if count < 1:
        raise broken("must be 1 or more, or auto", _COUNT_REMEDY)
    return count


def seconds_of(text: str) -> float:
    """Returns the seconds in "5m", "90s", "1h30m" or "300"; ValueError for another text."""
    compact = "".join(text.lower().split())
    parts = _PART.findall(compact)
    has_units = all(unit in _UNITS for _, unit in parts)
    if not parts or not has_units or "".join(map("".join, parts)) != compact:
        raise ValueError(f"{text!r} is no time")
    return float(sum(float(number) * _UNITS[unit] for number, unit in parts))


def _seconds(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return seconds_of(value)
    except ValueError:
        raise broken("must be a time", f"{TIMES}.") from None


def _count_to_yaml(count: int) -> int | Literal["auto"]:
    return count if count != AUTO else "auto"


_COUNT_REMEDY: Final = "Give a number, or auto for the one that `gmi-drl tune` finds."
_UNITS: Final = {"": 1, "s": 1, "m": 60, "h": 3600}
_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)([a-z]*)")
TIMES: Final = "Use for example 5m, 90s, 1h30m or 300"
COUNT_OR_AUTO: Final = BeforeValidator(_count)  # by which `Count` is recognised

Int = Annotated[int, BeforeValidator(to_whole_number)]
Bounds = Annotated[tuple[float, float], BeforeValidator(pair)]
Count: TypeAlias = Annotated[int, COUNT_OR_AUTO, PlainSerializer(_count_to_yaml)]  # or AUTO
Seconds = Annotated[float, BeforeValidator(_seconds)]
Network = Annotated[str | tuple[int, ...], BeforeValidator(as_network)]
Cores = Annotated[tuple[Annotated[int, Field(ge=0)], ...], BeforeValidator(as_tuple)]
Entries: TypeAlias = tuple[str | dict[str, Any], ...]  # names, or names with options
Names = Annotated[tuple[str, ...], BeforeValidator(as_tuple)]
