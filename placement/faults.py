"""Defines a fault, one reason a config cannot run, and the error that carries all of them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gmi_drl.errors import GmiDrlError

if TYPE_CHECKING:
    from gmi_drl.placement.config.config import Config

    from .layout import GmiSpec
    from .topology import Device


_CUTOFF: Final = 0.75  # of similarity: a name less similar is no misspelling


@dataclass(frozen=True)
class Fault:
    """Says what is wrong and where: the value, the rule that it breaks, and the remedy."""

    where: str  # a dotted key (env.num_env), an option (--set ...) or a file
    value: Any
    rule: str
    remedy: str
    line: int | None = None  # in the config file, counted from 1

    def __str__(self) -> str:
        position = "" if self.line is None else f"line {self.line}: "
        value = "" if self.value is ABSENT else f"={_shorten(self.value)}"
        return f"{position}{self.where}{value}; {self.rule}. {self.remedy}"


class _Absent:
    """The value of a key that is missing."""

    def __repr__(self) -> str:
        return "absent"

    def __reduce__(self) -> str:
        return "ABSENT"


ABSENT = _Absent()


class ConfigError(GmiDrlError, ValueError):
    """A config that cannot run; `faults` has every reason, the text one line each.

    `partial` is the config without the faulty keys, where that is one.
    """

    command_exit_code = 2
    told_alone = True  # the text says all, and a traceback would add nothing

    def __init__(
        self,
        faults: Iterable[Fault | str],
        source: str | None = None,
        partial: Config | None = None,
    ) -> None:
        self.partial = partial
        self.faults = list(faults)
        self.source = source  # the file, when there is one
        super().__init__(self.faults, source, partial)

    def __str__(self) -> str:
        head = f"{self.source or 'the config'}: {counted(len(self.faults), 'fault')}"
        return "\n".join([head, *(f"  {fault}" for fault in self.faults)])


def spec_fault(gmi: GmiSpec, name: str, value: object, rule: str, remedy: str) -> Fault:
    """Returns a fault of one field of a GMI: "GmiSpec 3: sm_percent=130; ..."."""
    return Fault(f"GmiSpec {gmi.gmi_id}: {name}", value, rule, remedy)


def device_name(device: Device) -> str:
    """Returns the name of a device in messages: GPU 0, or device 0 for a group of cores."""
    return f"{'GPU' if device.kind == 'gpu' else 'device'} {device.index}"


def closest(name: str, known: Iterable[str]) -> str | None:
    """Returns the known name of which `name` is a misspelling, if there is one."""
    return next(iter(close_names(name, known)), None)


def close_names(name: str, known: Iterable[str]) -> list[str]:
    """Returns up to three names of `known` most like `name`, best first, ignoring case."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    anagrams = [candidate for candidate in by_lower if sorted(candidate) == sorted(name.lower())]
    matches = difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=_CUTOFF)
    return [by_lower[match] for match in dict.fromkeys([*anagrams, *matches])][:3]


def _shorten(value: Any) -> str:
    text = repr(value)  # the end of a path says more than its middle
    return text if len(text) <= 80 else f"{text[:38]}...{text[-38:]}"


def listed(names: Sequence[str], last: str = "and") -> str:
    """Returns names as a list in a sentence: a, b and c."""
    *first_names, last_name = names
    return f"{', '.join(first_names)} {last} {last_name}" if first_names else last_name


def counted(count: int, thing: str) -> str:
    """Returns a number with its noun: 1 iteration, 2,000 iterations."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def install(extra: str, source: Path = Path(__file__)) -> str:
    """Returns the command that adds `extra`: in a clone by its path, elsewhere by name.

    `source` is this file, which a clone keeps two folders below its `pyproject.toml`.
    """
    if (source.resolve().parents[1] / "pyproject.toml").is_file():
        return f"pip install -e '.[{extra}]' in the clone"
    return f"pip install 'gmi-drl[{extra}]'"
