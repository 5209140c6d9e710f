"""Steps PettingZoo's environments as a batch, in which each agent of each is a row.

E = environments, A = agents that there may be, N = A E rows (see `agents`), D = the widest
observation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box
from torch import Tensor

from gmi_drl.roles.envs.agents import (
    AgentGroup,
    AgentSpaces,
    GroupedActions,
    factory_of,
    grouped,
)
from gmi_drl.roles.envs.buffers import HostBuffers, finite_rows, torch_dtype
from gmi_drl.roles.envs.errors import EnvError, EnvRaised, EnvSpecError, env_error
from gmi_drl.roles.envs.flatten import Flattener, unflattened_action
from gmi_drl.roles.envs.protocol import Step, VecEnvSpec, WithoutState
from gmi_drl.roles.envs.spaces import action_columns, action_shape
from gmi_drl.roles.envs.watched import difference

from .agents_game import AgentsGame, Outcome, ParallelGame, TurnGame


class PettingZooVecEnv(WithoutState):
    """Steps N rows, one for each agent of each of E environments; `num_env` is N.

    `present` [N] says which rows act next. Of others nothing is asked, and what is paid to them
    belongs to what they did last. Each agent has episodes of its own: one ends when the agent
    leaves, and the next begins when all agents have left and the environment is reset. `begun` [N]
    says for which rows that was with the last step. `groups` says which rows belong to which
    policy; where there are several, observations and actions are padded to the widest.
    """

    def __init__(self, spec: VecEnvSpec) -> None:
        self.env_id, self.device = spec.env_id, spec.device
        self.max_episode_steps, self._count = spec.max_episode_steps, spec.num_env
        make = factory_of(spec.env_id)
        self._envs: list[Any] = []
        try:
            for _ in range(self._count):
                self._envs.append(make(**spec.options))
            spaces = self._spaces(self._envs[0])
        except Exception as error:
            with suppress(EnvRaised):  # the first error is told
                self.close()
            raise env_error(self.env_id, "constructor", error) from error
        groups, faults = grouped(spec.env_id, spaces, spec.multi_agent)
        if faults:
            self.close()
            raise EnvSpecError(*faults)
        self.groups: tuple[AgentGroup, ...] = tuple(groups)
        self.agents = [agent for group in groups for agent in group.agents]
        self._games: list[AgentsGame] = [
            TurnGame(env, spec.env_id) if hasattr(env, "last") else ParallelGame(env)
            for env in self._envs
        ]
        self.num_env = len(self.agents) * self._count
        self.observation_space: gymnasium.Space[Any]
        self.action_space: gymnasium.Space[Any]
        if len(groups) == 1:
            self.structured_space = groups[0].structured_space
            self.observation_space = flat = groups[0].observation_space
            self.action_space = groups[0].action_space
            dtype = torch_dtype(flat, spec.dtype)
            self._action_shape = action_shape(self.action_space, self.num_env)
        else:
            width = max(group.observation_space.shape[0] for group in groups)
            self.observation_space = flat = Box(-np.inf, np.inf, (width,), np.float32)
            self.action_space = GroupedActions(groups)
            dtype = spec.dtype
            self._action_shape = (self.num_env, self.action_space.columns)
        self._rows = [
            _Rows(self.env_id, group, agent) for group in groups for agent in group.agents
        ]
        self._number = {agent: number for number, agent in enumerate(self.agents)}
        self._buffers = HostBuffers(self.num_env, flat.shape, dtype, spec.dtype, spec.device)
        self._acting = torch.zeros(self.num_env, dtype=torch.bool)
        self._restarted = torch.zeros(self.num_env, dtype=torch.bool)
        # [N], the same tensors at all times.
        self.present, self.begun = self._acting.to(spec.device), self._restarted.to(spec.device)
        self._steps = [0] * self._count
        self._seed: int | None = spec.seed

    def _spaces(self, env: Any) -> dict[str, AgentSpaces]:
        possible = getattr(env, "possible_agents", None)
        agents = list(possible) if isinstance(possible, Iterable) else []
        if not agents:
            raise EnvSpecError(
                f"env.id={self.env_id!r}: its environment has no possible_agents; must name all "
                "agents that there may be. Define it, as PettingZoo's interface says."
            )
        if wrong := [agent for agent in agents if not isinstance(agent, str)]:
            raise EnvSpecError(
                f"env.id={self.env_id!r}: its possible_agents have {wrong[0]!r}, which is no str; "
                "agents go by names, as in multi_agent.mapping. Name them, as agent_0."
            )
        return {
            agent: AgentSpaces(env.observation_space(agent), env.action_space(agent))
            for agent in agents
        }

    def reset(self, seed: int | None = None) -> Tensor:
        seed, self._seed = self._seed if seed is None else seed, None  # the first is the given one
        self._buffers.observation[...] = 0
        self._acting.zero_()
        for i in range(self._count):
            self._begin_episode(i, None if seed is None else seed + i)
        self._publish_present()
        return self._buffers.publish_reset()

    def step(self, action: Tensor) -> Step:
        b, acting = self._buffers, self._acting.numpy()
        rows = finite_rows(self.env_id, action, self._action_shape)
        actions_of = [row.actions(rows[self._rows_of_game(n)]) for n, row in enumerate(self._rows)]
        b.reward[...] = 0
        b.terminated[...] = False
        b.truncated[...] = False
        self._restarted.zero_()
        ended: list[int] = []
        for i, game in enumerate(self._games):
            present = [n for n in range(len(self.agents)) if acting[n * self._count + i]]
            actions = {self.agents[n]: actions_of[n](i) for n in present}
            try:
                outcome = game.step(actions)
            except Exception as error:
                raise env_error(self.env_id, f"step of environment {i}", error) from error
            ended += self._write_outcome(i, game, outcome)
        self._publish_present()
        if not ended:
            return b.publish(any_done=False)
        running = np.ones(self.num_env, dtype=bool)
        running[ended] = False
        b.final_observation[running] = b.observation[running]
        return b.publish(any_done=True)

    def _write_outcome(self, i: int, game: AgentsGame, outcome: Outcome) -> list[int]:
        """Writes the outcome of a step of environment `i`.

        Returns the rows whose final observations were written: rows whose episode ended, and all
        rows of an environment that begins anew.
        """
        b = self._buffers
        self._steps[i] += 1
        for agent, reward in outcome.rewards.items():
            try:
                b.reward[self._row(agent, i)] = reward
            except (TypeError, ValueError):
                raise EnvError(
                    f"env {self.env_id}: environment {i}: agent {agent} was paid {reward!r}; must "
                    "be a number. Mend its step."
                ) from None
        truncated, acting = set(outcome.truncated), outcome.acting
        if self.max_episode_steps is not None and self._steps[i] >= self.max_episode_steps:
            acting = frozenset()
            truncated |= set(game.living()) - outcome.terminated
            for agent in truncated - outcome.rewards.keys():  # it has no turn any more
                b.reward[self._row(agent, i)] = game.owed(agent)
        ended: list[int] = []
        for agent in outcome.terminated | truncated:
            row = self._row(agent, i)
            ended.append(row)
            b.terminated[row] = agent in outcome.terminated
            b.truncated[row] = agent in truncated
            seen = outcome.observations.get(agent)
            self._write(agent, i, game.observe(agent) if seen is None else seen, final=True)
        if acting:
            self._show(i, acting, outcome.observations)
            return ended
        # What agents that had left before see next belongs to another episode.
        gone = [row for row in range(i, self.num_env, self._count) if row not in ended]
        b.final_observation[gone] = 0
        self._begin_episode(i, None)
        return ended + gone

    def _begin_episode(self, i: int, seed: int | None) -> None:
        """Begins an episode of environment `i`."""
        try:
            outcome = self._games[i].reset(seed)
        except Exception as error:
            raise env_error(self.env_id, f"reset of environment {i}", error) from error
        self._steps[i] = 0
        self._restarted[i :: self._count] = True
        if not outcome.acting:
            raise EnvError(
                f"env {self.env_id}: environment {i}: its reset left no agent that acts; there "
                "must be one or more. Mend its agents."
            )
        self._show(i, outcome.acting, outcome.observations)

    def _show(self, i: int, acting: frozenset[str], observations: Mapping[str, Any]) -> None:
        self._acting[i :: self._count] = False
        self._buffers.observation[i :: self._count] = 0
        for agent in sorted(acting):
            self._acting[self._row(agent, i)] = True
            if agent not in observations:
                raise EnvError(
                    f"env {self.env_id}: environment {i}: agent {agent} is among its agents, and "
                    "was given no observation; each must be. Mend its step or reset."
                )
            self._write(agent, i, observations[agent])

    def _write(self, agent: str, i: int, observation: Any, final: bool = False) -> None:
        out = self._buffers.final_observation if final else self._buffers.observation
        self._rows[self._number[agent]].write(observation, out[self._row(agent, i)], i)

    def _row(self, agent: str, i: int) -> int:
        try:
            return self._number[agent] * self._count + i
        except KeyError:
            raise EnvError(
                f"env {self.env_id}: agent {agent} is not among its possible_agents, "
                f"{', '.join(self.agents)}; must be. Mend the environment."
            ) from None

    def _rows_of_game(self, number: int) -> slice:
        return slice(number * self._count, (number + 1) * self._count)

    def _publish_present(self) -> None:
        self.present.copy_(self._acting)
        self.begun.copy_(self._restarted)

    def row_name(self, row: int) -> str:
        """Says which agent of which environment a row is."""
        return f"agent {self.agents[row // self._count]} of environment {row % self._count}"

    def close(self) -> None:
        envs, self._envs = self._envs, []
        try:
            with ExitStack() as stack:
                for env in envs:
                    stack.callback(env.close)
        except Exception as error:
            raise EnvRaised.of(self.env_id, "close", error) from error


class _Rows:
    """Writes the observations of one agent, and reads its actions."""

    def __init__(self, env_id: str, group: AgentGroup, agent: str) -> None:
        self._space, self._action_space = group.structured_space, group.action_space
        self._flattener = Flattener(
            self._space, env_id, lambda i: f"environment {i}, agent {agent},"
        )
        self._env_id, self._agent = env_id, agent
        self._width = self._flattener.flat.shape[0]
        self._columns = action_columns(self._action_space)
        self._is_box = isinstance(self._space, Box)
        self._fitting: np.dtype[Any] | None = None  # of an array of a Box that was looked at

    def write(self, observation: Any, out: Any, i: int) -> None:
        """Writes the vector of an observation into the beginning of `out` [D]."""
        is_array = type(observation) is np.ndarray
        is_known = is_array and observation.dtype is self._fitting
        if is_known and observation.shape == self._space.shape:
            out[: self._width] = observation.ravel()
            return
        if broken := difference(self._space, observation):
            given, expected = broken
            raise EnvError(
                f"env {self._env_id}: environment {i}: agent {self._agent} was given {given}; must "
                f"be {expected}, at every reset and step. Mend the environment, or its spaces."
            )
        if self._is_box and is_array:
            self._fitting = observation.dtype
        self._flattener.write_one(observation, out[: self._width], i)

    def actions(self, rows: Any) -> Callable[[int], Any]:
        """Returns what gives the action of environment i, of action rows [E, ...] of this agent."""
        batched = unflattened_action(self._action_space, rows[:, : self._columns])
        return lambda i: _action_at(batched, i)


def _action_at(batched: Any, i: int) -> Any:
    """Returns the action of environment `i` of batched ones."""
    if isinstance(batched, dict):
        return {key: _action_at(part, i) for key, part in batched.items()}
    if isinstance(batched, tuple):
        return tuple(_action_at(part, i) for part in batched)
    action = batched[i]
    return int(action) if np.ndim(action) == 0 else action
