"""Plays an episode by each of many perturbed policies, one in each environment at a time."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from torch import Tensor

from gmi_drl.roles.envs.errors import EnvActionError
from gmi_drl.roles.envs.protocol import Step, VecEnv
from gmi_drl.roles.policies.normalize import RunningNormalizer
from gmi_drl.roles.policies.perturbed import GreedyNetwork, PerturbedPolicies
from gmi_drl.roles.samples.batch import env_action
from gmi_drl.roles.telemetry.clock import Clock
from gmi_drl.roles.telemetry.phases import phase
from gmi_drl.runtime.process.progress import beat

_KEPT_STEPS: Final = 16
_NOISE: Final = 8  # the stream of seeds that directions are drawn by
_EPISODES: Final = 9  # the stream of seeds of the episodes that they are tried in
RETURN: Final = 0  # the column of a row that has the undiscounted return
STEPS: Final = 1  # the column of the episode's steps; sums of observations follow


def direction_of(seed: int, number: int, index: int, out: Tensor) -> Tensor:
    """Fills `out` [n] with direction `index` of round `number`: standard normal, by seeds alone."""
    generator = torch.Generator().manual_seed(_seed_from(seed, _NOISE, number, index))
    return torch.randn(out.shape, generator=generator, out=out)


def _seed_from(*words: int) -> int:
    return int(np.random.SeedSequence(words).generate_state(1)[0])


class PerturbedEpisodes:
    """Tries directions around parameters, each both ways, in episodes that begin alike.

    What comes of a direction depends on the run's seed, the round and the direction's number, and
    not on the environment or the GMI that it is tried in. N = environments, D = width of an
    observation, W = 2 + 2 D, or 2 where observations are not normalised.
    """

    def __init__(
        self,
        env: VecEnv,
        network: GreedyNetwork,
        normalizer: RunningNormalizer | None,
        *,
        seed: int,
        longest: int,
        noise: float,
    ) -> None:
        """`longest`: the steps after which an episode is cut, if the environment does not."""
        self._env, self._normalizer = env, normalizer
        self._policies, self._seed, self._noise = PerturbedPolicies(network), seed, noise
        self._longest = min(longest, env.max_episode_steps or longest)
        self._to_env = env_action(env.action_space, env.device)
        self.width = 2 if normalizer is None else 2 + 2 * normalizer.width
        self._window = _StepWindow(env.num_env, (self.width - 2) // 2, env.device)
        self.clock = Clock(env.device)

    @torch.no_grad()
    def play(self, parameters: Tensor, number: int, directions: range) -> Tensor:
        """Returns what came of `directions` in round `number`, both ways: [directions, 2, W].

        Rows have the undiscounted return and the steps of an episode, and where observations are
        normalised the sums of those and of their squares, less the present means.
        `parameters` [n]: those that are perturbed, on the CPU.
        """
        rows = torch.zeros(len(directions), 2, self.width, dtype=torch.float64)
        num_env = self._env.num_env
        # The seed of the last environment is below 2^31.
        first_seed = _seed_from(self._seed, _EPISODES, number) >> 2
        noise = torch.zeros(num_env, len(parameters))
        for begin in range(0, len(directions), num_env):
            indices = directions[begin : begin + num_env]
            for direction, index in zip(noise, indices, strict=False):
                direction_of(self._seed, number, index, direction)
            # Environments that are left over try again what was drawn there before, or nothing.
            for side, sign in enumerate((self._noise, -self._noise)):
                self._policies.load(torch.add(parameters, noise, alpha=sign).to(self._env.device))
                played = self._episode(first_seed + indices[0], len(indices))
                rows[begin : begin + len(indices), side] = played[: len(indices)].cpu()
        return rows

    def _episode(self, seed: int, count: int) -> Tensor:
        """Plays an episode in each of the first environments; returns their rows [N, W] of `play`.

        Those that are left over are stepped beside them, and not waited for.
        """
        env, clock, simulating, window = self._env, self.clock, phase("simulate"), self._window
        rows = torch.zeros(env.num_env, self.width, dtype=torch.float64, device=env.device)
        running = torch.arange(env.num_env, device=env.device) < count
        on_host = env.device.type == "cpu"
        clock.begin("simulate")
        observation = env.reset(seed)
        clock.begin("infer")
        for number in range(self._longest):
            beat("rollout")
            column = number % _KEPT_STEPS
            normal = observation.to(torch.float32)  # images are bytes
            observation_sum = None
            if self._normalizer is None:
                observation_sum = normal.sum(1)  # now: a step may write over it
            else:
                window.observation[column].copy_(normal)
                normal = self._normalizer.normalize(normal)
            actions = self._policies.act(normal)
            clock.begin("simulate")
            with simulating:
                step = self._step(actions)
            clock.begin("infer")
            reward = window.reward[column].copy_(step.reward)
            if observation_sum is not None:
                reward.add_(observation_sum, alpha=0.0)  # NaN where it is not finite
            ended = torch.logical_or(step.terminated, step.truncated, out=window.ended[column])
            observation = step.observation
            # A GPU is waited for when what is kept is summed up.
            is_last = number + 1 == self._longest
            if on_host and ended.any():
                is_last = is_last or not bool((running & window.alive(column + 2)[:, -1]).any())
            if is_last or column + 1 == _KEPT_STEPS:
                running = window.add_to(rows, running, column + 1, self._normalizer)
                if is_last or not bool(running.any()):
                    break
        clock.stop()
        return rows

    def _step(self, actions: Tensor) -> Step:
        """Steps by action rows [N, A]; one that is not finite pays NaN, and 0 is done instead."""
        try:
            return self._env.step(self._to_env(actions))
        except EnvActionError:  # raised before anything is stepped
            invalid = ~actions.isfinite().all(1)
            if not invalid.any():
                raise
        step = self._env.step(self._to_env(actions.nan_to_num(0.0, 0.0, 0.0)))
        return step._replace(reward=step.reward.masked_fill(invalid, torch.nan))


class _StepWindow:
    """The last few steps of N environments, which are summed up together.

    Sums are over all that has room here, with 0 for what does not count, so that they are the same
    whatever other environments do.
    """

    def __init__(self, num_env: int, width: int, device: torch.device) -> None:
        """`width`: of observations; 0: they are not kept."""
        self._observations = torch.zeros(num_env, width, _KEPT_STEPS, device=device)
        self._rewards = torch.zeros(num_env, _KEPT_STEPS, dtype=torch.float64, device=device)
        self._ended = torch.zeros(num_env, _KEPT_STEPS, dtype=torch.bool, device=device)
        # Views made once: to make one costs as much as what is done with it.
        self.observation = self._observations.unbind(-1)
        self.reward, self.ended = self._rewards.unbind(-1), self._ended.unbind(-1)

    def alive(self, count: int) -> Tensor:
        """Tells which environments [N, count] had not ended before each of the first steps."""
        ended = self._ended[:, : count - 1].to(torch.int8).cumsum(1)
        return torch.cat([ended.new_zeros(len(ended), 1), ended], 1) == 0

    def add_to(
        self, rows: Tensor, running: Tensor, count: int, normalizer: RunningNormalizer | None
    ) -> Tensor:
        """Adds the first `count` steps to `rows` [N, W] where episodes are `running` [N].

        Returns which still are.
        """
        alive = running[:, None] & self.alive(_KEPT_STEPS + 1)
        running = alive[:, count].clone()
        counts = alive[:, :_KEPT_STEPS]
        counts[:, count:] = False
        rows[:, RETURN] += self._rewards.masked_fill(~counts, 0.0).sum(-1)
        rows[:, STEPS] += counts.sum(-1)
        if normalizer is not None:
            centred = (self._observations - normalizer.mean[:, None]).double()
            centred.masked_fill_(~counts[:, None], 0.0)
            width = normalizer.width
            rows[:, 2 : 2 + width] += centred.sum(-1)
            rows[:, 2 + width :] += centred.square_().sum(-1)
        return running
