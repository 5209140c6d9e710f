"""Defines the config's section `run`."""

from __future__ import annotations

from pydantic import Field

from .section import Int, Section


class RunConfig(Section):
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
    folder: str = Field(
        default="runs",
        min_length=1,
        description="Folder that holds all runs. If it is not there, it is made for you alone "
        "(mode 0700). Who may read it may read the runs in it; only you may write to those.",
    )
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
    hang_timeout_s: float | None = Field(
        default=1200.0,
        gt=0,
        le=604_800,
        description="Seconds without progress after which a GMI hangs, unless it waits for another "
        "one: its process is killed, and started again as after a death. Progress is each step of "
        "the environments and each minibatch; while environments are made it has twenty minutes at "
        "least. `null`: nobody watches, as for a debugger. See [when a GMI dies](recovery.md).",
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
    profile: bool = Field(
        default=False,
        description="Record a trace of each GMI, of its iterations 4 to 6, in `profile/` of the "
        "run's folder; they take longer meanwhile. See [profiling](profiling.md).",
    )
    capture: bool = Field(
        default=True,
        description="On a GPU, run policy steps and updates as CUDA graphs; `false` launches every "
        "kernel from Python, which is slower: a baseline, and for finding faults. CPU cores have "
        "no graphs. See [training on the GPU](gpu-training.md).",
    )
    deterministic: bool = Field(
        default=False,
        description="Use only torch operations that give the same numbers every time; slower on "
        "a GPU. On CPU cores a seeded run with one GMI repeats bit for bit either way.",
    )
