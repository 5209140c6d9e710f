"""Defines the section `algorithm` that names a class of the user's, and reads its own settings."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import (
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)

from gmi_drl.placement.config.section import CLASS_PATTERN, broken
from gmi_drl.placement.faults import ConfigError, Fault, closest

from .common import MODE_OF_OPTIMIZER, AlgorithmConfig


class CustomAlgorithmConfig(AlgorithmConfig):
    """An algorithm of yours. Its class has an attribute `Settings`, which says what keys there are.

    Until the class is loaded the keys that all algorithms have are checked, and the others kept as
    they are.
    """

    model_config = ConfigDict(extra="allow")
    optimizers: ClassVar[tuple[str, ...]] = ()  # not known before the class is loaded

    class_: str = Field(alias="class", pattern=CLASS_PATTERN)
    """The class, as `module:Class`. The module may lie beside the config file."""

    @model_validator(mode="before")
    @classmethod
    def _named_by_its_class(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        if "name" in value:
            raise broken("names an algorithm twice, by name and by class", "Leave one of them out.")
        return {**value, "name": str(value.get("class")).rpartition(":")[2]}

    @field_validator("optimizer")
    @classmethod
    def _can_run_under(cls, value: str) -> str:
        if value not in ("auto", *MODE_OF_OPTIMIZER):
            near = closest(value, MODE_OF_OPTIMIZER)
            names = ", ".join(MODE_OF_OPTIMIZER)
            raise broken(
                f"must be one of auto, {names}",
                f"Did you mean {near}?" if near else "Leave it out for the algorithm's own.",
            )
        return value

    @model_serializer(mode="wrap")
    def _written(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Writes what was given alone: the defaults are those of the class."""
        written = {*self.model_fields_set, *(self.model_extra or {})} - {"name", "class_"}
        keys: dict[str, Any] = handler(self)
        return {"class": self.class_, **{key: keys[key] for key in keys if key in written}}


def settings_of(algorithm: Any, section: CustomAlgorithmConfig) -> AlgorithmConfig:
    """Returns the validated settings of a loaded class; ConfigError has what is wrong with them."""
    from gmi_drl.placement.config.schema import ConfigSchema, explain

    settings = getattr(algorithm, "Settings", None)
    if not (isinstance(settings, type) and issubclass(settings, AlgorithmConfig)):
        remedy = "Give it an attribute Settings, a subclass of gmi_drl.placement.AlgorithmConfig."
        fault = Fault("algorithm.class", section.class_, "it has no settings", remedy)
        raise ConfigError([fault])
    keys = {key: value for key, value in section.model_dump().items() if key != "class"}
    named = {"__annotations__": {"implementation": ClassVar[str]}}
    bound: type[AlgorithmConfig] = type(
        settings.__name__, (settings,), named | {"implementation": section.class_}
    )
    try:
        return bound.model_validate({"name": algorithm.__name__, **keys})
    except ValidationError as error:
        raise ConfigError(
            explain(error, {}, schema=ConfigSchema(algorithm=settings), prefix=("algorithm",))
        ) from None
