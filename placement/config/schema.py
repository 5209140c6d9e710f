"""The schema as something to look things up in: for messages, and for the page in docs/."""

from __future__ import annotations

import types
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from .config import Config

Keys = tuple[str, ...]
Section = type[BaseModel]


def section_at(keys: Keys, root: Section = Config) -> Section | None:
    """The section with these keys, () being all of `root`; None if there is none.

    In a dictionary of sections (`roles`) any key names one, and in a list any number.
    """
    section = root
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
        section = annotation
    return section


def field_at(keys: Keys, root: Section = Config) -> FieldInfo | None:
    """The field with these keys; None if there is none."""
    section = section_at(keys[:-1], root) if keys else None
    return None if section is None else keys_of(section).get(keys[-1])


def keys_of(section: Section) -> dict[str, FieldInfo]:
    """The fields of a section by the key they have in a file."""
    return {field.alias or name: field for name, field in section.model_fields.items()}


def is_section(annotation: Any) -> Any:
    """Whether a field with this annotation is a section of its own."""
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def choices(annotation: Any) -> list[str]:
    """The values that an annotation allows, when it lists them."""
    if get_origin(annotation) is Literal:
        return [str(value) for value in get_args(annotation)]
    return [value for part in get_args(annotation) for value in choices(part)]


def default_text(field: FieldInfo) -> str | None:
    """The default as YAML has it; None when the field is required or a section."""
    if field.is_required():
        return None
    default = field.get_default(call_default_factory=True, validated_data={})
    if isinstance(default, BaseModel):
        return None
    return yaml_text(default)


def yaml_text(value: Any) -> str:
    """A plain value as YAML has it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(yaml_text, value))}]"
    return str(value)


def type_text(annotation: Any) -> str:
    """An annotation in words: "whole number", "one of auto, cpu", "list of whole numbers"."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return type_text(inner[0])
    if origin is Literal:
        return (
            f"one of {', '.join(f'`{value}`' for value in inner)}" if inner[1:] else f"`{inner[0]}`"
        )
    if origin in (Union, types.UnionType):
        return " or ".join(type_text(part) for part in inner)
    if origin is tuple:
        return f"list of {type_text(inner[0])}s"
    if origin is dict:
        return "section"
    words = {int: "whole number", float: "number", str: "text", bool: "true or false", Any: "value"}
    return "`null`" if annotation is type(None) else words.get(annotation, "section")
