"""Says which policy acts for which agents of an environment, and how their rows lie.

E = environments of the batch, A = agents. A batch has a row for each agent of each environment. The
rows of one policy follow one another, and within them the rows of one agent, [A, E] in all.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from gymnasium import Space
from gymnasium.spaces import Box

from gmi_drl.placement import MultiAgentConfig
from gmi_drl.placement.faults import counted

from .spaces import action_columns, flat_space, space_faults


class AgentSpaces(NamedTuple):
    """Holds what one agent sees and does."""

    observation: Space[Any]
    action: Space[Any]


class Team(NamedTuple):
    """Says how agents are columns of a row, where they act together all the time."""

    agents: int
    width: int  # numbers that one of them sees
    choices: int  # actions of each


@dataclass(frozen=True)
class AgentGroup:
    """The agents that one policy acts for. It has their spaces, as an environment has its own."""

    policy: str
    agents: tuple[str, ...]
    structured_space: Space[Any]  # of observations before they become vectors
    action_space: Space[Any]

    @property
    def observation_space(self) -> Box:
        """Returns the space of the vectors that observations become."""
        return flat_space(self.structured_space)


class GroupedActions(Space[Any]):
    """Says that action rows differ: those of each group are of its space, and padded with 0."""

    def __init__(self, groups: Sequence[AgentGroup]) -> None:
        super().__init__()
        self.groups = tuple(groups)

    @property
    def columns(self) -> int:
        """Returns the numbers of the widest action."""
        return max(action_columns(group.action_space) for group in self.groups)

    def __repr__(self) -> str:
        parts = (f"{group.policy}: {group.action_space}" for group in self.groups)
        return f"GroupedActions({', '.join(parts)})"


def factory_of(env_id: str) -> Callable[..., Any]:
    """Returns the factory of an environment: parallel_env or env of `module`, or `module:name`.

    Raises what importing raises, and AttributeError where the module has neither.
    """
    module_name, _, name = env_id.partition(":")
    with warnings.catch_warnings():  # PettingZoo's modules say that they will be made otherwise
        warnings.simplefilter("ignore", DeprecationWarning)
        module = importlib.import_module(module_name)
    if name:
        named_factory: Callable[..., Any] = getattr(module, name)
        return named_factory
    factory: Callable[..., Any] | None = getattr(module, "parallel_env", None) or getattr(
        module, "env", None
    )
    if factory is None:
        raise AttributeError(f"{module_name} has no parallel_env and no env")
    return factory


def rows_of(groups: Sequence[AgentGroup], num_rows: int) -> list[slice]:
    """Returns which of `num_rows` rows belong to each group."""
    agents = sum(len(group.agents) for group in groups)
    slices, begin = [], 0
    for group in groups:
        end = begin + num_rows * len(group.agents) // agents
        slices.append(slice(begin, end))
        begin = end
    return slices


def grouped(
    env_id: str, spaces: Mapping[str, AgentSpaces], config: MultiAgentConfig | None
) -> tuple[list[AgentGroup], list[str]]:
    """Returns the agents of each policy, in the order of policies, and what is wrong with them."""
    config = config or MultiAgentConfig()
    agents: dict[str, list[str]] = {policy: [] for policy in config.policies}
    faults, used = [], set()
    for agent in spaces:
        fitting = (name for name in config.mapping if agent == name or fnmatchcase(agent, name))
        pattern = next(fitting, None)
        if pattern is None:
            faults.append(
                f"multi_agent.mapping={', '.join(config.mapping)}: agent {agent} of env {env_id} "
                "has no policy; each must have one. Add a line for it, or one for '*'."
            )
            continue
        used.add(pattern)
        agents[config.mapping[pattern]].append(agent)
    names = ", ".join(spaces)
    for pattern, policy in config.mapping.items():
        if pattern not in used:
            faults.append(
                f"multi_agent.mapping.{pattern}={policy}: it is the line of no agent of env "
                f"{env_id}, which has {names}; each must be of one or more. Remove or correct it, "
                "or put it before the lines that take its agents."
            )
    groups = []
    for policy, members in agents.items():
        if not members:
            if not any(policy == mapped for mapped in config.mapping.values()):
                faults.append(
                    f"multi_agent.policies={policy}: no agent is mapped to it; each must have one "
                    "or more. Add a line to multi_agent.mapping, or remove the policy."
                )
            continue
        shared = spaces[members[0]]
        different = [agent for agent in members if spaces[agent] != shared]
        for agent in different:
            faults.append(
                f"multi_agent.policies={policy}: agents {members[0]} and {agent} share its "
                f"parameters, and have different spaces: observation {shared.observation} and "
                f"{spaces[agent].observation}, action {shared.action} and {spaces[agent].action}; "
                "those that share must have the same. Give them policies of their own."
            )
        if not different:
            faults += space_faults(
                f"{env_id}, {_agents_text(members)}", shared.observation, shared.action
            )
        groups.append(AgentGroup(policy, tuple(members), shared.observation, shared.action))
    return groups, faults


def _agents_text(agents: Sequence[str]) -> str:
    return f"agent {agents[0]}" if len(agents) == 1 else counted(len(agents), "agent")
