"""Simulator and agent in turn, with a policy that does not change: what serving repeats.

On the CPU, episodes that ended are looked for after every step. On a GPU every turn launches the
same work with masks and nothing waits for the device; with a pool, all of a turn but the step of
the environments is one CUDA graph.
"""

from __future__ import annotations

import torch

from gmi_drl.roles.envs.protocol import VecEnv
from gmi_drl.roles.graphs import Graph, Pool, capture_steps, static_on
from gmi_drl.roles.policies.actor import GreedyActor
from gmi_drl.roles.samples.batch import env_action
from gmi_drl.roles.samples.episodes import EpisodeStats
from gmi_drl.roles.samples.steady import Steady


class Simulation:
    """Environments that are acted in, what they show, and the episodes that ended.

    `static`: the way of a GPU, wherever the environments are (None: on all devices but the CPU).
    """

    def __init__(self, env: VecEnv, pool: Pool | None = None, static: bool | None = None) -> None:
        self.env = env
        self.static = static_on(env.device, static)
        self.observation = env.reset()  # [N, D], the environment's own
        self.episodes = EpisodeStats(env.num_env, env.device)
        self.to_env = env_action(env.action_space, env.device)
        self.steady = Steady()
        self._uncounted = False
        if pool is not None:
            capture_steps(env, pool)

    def step(self, action: torch.Tensor) -> None:
        """Takes one step of all environments, by actions of theirs (`to_env`).

        On the static way the episodes that ended with it are counted by `settle`, or else by
        `count`.
        """
        step = self.env.step(action)
        if not self.static:
            self.observation = step.observation
            self.episodes.add(step.reward, torch.logical_or(step.terminated, step.truncated))
            return
        self.steady.take(step)
        self.observation = self.steady.step.observation
        self._uncounted = True

    def settle(self) -> None:
        """Count the last step, if it is not."""
        if self._uncounted:
            self.count()
            self.counted()

    @torch.no_grad()
    def count(self) -> None:
        """The work of counting the last step: launches only."""
        step = self.steady.step
        self.episodes.add_masked(step.reward, torch.logical_or(step.terminated, step.truncated))

    def counted(self) -> None:
        """Notes that the last step has been counted."""
        self._uncounted = False


class Turns:
    """The agent of a `Simulation`; with a pool captured, from the third turn on."""

    def __init__(
        self, simulation: Simulation, actor: GreedyActor, pool: Pool | None = None
    ) -> None:
        self._simulation, self._actor, self._pool = simulation, actor, pool
        # What the environments are to do next; on the static way in the same tensor each time.
        self.action = simulation.to_env(actor.act(simulation.observation)).clone()
        self._graph: Graph | None = None
        self._captured_at = 0

    def infer(self) -> None:
        """Choose `action` for what the environments show; count the step that led there."""
        simulation, steady = self._simulation, self._simulation.steady
        if not simulation.static:
            self.action = simulation.to_env(self._actor.act(simulation.observation))
            return
        if self._pool is None or steady.taken < 2:  # the second step tells whether they stay
            simulation.settle()
            self._choose()
            return
        if self._graph is None or steady.moves != self._captured_at:
            self.close()
            self._captured_at = steady.moves
            self._graph = Graph(
                self._count_and_choose,
                simulation.env.device,
                keep=simulation.episodes.tensors,
                pool=self._pool,
                name="the work between two steps",
            )
        self._graph()
        simulation.counted()

    def close(self) -> None:
        """Let captured work and its memory go."""
        if self._graph is not None:
            self._graph.close()
            self._graph = None

    def _count_and_choose(self) -> None:
        self._simulation.count()
        self._choose()

    @torch.no_grad()
    def _choose(self) -> None:
        simulation = self._simulation
        self.action.copy_(simulation.to_env(self._actor.act(simulation.observation)))
