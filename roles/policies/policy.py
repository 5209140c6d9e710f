"""The actor-critic network: one shared trunk, one head for the action parameters and the value.

`FlatParameters` lays all parameters out in one tensor, in the order of their names, so that
gradients are reduced, clipped and applied in one piece. Each begins at a multiple of 256 bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn

from gmi_drl.roles.envs.errors import EnvSpecError
from gmi_drl.roles.envs.spaces import action_fault, observation_fault
from gmi_drl.roles.errors import CheckpointError

from .alignment import PARAMETER, aligned
from .distributions import Categorical, Distribution, Normal
from .precision import Precision

_ACTIVATIONS: dict[str, type[nn.Module]] = {"elu": nn.ELU, "tanh": nn.Tanh, "relu": nn.ReLU}


def distribution_for(space: spaces.Space) -> Distribution:  # type: ignore[type-arg]
    """The action distribution of a Gymnasium space; EnvSpecError for what no policy here can do."""
    if fault := action_fault(space):
        raise EnvSpecError([fault])
    if isinstance(space, spaces.Discrete):
        return Categorical(int(space.n))
    assert isinstance(space, spaces.Box)
    return Normal(space.shape[0])


def observation_width(space: spaces.Space) -> int:  # type: ignore[type-arg]
    """Length of an observation vector; EnvSpecError for what is none."""
    if fault := observation_fault(space):
        raise EnvSpecError([fault])
    assert space.shape is not None
    return space.shape[0]


class ActorCritic(nn.Module):
    """Policy and value function of one observation vector.

    `forward` takes normalised observations [B, obs_dim] and returns the head's raw output
    [B, P + 1]: P distribution parameters (means, or logits), then the normalised value. One
    head for both costs one matrix product instead of two. With precision bf16 the trunk runs in
    bfloat16, and the head in float32: it is small, and what it gives is compared with what it gave
    before.
    """

    def __init__(
        self,
        obs_dim: int,
        distribution: Distribution,
        hidden: Sequence[int],
        activation: str = "elu",
        init_log_std: float = 0.0,
        generator: torch.Generator | None = None,
        precision: Precision = "fp32",
    ) -> None:
        """`precision`: tf32 is the same as fp32 here; see `roles.precision` for it."""
        super().__init__()
        self.distribution = distribution
        self._bf16 = precision == "bf16"
        self._hidden, self._activation = list(hidden), activation
        layers: list[nn.Module] = []
        width = obs_dim
        for size in hidden:
            layers += [nn.Linear(width, size), _ACTIVATIONS[activation]()]
            width = size
        self.trunk = nn.Sequential(*layers)
        self.head = nn.Linear(width, distribution.parameters + 1)
        continuous = isinstance(distribution, Normal)
        self.log_std = nn.Parameter(
            torch.full((distribution.parameters if continuous else 0,), init_log_std)
        )
        self._initialise(generator)

    def describe(self) -> dict[str, Any]:
        """What its parameters' names and shapes do not say, as plain values.

        A checkpoint keeps it and is refused where it differs. Add what is your own to it.
        """
        return {
            "distribution": type(self.distribution).__name__,
            "network": self._hidden,
            "activation": self._activation,
        }

    @torch.no_grad()
    def _initialise(self, generator: torch.Generator | None) -> None:
        # Orthogonal with gain sqrt(2) in the trunk, 0.01 for the actions (the first policy is
        # nearly the same in every state), 1 for the value: the settings compared in
        # "What matters in on-policy RL" (Andrychowicz et al., 2021).
        for layer in self.trunk:
            if isinstance(layer, nn.Linear):
                nn.init.orthogonal_(layer.weight, math.sqrt(2.0), generator=generator)
                layer.bias.zero_()
        nn.init.orthogonal_(self.head.weight[:-1], 0.01, generator=generator)
        nn.init.orthogonal_(self.head.weight[-1:], 1.0, generator=generator)
        self.head.bias.zero_()

    def forward(self, observation: Tensor) -> Tensor:
        if not self._bf16:
            return self.head(self.trunk(observation))  # type: ignore[no-any-return]
        # No cache: copies of weights that a captured graph made would be used outside of it.
        with torch.autocast(observation.device.type, torch.bfloat16, cache_enabled=False):
            features = self.trunk(observation)
        return self.head(features.float())  # type: ignore[no-any-return]

    @torch.no_grad()
    def map_value(self, scale: Tensor, shift: Tensor) -> None:
        """Make the value that comes out `scale` * value + `shift`, in every state."""
        self.head.weight[-1].mul_(scale)
        self.head.bias[-1:].mul_(scale).add_(shift)


class FlatParameters:
    """All parameters of a module as views of one tensor, in the order of their names.

    `data` [n] is the parameters; `bind_gradients(buffer)` makes every `.grad` a view of
    `buffer[:n]`, which may lie in shared memory: autograd then accumulates straight into it.
    Parameter i begins at `offsets[i]`, a multiple of 64 numbers. What lies between is padding: zero
    in `data` and in gradients, and left out of what `packed` gives.
    """

    def __init__(self, module: nn.Module) -> None:
        named = sorted(module.named_parameters())
        self.names = [name for name, _ in named]
        self._parameters = [parameter for _, parameter in named]
        self.offsets: list[int] = []
        total = 0
        for parameter in self._parameters:
            self.offsets.append(total)
            total += aligned(parameter.numel(), PARAMETER)
        first = self._parameters[0]
        self.data = nn.Parameter(torch.zeros(total, dtype=first.dtype, device=first.device))
        flat = self.data.detach()
        for parameter, view in zip(self._parameters, self._views(flat), strict=True):
            view.copy_(parameter.detach())
            parameter.data = view

    @property
    def numel(self) -> int:
        """The numbers of `data`, with padding."""
        return self.data.numel()

    def bind_gradients(self, buffer: Tensor) -> None:
        """Make every parameter's `.grad` a view of `buffer` [>= n]."""
        for parameter, view in zip(self._parameters, self._views(buffer), strict=True):
            parameter.grad = view

    def packed(self, vector: Tensor) -> Tensor:
        """A copy of `vector` [n] without padding, parameter after parameter: what files keep."""
        return torch.cat([view.reshape(-1) for view in self._views(vector)])

    def unpack(self, packed: Tensor, out: Tensor) -> None:
        """Copy what `packed` gave, on any device, into `out` [n], whose padding stays as it is.

        CheckpointError if it is of another number of parameters.
        """
        views = self._views(out)
        sizes = [view.numel() for view in views]
        if packed.numel() != sum(sizes):
            raise CheckpointError(
                f"a policy of {packed.numel():,} parameters; this config's has {sum(sizes):,}. "
                "Use the env and algorithm sections of the run that wrote it."
            )
        parts = torch.split(packed.to(out.device), sizes)
        for view, part in zip(views, parts, strict=True):
            view.copy_(part.view_as(view))

    def _views(self, flat: Tensor) -> list[Tensor]:
        return [
            flat[start : start + p.numel()].view_as(p)
            for start, p in zip(self.offsets, self._parameters, strict=True)
        ]
