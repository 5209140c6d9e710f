"""Steps environments whose agents are a team: each is one row of a batch."""

from __future__ import annotations

import numpy as np
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from torch import Tensor

from gmi_drl.roles.envs.agents import Team
from gmi_drl.roles.envs.errors import EnvActionError, EnvError, EnvSpecError
from gmi_drl.roles.envs.protocol import Step, VecEnvSpec, WithoutState

from .vec import PettingZooVecEnv


def make_pettingzoo(spec: VecEnvSpec) -> PettingZooVecEnv | TeamVecEnv:
    """Makes environments whose agents are rows, or columns of a row where they are a team."""
    env = PettingZooVecEnv(spec)
    return TeamVecEnv(env) if spec.of_team else env


class TeamVecEnv(WithoutState):
    """Steps E environments, each a row: its agents see, act and are paid as a team.

    Observations are those of all agents side by side [E, A D], actions one of each [E, A], and the
    reward is the mean of theirs. They must share a policy, choose among the same actions, and come
    and go together: EnvError if they do not.
    """

    def __init__(self, env: PettingZooVecEnv) -> None:
        """Raises EnvSpecError for agents that are no team."""
        self._env, self.env_id, self.device = env, env.env_id, env.device
        if faults := _team_faults(env):
            env.close()
            raise EnvSpecError(*faults)
        space = env.groups[0].action_space
        assert isinstance(space, Discrete)
        agents, width = len(env.agents), env.observation_space.shape[0]  # type: ignore[index]
        self.team = Team(agents, width, int(space.n))
        self.num_env, self.max_episode_steps = env.num_env // agents, env.max_episode_steps
        self.observation_space = Box(-np.inf, np.inf, (agents * width,), np.float32)
        starts = [int(space.start)] * agents
        self.action_space = MultiDiscrete([int(space.n)] * agents, start=starts)

    def reset(self, seed: int | None = None) -> Tensor:
        return self._side_by_side(self._env.reset(seed))

    def step(self, action: Tensor) -> Step:
        if tuple(action.shape) != (self.num_env, self.team.agents):
            shape = (self.num_env, self.team.agents)
            raise EnvActionError.of_shape(self.env_id, action.shape, shape)
        step = self._env.step(action.T.reshape(-1).long())
        reward, terminated, truncated = (column.view(self.team.agents, -1) for column in step[1:4])
        over = terminated | truncated
        if not bool((over == over[0]).all()) or not bool(self._env.present.all()):
            raise EnvError(
                f"env {self.env_id}: some of its agents have left, and others have not; a team "
                "must come and go together. Keep all to the end, or use algorithm.name: ppo."
            )
        final = step.final_observation
        return Step(
            observation=self._side_by_side(step.observation),
            reward=reward.mean(0),
            terminated=terminated.all(0),
            truncated=over[0] & ~terminated.all(0),
            final_observation=self._side_by_side(final),
        )

    def _side_by_side(self, rows: Tensor) -> Tensor:
        """Returns rows [A E, D] as [E, A D], copied."""
        return rows.view(self.team.agents, self.num_env, -1).transpose(0, 1).flatten(1).float()

    def close(self) -> None:
        self._env.close()


def _team_faults(env: PettingZooVecEnv) -> list[str]:
    if len(env.groups) > 1:
        names = ", ".join(group.policy for group in env.groups)
        return [
            f"multi_agent.policies={names}: agents of a team share one policy. Give one, or use "
            "algorithm.name: ppo."
        ]
    space = env.groups[0].action_space
    if not isinstance(space, Discrete):
        return [
            f"env.id: action space {space} of an agent; agents of a team choose, in a Discrete. "
            "Use algorithm.name: ppo."
        ]
    return []
