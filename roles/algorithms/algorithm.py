"""Defines an algorithm: the mathematics of learning, without ranks, processes or devices."""

# ruff: noqa: B027 - what is not abstract is a hook, which by default does nothing

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from gmi_drl.placement import AlgorithmConfig
from gmi_drl.roles.envs.protocol import VecEnv
from gmi_drl.roles.errors import PolicyError, RoleError
from gmi_drl.roles.policies.check_policy import check_policy
from gmi_drl.roles.policies.networks import actor_critic_of, policy_of
from gmi_drl.roles.policies.normalize import Normalizers
from gmi_drl.roles.policies.policy import Policy
from gmi_drl.roles.samples.batch import Batch

if TYPE_CHECKING:
    from gmi_drl.roles.samples.replay import ReplayBuffer


@dataclass(frozen=True)
class Losses:
    """The loss of one minibatch: `total` is descended, `stats` are scalars that are reported."""

    total: Tensor
    stats: Mapping[str, Tensor] = field(default_factory=dict)
    # What the loss gives besides a gradient, such as priorities: see `measure_update`.
    extras: Mapping[str, Tensor] = field(default_factory=dict)
    # The parameter groups that take a step down it; None: all. See `Algorithm.learning_rates`.
    groups: tuple[str, ...] | None = None


class Algorithm(ABC):
    """The mathematics of learning; every GMI that trains or samples has one.

    Most algorithms say their `stats` and write `losses`; the rest has defaults. What GMIs share is
    moments: each writes float64 numbers of its own batch, all are given everyone's, [k, n] for k
    GMIs, and combine them in the same order.
    """

    Settings: ClassVar[type[AlgorithmConfig]] = AlgorithmConfig  # its keys in the config
    # Names of the `Losses.stats` that are reported; the learning rate may follow "kl". A role adds
    # more by ActingRole.loss_stats.
    stats: tuple[str, ...] = ()
    whole_segments: ClassVar[bool] = False  # minibatches are environments with all their steps
    filled: ClassVar[tuple[str, ...]] = ()  # packed columns that `postprocess` fills
    recorded: ClassVar[tuple[str, ...]] = ()  # "next_observation", "terminated": see Batch
    # What is known after the last step, to bootstrap from: "observation" or "value".
    bootstrap: ClassVar[tuple[str, ...]] = ("observation",)
    segment_fields: ClassVar[tuple[str, ...]] = ("action", "log_prob", "reward", "done")
    # What a replay keeps of each step; a minibatch drawn from it has `observation`, normalised, in
    # place of the raw one: see Batch.transitions.
    replayed: ClassVar[tuple[str, ...]] = ("raw_observation", "action", "reward", "done")
    num_batch_moments: ClassVar[int] = 0  # numbers shared of a batch before it is trained on
    num_update_moments: int = 0  # and of an update, after it
    # Whether `learn_batch_moments` changes the network, and not only the normalisers.
    changes_parameters: ClassVar[bool] = False
    # The loss as a function, which a role may replace: `losses` calls it as `loss_function`. None:
    # `losses` computes the loss itself.
    loss: ClassVar[Any] = None
    # The class that networks of roles must be of, and what others lack; None: an actor-critic's.
    network_class: ClassVar[type | None] = None
    network_fault: ClassVar[str] = ""
    # Whether `losses`, `measure` and `postprocess` do the same operations each time, and read no
    # tensor's value in Python: then they are captured as CUDA graphs.
    capturable: ClassVar[bool] = True

    def __init__(
        self, settings: Any, policy: Any, normalizers: Normalizers, loss: Any = None
    ) -> None:
        """`loss` replaces the algorithm's function of that name, if it has one."""
        self.settings, self.policy, self.normalizers = settings, policy, normalizers
        self.loss_function: Callable[..., Losses] = loss or type(self).loss or self.losses

    @property
    def learning_rates(self) -> Mapping[str, float]:
        """The learning rate of each parameter group, by the name of a part of the network.

        Groups are stepped, clipped and left out apart. Empty: all parameters are one group.
        """
        return {}

    @property
    def idle(self) -> Mapping[str, Tensor]:
        """Returns a scalar for each parameter group that may be idle: 1 while it takes no step.

        The same tensors at all times, with the same numbers in all GMIs.
        """
        return {}

    @property
    def loss_kind(self) -> Hashable:
        """Returns the kind of the next `losses`; each kind is captured as a graph of its own."""
        return None

    @classmethod
    def make_network(
        cls, settings: AlgorithmConfig, env: VecEnv, generator: torch.Generator | None
    ) -> Any:
        """Returns the network for the spaces of `env`, where no role makes another."""
        return actor_critic_of(settings, env, generator)

    @classmethod
    def make_policy(cls, network: Any, settings: Any) -> Policy:
        """Returns the policy that acts by that network."""
        return policy_of(network)

    @classmethod
    def check_network(
        cls, network: Any, maker: str, width: int, env: VecEnv, settings: Any
    ) -> None:
        """Raises PolicyError with all that a network of `maker` lacks to be trained."""
        if (base := cls.network_class) is None:
            check_policy(network, maker, width, env.action_space)
        elif not isinstance(network, base):
            path = f"{base.__module__}.{base.__qualname__}"
            raise PolicyError(maker, type(network).__name__, [cls.network_fault], path)

    @classmethod
    def check_segments(cls) -> None:
        """Raises RoleError if segments would have a column that `postprocess` fills."""
        late = ", ".join(name for name in cls.segment_fields if name in cls.filled)
        if late:
            raise RoleError(
                f"{cls.__name__}: segment_fields has {late}, which postprocess fills in the "
                f"trainer, and agents send what they have sampled. Take {late} out of it."
            )

    @abstractmethod
    def losses(self, batch: Batch) -> Losses:
        """The loss of a minibatch: packed rows, or whole segments (see Batch.segments)."""

    def measure(self, batch: Batch, out: Tensor) -> None:
        """Write this GMI's moments of a batch into `out` [num_batch_moments]."""

    def learn_batch_moments(self, moments: Tensor) -> None:
        """Takes in everyone's `moments` [k, num_batch_moments] before a batch is trained on."""

    def postprocess(self, batch: Batch, moments: Tensor) -> None:
        """Fill the batch's columns `filled`; `moments` [k, num_batch_moments] are everyone's.

        `learn_batch_moments` was given them just before.
        """

    def changed(self, batch: Batch) -> list[Tensor]:
        """Returns the tensors that `postprocess` changes in place and updates do not write anew.

        They are restored after the trial runs that precede its capture as a CUDA graph.
        """
        return []

    def measure_update(self, first_epoch: Sequence[Losses], out: Tensor) -> None:
        """Write the moments of an update into `out` [num_update_moments]."""

    def learn_moments(self, moments: Tensor) -> None:
        """Takes in everyone's `moments` [k, num_update_moments] when an update is over."""

    def source(self, replay: ReplayBuffer, generator: torch.Generator) -> ReplayBuffer:
        """Returns the source of minibatches, which draws by this GMI's `generator`: the replay."""
        return replay

    def draw_noise(self, batch: Batch, generator: torch.Generator) -> None:
        """Adds columns of random numbers to a minibatch from a replay, if its loss needs any.

        Their shapes are the same in each update. This is never captured, and the loss may be.
        """

    def first_priorities(self, batch: Batch) -> Tensor | None:
        """Returns the priorities [B] of rows that agents send, before a trainer has drawn them.

        Agents have the newest published network, and no target network. Rows of an algorithm that
        does not define this enter a replay with the greatest priority so far.
        """
        raise NotImplementedError

    def explore_as(self, numbers: range, total: int) -> None:
        """Says which environments this process samples from, by number, of `total` in all GMIs."""

    def before_sampling(self, steps: int) -> None:
        """Prepares sampling, where it is called; GMIs have sampled `steps` steps before."""

    def after_step(self, updates: int) -> None:
        """Follows step number `updates` of the parameters (target networks)."""

    def state_dict(self) -> dict[str, Any]:
        """Returns the algorithm's own part of a checkpoint, alike in all GMIs."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads what `state_dict` gave."""


def checked(algorithm: Algorithm, losses: object) -> Losses:
    """Returns `losses` of an algorithm if they can be descended; RoleError otherwise."""
    owner = getattr(algorithm.loss_function, "__self__", algorithm)  # or a role
    name, remedy = f"{type(owner).__name__}.losses", "Return Losses(total, stats)"
    if owner is not algorithm:
        name = f"{type(owner).__name__}.loss"
        remedy = "Change what super().loss(...) gives by dataclasses.replace"
    if not isinstance(losses, Losses):
        raise RoleError(
            f"{name} gave a {type(losses).__name__}; must give gmi_drl.roles.algorithms.Losses. "
            f"{remedy}."
        )
    total = losses.total
    if not _is_scalar(total):
        raise RoleError(
            f"{name} gave a total {_shown(total)}; must be a scalar tensor. Use mean()."
        )
    if not total.requires_grad:
        raise RoleError(
            f"{name} gave a total that depends on no parameter; must be computed from what the "
            "network gives, without detach() or torch.no_grad()."
        )
    if missing := [stat for stat in algorithm.stats if stat not in losses.stats]:
        raise RoleError(
            f"{name} gave stats {', '.join(losses.stats) or 'none'}; {', '.join(missing)} "
            f"{'lack' if missing[1:] else 'lacks'}. Give all that the algorithm's `stats` names."
        )
    for stat in algorithm.stats:
        if not _is_scalar(value := losses.stats[stat]):
            raise RoleError(
                f"{name} gave a stat {stat!r} {_shown(value)}; must be a scalar tensor. Use mean()."
            )
    return losses


def _is_scalar(value: object) -> bool:
    return isinstance(value, Tensor) and not value.ndim


def _shown(value: object) -> str:
    return f"of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
