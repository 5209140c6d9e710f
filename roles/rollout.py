"""Experience of one iteration, laid out so that collecting and training copy nothing twice.

T = horizon, N = num_env of this GMI, D = observation width, A = action columns, P = distribution
parameters. One row of a rollout holds everything a minibatch needs:

    observation (normalised) D | action A | parameters P | value 1 | log-prob 1 | advantage 1 |
    return 1

`Collector` is the simulator and the agent of a GMI in one loop; it writes straight into the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor

from .envs.protocol import VecEnv
from .episodes import EpisodeStats
from .errors import NotFiniteError
from .normalize import RunningNormalizer
from .phases import phase
from .policy import ActorCritic


@dataclass(frozen=True)
class Columns:
    """Where each part of a row stands."""

    observation: slice
    action: slice
    parameters: slice
    head: slice  # parameters and value: what the network puts out
    value: int
    log_prob: int
    advantage: int
    ret: int
    width: int

    @classmethod
    def of(cls, obs_dim: int, action_columns: int, parameters: int) -> Columns:
        a = obs_dim + action_columns
        p = a + parameters
        return cls(
            slice(0, obs_dim), slice(obs_dim, a), slice(a, p), slice(a, p + 1),
            p, p + 1, p + 2, p + 3, p + 4,
        )  # fmt: skip


class Rollout:
    """The buffers of one iteration, allocated once."""

    def __init__(
        self, horizon: int, num_env: int, obs_dim: int, policy: ActorCritic, device: torch.device
    ) -> None:
        dist = policy.distribution
        self.columns = Columns.of(obs_dim, dist.action_columns, dist.parameters)
        self.rows = torch.zeros(horizon, num_env, self.columns.width, device=device)
        self.raw_observation = torch.zeros(horizon, num_env, obs_dim, device=device)
        self.reward = torch.zeros(horizon, num_env, device=device)
        self.ended = torch.zeros(horizon, num_env, dtype=torch.bool, device=device)
        self.done = torch.zeros(horizon, num_env, device=device)  # the same as numbers
        self.noise = torch.zeros(horizon, num_env, dist.noise_columns, device=device)
        self.last_value = torch.zeros(num_env, device=device)
        self.log_std = policy.log_std.detach().clone()  # of the policy that sampled

    def __getitem__(self, name: str) -> Tensor:
        """One part of the rows by its name: [T, N, width], or [T, N] for a single column."""
        part: Tensor = self.rows[..., getattr(self.columns, name)]
        return part

    @property
    def flat(self) -> Tensor:
        """The rows as one batch [T * N, width]."""
        return self.rows.flatten(0, 1)


@dataclass(frozen=True)
class _StepViews:
    """The parts of a rollout that step t fills; made once: a view costs as much as its copy."""

    raw_observation: Tensor
    observation: Tensor
    head: Tensor
    parameters: Tensor
    action: Tensor
    noise: Tensor
    reward: Tensor
    ended: Tensor

    @classmethod
    def of(cls, rollout: Rollout, t: int) -> _StepViews:
        rows, c = rollout.rows[t], rollout.columns
        return cls(
            rollout.raw_observation[t],
            rows[:, c.observation],
            rows[:, c.head],
            rows[:, c.parameters],
            rows[:, c.action],
            rollout.noise[t],
            rollout.reward[t],
            rollout.ended[t],
        )


class Collector:
    """Steps the environments with the policy for one horizon at a time."""

    def __init__(
        self,
        env: VecEnv,
        policy: ActorCritic,
        normalizer: RunningNormalizer | None,
        value_normalizer: RunningNormalizer | None,
        *,
        horizon: int,
        gamma: float,
        reward_scale: float,
        bootstrap_time_limit: bool,
        generator: torch.Generator,
    ) -> None:
        self._env = env
        self._policy = policy
        self._normalizer = normalizer
        self._value_normalizer = value_normalizer
        self._gamma = gamma
        self._reward_scale = reward_scale
        self._bootstrap = bootstrap_time_limit
        self._generator = generator
        self.episodes = EpisodeStats(env.num_env)
        self.observation = env.reset().clone()
        obs_dim = self.observation.shape[1]
        self.rollout = Rollout(horizon, env.num_env, obs_dim, policy, env.device)
        self._to_env = env_action(env.action_space, env.device)
        self._steps = [_StepViews.of(self.rollout, t) for t in range(horizon)]

    @torch.no_grad()
    def collect(self, iteration: int) -> tuple[float, float]:
        """Fill the rollout; returns the seconds spent in the simulator and in the agent."""
        r, policy, dist = self.rollout, self._policy, self._policy.distribution
        simulate_s, simulating = 0.0, phase("simulate")
        start = perf_counter()
        r.log_std.copy_(policy.log_std)
        dist.noise(r.noise.shape[:2], r.log_std, self._generator, r.noise)
        for t, at in enumerate(self._steps):
            at.raw_observation.copy_(self.observation)
            self._normalized(self.observation, at.observation)
            at.head.copy_(policy(at.observation))
            action = dist.sample(at.parameters, at.noise, at.action)
            before = perf_counter()
            with simulating:
                step = self._env.step(self._to_env(action))
            simulate_s += perf_counter() - before
            at.reward.copy_(step.reward)
            done = torch.logical_or(step.terminated, step.truncated, out=at.ended)
            self.observation = step.observation
            if self.episodes.add(step.reward, done) and self._bootstrap:
                cut = step.truncated & ~step.terminated
                self._bootstrap_cut(t, iteration, cut, step.final_observation)
        self.observation = self.observation.clone()  # the env's buffer is its own
        r.done.copy_(r.ended)
        self._finish(iteration)
        return simulate_s, perf_counter() - start - simulate_s

    def state_dict(self) -> dict[str, Any]:
        """Where simulation stands: environments, what they show, open episodes, the generator."""
        return {
            "env": self._env.state_dict(),
            "observation": self.observation,
            "episodes": self.episodes.state_dict(),
            "generator": self._generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> bool:
        """Go on as the one that gave it; False if its adapter could not save its environments,

        so that new episodes begin.
        """
        self._generator.set_state(state["generator"])
        if state["env"] is None:
            return False
        self._env.load_state_dict(state["env"])
        self.observation = state["observation"].to(self._env.device)
        self.episodes.load_state_dict(state["episodes"])
        return True

    def _normalized(self, observation: Tensor, out: Tensor) -> Tensor:
        if self._normalizer is None:
            return out.copy_(observation)
        return self._normalizer.normalize(observation, out=out)

    def _value(self, observation: Tensor) -> Tensor:
        value = self._policy(self._normalized(observation, _floats_like(observation)))[:, -1]
        return self._denormalized(value)

    def _denormalized(self, value: Tensor) -> Tensor:
        normalizer = self._value_normalizer
        return value if normalizer is None else normalizer.denormalize(value)

    def _bootstrap_cut(
        self, t: int, iteration: int, cut: Tensor, final_observation: Tensor
    ) -> None:
        # A time limit is not the end of the world: the cut episode is credited with the value
        # of the state it was cut in. The reward is scaled in _finish, so undo that here.
        rows = cut.nonzero().squeeze(-1)
        if rows.numel():
            final = final_observation[rows]
            bad = (~torch.isfinite(final).all(-1)).nonzero()
            if len(bad):
                raise NotFiniteError("final observation", int(rows[bad[0]]), t, iteration)
            future = self._value(final) * (self._gamma / self._reward_scale)
            self.rollout.reward[t, rows] += future

    def _finish(self, iteration: int) -> None:
        r, c = self.rollout, self.rollout.columns
        seen = r.raw_observation.sum() + self.observation.sum() + r.reward.sum()
        if not bool(torch.isfinite(seen)):
            shown = torch.cat([r.raw_observation[1:], self.observation[None]])
            raise _first_not_finite(shown, r.reward, iteration)
        if self._reward_scale != 1.0:
            r.reward.mul_(self._reward_scale)
        flat = r.flat
        flat[:, c.log_prob] = self._policy.distribution.log_prob(
            flat[:, c.parameters], r.log_std, flat[:, c.action]
        )
        flat[:, c.value] = self._denormalized(flat[:, c.value])
        r.last_value.copy_(self._value(self.observation))


def _floats_like(observation: Tensor) -> Tensor:
    return torch.empty_like(observation, dtype=torch.float32)  # images are bytes


def _first_not_finite(observation: Tensor, reward: Tensor, iteration: int) -> NotFiniteError:
    """Names the first bad entry of what each step showed [T, N, D] and paid [T, N]."""
    bad_reward = ~torch.isfinite(reward)
    where = (bad_reward | ~torch.isfinite(observation).all(-1)).nonzero()
    if not len(where):  # shown by the first reset, or finite and too large for float32
        return NotFiniteError("the first observation, or the sum of all,", 0, 0, iteration)
    step, env_index = (int(i) for i in where[0])
    what = "reward" if bad_reward[step, env_index] else "observation"
    return NotFiniteError(what, env_index, step, iteration)


def env_action(
    space: spaces.Space,  # type: ignore[type-arg]
    device: torch.device,
) -> Callable[[Tensor], Tensor]:
    """What turns a policy's action rows [N, A] into the environment's.

    A policy acts in [-1, 1]; a bounded Box is reached by clamping and scaling, an unbounded one
    gets the action as it is, Discrete gets an int64 vector [N].
    """
    if isinstance(space, spaces.Discrete):
        return lambda action: action[:, 0].long()  # from 0: adapters add the space's start
    assert isinstance(space, spaces.Box)
    if not space.is_bounded():
        return lambda action: action
    low = torch.as_tensor(space.low, dtype=torch.float32, device=device)
    high = torch.as_tensor(space.high, dtype=torch.float32, device=device)
    half, middle = (high - low) / 2, (high + low) / 2
    if bool((half == 1).all()) and bool((middle == 0).all()):
        return lambda action: action.clamp(-1.0, 1.0)
    return lambda action: torch.addcmul(middle, action.clamp(-1.0, 1.0), half)
