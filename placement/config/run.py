"""Defines the config's section `run`: its name, its length, and what it writes."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

from pydantic import BeforeValidator, Field, field_validator

from .section import CLASS_PATTERN, Entries, Int, Section, as_tuple, broken, named_entries

_CALLBACKS: Final = named_entries(
    "callback", CLASS_PATTERN,
    "Write module:Class, or one with its options: {module:Class: {every: 10}}.",
)  # fmt: skip
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
    callbacks: Annotated[Entries, _CALLBACKS] = ()
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
