"""Asynchronous training on gradients: each agent has one in flight, and the first is applied.

A3C as its paper has it (Mnih et al., 2016): agents sample and differentiate, the trainer holds the
parameters. The lag of a gradient is the number of steps that the gradients of others took since its
policy was sent. A round applies as many gradients as there are agents, whichever agents sent them.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from gmi_drl.comm import Group
from gmi_drl.comm.errors import LinkEnded
from gmi_drl.roles.errors import RoleError
from gmi_drl.roles.evaluators.gradients import Share
from gmi_drl.roles.evaluators.rollout_coordinator import RolloutCoordinator
from gmi_drl.roles.role.readiness import heartbeats_in, send_heartbeat
from gmi_drl.roles.samples.episodes import Seen
from gmi_drl.roles.telemetry.experience import ExperienceCodec, Use
from gmi_drl.roles.telemetry.phases import phase
from gmi_drl.roles.telemetry.progress import Progress

from . import round_steps
from .gradient_step import check_finite
from .in_flight import InFlight
from .learner import Learner
from .optimizer import NoMore, Optimizer, Round

if TYPE_CHECKING:
    from gmi_drl.roles.role.acting import ActingRole


ReceivedGradient = tuple[Tensor, list[float], Tensor, Tensor]  # see GradientCodec.unpack
_GENERATION: Final = 32  # bits of a count of gradients; the group's generation lies above them


def make(role: ActingRole) -> AsyncGradientRounds:
    """Make the optimizer of a role, over the agents that it is joined with."""
    role.build_for_spaces()
    return AsyncGradientRounds(role)


class AsyncGradientRounds(Optimizer):
    """Applies the gradients of agents as they come."""

    def __init__(self, role: ActingRole) -> None:
        mgr, context = role.mgr, role.mgr.context
        algorithm, settings = role.algorithm, role.algorithm.settings
        epochs, minibatches = getattr(settings, "epochs", 1), getattr(settings, "minibatches", 1)
        if epochs * minibatches > 1 or algorithm.whole_segments:
            raise RoleError(
                f"{type(algorithm).__name__} takes {epochs * minibatches} steps for each batch of "
                "rows or segments, and an agent sends one gradient of rows. Use all_reduce, or a2c."
            )
        self._mgr, self._algorithm = mgr, algorithm
        generator = torch.Generator(context.device).manual_seed(mgr.seed(1))
        self.learner = Learner(algorithm, generator)
        self._share = Share.of(
            role, self.learner.parameters, context.group.rank, context.group.size
        )
        self._codec, wires = self._share.codec, context.wires
        out = wires.out_of(mgr.GMI_id)
        self._agents = sorted(out)
        self._coordinator = RolloutCoordinator(
            out, wires.into(mgr.GMI_id), self._share.published.numel,
            dict.fromkeys(self._agents, self._codec), mgr.timeout,
            heartbeats=heartbeats_in(mgr.tally), still=self._send_heartbeat, device=context.device,
        )  # fmt: skip
        self._experience = ExperienceCodec(
            len(self._agents), is_recorded=mgr.config.run.lineage > 0
        )
        self.progress = Progress(mgr.layout, extra=self._experience.numel)
        self._asked_in: dict[int, int] = {}  # by agent: the iteration when it was asked last
        self._round_steps = round_steps(mgr.config, mgr.layout)
        self._total_steps = mgr.config.run.total_steps
        self._in_flight = InFlight(self._idle, self._ask, self._first_answer)
        self._iteration = 0
        self._counts: dict[int, int] = {}  # by agent: gradients since the group was re-formed

    def connect(self, group: Group, iteration: int) -> None:
        self.progress.connect(group)
        # From here on all trainers that hold pieces count the gradients of an agent alike.
        self._coordinator.forget()
        self._counts = dict.fromkeys(self._agents, group.generation << _GENERATION)
        self._connect(group)

    def _connect(self, group: Group) -> None:
        """Prepares to apply gradients in this group."""
        self.learner.connect(group)

    def step(self, iteration: int, steps: int) -> Round | NoMore:
        learner, start, self._iteration = self.learner, perf_counter(), iteration
        self._algorithm.before_sampling(steps)
        episodes, lags, train_s = Seen(0.0, 0.0, 0.0), [], 0.0
        seconds = {agent: [0.0, 0.0, 0.0, 0.0] for agent in self._agents}
        samples_each = self._round_steps / len(self._agents)
        uses = []
        learner.noise.begin(int(samples_each))
        for number in range(len(self._agents)):
            learner.anneal((steps + number * samples_each) / self._total_steps)
            try:
                with phase("wait"):
                    agent, answer, lag = self._in_flight.next(learner.updates)
            except LinkEnded:
                return NoMore(stopped=False)
            train_start = perf_counter()
            gradient, stats, moments, losses = answer
            lags.append(lag)
            with phase("train"):
                self._counts[agent] += 1
                self._apply(gradient, losses, moments)
            train_s += perf_counter() - train_start
            episodes = episodes.plus(Seen(*stats[:3]))
            seconds[agent] = [a + b for a, b in zip(seconds[agent], stats[3:-1], strict=True)]
            uses.append(Use(agent, int(stats[-1]), self._asked_in[agent], 1, int(samples_each)))
        means = self._end_round()
        check_finite(means)
        round_s = perf_counter() - start
        phases = (round_s - train_s, train_s, 0.0)
        extra = self._experience.pack(uses, max(lags))
        agreed = self.progress.agree(episodes, phases, self._mgr.stop_requested(), seconds, extra)
        metrics = {
            "steps_per_s": self._round_steps / round_s, **agreed.metrics,
            "gradient_lag_mean": sum(lags) / len(lags), "gradient_lag_max": max(lags), **means,
        }  # fmt: skip
        experience = self._experience.unpack(agreed.extra)
        return Round(self._round_steps, metrics, agreed.gmi_seconds, agreed.stop, experience)

    def _apply(self, gradient: Tensor, losses: Tensor, moments: Tensor) -> None:
        """Take a step down a gradient; see Learner.apply_with."""
        self.learner.apply_with(gradient, losses, moments)

    def _end_round(self) -> dict[str, float | None]:
        """Ends a round and returns the means of its losses, which may not be finite."""
        return self.learner.stats()

    def _idle(self) -> list[int]:
        return [agent for agent in self._agents if agent not in self._coordinator.asked]

    def _ask(self, agent: int) -> None:
        write = self._share.published.write
        self._asked_in[agent] = self._iteration
        self._coordinator.ask(agent, self._iteration, write, self._counts[agent])

    def _first_answer(self) -> tuple[int, ReceivedGradient]:
        answers: list[ReceivedGradient] = []

        def take(_: int, memory: Tensor) -> None:
            gradient, stats, moments, losses = self._codec.unpack(memory)
            answers.append((gradient.clone(), stats, moments, losses))

        return self._coordinator.first(take), answers[0]

    def _send_heartbeat(self) -> None:
        send_heartbeat(self._mgr.tally, self._mgr.GMI_id)

    def save_parts(self, begin: Callable[[], str], iteration: int) -> tuple[bool, str]:
        missing = begin() or self._coordinator.save(iteration)
        return missing is not None, missing or ""

    def finish(self) -> None:
        self._coordinator.dismiss()
