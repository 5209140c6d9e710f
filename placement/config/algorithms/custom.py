"""Defines the section `algorithm` that names a class of the user's, and reads its own settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

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

    @field_validator("name")
    @classmethod
    def _refuse_name(cls, value: str) -> str:
        raise broken("names an algorithm twice, by name and by class", "Leave one of them out.")

    @model_validator(mode="after")
    def _set_name_of_class(self) -> Self:
        self.__dict__["name"] = self.class_.rpartition(":")[2]  # it is frozen
        return self

    @field_validator("optimizer", mode="before")
    @classmethod
    def _check_optimizer(cls, value: Any) -> Any:
        if value not in ("auto", *MODE_OF_OPTIMIZER):
            near = closest(str(value), MODE_OF_OPTIMIZER)
            names = ", ".join(MODE_OF_OPTIMIZER)
            raise broken(
                f"must be one of auto, {names}",
                f"Did you mean {near}?" if near else "Leave it out for the algorithm's own.",
            )
        return value

    @model_serializer(mode="wrap")
    def _serialize(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Writes only the keys that were given, as the class has the defaults."""
        given = {*self.model_fields_set, *(self.model_extra or {})} - {"name", "class_"}
        keys: dict[str, Any] = handler(self)
        return {"class": self.class_, **{key: keys[key] for key in keys if key in given}}


def settings_of(algorithm: Any, section: CustomAlgorithmConfig) -> AlgorithmConfig:
    """Returns the validated settings of a loaded class; ConfigError has what is wrong with them."""
    settings = algorithm.Settings
    if not (isinstance(settings, type) and issubclass(settings, AlgorithmConfig)):
        rule = "its Settings is no subclass of gmi_drl.placement.AlgorithmConfig"
        remedy = "Derive it from that, or leave it out where the keys that all have will do."
        raise ConfigError([Fault("algorithm.class", section.class_, rule, remedy)])
    if fault := _optimizers_fault(settings, section.class_):
        raise ConfigError([fault])
    keys = {key: value for key, value in section.model_dump().items() if key != "class"}
    attributes = {
        "__annotations__": {"implementation": ClassVar[str], "name": str},  # no Literal["ppo"]
        "implementation": section.class_,
        "name": algorithm.__name__,
    }
    named_class: type[AlgorithmConfig] = type(settings.__name__, (settings,), attributes)
    return validated(named_class, keys)


def validated(settings: type[AlgorithmConfig], keys: Mapping[str, Any]) -> AlgorithmConfig:
    """Returns the settings with these keys; ConfigError has what is wrong with them."""
    from gmi_drl.placement.config.schema import ConfigSchema, explain

    try:
        return settings.model_validate(dict(keys))
    except ValidationError as error:
        raise ConfigError(
            explain(error, {}, schema=ConfigSchema(algorithm=settings), prefix=("algorithm",))
        ) from None


def _optimizers_fault(settings: type[AlgorithmConfig], reference: str) -> Fault | None:
    """Returns the fault in the optimizers of an algorithm's class, if there is one."""
    names: Any = settings.optimizers
    is_tuple = isinstance(names, tuple) and names
    unknown = [name for name in names if name not in MODE_OF_OPTIMIZER] if is_tuple else [names]
    if not unknown:
        return None
    near = closest(str(unknown[0]), MODE_OF_OPTIMIZER)
    return Fault(
        "algorithm.class", reference,
        f"its Settings.optimizers={names!r}; must be a tuple of {', '.join(MODE_OF_OPTIMIZER)}",
        f"Did you mean {near if is_tuple else (near,)}?" if near else "Name one or more of them.",
    )  # fmt: skip
