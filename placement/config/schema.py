"""Looks things up in the schema: for messages, and for the page in docs/."""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from .algorithms import AlgorithmConfig
from .config import Config

Keys = tuple[str, ...]
SectionType = type[BaseModel]


@dataclass(frozen=True)
class ConfigSchema:
    """What a file is read by: its `root`, and the class that its section `algorithm` has."""

    root: SectionType = Config
    algorithm: SectionType = AlgorithmConfig

    def section_at(self, keys: Keys) -> SectionType | None:
        """Returns the section with these keys, () being all of the root; None if there is none.

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


def keys_of(section: SectionType) -> dict[str, FieldInfo]:
    """Returns the fields of a section by the key they have in a file."""
    return {field.alias or name: field for name, field in section.model_fields.items()}


def is_section(annotation: Any) -> Any:
    """Tells whether a field with this annotation is a section of its own."""
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def choices(annotation: Any) -> list[str]:
    """Returns the values that an annotation allows, when it lists them."""
    if get_origin(annotation) is Literal:
        return [str(value) for value in get_args(annotation)]
    return [value for part in get_args(annotation) for value in choices(part)]


def default_text(field: FieldInfo) -> str | None:
    """Returns the default as YAML has it; None when the field is required or a section."""
    if field.is_required():
        return None
    default = field.get_default(call_default_factory=True, validated_data={})
    if isinstance(default, BaseModel):
        return None
    return yaml_text(default)


def yaml_text(value: Any) -> str:
    """Returns a plain value as YAML has it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(yaml_text, value))}]"
    return str(value)


def type_text(annotation: Any) -> str:
    """Returns an annotation in words: "whole number", "list of numbers"."""
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
