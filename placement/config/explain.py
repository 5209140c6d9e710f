"""Translates pydantic's errors into faults: value, rule, remedy."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Final

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from gmi_drl.placement.faults import ABSENT, Fault, closest

from .algorithms import ALGORITHMS, LACKING, algorithms_of
from .schema import ConfigSchema, Keys, choices, default_text, keys_of

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
_SCHEMA: Final = ConfigSchema()


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
    for detail in error.errors(include_url=False):
        keys = (*prefix, *(str(key) for key in detail["loc"] if key != "[key]"))
        rule, remedy = _rule(keys, detail, schema)
        unseen = detail["type"] == "missing" or rule.startswith("unknown key")
        value = ABSENT if unseen or isinstance(detail["input"], dict) else detail["input"]
        by_option = any(keys[: len(option)] == option for option in given)
        where = f"{'--set ' if by_option else ''}{'.'.join(keys)}"
        faults.append(Fault(where, value, rule, remedy, None if by_option else lines.get(keys)))
    return sorted(faults, key=lambda fault: fault.line or 0)


def _rule(keys: Keys, detail: ErrorDetails, schema: ConfigSchema) -> tuple[str, str]:
    kind, context, field = detail["type"], detail.get("ctx", {}), schema.field_at(keys)
    if field is None and keys[-1:] and keys[-1].isdigit():
        field = schema.field_at(keys[:-1])  # of a list
    if kind == "gmi_drl":
        return context["rule"], context["remedy"]
    if kind == "extra_forbidden":
        return _unknown_key(keys, schema)
    if kind == "missing":
        section = schema.section_at(keys)
        inner = (
            ", ".join(k for k, f in keys_of(section).items() if f.is_required()) if section else ""
        )
        with_keys = f", a section with {inner}" if inner else ""
        return "missing", f"Add it{with_keys}: {_described(field)}"
    if kind == "literal_error":
        known, value = choices(field.annotation if field else None), str(detail["input"])
        if keys == ("algorithm", "name"):
            known = list(ALGORITHMS)
            if value.lower() in LACKING - ALGORITHMS.keys():
                has = (f"mode {m} has {' and '.join(algorithms_of(m))}" for m in ("sync", "async"))
                rule = f"gmi-drl does not have this algorithm: {', '.join(has)}"
                return rule, "Use one of these, or algorithm.class for one of yours."
        near = closest(value, known)
        rule = f"must be {'one of ' if known[1:] else ''}{', '.join(known)}"
        return rule, f"Did you mean {near}?" if near else _correct(field)
    if kind == "string_pattern_mismatch":
        return "not of the right form", _described(field)
    if kind == "model_type" and (section := schema.section_at(keys)) is not None:
        return f"must be a section with keys {', '.join(keys_of(section))}", _correct(field)
    return _RULES.get(kind, detail["msg"]).format(**context), _correct(field)


def _unknown_key(keys: Keys, schema: ConfigSchema) -> tuple[str, str]:
    section, last = schema.section_at(keys[:-1]), keys[-1]
    known = list(keys_of(section)) if section is not None else []
    if keys[:-1] == ("algorithm",):
        users = [name for name, settings in ALGORITHMS.items() if last in settings.model_fields]
        if users:
            names = " and ".join(users)
            own = next(
                (n for n, settings in ALGORITHMS.items() if settings is section), "one of yours"
            )
            remedy = f"Leave it out, or use {' or '.join(users)}."
            return f"is a setting of {names}, and the algorithm is {own}", remedy
    where = ".".join(keys[:-1])
    rule = f"unknown key; {f'{where} has' if where else 'there are'} {', '.join(known)}"
    for name in schema.root.model_fields:  # perhaps it is in the wrong section
        other = schema.section_at((name,))
        if other is not None and last in keys_of(other):
            return rule, f"Did you mean {name}.{last}?"
    near = closest(last, known)
    return rule, f"Did you mean {'.'.join((*keys[:-1], near))}?" if near else "Remove it."


def _described(field: FieldInfo | None) -> str:
    return (field.description if field else None) or "See docs/configuration.md."


def _correct(field: FieldInfo | None) -> str:
    default = default_text(field) if field else None
    if default is None:
        return "Correct it."
    if default == "null":
        return "Correct it, or leave it out."
    return f"Correct it, or leave it out for the default, {default}."
