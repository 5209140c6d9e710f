"""Defines the settings that algorithms share, and the interface of their settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal

from pydantic import (
    Field,
    field_validator,
    model_validator,
)

from gmi_drl.placement.config.section import NETWORKS, Int, Network, Section, broken, is_own_network
from gmi_drl.placement.faults import Fault, listed

if TYPE_CHECKING:
    from gmi_drl.placement.config.config import Config

# The optimizers, and the mode that each runs in.
MODE_OF_OPTIMIZER: Final[Mapping[str, str]] = {
    "all_reduce": "sync",
    "local": "sync",
    "async_gradients": "sync",
    "parameter_server": "sync",
    "async_samples": "async",
    "replay": "sync",
    "apex": "async",
    "population": "sync",
    "tree_search": "sync",
}

# The templates of optimizers that do not run in their mode's default one.
TEMPLATE_OF_OPTIMIZER: Final[Mapping[str, str]] = {
    "local": "tdg_ex",
    "async_gradients": "tdg_ex",
    "parameter_server": "parameter_server",
}

Horizon = Annotated[Int, Field(ge=1, le=1_000_000)]


class AlgorithmConfig(Section):
    """How the policy learns: the keys that every algorithm has."""

    # The optimizers that it can run under; `auto` means the first that runs in the config's mode.
    optimizers: ClassVar[tuple[str, ...]] = ("all_reduce",)
    of_team: ClassVar[bool] = False  # whether several agents are columns of a row
    # The class of the algorithm, as module:Class.
    implementation: ClassVar[str] = ""
    target_networks: ClassVar[int] = 0  # kept beside the trained network
    adam_eps: ClassVar[float] = 1e-5
    descends_by: ClassVar[Literal["adam", "sgd"]] = "adam"

    name: str = ""
    """The algorithm. Default: `ppo`, and `impala` for `mode: async`."""
    optimizer: str = "auto"
    """Who samples, who computes gradients, and who waits: `all_reduce` (mode sync): every GMI that
    trains on its own experience, with reduced gradients; `local` (mode sync, template tdg_ex):
    trainers on what their agents sample in turn with them, which `all_reduce` is there too;
    `async_gradients` (mode sync, template tdg_ex with one trainer): agents that send gradients,
    each applied as it comes; `parameter_server` (mode sync, template of that name): the same, with
    the parameters in pieces, one in each GMI that trains; `async_samples` (mode async): trainers on
    what agents send them meanwhile; `replay` (mode sync): every GMI that trains on what it has
    kept; `apex` (mode async): trainers on what they have kept of what agents send them meanwhile;
    `population` (mode sync, template tcg_ex): every GMI on the returns of perturbed policies;
    `tree_search` (mode sync, template tcg_ex): every GMI on games that a search plays with itself.
    `auto`: the algorithm's own for the mode."""
    network: Network = Field(
        default="ant",
        description="Hidden layers of the policy: a list of sizes, or `mlp` or one of the paper's: "
        + ", ".join(f"`{name}` ({':'.join(map(str, s))})" for name, s in NETWORKS.items())
        + "; for images `nature` (Mnih et al., 2015) or `impala` (Espeholt et al., 2018); or "
        "module:Class for [hidden layers of yours](writing-a-role.md#networks).",
    )
    activation: Literal["elu", "tanh", "relu"] = "elu"
    """Activation of the hidden layers."""
    layer_norm: bool = False
    """LayerNorm (Ba et al., 2016) before the activation of each hidden layer, of `nature` and
    `impala` of the dense one. Layers behind these have none: those of `dueling`, and the one where
    critics of images take in the action."""
    horizon: Horizon = 16
    """Steps each environment takes between two updates."""
    gamma: float = Field(default=0.99, ge=0, le=1)
    """Discount of future rewards."""
    learning_rate: float = Field(default=3e-4, gt=0, le=1)
    """Adam's learning rate (the first one, if it is scheduled)."""
    max_grad_norm: float | None = Field(default=1.0, ge=0)
    """Clip the gradient's norm to this; `null` or 0: do not."""
    reward_scale: float = Field(default=1.0, gt=0)
    """Rewards are multiplied by this."""
    normalize_observation: bool = True
    """Normalise observations by their running mean and deviation."""
    bootstrap_time_limit: bool = True
    """At a time limit, add the value of the final observation: the episode could have gone on."""
    precision: Literal["fp32", "tf32", "bf16"] = "fp32"
    """What the network's matrix products are computed in. `tf32`: inputs rounded to 10 bits on the
    tensor cores of a GPU; CPU cores have none and compute in fp32. `bf16`: hidden layers in
    bfloat16. The last layer's output, parameters, losses and the optimizer stay fp32. See [training
    on the GPU](gpu-training.md#precision)."""

    @property
    def resolved_optimizer(self) -> str:
        """The optimizer that it runs under; empty if a class decides it that is not loaded."""
        return next(iter(self.optimizers), "") if self.optimizer == "auto" else self.optimizer

    @property
    def whole_episodes(self) -> bool:
        """Tells whether a round is a number of episodes, with an unknown number of steps."""
        return self.resolved_optimizer in ("population", "tree_search")

    @property
    def sends_gradients(self) -> bool:
        """Tells whether agents send gradients, each of which is an update."""
        return self.resolved_optimizer in ("async_gradients", "parameter_server")

    @classmethod
    def optimizers_in(cls, mode: str) -> list[str]:
        """Returns those of its optimizers that run in a mode."""
        return [name for name in cls.optimizers if MODE_OF_OPTIMIZER[name] == mode]

    def faults(self, config: Config, agents: int, trainers: int) -> Iterator[Fault]:
        """Yields the faults of learning with this many GMIs that hold an agent, and a trainer."""
        yield from self.own_faults()

    def own_faults(self) -> Iterator[Fault]:
        """Yields the faults of combinations of its own keys."""
        if self.layer_norm and is_own_network(self.network):
            yield Fault(
                "algorithm.layer_norm", True, f"network={self.network!r} has layers of its own",
                "Leave it out, and put LayerNorm into the class.",
            )  # fmt: skip

    def minibatch_size(self, samples: int) -> int:
        """Returns how many of an update's samples make a minibatch."""
        return samples

    def gradient_steps(self, samples: int) -> int:
        """Returns the gradient steps of one pass over the samples of an update."""
        return samples // self.minibatch_size(samples)

    @property
    def kept_steps(self) -> int:
        """The steps that each training GMI keeps from one update to the next."""
        return 0

    @property
    def dropped_agents(self) -> int:
        """The agents, or GMIs with all roles, that an update does not wait for."""
        return 0

    @property
    def followed_kl(self) -> float | None:
        """The KL divergence that the learning rate follows, if it does."""
        return None

    @property
    def anneals(self) -> bool:
        """Tells whether the learning rate falls linearly to 0 at `run.total_steps`."""
        return False

    @property
    def learns_value_scale(self) -> bool:
        """Tells whether value targets are normalised by their running mean and deviation."""
        return False

    @property
    def effort(self) -> str:
        """Says how often the samples of an update are used, as the end of a sentence."""
        return ""

    @property
    def searchable(self) -> list[str]:
        """The keys that a search may change."""
        keys = [*type(self).model_fields, *(self.model_extra or ())]
        return [key for key in keys if key not in ("name", "optimizer", "class_")]

    def head_layers(self, features: int, parameters: int) -> list[tuple[int, int]]:
        """Returns the inputs and outputs of each dense layer behind the hidden ones.

        They end in so many `parameters` of the distribution of actions, and values.
        """
        return [(features, parameters + 1)]

    @property
    def noisy_layers(self) -> bool:
        """Tells whether the head layers have noise of learned size on their weights."""
        return False

    def update_text(self, samples: int, trainers: int, where: str) -> str:
        """Describes an update of this many samples in each of the `trainers`, called `where`."""
        return f"{samples:,} samples in each {where}"

    @model_validator(mode="before")
    @classmethod
    def _expand_optimizer(cls, value: Any) -> Any:
        entry = value.get("optimizer") if isinstance(value, dict) else None
        if not isinstance(entry, dict) or not {"name"} <= set(entry) <= {"name", "drop_slowest"}:
            return value
        other_keys = {key: entry[key] for key in entry if key != "name"}
        return {**other_keys, **value, "optimizer": entry["name"]}

    @field_validator("optimizer", mode="before")
    @classmethod
    def _check_optimizer(cls, value: Any) -> Any:
        if not isinstance(value, str):
            raise broken(
                "must be a name, or one with drop_slowest",
                "Write optimizer: local, or optimizer: {name: local, drop_slowest: 1}.",
            )
        if value not in ("auto", *cls.optimizers):
            names, (reason, alternative) = listed(cls.optimizers, "or"), cls.why_not(value)
            raise broken(
                f"the algorithm runs under {names}{reason and ': '}{reason}",
                f"Use {cls.optimizers[0]}, or auto{alternative and ', or '}{alternative}.",
            )
        return value

    @classmethod
    def why_not(cls, optimizer: str) -> tuple[str, str]:
        """Says why an optimizer cannot run it, and what else would; both may be empty."""
        return "", ""


class RecurrentConfig(Section):
    """The memory of a policy, a recurrent cell between its hidden layers and its last one."""

    cell: Literal["lstm", "gru"] = "lstm"
    """The kind of cell."""
    size: Int = Field(default=128, ge=1, le=1_000_000)
    """Numbers that the cell puts out."""

    @model_validator(mode="before")
    @classmethod
    def _expand_shorthand(cls, value: Any) -> Any:
        return {"cell": value} if isinstance(value, str) else value


def short_horizon(horizon: int) -> Fault:
    """Returns the fault of a horizon of one step with a recurrent policy."""
    return Fault(
        "algorithm.horizon", horizon,
        "must be 2 or more where algorithm.recurrent is given: along a horizon a policy learns "
        "what to remember",
        "Raise it, to 16 or more if you can, or leave recurrent out.",
    )  # fmt: skip
