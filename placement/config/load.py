"""Reads YAML and overrides as a Config, or raises a list of all their faults."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import ValidationError

from gmi_drl.placement.faults import ABSENT, ConfigError, Fault, closest

from .algorithms import section_class
from .config import CONFIG_VERSION, Config, with_algorithm
from .schema import ConfigSchema, explain
from .yaml_text import read_value, read_yaml

Keys = tuple[str, ...]
_SMALLEST: Final = f"""The smallest config:

    version: {CONFIG_VERSION}
    env:
      id: CartPole-v1
"""


def load_config(
    source: Config | Path | str | Mapping[str, Any], overrides: Iterable[str] = ()
) -> Config:
    """Returns the config in a YAML file, with `section.key=value` overrides applied.

    Or that in a mapping, or another config. Raises ConfigError with every fault there is.
    """
    if isinstance(source, Config):
        source = source.model_dump(mode="json")
    name = str(source) if isinstance(source, (str, Path)) else None
    lines: dict[Keys, int] = {}
    if isinstance(source, Mapping):
        data: Any = copy.deepcopy(dict(source))
    else:
        data, lines, faults = read_yaml(read_text(Path(source)), str(source))
        if faults:
            raise ConfigError(faults, name)
    if not isinstance(data, dict):
        rule = "the file is empty" if data is None else "must be a mapping of keys to values"
        raise ConfigError([Fault(name or "the config", ABSENT, rule, _SMALLEST)], name)
    data = {key: value for key, value in data.items() if value is not None}  # an empty section
    faults, overridden = _apply(data, overrides)
    _place_layout_file(data, Path(name).parent if name else Path())
    if isinstance(data.get("version"), int) and data["version"] > CONFIG_VERSION:
        data = {"version": data["version"]}  # its other keys may have other meanings
    try:
        config = Config.model_validate(data)
    except ValidationError as error:
        schema = ConfigSchema(algorithm=section_class(with_algorithm(data).get("algorithm")))
        invalid = explain(error, lines, overridden, schema)
        if set(data) == {"version"}:
            invalid = [fault for fault in invalid if fault.where.endswith("version")] or invalid
        raise ConfigError([*faults, *invalid], name, _partial(data, error)) from None
    if faults:
        raise ConfigError(faults, name, config)
    return config


def with_places(faults: Iterable[str], source: object, overrides: Iterable[str]) -> list[str]:
    """Adds to faults of keys what has set each: a line of the file, or an option.

    It is for faults that are known only after a class in the config is loaded.
    """
    lines: dict[Keys, int] = {}
    if isinstance(source, (str, Path)) and Path(source).is_file():  # a pipe can be read only once
        lines = read_yaml(read_text(Path(source)), str(source))[1]
    options = {text.partition("=")[0].strip() for text in overrides}
    placed = []
    for fault in faults:
        key = re.split("[=; ]", fault, maxsplit=1)[0]
        if any(key == option or key.startswith(f"{option}.") for option in options):
            fault = f"--set {fault}"
        elif line := lines.get(tuple(key.split("."))):
            fault = f"line {line}: {fault}"
        placed.append(fault)
    return placed


def _place_layout_file(data: dict[str, Any], folder: Path) -> None:
    """Makes the path of the layout's file independent of the config's folder."""
    layout = data.get("layout")
    if isinstance(layout, str) and layout:
        layout = data["layout"] = {"file": layout}
    if isinstance(layout, dict) and isinstance(layout.get("file"), str) and layout["file"]:
        layout["file"] = str((folder / layout["file"]).absolute())


def _partial(data: dict[str, Any], error: ValidationError) -> Config | None:
    """Returns the config without its faulty keys, so that the rest can be checked, or None."""
    for fault in error.errors():
        *path, key = fault["loc"]
        section: Any = data
        for part in path:
            section = section.get(part, {}) if isinstance(section, dict) else {}
        if isinstance(section, dict):
            section.pop(key, None)
    try:
        return Config.model_validate(data)
    except ValidationError:
        return None


def read_text(path: Path) -> str:
    """Returns the text of a YAML file; ConfigError when it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        folder = path.parent
        near = closest(path.name, [p.name for p in folder.iterdir()]) if folder.is_dir() else None
        remedy = f"Did you mean {folder / near}?" if near else "Give the path of a YAML file."
        fault = Fault(str(path), ABSENT, "no such file", remedy)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        fault = Fault(str(path), ABSENT, f"cannot be read ({reason})", "Give a readable YAML file.")
    raise ConfigError([fault], str(path))


def _apply(data: dict[str, Any], overrides: Iterable[str]) -> tuple[list[Fault], set[Keys]]:
    """Applies overrides to the data; returns the faults of invalid ones, and the keys set."""
    faults, overridden = [], set()
    for text in overrides:
        key, separator, value_text = text.partition("=")
        keys = tuple(part.strip() for part in key.split("."))
        option = f"--set {key}"
        if not separator or not all(keys):
            rule = "must be section.key=value"
            faults.append(Fault(f"--set {text}", ABSENT, rule, "For example env.num_env=128."))
            continue
        try:
            value = read_value(value_text)
        except yaml.YAMLError:
            faults.append(Fault(option, value_text, "not a YAML value", "Put it in quotes."))
            continue
        if (fault := _set_value(data, keys, value, option)) is not None:
            faults.append(fault)
        else:
            overridden.add(keys)
    return faults, overridden


def _set_value(data: dict[str, Any], keys: Keys, value: Any, option: str) -> Fault | None:
    section = data
    for depth, key in enumerate(keys[:-1]):
        child = section.get(key)
        if child is None:
            child = section[key] = {}
        elif keys[0] == "roles" and depth == 1 and isinstance(child, str):
            child = section[key] = {"class": child}
        if not isinstance(child, dict):
            parent = ".".join(keys[: depth + 1])
            rule = f"{parent} is {child!r}, which has no keys"
            return Fault(option, value, rule, f"Set {parent} itself.")
        section = child
    section[keys[-1]] = value
    return None
