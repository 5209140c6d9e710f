"""Defines the config's schema, version 1. Unknown keys, wrong types and bad values are faults.

Every field is described by the text below it; docs/configuration.md is generated from them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

from pydantic import (
    BeforeValidator,
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
from .multi_agent import MultiAgentConfig
from .search import SearchConfig
from .section import (
    AUTO,
    CLASS_PATTERN,
    Cores,
    Count,
    Int,
    Names,
    Seconds,
    Section,
    as_tuple,
    broken,
    named_entries,
)

CONFIG_VERSION = 1
BackendName: TypeAlias = Literal["cpu", "direct", "mps", "mig", "green"]


_Entries: TypeAlias = tuple[str | dict[str, Any], ...]
_CALLBACKS: Final = named_entries(
    "callback", CLASS_PATTERN,
    "Write module:Class, or one with its options: {module:Class: {every: 10}}.",
)  # fmt: skip
_WRAPPERS: Final = named_entries(
    "wrapper", "", "Write a name, or one name with its options: frame_stack: {count: 4}."
)
_Logger: TypeAlias = Literal["tensorboard", "wandb", "mlflow"]


class RunConfig(Section):
    """What the run is called, how long it takes, and what it writes."""

    name: str = Field(default="run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)
    """Name of the run: the folder in `folder` that holds its runs. Letters, digits, `.`, `_` and
    `-`."""
    seed: Int = Field(default=0, ge=0, lt=2**32)
    """Seed of environments, initial weights and sampling."""
    total_steps: Int = Field(default=1_000_000, ge=1)
    """Environment steps to train for, over all GMIs. The last iteration is finished, so that a run
    ends at this number or a little above."""
    folder: str = Field(default="runs", min_length=1)
    """Folder that holds all runs: a path, no URL. If it is not there, it is made for you alone
    (mode 0700). Who may read it may read the runs in it; only you may write to those."""
    checkpoint_every: Int = Field(default=50, ge=0)
    """Iterations between checkpoints; 0: only at the end. A file `checkpoint_requested` in the
    run's folder gets one in between."""
    resize: Literal["on_request", "auto"] = "on_request"
    """`on_request`: the layout of a run that trains changes when `gmi-drl resize` asks for it, or a
    device is lost. `auto`: also by itself, where the [noise scale](noise-scale.md) has left its
    batches, to the settings that the run proposes, and where the run is slower than its record of
    [tuning](tuning.md#the-record) says, to what that has that is better. See
    [resizing](resize.md#a-run-that-resizes-itself)."""
    lineage: Int = Field(default=100_000, ge=0)
    """The newest so many versions of the policy whose lineage `gcs.sqlite` keeps, a few
    hundred bytes each at most; 0 records none. See [lineage](lineage.md)."""
    log_every: Int = Field(default=1, ge=1)
    """Iterations between lines of metrics, and between what loggers get."""
    log: Annotated[tuple[_Logger, ...], BeforeValidator(as_tuple)] = ("tensorboard",)
    """The loggers that get metrics, beside `metrics.jsonl`: `tensorboard` writes to `tb/` of the
    run's folder; `wandb` and `mlflow` send config and metrics where their own environment variables
    say. See [loggers](callbacks.md#loggers)."""
    video_every: Int = Field(default=0, ge=0)
    """Iterations between films of the policy, made of checkpoints as they come (`checkpoint_every`)
    by a process beside the run; 0: none. They are in `report/videos` and in TensorBoard. See
    [films](trained-policies.md#video)."""
    callbacks: Annotated[_Entries, _CALLBACKS] = ()
    """Classes of yours that are told of the start, iterations, checkpoints and the end, in the
    launcher's process: `module:Class`, or one with its options. See [callbacks](callbacks.md)."""
    callback_errors: Literal["warn", "fail"] = "warn"
    """What an exception in a callback or logger does. `warn`: it is told, and the run goes on;
    `fail`: it ends the run."""
    eval_episodes: Int = Field(default=20, ge=0)
    """Episodes of the trained policy, without exploration, that are run at the end; 0: none."""
    max_restarts: Int = Field(default=3, ge=0, le=10_000)
    """How often a GMI whose process dies is started again, while the others go on; each counts its
    own. A GMI that dies again and again has a reason that restarting does not mend, so the run
    fails at last. 0: it fails at the first death. Roles of your own are started again only if they
    say `recoverable = True`."""
    hang_timeout_s: float | None = Field(default=1200.0, gt=0, le=604_800)
    """Seconds without progress after which a GMI hangs, unless it waits for another one: its
    process is killed, and started again as after a death. Progress is each step of the environments
    and each minibatch; while environments are made it has twenty minutes at least. `null`: nobody
    watches, as for a debugger. See [when a GMI dies](recovery.md)."""
    target_return: float | None = None
    """Stop early when the mean return of the last 100 episodes reaches this, and as many episodes
    have ended as there are environments: the first to end are the short ones."""
    policy: str | None = Field(default=None, min_length=1)
    """Mode serving: the folder of a run, or of one of its checkpoints, whose policy acts; `null`: a
    new one, of random weights."""
    profile: bool = False
    """Record a trace of each GMI, of its iterations 4 to 6, in `profile/` of the run's folder; they
    take longer meanwhile. See [profiling](profiling.md)."""
    capture: bool = True
    """On a GPU, run policy steps and updates as CUDA graphs; `false` launches every kernel from
    Python, which is slower: a baseline, and for finding faults. CPU cores have no graphs. See
    [training on the GPU](gpu-training.md)."""
    deterministic: bool = False
    """Use only torch operations that give the same numbers every time; slower on a GPU. On CPU
    cores a seeded run with one GMI repeats bit for bit either way."""

    @field_validator("folder")
    @classmethod
    def _check_folder(cls, value: str) -> str:
        if "://" in value:
            raise broken(
                "is a URL; a run locks, renames and appends to files, which need a file system",
                "Mount it, and give the path there; or give a folder, and copy the run afterwards.",
            )
        return value

    @field_validator("log")
    @classmethod
    def _check_log(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(value)) < len(value):
            raise broken("names a logger twice", "Name each once.")
        return value


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
    wrappers: Annotated[_Entries, _WRAPPERS] = ()
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


_Counts = Annotated[tuple[Annotated[int, Field(ge=1, le=4096)], ...], BeforeValidator(as_tuple)]


class TuneConfig(Section):
    """How `gmi-drl tune` finds `num_env` and `gmi_per_gpu`."""

    objective: Literal["learning", "steps"] = "learning"
    """`learning`: the shortest time to a return, by throughput, by what an update of its size
    learns of a sample, and by races where these do not decide; `steps`: the most environment steps
    a second, whatever is learned (mode serving always has this)."""
    keep: Literal["update", "gradient_steps", "none"] = "update"
    """What stays as the config has it where `num_env` and the number of GMIs change. `update`: the
    samples of an update and of a minibatch; the horizon follows. `gradient_steps`: the horizon and
    the samples of a minibatch; their number follows. `none`: the horizon and the number of
    minibatches, so that updates grow, which may learn slower."""
    algorithm: Literal["default", "paper"] = "default"
    """How it searches. `paper`: GMI-DRL's Algorithm 2; `default`: more kinds of candidates, by
    fewer measurements."""
    budget_s: Seconds = Field(default=300.0, gt=0)
    """Seconds that tuning may take, all in all; or a time as `5m` or `1h30m`."""
    race_s: Seconds | None = Field(default=None, ge=0)
    """Seconds of the budget that learning races may take, less than all of it; 0: no races. `null`:
    half of the budget, where the prediction is unsure."""
    batch: Int | None = Field(default=None, ge=1)
    """The samples of an update that `keep: update` keeps, of all GMIs of all devices; `null`: the
    config's own."""
    gmi_per_gpu: _Counts | None = Field(default=None, min_length=1)
    """Numbers of GMIs on a device to try; `null`: 1, 2, 3, 4, 6, 8 and so on, as far as there are
    cores, and of these for algorithm `paper` the powers of two."""
    min_num_env: Int | None = Field(default=None, ge=1, le=1_000_000)
    """The smallest `num_env` to try; `null`: 128 on GPUs, 4 on groups of cores."""
    max_num_env: Int | None = Field(default=None, ge=1, le=1_000_000)
    """The largest `num_env` to try; `null`: 65536 on GPUs, 4096 on groups of cores."""

    @field_validator("race_s")
    @classmethod
    def _check_race_s(cls, value: float | None, info: ValidationInfo) -> float | None:
        budget_s = info.data.get("budget_s")
        if value is not None and budget_s is not None and value >= budget_s:
            raise broken(
                f"must be less than budget_s, {budget_s:g}", "Lower it, or raise the budget."
            )
        return value

    @field_validator("batch")
    @classmethod
    def _check_batch(cls, value: int | None, info: ValidationInfo) -> int | None:
        keep = info.data.get("keep")
        if value is not None and keep not in ("update", None):
            raise broken(
                f"says what keep: update keeps, and keep is {keep}", "Leave one of them out."
            )
        return value

    @field_validator("max_num_env")
    @classmethod
    def _check_max_num_env(cls, value: int | None, info: ValidationInfo) -> int | None:
        smallest = info.data.get("min_num_env")
        if value is not None and smallest is not None and value < smallest:
            raise broken(
                f"must be at least min_num_env, {smallest}", "Raise it, or lower the other."
            )
        return value


class ClusterConfig(Section):
    """Hosts of a Ray cluster that train together: see [several hosts](hosts.md)."""

    address: str
    """The cluster, as `host:port`: what `ray start --head` has printed."""
    hosts: Int = Field(ge=1, le=4096)
    """Hosts of the run, each with the devices and GMIs that this config says."""
    trainer_hosts: Int | None = Field(default=None, ge=1)
    """Template `decoupled`: so many hosts, the first by address, hold trainers, on
    `layout.trainer_gpus` devices each; the others only simulate and infer, and send experience to
    those. `null`, and where there are no more hosts: all."""
    hosts_min: Int = Field(default=1, ge=1, le=4096)
    """With `on_loss: shrink`, the fewest hosts to go on with; at most `hosts`."""
    on_loss: Literal["fail", "shrink", "wait"] = "fail"
    """When a host is lost the run ends (`fail`), goes on with those that are left and takes one
    that comes back in again (`shrink`), or waits for as many as it had, at most `wait_s` (`wait`).
    """
    network: Literal["private", "trusted"] = "private"
    """How sums travel between hosts: encrypted and authenticated (`private`), or also by gloo in
    plain tcp, where that is faster and only you reach the network (`trusted`)."""
    interface: str = Field(default="", max_length=15)
    """With `network: trusted`, the interface of each host that gloo uses, as `eth1`; by default
    that of the address by which the host has joined the cluster."""
    trusted: bool = False
    """Join a cluster without token authentication, on which whoever reaches its port can run any
    code. For networks where only you are."""
    wait_s: Seconds = Field(default=300.0, gt=0, le=604_800)
    """Seconds that the cluster may take to have so many hosts free; or a time as `5m`."""

    @property
    def training_hosts(self) -> int:
        """The hosts that hold trainers, the first ones."""
        return min(self.trainer_hosts or self.hosts, self.hosts)

    @property
    def sampling_hosts(self) -> int:
        """The hosts that hold none: they sample for the trainers of the others."""
        return self.hosts - self.training_hosts

    @field_validator("interface")
    @classmethod
    def _check_interface(cls, value: str, info: ValidationInfo) -> str:
        if value and info.data.get("network") == "private":
            raise broken(
                "is for network: trusted, and network is private", "Leave one of them out."
            )
        return value

    @field_validator("address")
    @classmethod
    def _check_address(cls, value: str) -> str:
        if not re.fullmatch(r"[^\s/]+:[0-9]{1,5}", value):
            raise broken(
                "must be host:port", "Write what `ray start --head` prints: 10.0.0.1:6379."
            )
        return value


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
