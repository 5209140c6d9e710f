"""Defines the config's section `multi_agent`: which policy acts for which agents."""

from __future__ import annotations

import re
from typing import Any, Final

from pydantic import Field, ValidationInfo, field_validator, model_validator

from .section import Int, Names, Section, broken

_NAME: Final = r"[A-Za-z]\w*"


class SelfPlayConfig(Section):
    """The policy learns by playing against snapshots of itself, and is rated against them."""

    snapshots: Int = Field(default=5, ge=1, le=1_000)
    """The league: so many snapshots, the last ones. In the beginning all are the policy that is
    begun with."""
    every: Int = Field(default=20, ge=1)
    """Iterations between two snapshots."""


class MultiAgentConfig(Section):
    """Which policy acts for which agents (adapter `pettingzoo`); without it one acts for all."""

    policies: Names = Field(default=("shared",), min_length=1)
    """Names of the policies, each with parameters of its own. Agents of one policy share these, and
    must have the same spaces."""
    mapping: dict[str, str] = Field(
        default_factory=lambda: {"*": "shared"}, min_length=1, validate_default=True
    )
    """The policy of each agent, by the agent's name or a pattern such as `wolf_*`; of patterns that
    fit a name the first one counts. Without it the policy acts for all agents, where there is one.
    """

    self_play: SelfPlayConfig | None = None
    """The one policy that all agents share acts for one of them in each environment, and its
    snapshots for the others; `{}` is the defaults, `null`: it acts for all. See
    [self-play](multi-agent.md#self-play)."""

    @model_validator(mode="before")
    @classmethod
    def _map_all(cls, value: Any) -> Any:
        """Maps all agents to a policy that is the only one, whatever its name."""
        match value:
            case {"policies": [str(name)]} if "mapping" not in value:
                return {**value, "mapping": {"*": name}}
        return value

    @field_validator("policies")
    @classmethod
    def _check_policies(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if not re.fullmatch(_NAME, name):
                raise broken(
                    f"has {name!r}, which is no name", "Use letters, digits and _, a letter first."
                )
        if len(set(value)) < len(value):
            raise broken("names a policy twice", "Name each policy once.")
        return value

    @field_validator("mapping")
    @classmethod
    def _check_mapping(cls, value: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        policies = info.data.get("policies")
        if policies is None:
            return value
        for pattern, policy in value.items():
            if policy not in policies:
                raise broken(
                    f"maps {pattern} to {policy}, and the policies are {', '.join(policies)}",
                    "Map it to one of these, or add the policy to multi_agent.policies.",
                )
        return value

    @field_validator("self_play")
    @classmethod
    def _check_self_play(
        cls, value: SelfPlayConfig | None, info: ValidationInfo
    ) -> SelfPlayConfig | None:
        policies = info.data.get("policies", ())
        if value is not None and len(policies) > 1:
            raise broken(
                f"a policy plays against itself, and there are {', '.join(policies)}",
                "Give one policy, or leave it out.",
            )
        return value
