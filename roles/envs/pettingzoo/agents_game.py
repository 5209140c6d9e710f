"""Plays one environment of PettingZoo, whether its agents act together or take turns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from gmi_drl.roles.envs.errors import EnvError


class Outcome(NamedTuple):
    """Holds the results of a step or reset, by agent; agents without any are left out."""

    observations: dict[str, Any]  # of who acts next; the last ones of who has ended
    rewards: Mapping[str, float] = {}
    terminated: frozenset[str] = frozenset()
    truncated: frozenset[str] = frozenset()
    acting: frozenset[str] = frozenset()  # who acts next


class AgentsGame(Protocol):
    """Is one environment of several agents, of which some act in each step."""

    def reset(self, seed: int | None) -> Outcome:
        """Begins an episode."""

    def step(self, actions: dict[str, Any]) -> Outcome:
        """Acts for all agents that are `acting`."""

    def living(self) -> list[str]:
        """Returns the agents whose episode goes on."""

    def observe(self, agent: str) -> Any:
        """Returns what an agent sees that does not act next."""

    def owed(self, agent: str) -> float:
        """Returns what an agent that does not act next was paid since it acted."""


class ParallelGame:
    """Is an environment whose agents act together."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self._seen: dict[str, Any] = {}  # what each agent saw last
        self._acted: frozenset[str] = frozenset()  # in the last step

    def reset(self, seed: int | None) -> Outcome:
        self._seen = dict(self._env.reset(seed=seed)[0])
        return Outcome(self._seen, acting=frozenset(self._env.agents))

    def step(self, actions: dict[str, Any]) -> Outcome:
        new, all_rewards, terminated, truncated, _ = self._env.step(actions)
        self._acted = frozenset(actions)
        observations = dict(new)
        gone = actions.keys() - set(self._env.agents)
        # Some environments go on reporting agents that left before, whose episodes have ended.
        rewards = {agent: reward for agent, reward in all_rewards.items() if agent in actions}
        ended = {agent for agent in actions if terminated.get(agent)}
        cut = {agent for agent in actions if truncated.get(agent)}
        cut |= gone - ended  # they left without a word, and not by an end of the task
        # Some environments keep agents whose episode has ended among their agents.
        finished = {agent for flags in (terminated, truncated) for agent in flags if flags[agent]}
        for agent in (ended | cut) - observations.keys():
            observations[agent] = self._seen[agent]
        self._seen = observations
        acting = frozenset(self._env.agents) - finished - cut
        return Outcome(self._seen, rewards, frozenset(ended), frozenset(cut), acting)

    def living(self) -> list[str]:
        return [agent for agent in self._env.agents if agent in self._acted]  # others are new

    def observe(self, agent: str) -> Any:
        return self._seen[agent]

    def owed(self, agent: str) -> float:
        return 0.0


class TurnGame:
    """Is an environment whose agents take turns: one step is one turn of one of them.

    What an agent is paid until its next turn comes with the step before that.
    """

    def __init__(self, env: Any, env_id: str) -> None:
        self._env, self._env_id = env, env_id
        self._playing: set[str] = set()  # whose episode goes on
        self._seen: dict[str, Any] = {}  # what each agent saw last

    def reset(self, seed: int | None) -> Outcome:
        self._env.reset(seed=seed)
        self._playing, self._seen = set(), {}
        return self._next()

    def step(self, actions: dict[str, Any]) -> Outcome:
        (action,) = actions.values()
        self._env.step(action)
        return self._next()

    def _next(self) -> Outcome:
        """Removes agents whose episode has ended, until it is the turn of one that acts."""
        rewards: dict[str, float] = {}
        ends: dict[str, bool] = {}  # of agents whose episode is over, whether that is its end
        acting: frozenset[str] = frozenset()
        self._playing.update(self._env.agents)
        while self._env.agents and not acting:
            agent = self._env.agent_selection
            self._seen[agent], rewards[agent], is_terminated, is_truncated, _ = self._env.last()
            if not (is_terminated or is_truncated):
                acting = frozenset({agent})
                continue
            ends[agent] = bool(is_terminated)
            self._env.step(None)
            if agent in self._env.agents:
                raise EnvError(
                    f"env {self._env_id}: agent {agent} is still among its agents after "
                    "step(None), though its episode has ended; must have left. Call "
                    "self._was_dead_step(action) there."
                )
        terminations: Mapping[str, bool] = getattr(self._env, "terminations", {})
        gone = self._playing - ends.keys() - set(self._env.agents)
        for agent in gone & self._seen.keys():  # it has acted, and had no turn to learn of its end
            ends[agent] = bool(terminations.get(agent))
            rewards[agent] = self.owed(agent)
        self._playing &= set(self._env.agents)
        observations = {agent: self._seen[agent] for agent in rewards}
        terminated = frozenset(agent for agent, is_terminated in ends.items() if is_terminated)
        truncated = frozenset(ends) - terminated
        return Outcome(observations, rewards, terminated, truncated, acting)

    def living(self) -> list[str]:
        return list(self._env.agents)

    def observe(self, agent: str) -> Any:
        return self._env.observe(agent)

    def owed(self, agent: str) -> float:
        cumulative: Mapping[str, float] = getattr(self._env, "_cumulative_rewards", {})
        return float(cumulative.get(agent, 0.0))
