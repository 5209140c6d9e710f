"""Defines the config's schema, version 1. Unknown keys, wrong types and bad values are faults.

Every field has a description; docs/configuration.md is generated from them.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import (
    Field,
    SerializeAsAny,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from .algorithms import AlgorithmConfig, PPOConfig, algorithm_config, algorithms_of
from .search import SearchConfig
from .section import AUTO, CLASS_PATTERN, Section, broken
from .sections import (
    CommConfig,
    EnvConfig,
    ExperienceConfig,
    HardwareConfig,
    LayoutConfig,
    RunConfig,
    TuneConfig,
)

CONFIG_VERSION = 1


class RoleConfig(Section):
    """A class of yours that takes a role."""

    class_: str = Field(alias="class", pattern=CLASS_PATTERN)
    """The class, as `module:Class`. The module may lie beside the config file."""
    params: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of its `GMI_run`."""

    @model_validator(mode="before")
    @classmethod
    def _shorthand(cls, value: Any) -> Any:
        return {"class": value} if isinstance(value, str) else value

    @model_serializer
    def _with_its_name(self) -> dict[str, Any]:
        return {"class": self.class_, "params": self.params}


def with_algorithm(config: dict[str, Any]) -> dict[str, Any]:
    """Returns the keys of a config, with the algorithm that its mode trains by if it names none."""
    algorithm, names = config.get("algorithm", {}), algorithms_of(str(config.get("mode", "sync")))
    if not names or not isinstance(algorithm, dict) or "class" in algorithm:
        return config
    if names[0] == PPOConfig().name:  # which the section means by itself
        return config
    return {**config, "algorithm": {"name": names[0], **algorithm}}


class Config(Section):
    """A whole config."""

    version: Literal[1]
    """Version of this schema: 1."""
    run: RunConfig = RunConfig()
    """The run."""
    env: EnvConfig
    """The environment."""
    algorithm: SerializeAsAny[AlgorithmConfig] = PPOConfig()
    """The algorithm."""
    mode: Literal["sync", "async", "serving"] = "sync"
    """`sync`: all GMIs update the same policy at the same time; `async`: some GMIs collect
    experience with a policy that is a little old while others train on it; `serving`: simulate and
    infer only, nothing is learned."""
    hardware: HardwareConfig = HardwareConfig()
    """The devices to use."""
    layout: LayoutConfig = LayoutConfig()
    """The placement."""
    roles: dict[str, RoleConfig] = Field(default_factory=dict)
    """Classes of yours by role, for example `trainer: "my_module:MyTrainer"`, or `class` and
    `params` apart."""
    comm: CommConfig = CommConfig()
    """Communication."""
    experience: ExperienceConfig = ExperienceConfig()
    """The way of experience, in mode async."""
    tune: TuneConfig = TuneConfig()
    """How what says `auto` is found, by `gmi-drl tune`."""
    search: SearchConfig | None = None
    """Hyper-parameters to look for, by `gmi-drl search`."""

    @property
    def is_resolved(self) -> bool:
        """Tells whether nothing says `auto` that tuning has to find before this can run."""
        return AUTO not in (self.env.num_env, self.layout.gmi_per_gpu)

    @model_validator(mode="before")
    @classmethod
    def _algorithm_of_the_mode(cls, value: Any) -> Any:
        return with_algorithm(value) if isinstance(value, dict) else value

    @field_validator("algorithm", mode="before")
    @classmethod
    def _by_its_own_schema(cls, value: Any) -> Any:
        return algorithm_config(value) if isinstance(value, dict) else value

    @field_validator("layout")
    @classmethod
    def _file_and_auto(cls, value: LayoutConfig, info: ValidationInfo) -> LayoutConfig:
        env = info.data.get("env")
        if value.file is not None and env is not None and env.num_env == AUTO:
            raise broken(
                "its file says which GMIs there are, and env.num_env is auto: they are tuned "
                "together",
                "Give env.num_env, or a template in place of layout.file.",
            )
        return value

    @field_validator("tune")
    @classmethod
    def _objective_of_the_mode(cls, value: TuneConfig, info: ValidationInfo) -> TuneConfig:
        if info.data.get("mode") == "serving":
            for key, given, why in (
                ("objective", value.objective == "reward", "there is no return that rises"),
                ("batch", value.batch is not None, "there are no updates"),
            ):
                if given:
                    raise broken(
                        f"{key}={getattr(value, key)}; mode serving trains nothing, so {why}",
                        f"Leave out tune.{key}, or use mode sync or async.",
                    )
        return value

    @field_validator("version", mode="before")
    @classmethod
    def _known_version(cls, value: Any) -> Any:
        if type(value) is not int or value < CONFIG_VERSION:
            raise broken(
                f"must be {CONFIG_VERSION}", f"Write `version: {CONFIG_VERSION}` at the top."
            )
        if value > CONFIG_VERSION:
            raise broken(
                f"a config from the future: this gmi-drl reads version {CONFIG_VERSION}",
                "Upgrade gmi-drl, or write the config for this version.",
            )
        return value
