"""Defines the config's schema, version 1. Unknown keys, wrong types and bad values are faults.

Every field is described by the text below it; docs/configuration.md is generated from them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

from pydantic import (
    Field,
    SerializeAsAny,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from gmi_drl.placement.reduction import Strategy
from gmi_drl.placement.templates import TEMPLATES, Template, templates_of

from .algorithms import (
    TEMPLATE_OF_OPTIMIZER,
    AlgorithmConfig,
    PPOConfig,
    algorithm_config,
    algorithms_of,
)
from .cluster import ClusterConfig
from .multi_agent import MultiAgentConfig
from .run import RunConfig
from .search import SearchConfig
from .section import (
    AUTO,
    CLASS_PATTERN,
    Cores,
    Count,
    Entries,
    Int,
    Names,
    Section,
    broken,
    named_entries,
)
from .tune import TuneConfig

CONFIG_VERSION = 1
BackendName: TypeAlias = Literal["cpu", "direct", "mps", "mig", "green"]


_WRAPPERS: Final = named_entries(
    "wrapper", "", "Write a name, or one name with its options: frame_stack: {count: 4}."
)


class EnvConfig(Section):
    """The environment that is simulated."""

    id: str = Field(min_length=1)
    """Environment id, such as `Ant-v5`; `module:Id` imports the module that registers it first,
    which may lie beside the config file."""
    adapter: Literal[
        "auto", "mujoco", "gymnasium", "torch", "warp", "mjx", "envpool", "game", "isaacgym",
        "pettingzoo",
    ] = "auto"  # fmt: skip
    """Which code steps it. `mujoco`: Gymnasium's MuJoCo family, Barkour, FrankaCabinet and
    ShadowHand as a batch; `torch`: CartPole, Pendulum and BallBalance as tensor code; `gymnasium`:
    any registered id of [spaces that a policy takes](writing-a-role.md#spaces); `warp`: Ant,
    BallBalance, Barkour, FrankaCabinet, HalfCheetah, Humanoid and ShadowHand on a GPU, only when
    named (see
    [simulation on the GPU](gpu-simulation.md)); `mjx`: some of these by MuJoCo in JAX, only when
    named; `envpool`: what EnvPool has, only when named; `game`: [games](alphazero.md) against
    moves at random; `isaacgym`: IsaacGymEnvs tasks; `pettingzoo`: [several
    agents](multi-agent.md), by the module that makes the environment, such as
    `mpe2.simple_spread_v3`, or `module:function` of yours. `auto` takes the fastest of the others
    that has the id. `gmi-drl envs` lists them."""
    num_env: Count = Field(default=64, le=1_000_000)
    """Environments in each GMI (not in all of them together). `auto`: what `gmi-drl tune` finds to
    be fastest."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the environment."""
    max_episode_steps: Int | None = Field(default=None, ge=1)
    """Time limit of an episode in steps; `null`: the one the id is registered with."""
    wrappers: Annotated[Entries, _WRAPPERS] = ()
    """The wrappers around each environment, the innermost first: names, or one name with its
    options, such as `frame_stack: {count: 4}`. There are `clip_reward`, `frame_stack` and
    `keep_numbers`, and `module:Class` for one of yours or Gymnasium's. See
    [wrappers](environments.md#wrappers)."""


MAX_OVERCOMMIT: Final = 60  # the clients that MPS takes on a device from CUDA 13.1 on


class HardwareConfig(Section):
    """The devices to use, and how GMIs share them."""

    backend: Literal["auto", BackendName] = "auto"
    """`cpu`: a device is a group of cores, a GMI a share of them; `direct`: processes share a GPU
    without limits; `mps`: with limits on its SMs and memory, by NVIDIA's multi-process service;
    `mig`: each GMI in a MIG instance; `green`: the GMIs of a GPU are threads of one process, each
    on SMs of its own; `auto`: what suits the mode and the GPUs, `cpu` without one."""
    allow_create: bool = False
    """Backend `mig`: make the MIG instances that are missing, and remove them after the run. Needs
    root, and GPUs that nobody uses."""
    sm_overcommit: float = Field(default=1.0, ge=1, le=MAX_OVERCOMMIT)
    """Backend `mps`: the shares of a device's GMIs add up to so many times its SMs. Above 1 a GMI
    takes what its neighbours leave idle; NVIDIA suggests 2. As many as there are GMIs, or more:
    each may use all SMs."""
    gpu_share: float = Field(default=1.0, gt=0, le=1)
    """Backends `mps` and `direct`: this run has that part of each GPU's memory, and under `mps` of
    its SMs (times `sm_overcommit`); the rest is for others beside it. `gmi-drl launch --seeds
    --parallel` sets it where launches share a GPU."""
    num_gpus: Int | None = Field(default=None, ge=1, le=4096)
    """Devices to use: GPUs, or groups of cores when there is none. `null`: all GPUs, or one group
    of all cores."""
    cores: Cores | None = Field(default=None, min_length=1)
    """CPU cores to use; `null`: all this process may use."""

    @field_validator("cores")
    @classmethod
    def _check_cores(cls, value: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if value is not None and len(set(value)) < len(value):
            raise broken("names a core twice", "Name each core once.")
        return value


if TYPE_CHECKING:
    _Template = str
else:
    _Template = Literal["auto", *TEMPLATES]

_MEANINGS = "; ".join(f"`{t.name}`: {t.description} (mode {t.mode})" for t in TEMPLATES.values())


class LayoutConfig(Section):
    """How roles are placed on GMIs, and GMIs on devices: by a template, or by a file.

    `layout: file.yaml` is short for `layout: {file: file.yaml}`.
    """

    file: str | None = Field(default=None, min_length=1)
    """A layout in YAML, as `gmi-drl plan --layout` writes it, counted from the config's folder. It
    takes the place of the keys below. `null`: the template."""
    template: _Template = Field(
        default="auto",
        description=f"{_MEANINGS}. `auto`: the one that `algorithm.optimizer` needs, or else the "
        "first of the mode.",
    )
    gmi_per_gpu: Count = 1
    """GMIs on each device; an even number with template `tdg`. `auto`: what `gmi-drl tune` finds to
    be fastest. Left out it is 2 with templates `tdg_ex`, `parameter_server` and `tdg`, which have
    no fewer."""
    trainer_gpus: Int = Field(default=1, ge=1)
    """Template `decoupled`: so many devices, the last ones, hold trainers; the others simulate and
    infer. With fewer `cluster.trainer_hosts` than hosts: so many of each host that trains, all if
    you like."""

    @model_validator(mode="before")
    @classmethod
    def _expand_shorthand(cls, value: Any) -> Any:
        return {"file": value} if isinstance(value, str) else value

    @field_validator("template", "gmi_per_gpu", "trainer_gpus", mode="before")
    @classmethod
    def _check_not_with_file(cls, value: Any, info: ValidationInfo) -> Any:
        if info.data.get("file") is not None:
            raise broken("the layout file says it", "Leave it out, or leave out layout.file.")
        return value

    @model_serializer(mode="wrap")
    def _serialize(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        keys: dict[str, Any] = handler(self)
        return {key: value for key, value in keys.items() if (key == "file") == bool(self.file)}


class CommConfig(Section):
    """How GMIs reduce gradients and talk to each other."""

    reduction: Literal["auto", Strategy] = "auto"
    """How gradients are reduced. `mpr`: through shared memory of the host; `mrr`: rings across the
    devices; `har`: inside each device first, then a ring of one GMI of each; `ipc`: in the memory
    of one GPU; `local`: not at all, for a single GMI. `auto`: what is fastest by what was measured
    on this machine; `gmi-drl plan` shows it."""
    wire: Literal["fp32", "bf16"] = "fp32"
    """What gradients are sent as. `bf16`: rounded to 8 bits of precision on the way, for half the
    bytes through memory and between hosts; sums and parameters stay fp32."""
    timeout_s: float = Field(default=30.0, gt=0, le=86_400)
    """Seconds a GMI waits for another before the run fails, naming it."""
    checksum_every: Int = Field(default=50, ge=0)
    """Iterations between checks that all GMIs hold the same parameters; 0: never."""


class ExperienceConfig(Section):
    """How experience goes from agents to trainers (mode async)."""

    channels: Literal["auto", "mcc", "ucc", "joined"] = "auto"
    """What travels together. `mcc`: a channel for each kind of data, a packet a segment; `ucc`: one
    channel, a packet a step; `joined`: all of a segment in one packet; `auto`: what moves most
    bytes a second, by the measured costs of a packet."""
    batch_segments: Int = Field(default=1, ge=1, le=4096)
    """Segments (`horizon` steps of the environments of one GMI) in an update of each trainer."""
    capacity: Int = Field(default=2, ge=2, le=1024)
    """Segments that may be under way between an agent and a trainer; an agent that is further ahead
    waits."""
    max_policy_lag: Int = Field(default=16, ge=0)
    """Segments whose policy is older than this many updates are not trained on; they are
    counted. Under `apex` all are kept."""
    lz4: Names = ()
    """Channels to compress with LZ4, such as `[observation]`. It pays for images of bytes, seldom
    for numbers."""


class RoleConfig(Section):
    """A class of yours that takes a role."""

    class_: str = Field(alias="class", pattern=CLASS_PATTERN)
    """The class, as `module:Class`. The module may lie beside the config file."""
    params: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of its `GMI_run`."""

    @model_validator(mode="before")
    @classmethod
    def _expand_shorthand(cls, value: Any) -> Any:
        return {"class": value} if isinstance(value, str) else value

    @model_serializer
    def _serialize_class(self) -> dict[str, Any]:
        return {"class": self.class_, "params": self.params}


def with_algorithm(config: dict[str, Any]) -> dict[str, Any]:
    """Returns the keys of a config, with its mode's default algorithm if it names none."""
    algorithm, names = config.get("algorithm", {}), algorithms_of(str(config.get("mode", "sync")))
    if not names or not isinstance(algorithm, dict) or "class" in algorithm:
        return config
    if names[0] == PPOConfig().name:  # the section's own default
        return config
    return {**config, "algorithm": {"name": names[0], **algorithm}}


def _template(name: str, mode: str, algorithm: AlgorithmConfig, env: EnvConfig) -> Template:
    """Returns the template of this name; `auto` is the optimizer's, or the mode's default."""
    if name != "auto":
        return TEMPLATES[name]
    default = templates_of(mode)[0]
    if mode != "sync" or env.adapter == "pettingzoo":
        return default
    return TEMPLATES[TEMPLATE_OF_OPTIMIZER.get(algorithm.resolved_optimizer, default.name)]


class Config(Section):
    """A whole config."""

    version: Literal[1]
    """Version of this schema: 1."""
    run: RunConfig = RunConfig()
    """The run."""
    env: EnvConfig
    """The environment."""
    multi_agent: MultiAgentConfig | None = None
    """The policies of an environment of several agents."""
    algorithm: SerializeAsAny[AlgorithmConfig] = PPOConfig()
    """The algorithm."""
    mode: Literal["sync", "async", "serving"] = "sync"
    """`sync`: all GMIs update the same policy at the same time; `async`: some GMIs collect
    experience with a policy that is a little old while others train on it; `serving`: simulate and
    infer only, nothing is learned."""
    hardware: HardwareConfig = HardwareConfig()
    """The devices to use."""
    layout: LayoutConfig = Field(default=LayoutConfig(), validate_default=True)
    """The placement."""
    cluster: ClusterConfig | None = None
    """Hosts of a Ray cluster that train together; `null`: this machine alone."""
    roles: dict[str, RoleConfig] = Field(default_factory=dict)
    """Classes of yours by role, for example `trainer: "my_module:MyTrainer"`, or `class` and
    `params` apart."""
    comm: CommConfig = CommConfig()
    """Communication."""
    experience: ExperienceConfig = ExperienceConfig()
    """The way of experience, in mode async."""
    tune: TuneConfig = TuneConfig()
    """How what says `auto` is found, by `gmi-drl tune`."""
    search: SearchConfig | None = None
    """Hyper-parameters to look for, by `gmi-drl search`."""

    @property
    def is_resolved(self) -> bool:
        """Tells whether no key says `auto` that tuning would have to find before a run."""
        return AUTO not in (self.env.num_env, self.layout.gmi_per_gpu)

    @property
    def hosts(self) -> int:
        """Returns the number of hosts that the run is on."""
        return 1 if self.cluster is None else self.cluster.hosts

    @property
    def sampling_hosts(self) -> int:
        """Returns how many hosts hold no trainer, and send experience to those of others."""
        return 0 if self.cluster is None else self.cluster.sampling_hosts

    @property
    def template(self) -> Template:
        """Returns the template that `layout.template` means here; a layout file has its own."""
        return _template(self.layout.template, self.mode, self.algorithm, self.env)

    @model_validator(mode="before")
    @classmethod
    def _default_algorithm(cls, value: Any) -> Any:
        return with_algorithm(value) if isinstance(value, dict) else value

    @field_validator("algorithm", mode="before")
    @classmethod
    def _parse_algorithm(cls, value: Any) -> Any:
        return algorithm_config(value) if isinstance(value, dict) else value

    @field_validator("layout")
    @classmethod
    def _check_layout(cls, value: LayoutConfig, info: ValidationInfo) -> LayoutConfig:
        env = info.data.get("env")
        if value.file is not None and env is not None and env.num_env == AUTO:
            raise broken(
                "its file says which GMIs there are, and env.num_env is auto: they are tuned "
                "together",
                "Give env.num_env, or a template in place of layout.file.",
            )
        is_given = value.file is not None or "gmi_per_gpu" in value.model_fields_set
        if is_given or not {"mode", "algorithm", "env"} <= set(info.data):
            return value
        names = (info.data[key] for key in ("mode", "algorithm", "env"))
        least_gmis = _template(value.template, *names).least_gmis
        return value.model_copy(update={"gmi_per_gpu": least_gmis}) if least_gmis > 1 else value

    @field_validator("tune")
    @classmethod
    def _check_tune(cls, value: TuneConfig, info: ValidationInfo) -> TuneConfig:
        if info.data.get("mode") == "serving" and value.batch is not None:
            raise broken(
                f"batch={value.batch}; mode serving trains nothing, so there are no updates",
                "Leave out tune.batch, or use mode sync or async.",
            )
        return value

    @field_validator("version", mode="before")
    @classmethod
    def _check_version(cls, value: Any) -> Any:
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
