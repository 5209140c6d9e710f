"""Takes a step down a reduced gradient: follows the KL divergence, clips, applies Adam or SGD.

Written twice, as its few scalars are: on the CPU they are Python's, which costs least; on a GPU
they stay there as tensors, so that nobody waits for them and a CUDA graph may hold the step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from gmi_drl.placement import AlgorithmConfig
from gmi_drl.roles.graphs import static_on
from gmi_drl.roles.policies.flat_parameters import FlatParameters, ParameterGroup, Piece

_MIN_LR: Final = 1e-6
_MAX_LR: Final = 1e-2
_BETAS: Final = (0.9, 0.999)  # of Adam
# torch's fused Adam cuts a vector of any length among all threads and waits for the last of them,
# which takes milliseconds where others use the cores. Its other operations run in one thread up to
# this many numbers.
_NUMEL_OF_A_THREAD: Final = 2**15


def adapt_learning_rate(learning_rate: float, kl: float, target: float) -> float:
    """The next step's learning rate: down by 1.5 above 2 x target KL, up by 1.5 below half of it.

    `kl` is the mean over all GMIs, so that every GMI makes the same choice.
    """
    if kl > 2.0 * target:
        return max(learning_rate / 1.5, _MIN_LR)
    if 0.0 <= kl < 0.5 * target:
        return min(learning_rate * 1.5, _MAX_LR)
    return learning_rate


def adapt_learning_rate_(learning_rate: Tensor, kl: Tensor, target: float) -> None:
    """Adapts in place, of two scalars on a device, without waiting for it."""
    lower = (learning_rate / 1.5).clamp_(min=_MIN_LR)
    higher = (learning_rate * 1.5).clamp_(max=_MAX_LR)
    is_low = (kl >= 0.0) & (kl < 0.5 * target)
    raised = torch.where(is_low, higher, learning_rate)
    learning_rate.copy_(torch.where(kl > 2.0 * target, lower, raised))


@contextmanager
def one_thread() -> Iterator[None]:
    """Runs torch's operations on the CPU in the calling thread alone."""
    num_threads = torch.get_num_threads()
    if num_threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


class Stepper(Protocol):
    """Takes steps down reduced gradients of flat parameters."""

    changed: list[Tensor]  # what `step` changes
    learning_rate: float

    def step(self, gradient: Tensor, kl: Tensor, groups: Collection[str] | None = None) -> None:
        """Takes one step of some groups of parameters (None: all) down `gradient` [n]."""

    def read_beside(self, values: Tensor) -> list[float]:
        """Returns `values` [k] and, behind them, the learning rate: one read of the device."""

    def state_dict(self, *, whole: bool = True) -> dict[str, Any]:
        """Returns what goes on, partly the tensors themselves; not `whole`: without moments."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on as the one that gave `state`, in the tensors in use."""


class Descent:
    """Clipped Adam, or plain gradient descent, on flat parameters.

    On a GPU `step` never waits, and does the same work on the same memory. `static`: this way, or
    the CPU's, wherever the parameters are (None: on all devices but the CPU).
    """

    def __init__(
        self,
        parameters: FlatParameters | ParameterGroup | Piece,
        settings: AlgorithmConfig,
        static: bool | None = None,
    ) -> None:
        self._max_norm = settings.max_grad_norm
        self._kl_target = settings.followed_kl
        self._parameters, data = parameters, parameters.data
        self.data = data.detach()
        self._clipped = torch.zeros_like(self.data)
        self.gradient = self._clipped  # that the next step is taken down
        self._rate: Tensor | None = None
        if static_on(data.device, static):
            # float32: what torch's fused kernel reads. A step is float32 on the CPU as well.
            self._rate = torch.full((), settings.learning_rate, device=data.device)
        self.in_one_thread = self._rate is None and data.numel() <= _NUMEL_OF_A_THREAD
        # Named as torch's optimizers name them. Making one of those imports torch._dynamo, which
        # takes longer than importing torch.
        self.hyperparameters: dict[str, Any] = {
            "lr": settings.learning_rate if self._rate is None else self._rate
        }
        self.moments: dict[str, Tensor] = {}
        if settings.descends_by == "adam":
            self.hyperparameters |= {"betas": _BETAS, "eps": settings.adam_eps}
            # Allocated here once: captured work finds them at the same addresses.
            self.moments = {
                "step": torch.zeros((), device=data.device),
                "exp_avg": torch.zeros_like(self.data),
                "exp_avg_sq": torch.zeros_like(self.data),
            }
        # What `step` changes.
        self.changed: list[Tensor] = [self.data, *self.moments.values()]
        if self._rate is not None:
            self.changed.append(self._rate)

    @property
    def learning_rate(self) -> float:
        """The rate of the next step. On a GPU reading it waits for the device; setting does not."""
        return float(self.hyperparameters["lr"])

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        if self._rate is None:
            self.hyperparameters["lr"] = value
        else:
            self._rate.fill_(value)

    @classmethod
    def of_piece(cls, piece: FlatParameters | Piece, settings: AlgorithmConfig) -> Descent:
        """Returns the descent of a piece, whose gradients were clipped before they were cut."""
        return cls(piece, settings.model_copy(update={"max_grad_norm": None}))

    def step(self, gradient: Tensor, kl: Tensor, groups: Collection[str] | None = None) -> None:
        """Takes one step down `gradient` [n], which is not written to; `kl` is a scalar.

        There is one group of parameters, which takes every step.
        """
        self.follow(gradient, kl)
        step_together([self])

    def follow(self, gradient: Tensor, kl: Tensor) -> None:
        """Prepares a step down `gradient` [n], which must not change until the step is taken."""
        if self._rate is None:
            self.gradient = self._follow_on_host(gradient, kl)
        else:
            self.gradient = self._follow(gradient, kl, self._rate)

    def _follow_on_host(self, gradient: Tensor, kl: Tensor) -> Tensor:
        if self._kl_target is not None:
            rate = adapt_learning_rate(self.learning_rate, float(kl), self._kl_target)
            self.learning_rate = rate
        if not self._max_norm:
            return gradient
        scale = min(1.0, self._max_norm / (float(torch.linalg.vector_norm(gradient)) + 1e-6))
        return torch.mul(gradient, scale, out=self._clipped)

    def _follow(self, gradient: Tensor, kl: Tensor, rate: Tensor) -> Tensor:
        if self._kl_target is not None:
            adapt_learning_rate_(rate, kl, self._kl_target)
        if not self._max_norm:
            return gradient
        norm = torch.linalg.vector_norm(gradient)
        scale = (self._max_norm / (norm + 1e-6)).clamp_(max=1.0)
        return torch.mul(gradient, scale, out=self._clipped)

    def read_beside(self, values: Tensor) -> list[float]:
        """Returns `values` [k] and, behind them, the learning rate: one read of the device."""
        if self._rate is None:
            return [*values.tolist(), self.learning_rate]
        numbers: list[float] = torch.cat([values, self._rate.view(1)]).tolist()
        return numbers

    def state_dict(self, *, whole: bool = True) -> dict[str, Any]:
        """Returns what torch's Adam or SGD would, partly the tensors; on a GPU the rate is one too.

        Moments are without padding, as torch's own Adam on parameters end to end has them. Not
        `whole`: as of one that has not taken a step.
        """
        moments = {
            name: self._parameters.packed(moment) if moment.ndim else moment
            for name, moment in self.moments.items()
            if whole
        }
        return {
            "state": {0: moments} if whole else {},
            "param_groups": [{"params": [0], **self.hyperparameters}],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Copies moments and learning rate of `state`, of any device, into the tensors in use."""
        moments = state["state"].get(0)  # None: of one that had not taken a step
        for name, moment in self.moments.items():
            if moments is None:
                moment.zero_()
            elif moment.ndim:
                self._parameters.unpack(moments[name], moment)
            else:
                moment.copy_(moments[name])
        self.learning_rate = float(state["param_groups"][0]["lr"])


def step_together(descents: Sequence[Descent], idle: Tensor | None = None) -> None:
    """Takes one step of each descent with the first one's hyperparameters; none where `idle` is 1.

    It does what a fused `torch.optim.Adam.step` does, for all parameters by one kernel, without the
    work around the kernel, which takes twice as long as the step of a small network.
    """
    options = descents[0].hyperparameters
    with one_thread() if all(group.in_one_thread for group in descents) else nullcontext():
        parameters = [group.data for group in descents]
        gradients = [group.gradient for group in descents]
        if not descents[0].moments:
            for parameter, gradient in zip(parameters, gradients, strict=True):
                rate = options["lr"]
                if isinstance(rate, float):
                    parameter.add_(gradient, alpha=-rate)
                else:
                    parameter.sub_(gradient * rate)
            return
        steps, means, squares = (
            [group.moments[name] for group in descents]
            for name in ("step", "exp_avg", "exp_avg_sq")
        )
        torch._foreach_add_(steps, 1.0 if idle is None else 1.0 - idle)
        torch._fused_adam_(
            parameters, gradients, means, squares, [], steps, lr=options["lr"],
            beta1=options["betas"][0], beta2=options["betas"][1], weight_decay=0.0,
            eps=options["eps"], amsgrad=False, maximize=False,
            found_inf=idle,  # where it is 1 the kernels leave all as it is
        )  # fmt: skip
