"""Describes what the suite's cells are made for: environments, and the machine's devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

EXPERIMENTS: Final = {
    "training": "sync training, k GMIs of a GPU against one exclusive process (figure 8)",
    "serving": "serving, k GMIs of a GPU against one exclusive process (figure 7)",
    "num_env": "throughput and memory against num_env (figure 10)",
    "tuner": "what `gmi-drl tune` chooses, beside the best of the suite's own rows",
    "precision": "sync training in fp32, tf32 and bf16, one process and GMIs",
    "eager": "sync training without CUDA graphs, k GMIs of a GPU against one process",
    "reduction": "reduction of gradients among GMIs (Table 7)",
    "experience": "MCC against UCC (Table 8), async against sync (figure 11)",
    "learning": "return against wall-clock, at equal time (figure 9)",
    "start": "start of GMIs, and what they leave",
    "devices": "several devices against one",
}
BASELINE: Final = "exclusive"
WARM_UP: Final = "warm-up"  # what an adapter compiles before the measurements; no experiment
# How GMIs share a GPU: the backend, and the sum of the shares of k GMIs over the GPU's SMs.
SHARES: Final[Mapping[str, tuple[str, Callable[[int], float]]]] = {
    "direct": ("direct", lambda k: 1.0),
    "mps": ("mps", lambda k: 1.0),
    "mps-x2": ("mps", lambda k: min(2.0, k)),  # what NVIDIA suggests
    "mps-uncapped": ("mps", float),
    "green": ("green", lambda k: 1.0),
    "cpu": ("cpu", lambda k: 1.0),
}
# The fields of a stage that a cell gets; its measurements depend on no others.
_SETTINGS: Final = (
    "env", "adapter", "kind", "seconds", "least_s", "curve_s", "tune_s", "first_s", "cores",
    "reduction",
)  # fmt: skip
# The networks that the paper trains in other environments than Ant.
_NETWORK_OF: Final = {
    "Humanoid-v5": "humanoid", "ShadowHand-v0": "shadowhand", "Barkour-v0": "anymal",
}  # fmt: skip
_ENV_OF: Final = {network: env for env, network in _NETWORK_OF.items()}
_SECOND: Final = "shadowhand"
# Adapters keep what they compile. After its warm-up warp only loads kernels; mjx compiles for each
# num_env, and that of a share of the best one is not known beforehand.
_FIRST_S: Final = {"warp": 60.0, "mjx": 150.0}
Refusals = Callable[[str, str], Sequence[str]]  # env id, adapter: every reason it cannot run


@dataclass(frozen=True)
class Stage:
    """Holds what the cells are made for: the environment, and the parts of this machine."""

    env: str
    adapter: str
    kind: str  # gpu | cpu
    exclusive: str  # the backend of a process that has a device for itself
    shares: tuple[str, ...]  # those of SHARES that are compared, as far as they can be used
    devices: int
    gmis: tuple[int, ...]  # k, more than one
    ladder: tuple[int, ...]  # num_env of the exclusive process; of the first one eager, too
    totals: tuple[int, ...]  # of figure 10
    networks: tuple[str, ...]  # the first is that of all other experiments
    caps: tuple[int, ...]  # environments of a device that the tuner may use at most
    precisions: tuple[str, ...] = ("fp32", "tf32", "bf16")
    envs: Mapping[str, str] = field(default_factory=dict)  # network: its environment, if another
    captures: tuple[bool, ...] = ()  # whether CUDA graphs are used; empty: there are none
    fixed: bool = False  # the ladder's num_env are compared each, and not the best of them
    seconds: float = 4.0  # of a rate, at most, warm-up included
    least_s: float = 2.0  # of a rate that is steady, without its warm-up
    curve_s: float = 20.0  # of a learning curve
    tune_s: float = 75.0  # the tuner's budget
    first_s: float = 40.0  # for a first iteration: start, and what is compiled
    apart: int = 512  # num_env of an agent with a trainer apart
    nbytes: tuple[int, ...] = (200_000, 1_000_000, 3_000_000)  # of a gradient
    cores: tuple[int, ...] = ()  # where there is no GPU
    reduction: str = "auto"  # of gradients, as comm.reduction
    unusable: Mapping[str, str] = field(default_factory=dict)  # backend: why

    def env_of(self, network: str) -> str:
        """Returns the environment that a network is trained in."""
        return self.envs.get(network, self.env)

    @property
    def backends(self) -> tuple[str, ...]:
        """Returns the backends of the shares."""
        return tuple(dict.fromkeys(SHARES[name][0] for name in self.shares))

    @property
    def packer(self) -> str:
        """Returns the backend of experiments that try one only: MPS if it is usable, else green."""
        usable = [name for name in ("mps", "green") if name in self.backends]
        return [*usable, *self.backends, self.exclusive][0]

    @property
    def settings(self) -> dict[str, Any]:
        """Returns the fields that a cell gets, and that identify a suite; see `identity`."""
        return {name: getattr(self, name) for name in _SETTINGS}

    def narrowed(
        self, ladder: Sequence[int], gmis: Sequence[int], shares: Sequence[str], alone: bool
    ) -> Stage:
        """Returns the stage with these values, if given; `alone` keeps the first network only."""
        return replace(
            self,
            ladder=tuple(ladder) or self.ladder,
            fixed=bool(ladder),
            gmis=tuple(gmis) or self.gmis,
            shares=tuple(name for name in self.shares if not shares or name in shares),
            networks=self.networks[:1] if alone else self.networks,
        )


def share_of(name: str, k: int) -> dict[str, Any]:
    """Returns the setting of k GMIs that share a device in this way."""
    backend, overcommit_of = SHARES[name]
    overcommit = overcommit_of(k)
    return {"backend": backend} | ({"sm_overcommit": overcommit} if overcommit > 1 else {})


@dataclass(frozen=True)
class Cell:
    """One measurement: side `side` of a block, for the `repeat`-th time."""

    experiment: str
    block: str
    side: str
    repeat: int
    kind: str  # rate | curve | reduction | start | tune | warm
    what: Mapping[str, Any]
    deadline_s: float
    needs: str = ""  # key of the warm-up that compiles its kernels

    @property
    def key(self) -> str:
        """Returns the key of its record."""
        return f"{self.experiment}/{self.block}/{self.side}#{self.repeat}"


def gpu_stage(env: str, adapter: str, topology: Any, refusals: Refusals) -> Stage:
    """Returns the stage of a machine with GPUs; `topology` is from `discover`."""
    unusable = dict(topology.unusable)
    usable = tuple(
        name for name, (backend, _) in SHARES.items() if backend not in (*unusable, "cpu")
    )
    networks, envs = _networks(env, adapter, refusals)
    return Stage(
        env, adapter, "gpu", exclusive=SHARES[usable[0]][0] if usable else "direct",
        shares=usable, devices=len(topology.devices), gmis=(4, 2, 8),
        ladder=(4096, 1024, 2048, 512), totals=(1024, 4096, 16384, 65536),
        networks=networks, envs=envs, caps=(4096, 65536), captures=(True, False),
        first_s=_first_s(adapter),
        unusable={name: unusable[name] for name in ("direct", "mps", "green") if name in unusable},
    )  # fmt: skip


def dry_stage(env: str, adapter: str, cores: Sequence[int], refusals: Refusals) -> Stage:
    """Returns a stage of small experiments on groups of cores, which show that the suite works."""
    max_gmis = max((k for k in (2, 4, 8) if k <= len(cores)), default=1)
    networks, envs = _networks(env, adapter, refusals)
    return Stage(
        env, adapter, "cpu", exclusive="cpu", shares=("cpu",), devices=min(2, len(cores)),
        gmis=tuple(k for k in (2, 4, 8) if k <= max_gmis), ladder=(256, 64), totals=(32, 512),
        networks=networks, envs=envs, caps=(256,), precisions=("fp32", "bf16"),
        seconds=0.7, least_s=0.0, curve_s=3.0, apart=64, tune_s=15.0, cores=tuple(sorted(cores)),
        first_s=_first_s(adapter),
    )  # fmt: skip


def _networks(env: str, adapter: str, refusals: Refusals) -> tuple[tuple[str, ...], dict[str, str]]:
    """Returns the environment's own network and a second one, and the second's environment.

    The second has an environment of its own where adapter warp has that.
    """
    network = _NETWORK_OF.get(env, "ant")
    second = _SECOND if network != _SECOND else "ant"
    second_env = _ENV_OF.get(second, "Ant-v5")
    has_second_env = adapter == "warp" and second_env != env and not refusals(second_env, adapter)
    return (network, second), {second: second_env} if has_second_env else {}


def _first_s(adapter: str) -> float:
    return _FIRST_S.get(adapter, 40.0)
