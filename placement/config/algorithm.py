"""The config's section `algorithm`: how the policy learns."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from .algorithms import ALGORITHMS_OF, DEFAULTS, USED_BY
from .networks import NETWORKS
from .section import Int, Network, Section, broken


class AlgorithmConfig(Section):
    """How the policy learns. The defaults of `ppo` are the paper's settings for Ant."""

    name: Literal["ppo", "impala", "a3c"] = Field(
        default="ppo",
        description="`ppo`: proximal policy optimisation, for `mode: sync`; `impala`: actor-critic "
        "with V-trace, which corrects for old experience, and `a3c`: without correction, both for "
        "`mode: async`, where `impala` is the default.",
    )
    network: Network = Field(
        default="ant",
        description="Hidden layers of the policy: a list of sizes, or a preset of the paper: "
        + ", ".join(f"`{name}` ({':'.join(map(str, s))})" for name, s in NETWORKS.items())
        + ".",
    )
    activation: Literal["elu", "tanh", "relu"] = Field(
        default="elu", description="Activation of the hidden layers."
    )
    horizon: Int = Field(
        default=16,
        ge=1,
        le=1_000_000,
        description="Steps each environment takes between two updates.",
    )
    minibatches: Int = Field(
        default=2,
        ge=1,
        description="Minibatches in an epoch; must divide `num_env` x `horizon` (ppo; with "
        "template tdg_ex that x the agents of a trainer), or the environments of a batch, as "
        "segments are not cut (impala, a3c).",
    )
    epochs: Int = Field(default=4, ge=1, description="Passes over the experience in one update.")
    gamma: float = Field(default=0.99, ge=0, le=1, description="Discount of future rewards.")
    lam: float = Field(
        default=0.95, ge=0, le=1, description="Lambda of GAE and V-trace; 1 is the n-step return."
    )
    learning_rate: float = Field(
        default=3e-4,
        gt=0,
        le=1,
        description="Adam's learning rate (the first one, if it is scheduled).",
    )
    schedule: Literal["adaptive", "constant", "linear"] = Field(
        default="adaptive",
        description="`adaptive`: after each minibatch, lower or raise the learning rate to keep "
        "the KL divergence near `kl_target`; `linear`: down to 0 at `total_steps`; `constant`.",
    )
    kl_target: float = Field(
        default=0.008, gt=0, description="KL divergence that the adaptive schedule aims at."
    )
    rho_clip: float = Field(
        default=1.0,
        gt=0,
        description="V-trace: truncation of the importance weights; what it learns the value of "
        "is nearer to the present policy the larger it is.",
    )
    c_clip: float = Field(
        default=1.0,
        gt=0,
        description="V-trace: truncation of the weights that pass errors back along a segment; at "
        "most `rho_clip`. Less is less variance.",
    )
    clip: float = Field(default=0.2, gt=0, description="Clip range of PPO's probability ratio.")
    clip_value_loss: bool = Field(
        default=True, description="Clip the change of value predictions by `clip` too."
    )
    value_coef: float = Field(default=2.0, ge=0, description="Weight of the value loss.")
    entropy_coef: float = Field(default=0.0, ge=0, description="Weight of the entropy bonus.")
    bounds_coef: float = Field(
        default=1e-4,
        ge=0,
        description="Weight of the loss on action means outside the action bounds.",
    )
    max_grad_norm: float | None = Field(
        default=1.0, ge=0, description="Clip the gradient's norm to this; `null` or 0: do not."
    )
    reward_scale: float = Field(default=1.0, gt=0, description="Rewards are multiplied by this.")
    normalize_observation: bool = Field(
        default=True, description="Normalise observations by their running mean and deviation."
    )
    normalize_value: bool = Field(
        default=True, description="Normalise value targets by their running mean and deviation."
    )
    normalize_advantage: bool = Field(
        default=True, description="Normalise advantages over the samples of an update, of all GMIs."
    )
    bootstrap_time_limit: bool = Field(
        default=True,
        description="At a time limit, add the value of the final observation: the episode could "
        "have gone on.",
    )
    init_log_std: float = Field(
        default=0.0,
        ge=-20,
        le=2,
        description="Initial logarithm of the action's standard deviation (continuous actions).",
    )

    precision: Literal["fp32", "tf32", "bf16"] = Field(
        default="fp32",
        description="What the network's matrix products are computed in. `tf32`: inputs rounded to "
        "10 bits on the tensor cores of a GPU; CPU cores have none and compute in fp32. `bf16`: "
        "hidden layers in bfloat16. The last layer's output, parameters, losses and the optimizer "
        "stay fp32. See [training on the GPU](gpu-training.md#precision).",
    )

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_the_algorithm(cls, value: Any) -> Any:
        if not isinstance(value, dict) or not isinstance(value.get("name"), str):
            return value
        return {**DEFAULTS.get(value["name"], {}), **value}

    @field_validator(*USED_BY, mode="before")
    @classmethod
    def _used(cls, value: Any, info: ValidationInfo) -> Any:
        name, users = info.data.get("name"), USED_BY[info.field_name or ""]
        if name is not None and name not in users:
            raise broken(
                f"algorithm {name} does not use it",
                f"Leave it out, or use {' or '.join(users)}.",
            )
        return value

    @field_validator("schedule")
    @classmethod
    def _schedule_of_the_algorithm(cls, value: str, info: ValidationInfo) -> str:
        if value == "adaptive" and info.data.get("name") in ALGORITHMS_OF["async"]:
            raise broken("only ppo adapts its learning rate", "Use constant or linear.")
        return value

    @field_validator("c_clip")
    @classmethod
    def _at_most_rho_clip(cls, value: float, info: ValidationInfo) -> float:
        rho_clip = info.data.get("rho_clip")
        if rho_clip is not None and value > rho_clip:
            raise broken(f"must be at most rho_clip, {rho_clip:g}", "Lower it, or raise rho_clip.")
        return value

    @model_serializer(mode="wrap")
    def _without_what_is_not_used(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        whole: dict[str, Any] = handler(self)
        return {
            key: value
            for key, value in whole.items()
            if key not in USED_BY or self.name in USED_BY[key]
        }
