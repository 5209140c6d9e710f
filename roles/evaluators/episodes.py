"""Plays an episode by each of many perturbed policies, one in each environment at a time."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from torch import Tensor

from gmi_drl.comm.shm.heartbeat import beat
from gmi_drl.roles.envs.protocol import VecEnv
from gmi_drl.roles.policies.normalize import RunningNormalizer
from gmi_drl.roles.policies.perturbed import GreedyNetwork, PerturbedPolicies
from gmi_drl.roles.samples.batch import env_action
from gmi_drl.roles.telemetry.clock import Clock
from gmi_drl.roles.telemetry.phases import phase

_STEPS_BETWEEN_LOOKS: Final = 50  # at a GPU: whether an episode goes on
_NOISE: Final = 8  # the stream of seeds that directions are drawn by
_EPISODES: Final = 9  # and that of the episodes that they are tried in
RETURN: Final = 0  # the column of a row that has the undiscounted return
STEPS: Final = 1  # and the steps of the episode; sums of what was seen follow


def direction_of(seed: int, number: int, index: int, out: Tensor) -> Tensor:
    """Fills `out` [n] with direction `index` of round `number`: standard normal, by seeds alone."""
    generator = torch.Generator().manual_seed(_mixed(seed, _NOISE, number, index))
    return torch.randn(out.shape, generator=generator, out=out)


def _mixed(*words: int) -> int:
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
        first = _mixed(self._seed, _EPISODES, number) >> 2  # that of the last is below 2^31
        noise = torch.empty(num_env, len(parameters))
        for begin in range(0, len(directions), num_env):
            part = directions[begin : begin + num_env]
            for at, index in zip(noise, part, strict=False):
                direction_of(self._seed, number, index, at)
            # Environments that are left over try again what was drawn there before.
            for side, sign in enumerate((self._noise, -self._noise)):
                self._policies.load(torch.add(parameters, noise, alpha=sign).to(self._env.device))
                played = self._episode(first + part[0])
                rows[begin : begin + len(part), side] = played[: len(part)].cpu()
        return rows

    def _episode(self, seed: int) -> Tensor:
        """Plays one episode in each environment, and returns its row [N, W] of `play`."""
        env, clock, simulating = self._env, self.clock, phase("simulate")
        rows = torch.zeros(self.width, env.num_env, dtype=torch.float64, device=env.device)
        returns, steps, seen = rows[RETURN], rows[STEPS], rows[2:].view(2, -1, env.num_env)
        running = torch.ones(env.num_env, dtype=torch.bool, device=env.device)
        on_host = env.device.type == "cpu"
        clock.begin("simulate")
        observation = env.reset(seed)
        clock.begin("infer")
        for step_number in range(self._longest):
            beat("rollout")
            normal = observation.to(torch.float32)  # images are bytes
            if self._normalizer is not None:
                centred = (normal - self._normalizer.mean).T.double()
                centred = centred.masked_fill_(~running, 0.0)
                seen[0] += centred
                seen[1] += centred.square_()
                normal = self._normalizer.normalize(normal)
            action = self._to_env(self._policies.act(normal))
            clock.begin("simulate")
            with simulating:
                step = env.step(action)
            clock.begin("infer")
            returns += step.reward.double().masked_fill_(~running, 0.0)
            steps += running
            running &= ~(step.terminated | step.truncated)
            observation = step.observation
            looks = on_host or step_number % _STEPS_BETWEEN_LOOKS == 0
            if looks and not bool(running.any()):
                break
        clock.stop()
        return rows.T
