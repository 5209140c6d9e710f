"""Defines the config's section `layout`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from gmi_drl.placement.templates import TEMPLATES

from .section import Count, Int, Section, broken

if TYPE_CHECKING:
    _Template = str
else:
    _Template = Literal["auto", *TEMPLATES]

_MEANINGS = "; ".join(f"`{t.name}`: {t.description} (mode {t.mode})" for t in TEMPLATES.values())


class LayoutConfig(Section):
    """How roles are placed on GMIs, and GMIs on devices: by a template, or by a file.

    `layout: file.yaml` is short for `layout: {file: file.yaml}`.
    """

    file: str | None = Field(
        default=None,
        min_length=1,
        description="A layout in YAML, as `gmi-drl plan --layout` writes it, counted from the "
        "config's folder. It takes the place of the keys below. `null`: the template.",
    )
    template: _Template = Field(
        default="auto", description=f"{_MEANINGS}. `auto`: the first one of the mode."
    )
    gmi_per_gpu: Count = Field(
        default=1,
        description="GMIs on each device; an even number with template `tdg`. `auto`: what "
        "`gmi-drl tune` finds to be fastest.",
    )
    trainer_gpus: Int = Field(
        default=1,
        ge=1,
        description="Template `decoupled`: so many devices, the last ones, hold trainers; the "
        "others simulate and infer.",
    )

    @model_validator(mode="before")
    @classmethod
    def _shorthand(cls, value: Any) -> Any:
        return {"file": value} if isinstance(value, str) else value

    @field_validator("template", "gmi_per_gpu", "trainer_gpus", mode="before")
    @classmethod
    def _said_by_the_file(cls, value: Any, info: ValidationInfo) -> Any:
        if info.data.get("file") is not None:
            raise broken("the layout file says it", "Leave it out, or leave out layout.file.")
        return value

    @model_serializer(mode="wrap")
    def _file_or_template(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        whole: dict[str, Any] = handler(self)
        return {key: value for key, value in whole.items() if (key == "file") == bool(self.file)}
