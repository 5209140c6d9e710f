"""Defines the settings that algorithms share, and what is asked of all of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from gmi_drl.placement.config.section import NETWORKS, Int, Network, Section, broken, is_own_network
from gmi_drl.placement.faults import Fault, counted, listed

if TYPE_CHECKING:
    from gmi_drl.placement.config.config import Config

# The optimizers there are, and the mode that each runs in.
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

# The templates of optimizers that do not run in their mode's own.
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
    target_networks: ClassVar[int] = 0  # that are kept beside the one that is trained
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
    `impala` of the dense one."""
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
        """The optimizer that it runs under; empty if a class that is not loaded decides it."""
        return next(iter(self.optimizers), "") if self.optimizer == "auto" else self.optimizer

    @property
    def whole_episodes(self) -> bool:
        """Tells whether a round is a number of episodes, whose steps are not known before."""
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
        """Yields why it cannot learn so, with this many GMIs that hold an agent, and a trainer."""
        yield from self.own_faults()

    def own_faults(self) -> Iterator[Fault]:
        """Yields which of its keys do not go together, whoever learns by it."""
        if self.layer_norm and is_own_network(self.network):
            yield Fault(
                "algorithm.layer_norm", True, f"network={self.network!r} has layers of its own",
                "Leave it out, and put LayerNorm into the class.",
            )  # fmt: skip

    def minibatch_size(self, samples: int) -> int:
        """Returns how many of an update's samples go through the network at once."""
        return samples

    def gradient_steps(self, samples: int) -> int:
        """Returns the steps in which an update of so many samples uses each of them once."""
        return samples // self.minibatch_size(samples)

    @property
    def kept_steps(self) -> int:
        """The steps that each GMI that trains keeps from one update to the next."""
        return 0

    @property
    def dropped_agents(self) -> int:
        """The agents that a trainer does not wait for, or the GMIs that each have all roles."""
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
        """Tells whether these have noise on their weights, of sizes that are learned."""
        return False

    def update_text(self, samples: int, where: str) -> str:
        """Returns what an update of this many samples in each `where` consists of."""
        return f"{samples:,} samples in each {where}"

    @model_validator(mode="before")
    @classmethod
    def _expand_optimizer(cls, value: Any) -> Any:
        its = value.get("optimizer") if isinstance(value, dict) else None
        if not isinstance(its, dict) or not {"name"} <= set(its) <= {"name", "drop_slowest"}:
            return value
        dropped = {key: its[key] for key in its if key != "name"}
        return {**dropped, **value, "optimizer": its["name"]}

    @field_validator("optimizer", mode="before")
    @classmethod
    def _check_optimizer(cls, value: Any) -> Any:
        if not isinstance(value, str):
            raise broken(
                "must be a name, or one with drop_slowest",
                "Write optimizer: local, or optimizer: {name: local, drop_slowest: 1}.",
            )
        if value not in ("auto", *cls.optimizers):
            names, (why, otherwise) = listed(cls.optimizers, "or"), cls.why_not(value)
            raise broken(
                f"the algorithm runs under {names}{why and ': '}{why}",
                f"Use {cls.optimizers[0]}, or auto{otherwise and ', or '}{otherwise}.",
            )
        return value

    @classmethod
    def why_not(cls, optimizer: str) -> tuple[str, str]:
        """Says why an optimizer cannot run it, and what else would; both may be empty."""
        return "", ""

    @model_serializer(mode="wrap")
    def _serialize(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leaves out what says nothing, which configs of before do not have."""
        keys: dict[str, Any] = handler(self)
        silent = {
            "optimizer": "auto", "recurrent": None, "layer_norm": False, "share_layers": True,
            "drop_slowest": 0,
        }  # fmt: skip
        return {key: its for key, its in keys.items() if key not in silent or its != silent[key]}


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
    """Returns the fault of a horizon of one step, for a policy that remembers."""
    return Fault(
        "algorithm.horizon", horizon,
        "must be 2 or more where algorithm.recurrent is given: along a horizon a policy learns "
        "what to remember",
        "Raise it, to 16 or more if you can, or leave recurrent out.",
    )  # fmt: skip


class ActorCriticConfig(AlgorithmConfig):
    """The keys of algorithms that train a policy and its value on fresh experience.

    The defaults are the paper's settings for Ant.
    """

    one_step: ClassVar[bool] = False  # a batch is one minibatch, once

    minibatches: Int = Field(default=2, ge=1)
    """Minibatches in an epoch; must divide `num_env` x `horizon`, with template tdg_ex that x the
    agents of a trainer."""
    epochs: Int = Field(default=4, ge=1)
    """Passes over the experience in one update."""
    lam: float = Field(default=0.95, ge=0, le=1)
    """Lambda of GAE and V-trace; 1 is the n-step return."""
    schedule: Literal["adaptive", "constant", "linear"] = "adaptive"
    """`adaptive`: after each minibatch, lower or raise the learning rate to keep the KL divergence
    near `kl_target`; `linear`: down to 0 at `total_steps`; `constant`."""
    value_coef: float = Field(default=2.0, ge=0)
    """Weight of the value loss."""
    entropy_coef: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus."""
    bounds_coef: float = Field(default=1e-4, ge=0)
    """Weight of the loss on action means outside the action bounds, where these are finite."""
    normalize_value: bool = True
    """Normalise value targets by their running mean and deviation."""
    init_log_std: float = Field(default=0.0, ge=-20, le=2)
    """Initial logarithm of the action's standard deviation (continuous actions)."""
    share_layers: bool = True
    """The hidden layers serve policy and value; `false`: each has its own, alike."""
    recurrent: RecurrentConfig | None = None
    """A policy that remembers what it saw in an episode: the `cell`, `lstm` (default) or `gru`, and
    its `size` (128); `{}` is the defaults, and `gru` short for `{cell: gru}`. Minibatches are whole
    environments with all their steps then. `null`: it acts by what it sees. See [policies that
    remember](writing-a-role.md#policies-that-remember)."""

    @property
    def anneals(self) -> bool:
        return self.schedule == "linear"

    @property
    def learns_value_scale(self) -> bool:
        return self.normalize_value

    def minibatch_size(self, samples: int) -> int:
        return samples // self.minibatches

    @property
    def effort(self) -> str:
        return f", {self.minibatches} minibatches, {self.epochs} epochs"

    def update_text(self, samples: int, where: str) -> str:
        each = f"{self.minibatch_size(samples):,} samples in each {where}"
        return f"{self.minibatches} of {each}, {counted(self.epochs, 'epoch')}"

    def own_faults(self) -> Iterator[Fault]:
        """Yields a fault if the policy remembers, and has nothing to learn that from."""
        yield from super().own_faults()
        if self.recurrent is not None and not self.share_layers:
            yield Fault(
                "algorithm.share_layers", False,
                "policy and value of a recurrent policy have one cell, and the layers before it",
                "Leave it out, or recurrent.",
            )  # fmt: skip
        if self.recurrent is not None and self.horizon < 2:
            yield short_horizon(self.horizon)

    def minibatch_faults(self, rows: int, what: str, product: str, factor: str) -> Iterator[Fault]:
        """Yields a fault unless the minibatches divide the `rows` of an update.

        `what` they are, the `product` they come from, and the key in it that may be changed.
        """
        if rows % self.minibatches:
            small = [n for n in range(1, math.isqrt(rows) + 1) if rows % n == 0]
            divisors = [*small, *(rows // n for n in reversed(small))]
            below = max(n for n in divisors if n <= self.minibatches)
            above = next((n for n in divisors if n > self.minibatches), None)
            near = str(below) if above is None else f"{below} or {above}"
            yield Fault(
                "algorithm.minibatches", self.minibatches,
                f"must divide the {rows} {what} ({product})",
                f"Use {near}, or change num_env or {factor}.",
            )  # fmt: skip


class RowsConfig(ActorCriticConfig):
    """The keys of algorithms that train on the rows of fresh experience, whichever they are."""

    optimizers: ClassVar[tuple[str, ...]] = ("all_reduce", "local")

    normalize_advantage: bool = True
    """Normalise advantages over the samples of an update, of all GMIs."""
    drop_slowest: Int = Field(default=0, ge=0)
    """Template tdg_ex: each trainer goes on with all but so many of its agents, those that have
    sampled first. What the others bring later is left out, and told as `dropped_steps`. Template
    tcg_ex: the same of all GMIs, and those that are late stop sampling; see
    [stragglers](templates.md#stragglers). Also `optimizer: {name: local, drop_slowest: 1}`."""

    @classmethod
    def why_not(cls, optimizer: str) -> tuple[str, str]:
        """Says why what trains on fresh experience cannot do otherwise, or with other gradients."""
        if optimizer == "async_samples":
            old = "what agents send meanwhile is of an older policy, which it does not correct for"
            return old, "algorithm.name: appo or impala, which do"
        if optimizer in ("async_gradients", "parameter_server"):
            one = "agents send one gradient for each batch, and it takes several steps"
            return one, "algorithm.name: a3c or pg"
        return "", ""

    @property
    def dropped_agents(self) -> int:
        return self.drop_slowest

    def faults(self, config: Config, agents: int, trainers: int) -> Iterator[Fault]:
        """Yields a fault unless the samples of an update divide by the minibatches."""
        yield from super().faults(config, agents, trainers)
        num_env, each = config.env.num_env, max(1, agents // trainers) if trainers else 1
        if self.drop_slowest and self.sends_gradients:
            yield Fault(
                "algorithm.drop_slowest", self.drop_slowest,
                "each agent's gradient is applied as it comes, and nobody waits for another",
                "Leave it out.",
            )  # fmt: skip
        elif self.drop_slowest:
            has_agents = each > 1 or config.template.name == "tdg_ex"
            whole, what = (each, "agents of a trainer") if has_agents else (trainers, "GMIs")
            if self.drop_slowest >= whole:
                yield Fault(
                    "algorithm.drop_slowest", self.drop_slowest,
                    f"must be less than the {what}: {whole} in this layout",
                    "Lower it, or use more GMIs.",
                )  # fmt: skip
                return
            if has_agents:
                each -= self.drop_slowest
        if self.recurrent is not None:
            product = f"num_env={num_env}" + (f" x {each} agents" if each > 1 else "")
            what = "environments of an update of one GMI, whose steps stay together"
            yield from self.minibatch_faults(num_env * each, what, product, "recurrent")
            return
        product = f"num_env={num_env} x horizon={self.horizon}"
        if each > 1:
            product += f" x {each} agents"
        yield from self.minibatch_faults(
            num_env * self.horizon * each, "samples of an update of one GMI", product, "horizon"
        )


class ReplayConfig(AlgorithmConfig):
    """The keys of algorithms that train on kept experience."""

    optimizers: ClassVar[tuple[str, ...]] = ("replay", "apex")

    normalize_observation: bool = False
    schedule: Literal["constant", "linear"] = "constant"
    """The learning rate; `linear`: down to 0 at `total_steps`; `constant`."""
    batch_size: Int = Field(default=64, ge=1)
    """Rows of a minibatch in each GMI; of a network that remembers, sequences of `horizon` rows."""
    replay_capacity: Int = Field(default=100_000, ge=1)
    """The newest steps that each GMI keeps, in whole steps of all its environments."""
    replay_start: Int = Field(default=1_000, ge=0)
    """Steps in each GMI before the first update."""
    updates_per_row: float = Field(default=0.5, gt=0)
    """Updates for each further step in each GMI."""
    hindsight: float = Field(default=0.0, ge=0, le=1)
    """The share of steps whose goal is replaced by one that was reached later in the episode, 0.8
    is usual; for goal environments. See [hindsight](writing-a-role.md#hindsight)."""
    n_step: Int = Field(default=1, ge=1)
    """Rewards that are summed before the value of what follows; fewer where an episode ends, and
    where nothing newer is there yet."""
    sampler: Literal["uniform", "prioritized"] = "uniform"
    """How rows are drawn: all alike, or in proportion to their [priorities](replay.md#samplers)."""
    priority_alpha: float = Field(default=0.6, ge=0, le=1)
    """Sampler `prioritized`: the power of priorities that rows are drawn by; 0: all alike."""
    priority_beta: float = Field(default=0.4, ge=0, le=1)
    """The power of the weights that make up for it, in the beginning; it rises linearly to 1 at
    `total_steps`."""
    priority_eps: float = Field(default=1e-6, gt=0)
    """Added to each priority, so that every row may be drawn."""
    priority_weights: Literal["minibatch", "buffer"] = "minibatch"
    """The greatest weight, by which all are divided, is that of the minibatch or of all rows."""
    replay_device: Literal["policy", "cpu"] = "policy"
    """Where rows are kept: beside the policy, or in the host's memory."""
    replay_save: bool = True
    """Keep the replay in checkpoints. `false`: it begins anew on resuming, and no update is
    taken before there are `replay_start` steps again."""

    @property
    def anneals(self) -> bool:
        return self.schedule == "linear"

    @property
    def kept_steps(self) -> int:
        return self.replay_capacity

    @property
    def drawn_steps(self) -> int:
        """The steps of each that is drawn: 1, or of a sequence."""
        return 1

    def minibatch_size(self, samples: int) -> int:
        return self.batch_size * self.drawn_steps

    def gradient_steps(self, samples: int) -> int:
        return int(self.updates_per_row * samples)

    @property
    def effort(self) -> str:
        return f", {self.updates_per_row:g} updates a step of {self.batch_size:,} kept samples"

    def update_text(self, samples: int, where: str) -> str:
        return f"{self.batch_size:,} kept samples in each {where}"

    def faults(self, config: Config, agents: int, trainers: int) -> Iterator[Fault]:
        """Yields faults unless the first update can come, and has rows and goals as it needs."""
        yield from super().faults(config, agents, trainers)
        if self.hindsight and self.n_step > 1:
            yield Fault(
                "algorithm.hindsight", self.hindsight,
                "rewards of n_step steps would be of several goals, as each step has its own",
                "Leave n_step out, or hindsight.",
            )  # fmt: skip
        num_env = config.env.num_env * max(agents // max(trainers, 1), 1)
        if config.mode == "async":
            num_env = config.env.num_env * config.experience.batch_segments
        if self.replay_start >= self.replay_capacity:
            yield Fault(
                "algorithm.replay_start", self.replay_start,
                f"must be below replay_capacity={self.replay_capacity}",
                "Lower it, or raise replay_capacity.",
            )  # fmt: skip
            return
        steps, of = max((self.n_step, "n_step"), (self.drawn_steps, "horizon"))
        if self.replay_capacity < num_env * steps:
            yield Fault(
                "algorithm.replay_capacity", self.replay_capacity,
                f"must hold {of}={steps} steps of {num_env} environments",
                f"Raise it, or lower env.num_env or {of}.",
            )  # fmt: skip
            return
        round_rows = num_env * self.horizon
        first = (self.replay_start // round_rows + 1) * round_rows
        stored = min(first, self.replay_capacity // num_env * num_env) // self.drawn_steps
        if self.batch_size > stored:
            what = "rows" if self.drawn_steps == 1 else "sequences"
            yield Fault(
                "algorithm.batch_size", self.batch_size,
                f"must be at most {stored}, the {what} that are there at the first update",
                "Lower it, or raise replay_start.",
            )  # fmt: skip


class SegmentsConfig(ActorCriticConfig):
    """The keys of algorithms that train on whole segments that agents send."""

    optimizers: ClassVar[tuple[str, ...]] = ("async_samples",)

    horizon: Horizon = 20
    minibatches: Int = Field(default=1, ge=1)
    """Minibatches in an epoch; must divide the environments of a batch, as segments are not cut."""
    epochs: Int = Field(default=1, ge=1)
    schedule: Literal["constant", "linear"] = "linear"
    """The learning rate; `linear`: down to 0 at `total_steps`; `constant`."""
    value_coef: float = Field(default=0.5, ge=0)
    bounds_coef: float = Field(default=0.1, ge=0)

    def faults(self, config: Config, agents: int, trainers: int) -> Iterator[Fault]:
        """Yields a fault unless the environments of a batch divide by the minibatches.

        V-trace needs segments whole, so that only environments can be shared out.
        """
        yield from super().faults(config, agents, trainers)
        num_env, segments = config.env.num_env, config.experience.batch_segments
        yield from self.minibatch_faults(
            num_env * segments, "environments in a trainer's batch",
            f"num_env={num_env} x batch_segments={segments}", "batch_segments",
        )  # fmt: skip
