"""The config's schema, version 1. Strict: unknown keys, wrong types and bad values are faults.

Every field has a description; docs/configuration.md is generated from them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

from .algorithms import ALGORITHMS_OF, DEFAULTS, USED_BY
from .networks import NETWORKS

CONFIG_VERSION = 1


def _whole(value: Any) -> Any:
    """1e6 is how people write a million, and YAML reads it as a float."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def as_tuple(value: Any) -> Any:
    """A list as the tuple it is kept as."""
    return tuple(value) if isinstance(value, list) else value


def broken(rule: str, remedy: str) -> PydanticCustomError:
    """What a validator raises: the rule that is broken, and what to do."""
    return PydanticCustomError("gmi_drl", "{rule}", {"rule": rule, "remedy": remedy})


def _network(value: Any) -> Any:
    sizes = as_tuple(value)
    if isinstance(sizes, str) and sizes in NETWORKS:
        return sizes
    if isinstance(sizes, tuple) and sizes and all(type(s) is int and s > 0 for s in sizes):
        return sizes
    raise broken(
        "must be a preset or a list of hidden layer sizes",
        f"Use one of {', '.join(NETWORKS)}, or for example [256, 128, 64].",
    )


Int = Annotated[int, BeforeValidator(_whole)]
Network = Annotated[str | tuple[int, ...], BeforeValidator(_network)]
Cores = Annotated[tuple[Annotated[int, Field(ge=0)], ...], BeforeValidator(as_tuple)]
Names = Annotated[tuple[str, ...], BeforeValidator(as_tuple)]


class _Section(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, validate_default=False
    )


class RunConfig(_Section):
    """What the run is called, how long it takes, and what it writes."""

    name: str = Field(
        default="run",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        max_length=100,
        description="Name of the run: the folder in `folder` that holds its runs. Letters, "
        "digits, `.`, `_` and `-`.",
    )
    seed: Int = Field(
        default=0, ge=0, lt=2**32, description="Seed of environments, initial weights and sampling."
    )
    total_steps: Int = Field(
        default=1_000_000,
        ge=1,
        description="Environment steps to train for, over all GMIs. The last iteration is "
        "finished, so that a run ends at this number or a little above.",
    )
    folder: str = Field(default="runs", min_length=1, description="Folder that holds all runs.")
    checkpoint_every: Int = Field(
        default=50, ge=0, description="Iterations between checkpoints; 0: only at the end."
    )
    log_every: Int = Field(default=1, ge=1, description="Iterations between lines of metrics.")
    eval_episodes: Int = Field(
        default=20,
        ge=0,
        description="Episodes of the trained policy, without exploration, that are run at the "
        "end; 0: none.",
    )
    max_restarts: Int = Field(
        default=3,
        ge=0,
        le=10_000,
        description="How often a GMI whose process dies is started again, while the others go on; "
        "each counts its own. A GMI that dies again and again has a reason that restarting does "
        "not mend, so the run fails at last. 0: it fails at the first death. Roles of your own are "
        "started again only if they say `recoverable = True`.",
    )
    target_return: float | None = Field(
        default=None,
        description="Stop early when the mean return of the last episodes reaches this.",
    )
    policy: str | None = Field(
        default=None,
        min_length=1,
        description="Mode serving: the folder of a run, or of one of its checkpoints, whose policy "
        "acts; `null`: a new one, of random weights.",
    )
    deterministic: bool = Field(
        default=False,
        description="Use only torch operations that give the same numbers every time; slower on "
        "a GPU. On CPU cores a seeded run with one GMI repeats bit for bit either way.",
    )


class EnvConfig(_Section):
    """The environment that is simulated."""

    id: str = Field(
        min_length=1,
        description="Environment id, such as `Ant-v5`; `module:Id` imports the module that "
        "registers it first.",
    )
    adapter: Literal["auto", "mujoco", "gymnasium", "torch", "isaacgym"] = Field(
        default="auto",
        description="Which code steps it. `mujoco`: Gymnasium's MuJoCo family as a batch; "
        "`torch`: CartPole, Pendulum and BallBalance as tensor code; `gymnasium`: any registered "
        "id; `isaacgym`: IsaacGymEnvs tasks. `auto` takes the fastest that has the id.",
    )
    num_env: Int = Field(
        default=64,
        ge=1,
        le=1_000_000,
        description="Environments in each GMI (not in all of them together).",
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description="Keyword arguments of the environment."
    )
    max_episode_steps: Int | None = Field(
        default=None,
        ge=1,
        description="Time limit of an episode in steps; `null`: the one the id is registered with.",
    )


class AlgorithmConfig(_Section):
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


class HardwareConfig(_Section):
    """The devices to use, and how GMIs share them."""

    backend: Literal["auto", "cpu", "direct", "mps", "mig", "green"] = Field(
        default="auto",
        description="`cpu`: a device is a group of cores, a GMI a share of them; `direct`: "
        "processes share a GPU without limits; `mps`: with limits on its SMs and memory, by "
        "NVIDIA's multi-process service; `mig`: each GMI in a MIG instance; `green`: the GMIs of a "
        "GPU are threads of one process, each on SMs of its own; `auto`: what suits the mode and "
        "the GPUs, `cpu` without one.",
    )
    allow_create: bool = Field(
        default=False,
        description="Backend `mig`: make the MIG instances that are missing, and remove them "
        "after the run. Needs root, and GPUs that nobody uses.",
    )
    sm_overcommit: float = Field(
        default=1.0,
        ge=1,
        le=2,
        description="Backend `mps`: the shares of a device's GMIs add up to so many times its SMs. "
        "Above 1 a GMI takes what its neighbours leave idle; NVIDIA suggests 2.",
    )
    num_gpus: Int | None = Field(
        default=None,
        ge=1,
        le=4096,
        description="Devices to use: GPUs, or groups of cores when there is none. `null`: all "
        "GPUs, or one group of all cores.",
    )
    cores: Cores | None = Field(
        default=None,
        min_length=1,
        description="CPU cores to use; `null`: all this process may use.",
    )

    @field_validator("cores")
    @classmethod
    def _distinct(cls, value: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if value is not None and len(set(value)) < len(value):
            raise broken("names a core twice", "Name each core once.")
        return value


class LayoutConfig(_Section):
    """How roles are placed on GMIs, and GMIs on devices: by a template, or by a file.

    `layout: file.yaml` is short for `layout: {file: file.yaml}`.
    """

    file: str | None = Field(
        default=None,
        min_length=1,
        description="A layout in YAML, as `gmi-drl plan --layout` writes it, counted from the "
        "config's folder. It takes the place of the keys below. `null`: the template.",
    )
    template: Literal["auto", "tcg_ex", "tdg_ex", "decoupled", "tcg", "tdg"] = Field(
        default="auto",
        description="`tcg_ex`: simulator, agent and trainer together in each GMI, `tdg_ex`: one "
        "GMI of each device trains, and the others simulate and infer for it (both mode sync); "
        "`decoupled`: simulator and agent together on some devices, trainers on the others (mode "
        "async); `tcg`: simulator and agent together in each GMI; `tdg`: simulators and agents in "
        "GMIs of their own, in pairs (both mode serving). `auto`: `tcg_ex`, `decoupled` or `tcg`, "
        "as the mode has it.",
    )
    gmi_per_gpu: Int = Field(
        default=1, ge=1, description="GMIs on each device; an even number with template `tdg`."
    )
    trainer_gpus: Int = Field(
        default=1,
        ge=1,
        description="Template `decoupled`: so many devices, the last ones, hold trainers; the "
        "others simulate and infer.",
    )

    @model_validator(mode="before")
    @classmethod
    def _shorthand(cls, value: Any) -> Any:
        return {"file": value} if isinstance(value, str) else value

    @field_validator("template", "gmi_per_gpu", "trainer_gpus", mode="before")
    @classmethod
    def _said_by_the_file(cls, value: Any, info: ValidationInfo) -> Any:
        if info.data.get("file") is not None:
            raise broken("the layout file says it", "Leave it out, or leave out layout.file.")
        return value

    @model_serializer(mode="wrap")
    def _file_or_template(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        whole: dict[str, Any] = handler(self)
        return {key: value for key, value in whole.items() if (key == "file") == bool(self.file)}


class RoleConfig(_Section):
    """A class of yours that takes a role."""

    class_: str = Field(
        alias="class",
        pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$",
        description="The class, as `module:Class`. The module may lie beside the config file.",
    )
    params: dict[str, Any] = Field(
        default_factory=dict, description="Keyword arguments of its `GMI_run`."
    )

    @model_validator(mode="before")
    @classmethod
    def _shorthand(cls, value: Any) -> Any:
        return {"class": value} if isinstance(value, str) else value

    @model_serializer
    def _with_its_name(self) -> dict[str, Any]:
        return {"class": self.class_, "params": self.params}


class CommConfig(_Section):
    """How GMIs reduce gradients and talk to each other."""

    reduction: Literal["auto", "local", "mpr", "mrr", "har", "ipc"] = Field(
        default="auto",
        description="How gradients are reduced. `mpr`: through shared memory of the host; `mrr`: "
        "rings across the devices; `har`: inside each device first, then a ring of one GMI of "
        "each; `ipc`: in the memory of one GPU; `local`: not at all, for a single GMI. `auto`: "
        "what is fastest by what was measured on this machine; `gmi-drl plan` shows it.",
    )
    wire: Literal["fp32", "bf16"] = Field(
        default="fp32",
        description="What gradients are sent as. `bf16`: rounded to 8 bits of precision on the "
        "way, for half the bytes through memory; sums and parameters stay fp32.",
    )
    timeout_s: float = Field(
        default=30.0,
        gt=0,
        le=86_400,
        description="Seconds a GMI waits for another before the run fails, naming it.",
    )
    checksum_every: Int = Field(
        default=50,
        ge=0,
        description="Iterations between checks that all GMIs hold the same parameters; 0: never.",
    )


class ExperienceConfig(_Section):
    """How experience goes from agents to trainers (mode async)."""

    channels: Literal["auto", "mcc", "ucc", "joined"] = Field(
        default="auto",
        description="What travels together. `mcc`: a channel for each kind of data, a packet a "
        "segment; `ucc`: one channel, a packet a step; `joined`: all of a segment in one packet; "
        "`auto`: what moves most bytes a second, by the measured costs of a packet.",
    )
    batch_segments: Int = Field(
        default=1,
        ge=1,
        le=4096,
        description="Segments (`horizon` steps of the environments of one GMI) in an update of "
        "each trainer.",
    )
    capacity: Int = Field(
        default=2,
        ge=2,
        le=1024,
        description="Segments that may be under way between an agent and a trainer; an agent that "
        "is further ahead waits.",
    )
    max_policy_lag: Int = Field(
        default=16,
        ge=0,
        description="Segments whose policy is older than this many updates are not trained on; "
        "they are counted.",
    )
    lz4: Names = Field(
        default=(),
        description="Channels to compress with LZ4, such as `[observation]`. It pays for images "
        "of bytes, seldom for numbers.",
    )


class Config(_Section):
    """A whole config."""

    version: Literal[1] = Field(description="Version of this schema: 1.")
    run: RunConfig = Field(default=RunConfig(), description="The run.")
    env: EnvConfig = Field(description="The environment.")
    algorithm: AlgorithmConfig = Field(default=AlgorithmConfig(), description="The algorithm.")
    mode: Literal["sync", "async", "serving"] = Field(
        default="sync",
        description="`sync`: all GMIs update the same policy at the same time; `async`: some GMIs "
        "collect experience with a policy that is a little old while others train on it; "
        "`serving`: simulate and infer only, nothing is learned.",
    )
    hardware: HardwareConfig = Field(default=HardwareConfig(), description="The devices to use.")
    layout: LayoutConfig = Field(default=LayoutConfig(), description="The placement.")
    roles: dict[str, RoleConfig] = Field(
        default_factory=dict,
        description='Classes of yours by role, for example `trainer: "my_module:MyTrainer"`, or '
        "`class` and `params` apart.",
    )
    comm: CommConfig = Field(default=CommConfig(), description="Communication.")
    experience: ExperienceConfig = Field(
        default=ExperienceConfig(), description="The way of experience, in mode async."
    )

    @model_validator(mode="before")
    @classmethod
    def _algorithm_of_the_mode(cls, value: Any) -> Any:
        if not isinstance(value, dict) or value.get("mode") != "async":
            return value
        algorithm = value.get("algorithm", {})
        if not isinstance(algorithm, dict):
            return value
        return {**value, "algorithm": {"name": ALGORITHMS_OF["async"][0], **algorithm}}

    @field_validator("version", mode="before")
    @classmethod
    def _known_version(cls, value: Any) -> Any:
        if type(value) is not int or value < CONFIG_VERSION:
            raise broken(
                f"must be {CONFIG_VERSION}", f"Write `version: {CONFIG_VERSION}` at the top."
            )
        if value > CONFIG_VERSION:
            raise broken(
                f"a config from the future: this gmi-drl reads version {CONFIG_VERSION}",
                "Upgrade gmi-drl, or write the config for this version.",
            )
        return value
