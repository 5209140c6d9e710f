"""Looks up fields in the schema, and translates pydantic's errors into faults."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import types
from collections.abc import Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import dedent
from typing import Any, Final, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from gmi_drl.placement.faults import ABSENT, ConfigError, Fault, closest, listed

from .algorithms import ALGORITHMS, CALLED_HERE, LACKING, AlgorithmConfig, algorithms_of
from .config import Config
from .section import Section
from .yaml_text import read_yaml, write_yaml

Keys = tuple[str, ...]
SectionType = type[BaseModel]
_Root = TypeVar("_Root", bound=BaseModel)


@dataclass(frozen=True)
class ConfigSchema:
    """Holds the schema of a file: its `root`, and the class of its section `algorithm`."""

    root: SectionType = Config
    algorithm: SectionType = AlgorithmConfig

    def section_at(self, keys: Keys) -> SectionType | None:
        """Returns the section with these keys, () being the root; None if there is none.

        In a dictionary of sections (`roles`) any key names one, and in a list any number.
        """
        section = self.root
        rest = list(keys)
        while rest:
            field = keys_of(section).get(rest.pop(0))
            annotation: Any = field.annotation if field else None
            if get_origin(annotation) in (dict, tuple) and rest:
                annotation = get_args(annotation)[get_origin(annotation) is dict]
                rest.pop(0)
            if get_origin(annotation) in (Union, types.UnionType):  # a section, or null
                annotation = next(filter(is_section, get_args(annotation)), None)
            if not is_section(annotation):
                return None
            section = self.algorithm if annotation is AlgorithmConfig else annotation
        return section

    def field_at(self, keys: Keys) -> FieldInfo | None:
        """Returns the field with these keys; None if there is none."""
        section = self.section_at(keys[:-1]) if keys else None
        return None if section is None else keys_of(section).get(keys[-1])


@functools.cache
def keys_of(section: SectionType) -> dict[str, FieldInfo]:
    """Returns the fields of a section, with their descriptions, by the key they have in a file."""
    sections = [base for base in reversed(section.__mro__) if issubclass(base, Section)]
    below = {name: text for base in sections for name, text in _docstrings(base)}
    for name, field in section.model_fields.items():
        field.description = field.description or below.get(name)
    return {field.alias or name: field for name, field in section.model_fields.items()}


def _docstrings(section: type) -> Iterator[tuple[str, str]]:
    """Yields the text below each field in the source of a class, as pydantic would read it.

    Pydantic would do so for each class that is made; here it is done only for messages.
    """
    with suppress(OSError, SyntaxError, TypeError):  # the class has no source file
        body = ast.parse(dedent(inspect.getsource(section))).body[0]
        for pair in itertools.pairwise(getattr(body, "body", ())):
            match pair:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    yield name, " ".join(text.split())


def is_section(annotation: Any) -> Any:
    """Tells whether a field with this annotation is a section of its own."""
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def choices(annotation: Any) -> list[str]:
    """Returns the values that an annotation allows, when it lists them."""
    if get_origin(annotation) is Literal:
        return [str(value) for value in get_args(annotation)]
    return [value for part in get_args(annotation) for value in choices(part)]


def default_text(field: FieldInfo) -> str | None:
    """Returns the default as YAML has it; None when required, a section, or by another field."""
    if field.is_required() or field.default_factory_takes_validated_data:
        return None
    default = field.get_default(call_default_factory=True, validated_data={})
    if isinstance(default, BaseModel):
        return None
    return write_yaml([default]).strip()[1:-1]


_RULES: Final = {
    "greater_than_equal": "must be {ge:g} or more",
    "greater_than": "must be more than {gt:g}",
    "less_than_equal": "must be at most {le:g}",
    "less_than": "must be less than {lt}",
    "finite_number": "must be a finite number",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "tuple_type": "must be a list",
    "too_short": "must not be empty",
    "dict_type": "must be a section with keys",
    "invalid_key": "its keys must be text",
}
_FIXES: Final = ("greater_than_equal", "less_than_equal", "literal_error")
_SCHEMA: Final = ConfigSchema()
_NAME: Final = ("algorithm", "name")


def explain(
    error: ValidationError,
    lines: Mapping[Keys, int],
    given: Set[Keys] = frozenset(),
    schema: ConfigSchema = _SCHEMA,
    prefix: Keys = (),
) -> list[Fault]:
    """Returns one Fault for each of pydantic's errors, in the order of the file.

    `lines` has the line of each key in the file, `given` the keys set by an override; `schema` is
    what the file is read by, and `prefix` the keys of the section in it that was read.
    """
    faults = []
    details = error.errors(include_url=False)
    if any(d["loc"] == _NAME and d["type"] == "literal_error" for d in details):
        # Its other keys are not known.
        details = [d for d in details if d["loc"] == _NAME or d["loc"][0] != _NAME[0]]
    # Entries that are faulty do not count, so that a list of these alone is too short, too.
    lists = [d["loc"][:-1] for d in details]
    details = [d for d in details if d["type"] != "too_short" or d["loc"] not in lists]
    for detail in details:
        keys = (*prefix, *(str(key) for key in detail["loc"] if key != "[key]"))
        rule, remedy = _rule(keys, detail, schema)
        unseen = detail["type"] == "missing" or rule.startswith("unknown key")
        value = ABSENT if unseen or isinstance(detail["input"], dict) else detail["input"]
        by_option = any(keys[: len(option)] == option for option in given)
        where = f"{'--set ' if by_option else ''}{'.'.join(keys)}"
        faults.append(Fault(where, value, rule, remedy, None if by_option else lines.get(keys)))
    return sorted(faults, key=lambda fault: fault.line or 0)


def parsed(root: type[_Root], text: str, source: str, remedy: str) -> _Root:
    """Returns what a YAML file has by the schema `root`; ConfigError has every fault of it.

    Faults have their line in `source`; `remedy` is for a file without keys.
    """
    data, lines, faults = read_yaml(text, source)
    if not faults and not isinstance(data, dict):
        rule = f"must have the keys {', '.join(keys_of(root))}"
        faults = [Fault(source, ABSENT, rule, remedy)]
    if not faults:
        try:
            return root.model_validate(data)
        except ValidationError as error:
            faults = explain(error, lines, schema=ConfigSchema(root))
    name = Path(source).name
    raise ConfigError(
        [f if name in f.where else replace(f, where=f"{name}: {f.where}") for f in faults], source
    )


def _rule(keys: Keys, detail: ErrorDetails, schema: ConfigSchema) -> tuple[str, str]:
    kind, context, field = detail["type"], detail.get("ctx", {}), schema.field_at(keys)
    if field is None and keys[-1:] and keys[-1].isdigit():
        field = schema.field_at(keys[:-1])  # of a list's entry
    if kind == "gmi_drl":
        return context["rule"], context["remedy"]
    is_setting = keys[:1] == _NAME[:1] and keys != _NAME
    if is_setting and kind in _FIXES and (fixed := _only_value(field)) is not None:
        # Other algorithms take other values; the text of the key says why this one does not.
        why = _description(field).partition(": ")[2].rstrip(".")
        rule = f"must be {fixed} for {_algorithm(schema.algorithm)}{f' ({why})' if why else ''}"
        return rule, f"Leave it out, or give {fixed}."
    if kind == "extra_forbidden":
        return _unknown_key(keys, schema)
    if kind == "missing":
        section = schema.section_at(keys)
        required = (
            ", ".join(k for k, f in keys_of(section).items() if f.is_required()) if section else ""
        )
        keys_text = f", a section with {required}" if required else ""
        return "missing", f"Add it{keys_text}: {_description(field)}"
    if kind == "literal_error":
        names, value = choices(field.annotation if field else None), str(detail["input"])
        if keys == _NAME:
            names = list(ALGORITHMS)
            if value.lower() in LACKING:
                modes = (f"mode {m} has {listed(algorithms_of(m))}" for m in ("sync", "async"))
                rule = f"gmi-drl does not have this algorithm: {', '.join(modes)}"
                if alias := CALLED_HERE.get(value.lower()):
                    return "gmi-drl does not have this algorithm by that name", f"Use {alias}."
                return rule, "Use one of these, or algorithm.class for one of yours."
        suggestion = closest(value, names)
        rule = f"must be {'one of ' if names[1:] else ''}{', '.join(names)}"
        return rule, f"Did you mean {suggestion}?" if suggestion else _correction(field)
    if kind == "string_pattern_mismatch":
        return "not of the right form", _description(field)
    if kind == "model_type" and (section := schema.section_at(keys)) is not None:
        return f"must be a section with keys {', '.join(keys_of(section))}", _correction(field)
    # A message that a class of the user's has raised may have braces.
    rule = _RULES[kind].format(**context) if kind in _RULES else detail["msg"]
    return rule, _correction(field)


# Names of keys in other libraries, and their names here.
_RENAMED_KEYS: Final = {
    "buffer_size": "replay_capacity", "clip_param": "clip", "clip_range": "clip",
    "frame_stack": "wrappers", "gae_lambda": "lam", "gru": "recurrent", "lambda": "lam",
    "learning_starts": "replay_start", "lr": "learning_rate", "lstm": "recurrent",
    "n_epochs": "epochs", "n_steps": "horizon", "net_arch": "network", "num_steps": "horizon",
    "rollout_fragment_length": "horizon", "target_kl": "kl_target", "use_lstm": "recurrent",
    "vf_coef": "value_coef",
}  # fmt: skip


def _unknown_key(keys: Keys, schema: ConfigSchema) -> tuple[str, str]:
    section, last = schema.section_at(keys[:-1]), keys[-1]
    names = list(keys_of(section)) if section is not None else []
    if keys[:-1] == ("algorithm",):
        users = [name for name, settings in ALGORITHMS.items() if last in settings.model_fields]
        if users:
            rule = f"is a setting of {listed(users)}, and the algorithm is {_algorithm(section)}"
            return rule, f"Leave it out, or use {listed(users, 'or')}."
    parent = ".".join(keys[:-1])
    keys_text = f"{parent or 'the top level'} has {', '.join(names)}"
    similar = _RENAMED_KEYS.get(last)
    if similar not in names:
        similar = closest(last, names)
    similar_keys = [".".join((*keys[:-1], similar))] if similar else []
    sections = ((name, schema.section_at((name,))) for name in schema.root.model_fields)
    others = [f"{name}.{last}" for name, part in sections if part and last in keys_of(part)]
    if suggested := others + similar_keys:
        return "unknown key", f"Did you mean {suggested[0]}? {keys_text}."
    return f"unknown key; {keys_text}", "Remove it."


def _algorithm(section: SectionType | None) -> str:
    """Returns the name of the algorithm with this section."""
    return next((n for n, settings in ALGORITHMS.items() if settings is section), "one of yours")


def _only_value(field: FieldInfo | None) -> str | None:
    """Returns the only value that a field takes, as YAML has it; None if it takes others."""
    if field is None:
        return None
    if get_origin(field.annotation) is Literal:
        values = get_args(field.annotation)
        return write_yaml(list(values)).strip()[1:-1] if len(values) == 1 else None
    minima = [bound.ge for bound in field.metadata if hasattr(bound, "ge")]
    maxima = [bound.le for bound in field.metadata if hasattr(bound, "le")]
    return f"{min(maxima):g}" if minima and maxima and max(minima) == min(maxima) else None


def _description(field: FieldInfo | None) -> str:
    return (field.description if field else None) or "See docs/configuration.md."


def _correction(field: FieldInfo | None) -> str:
    default = default_text(field) if field else None
    if default is None:
        return "Correct it."
    if default == "null":
        return "Correct it, or leave it out."
    return f"Correct it, or leave it out for the default, {default}."
