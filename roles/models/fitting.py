"""Trains an ensemble on kept steps, until the error on held out steps falls no more."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any, Final

import torch
from torch import Tensor

from gmi_drl.placement import MBPOConfig

from .ensemble import EnsembleModel

_ROWS: Final = 8_192  # held out rows that are tried at once
_BETTER: Final = 0.01  # the least share of its error that a network must lose to count as better


class ModelFit:
    """The model of one GMI: an ensemble, its optimizer, and its best networks."""

    def __init__(
        self, model: EnsembleModel, settings: MBPOConfig, generator: torch.Generator
    ) -> None:
        """`generator` draws the rows that are held out, and the order of the others."""
        self.model, self._settings, self._generator = model, settings, generator
        # Not optimizers.descent, which follows a policy's settings and has no weight decay.
        self._optimizer = torch.optim.Adam(model.parameters())
        self._set_hyperparameters()
        self.elites = torch.arange(settings.elites, device=generator.device)
        self.error: float | None = None  # of the elites on held out steps; None: it is not trained

    def fit(self, inputs: Tensor, targets: Tensor) -> Iterator[None]:
        """Trains on rows [B, O + A] and [B, K], B >= 2; keeps the best state of each network.

        It yields after each part of the work, so that others can be told that it goes on.
        """
        model, settings, generator = self.model, self._settings, self._generator
        model.scale_by(inputs, targets)
        order = torch.randperm(len(inputs), generator=generator, device=generator.device)
        num_held = min(max(int(settings.holdout * len(inputs)), 1), len(inputs) - 1)
        held_out, training = order[:num_held], order[num_held:]
        test_rows = inputs[held_out], targets[held_out]
        best = yield from self._errors(*test_rows)
        per_network = [*model.weights, *model.biases]
        saved = [parameter.detach().clone() for parameter in per_network]
        waited = 0
        for _ in range(settings.model_epochs):
            yield from self._train_epoch(inputs, targets, training)
            errors = yield from self._errors(*test_rows)
            better = errors < (1.0 - _BETTER) * best
            best = torch.where(better, errors, best)
            for best_parameter, parameter in zip(saved, per_network, strict=True):
                best_parameter[better] = parameter.detach()[better]
            waited = 0 if bool(better.any()) else waited + 1
            if waited >= settings.model_patience:
                break
        with torch.no_grad():
            for best_parameter, parameter in zip(saved, per_network, strict=True):
                parameter.copy_(best_parameter)
        self.elites = best.argsort()[: settings.elites]
        self.error = float(best[self.elites].mean())

    def _errors(self, inputs: Tensor, targets: Tensor) -> Generator[None, None, Tensor]:
        """Returns the mean squared error [M] of each network, as `EnsembleModel.errors` does."""
        total = torch.zeros(self.model.members, device=inputs.device)
        parts = zip(torch.split(inputs, _ROWS), torch.split(targets, _ROWS), strict=True)
        for input_rows, target_rows in parts:
            total += len(input_rows) * self.model.errors(input_rows, target_rows)
            yield
        return total / len(inputs)

    def _train_epoch(self, inputs: Tensor, targets: Tensor, kept: Tensor) -> Iterator[None]:
        """Trains every network once on rows `kept`, each in an order of its own."""
        model, settings = self.model, self._settings
        draws = torch.rand(model.members, len(kept), generator=self._generator, device=kept.device)
        for rows in torch.split(kept[draws.argsort(1)], settings.model_batch_size, 1):
            self._optimizer.zero_grad(set_to_none=True)
            loss = model.loss(inputs[rows], targets[rows], settings.model_beta)
            torch.autograd.backward(loss)
            self._optimizer.step()
            yield

    def state_dict(self) -> dict[str, Any]:
        """Returns what goes on in a checkpoint, partly the tensors themselves."""
        scales = {name: buffer for name, buffer in self.model.named_buffers()}
        return {
            "network": dict(self.model.state_dict()), "scales": scales, "elites": self.elites,
            "optimizer": self._optimizer.state_dict(), "error": self.error,
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Loads what `state_dict` gave."""
        self.model.load_state_dict(state["network"])
        for name, buffer in self.model.named_buffers():
            buffer.copy_(state["scales"][name])
        self._optimizer.load_state_dict(state["optimizer"])
        self._set_hyperparameters()
        self.elites = state["elites"].to(self._generator.device)
        self.error = state["error"]

    def _set_hyperparameters(self) -> None:
        """Sets the optimizer to this run's settings, whatever those of a checkpoint were."""
        for group in self._optimizer.param_groups:
            group["lr"] = self._settings.model_learning_rate
            group["weight_decay"] = self._settings.model_weight_decay
