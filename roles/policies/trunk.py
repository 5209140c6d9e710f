"""The hidden layers of a policy's network, and the precision of their matrix products."""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final, Literal

import torch
from gymnasium import spaces
from torch import Tensor, nn

from gmi_drl.placement import AlgorithmConfig, hidden_sizes
from gmi_drl.roles.envs.spaces import flat_space
from gmi_drl.roles.errors import RoleError
from gmi_drl.roles.loading import check_class, load_class

Precision = Literal["fp32", "tf32", "bf16"]  # algorithm.precision

ACTIVATIONS: Final = {"elu": nn.ELU, "tanh": nn.Tanh, "relu": nn.ReLU}


@torch.no_grad()
def orthogonal_(
    layer: nn.Linear | nn.Conv2d, gain: float, generator: torch.Generator | None
) -> None:
    """Makes the weights of a layer orthogonal, and its biases 0."""
    nn.init.orthogonal_(layer.weight, gain, generator=generator)
    if layer.bias is not None:
        layer.bias.zero_()


class HiddenLayers(nn.Module, ABC):
    """Computes float32 features [B, `features`] of observations [B, D], for a head.

    With precision bf16 it runs in bfloat16. tf32 is as fp32 here: `set_matmul_precision` sets it.
    """

    features: int
    bf16: bool

    def initialise(self, generator: torch.Generator | None) -> None:
        """Make weights orthogonal with gain sqrt(2), and biases 0."""
        for layer in self.modules():
            if isinstance(layer, nn.Linear | nn.Conv2d):
                orthogonal_(layer, math.sqrt(2.0), generator)

    def forward(self, observation: Tensor) -> Tensor:
        if not self.bf16:
            return self.seen(observation)
        # No cache: copies of weights that a captured graph made would be used outside of it.
        with torch.autocast(observation.device.type, torch.bfloat16, cache_enabled=False):
            return self.seen(observation).float()

    @abstractmethod
    def seen(self, observation: Tensor) -> Tensor:
        """Returns the features, in whatever precision is on."""


class Trunk(HiddenLayers, nn.Sequential):
    """Dense layers with an activation behind each, and with `layer_norm` LayerNorm between them."""

    def __init__(
        self,
        width: int,
        hidden: Sequence[int],
        activation: str,
        precision: Precision = "fp32",
        *,
        layer_norm: bool = False,
    ) -> None:
        layers: list[nn.Module] = []
        self.features = width
        for size in hidden:
            layers.append(nn.Linear(self.features, size))
            if layer_norm:
                layers.append(nn.LayerNorm(size))
            layers.append(ACTIVATIONS[activation]())
            self.features = size
        super().__init__(*layers)
        self.bf16 = precision == "bf16"

    def seen(self, observation: Tensor) -> Tensor:
        features: Tensor = nn.Sequential.forward(self, observation)  # type: ignore[no-untyped-call]
        return features


def dense_trunk(settings: AlgorithmConfig, width: int) -> Trunk:
    """Returns the dense layers of a config for rows of `width` numbers."""
    return Trunk(
        width, hidden_sizes(settings.network), settings.activation, settings.precision,
        layer_norm=settings.layer_norm,
    )  # fmt: skip


class OwnTrunk(HiddenLayers):
    """Hidden layers of the user's: a module that says how many `features` it gives.

    Its class is called with the space of observations, as the environment has it. What it draws in
    its constructor is drawn anew from `generator`, so that all GMIs begin alike.
    """

    def __init__(
        self,
        reference: str,
        space: spaces.Space[Any],
        generator: torch.Generator | None,
        precision: Precision = "fp32",
    ) -> None:
        """RoleLoadError where `reference`, module:Class, is no class; RoleError for a wrong one."""
        super().__init__()
        cls, key = load_class(reference, kind="algorithm.network"), "algorithm.network"
        check_class(cls, reference, key, nn.Module, "torch.nn.Module")
        with torch.random.fork_rng(devices=[]):
            if generator is not None:
                torch.manual_seed(int(torch.randint(2**31, (), generator=generator)))
            try:
                self.module = cls(space)
            except Exception as error:
                raise RoleError(
                    f"{key}={reference!r}: {cls.__name__}(space) raised {type(error).__name__}: "
                    f"{error}. It is called with the observation space, {space}."
                ) from error
        features = getattr(self.module, "features", None)
        if not isinstance(features, int) or features < 1:
            raise RoleError(
                f"{key}={reference!r}: {cls.__name__}.features is {features!r}; must be the "
                "width of what its forward gives, a whole number. Set it in the constructor."
            )
        buffers = self.module.state_dict().keys() - dict(self.module.named_parameters()).keys()
        if buffers:
            raise RoleError(
                f"{key}={reference!r}: {cls.__name__} keeps {', '.join(sorted(buffers))}, and only "
                "parameters are trained, shared and saved. Use LayerNorm for BatchNorm, and "
                "register_buffer(..., persistent=False) for what never changes."
            )
        self.name, self.features, self.bf16 = reference, features, precision == "bf16"
        self._check_forward(flat_space(space).shape[0])

    def initialise(self, generator: torch.Generator | None) -> None:
        """Leaves the parameters as the module made them."""

    def seen(self, observation: Tensor) -> Tensor:
        features: Tensor = self.module(observation)
        return features

    def _check_forward(self, width: int) -> None:
        """Raises RoleError unless rows become features."""
        bf16, self.bf16 = self.bf16, False
        try:
            with torch.no_grad():
                output = self(torch.zeros(2, width))
        except Exception as error:
            raise RoleError(
                f"algorithm.network={self.name!r}: forward raised {type(error).__name__} for "
                f"observations [2, {width}]: {error}. Take vectors; see unflatten for their parts."
            ) from error
        finally:
            self.bf16 = bf16
        shape = list(output.shape) if isinstance(output, Tensor) else type(output).__name__
        if shape != [2, self.features]:
            raise RoleError(
                f"algorithm.network={self.name!r}: forward gave {shape} for observations "
                f"[2, {width}]; must give [2, {self.features}], as its `features` says."
            )


class SeparateTrunks(HiddenLayers):
    """Two trunks side by side: the features of the policy, then those of the value."""

    def __init__(self, policy: HiddenLayers, value: HiddenLayers) -> None:
        super().__init__()
        self.policy, self.value = policy, value
        self.features, self.bf16 = policy.features + value.features, False  # each has its own

    def initialise(self, generator: torch.Generator | None) -> None:
        self.policy.initialise(generator)
        self.value.initialise(generator)

    def seen(self, observation: Tensor) -> Tensor:
        return torch.cat([self.policy(observation), self.value(observation)], -1)


def set_matmul_precision(precision: Precision, device: torch.device) -> None:
    """Let float32 matrix products of this process round to TF32 if `precision` is tf32; else not.

    It is set either way, so that the config decides, and no environment variable
    (TORCH_ALLOW_TF32_CUBLAS_OVERRIDE) or library. Only NVIDIA_TF32_OVERRIDE=0 is stronger: it keeps
    NVIDIA's libraries from TF32. CPU cores compute in float32.
    """
    uses_tf32 = precision == "tf32" and device.type == "cuda"
    # This call keeps torch's older and newer switches for it in step; torch refuses to multiply
    # when they differ. torch 2.9 warns that the call will be deprecated; later ones take that back.
    warnings.filterwarnings("ignore", message="Please use the new API settings to control TF32")
    torch.set_float32_matmul_precision("high" if uses_tf32 else "highest")
