"""A replay of real steps, and beside it one of roll-outs of a learned model.

B = rows, O = numbers of an observation, A = of an action.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from gmi_drl.placement import MBPOConfig
from gmi_drl.roles.errors import RoleError
from gmi_drl.roles.models.fitting import ModelFit
from gmi_drl.roles.models.terminations import Termination, never
from gmi_drl.roles.policies.normalize import RunningNormalizer
from gmi_drl.roles.policies.off_policy import ExploringPolicy
from gmi_drl.roles.samples.batch import Batch

from .source import ReplayBuffer


class ModelReplay(ReplayBuffer):
    """Draws a fixed share of each minibatch from real steps, and the rest from the model's.

    The model is this GMI's own, as its replay is. It is trained on all real steps, and roll-outs
    are made with the policy of that time, once there are `replay_start` steps and after every
    `model_every` steps. Before that, as in a GMI that is restarted beside others, all is real.
    """

    fits_model = True

    def __init__(
        self,
        real: ReplayBuffer,
        settings: MBPOConfig,
        model: ModelFit,
        policy: ExploringPolicy,
        normalizer: RunningNormalizer | None,
        termination: Termination,
    ) -> None:
        super().__init__(
            real._storage, real._sampler, real.limiter, real.batch_size, real._generator
        )
        self._settings, self._model, self._policy = settings, model, policy
        self._normalizer, self._termination = normalizer, termination
        # Real rows since the model was trained; at `model_every` it is trained again.
        self._since = settings.model_every - settings.replay_start
        self._made: list[dict[str, Tensor]] = []  # the columns of the newest roll-outs, by time
        self._imagined: dict[str, Tensor] = {}  # the same, joined
        self._num_real = round(settings.real_share * real.batch_size)

    def put(self, batch: Batch) -> None:
        if self._termination is never and bool(batch["terminated"].any()):
            raise RoleError(
                "an episode was over before its time limit, and algorithm.termination=never has "
                "the model's episodes never end. Give termination the name of the environment's "
                "rule, or module:function."
            )
        super().put(batch)
        self._since += batch["reward"].numel()

    def take_back(self, rows: int) -> None:
        super().take_back(rows)
        self._since -= rows

    def model_is_due(self) -> bool:
        is_used = self._num_real < self.batch_size
        return is_used and self._since >= self._settings.model_every

    def fit_model(self) -> Iterator[None]:
        if not self._imagined and not self.model_is_due():
            return  # a GMI that is restarted beside others
        inputs, targets = self._real_rows()
        if len(inputs) > 1:  # one to train on, and one that is held out
            yield from self._model.fit(inputs, targets)
            yield from self._roll_out()
        self._since = 0

    def next(self) -> tuple[Batch, Tensor]:
        if not self._imagined:
            return super().next()
        real, places = self._draw_real(self._num_real)
        count = self.batch_size - self._num_real
        total, generator = len(self._imagined["reward"]), self._generator
        rows = torch.randint(total, (count,), generator=generator, device=generator.device)
        self.limiter.drawn += 1
        return Batch(
            {
                name: torch.cat([column, self._imagined[name].index_select(0, rows)])
                for name, column in real.columns.items()
            }
        ), places

    def feedback(self, keys: Tensor, priorities: Tensor | None) -> None:
        """Learns nothing: all rows are drawn alike."""

    def _draw_real(self, count: int) -> tuple[Batch, Tensor]:
        places, _ = self._sampler.draw(count, self._storage.rows, self._generator)
        return self._storage.gather(places, self._generator.device), places

    def _real_rows(self) -> tuple[Tensor, Tensor]:
        """Returns the inputs [B, O + A] and targets [B, O + 1] of all real steps."""
        storage = self._storage
        numbers = torch.arange(storage.rows.start, storage.rows.stop, device=storage.device)
        real = storage.gather(numbers % storage.places, self._generator.device)
        observation, next_observation = real["raw_observation"], real["next_observation"]
        inputs = torch.cat([observation, real["action"]], -1)
        targets = self._model.model.targets_of(observation, next_observation, real["reward"])
        finite = targets.isfinite().all(1)  # final observations may be NaN
        return inputs[finite], targets[finite]

    @torch.no_grad()
    def _roll_out(self) -> Iterator[None]:
        """Makes roll-outs from real steps, by the present policy and the best networks."""
        settings, generator, fit = self._settings, self._generator, self._model
        start, _ = self._draw_real(settings.rollouts)
        states, parts = start["raw_observation"], []
        draw: dict[str, Any] = {"generator": generator, "device": generator.device}
        for _ in range(settings.rollout_length):
            count = len(states)
            inputs = states if self._normalizer is None else self._normalizer.normalize(states)
            noise = torch.randn(count, self._policy.noise_columns, **draw)
            action = self._policy.explore(self._policy.network.actor(inputs), noise)
            elites = fit.elites[torch.randint(len(fit.elites), (count,), **draw)]
            noise = torch.randn(count, fit.model.targets, **draw)
            next_states, reward = fit.model.sample(states, action, elites, noise)
            is_over = self._termination(states, action, next_states)
            parts.append(
                {
                    "raw_observation": states, "action": action, "reward": reward,
                    "next_observation": next_states,
                    "discount": torch.where(is_over, 0.0, settings.gamma),
                }
            )  # fmt: skip
            yield
            states = next_states[~is_over]
            if not len(states):
                break
        rollout = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        self._keep([*self._made, rollout][-settings.rollouts_kept :])

    def _keep(self, made: list[dict[str, Tensor]]) -> None:
        self._made = made
        names = made[0] if made else {}
        self._imagined = {name: torch.cat([rollout[name] for rollout in made]) for name in names}

    def metrics(self) -> dict[str, Any]:
        metrics = {"model_rows": len(self._imagined.get("reward", ()))}
        error = self._model.error
        return super().metrics() | metrics | ({} if error is None else {"model_error": error})

    def state_dict(self) -> dict[str, Any]:
        imagined = {"model": self._model.state_dict(), "made": self._made, "since": self._since}
        return super().state_dict() | {"imagined": imagined}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        saved: Mapping[str, Any] = state["imagined"]
        self._model.load_state_dict(saved["model"])
        device = self._generator.device
        self._keep([{n: c.to(device) for n, c in rollout.items()} for rollout in saved["made"]])
        self._since = saved["since"]
