#!/usr/bin/env python3
"""Measures one update of an algorithm on the device: launched, in CUDA graphs, or compiled.

    bench/gpu/update.py [--rows 65536] [--minibatches 4] [--network ant] [--rounds 9]
    bench/gpu/update.py --algorithms sac dqn --ways eager captured --precisions fp32 tf32
    bench/gpu/update.py --dry                 on the CPU, small: shows that it works

An update of `ppo` is that of a batch: all epochs of all minibatches. One of `sac`, `td3` or `dqn`
is of one minibatch, drawn from a replay on the device: networks and minibatches of the tasks in
bench/offpolicy.py. Steps are put in every 64 updates, which counts as well.

Claim to be tried: a captured update is the fastest way that needs no compiler, at each precision.
Ways: `eager`; `captured` (what `run.capture` does); `compiled` (torch.compile of the loss, default
mode), `overhead` (the same with mode reduce-overhead, torch's own CUDA graphs) and `both`
(compiled, and captured by us); the last three for ppo alone. At precisions fp32, tf32 and bf16.
Without a GPU there is nothing to capture (captured, overhead, both) and no tf32.

All ways train the same policy on the same rows; they take turns, in another order each round, and
begin each turn with the same state. A turn is the seconds of an update until its losses are read.
`ratio`: eager at the same precision over this way, the median of the ratios within a round.
`host_s`: until all was queued. `first_s`: the first update, with compiling and capturing.

Results: bench/results/gpu/<machine>/update.json (--dry: in runs/bench/gpu/dry-cpu, which git
ignores, and which says nothing of a GPU), written after each round, and at the end one JSON line
each; rows of algorithms that are not measured stay. A way that fails is a row that says why; exit
code 1 then. Exit code 2 if the results cannot be written.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import report
import torch
from gymnasium import spaces
from torch import Tensor

from gmi_drl.comm import solo_group
from gmi_drl.placement import (
    NETWORKS,
    DQNConfig,
    PPOConfig,
    ReplayConfig,
    SACConfig,
    TD3Config,
    hidden_sizes,
)
from gmi_drl.roles.algorithms import Losses, algorithm_class
from gmi_drl.roles.algorithms.ppo import PPO, ppo_loss
from gmi_drl.roles.envs.protocol import VecEnv
from gmi_drl.roles.graphs import Pool
from gmi_drl.roles.optimizers.learner import Learner
from gmi_drl.roles.optimizers.replay import on_replay
from gmi_drl.roles.policies.actor_critic import ActorCritic, ActorCriticPolicy
from gmi_drl.roles.policies.distributions import Normal
from gmi_drl.roles.policies.normalize import Normalizers
from gmi_drl.roles.policies.trunk import set_matmul_precision
from gmi_drl.roles.samples.batch import Batch
from gpu.suite.store import DRY_NOTE

WAYS: Final = ("eager", "captured", "compiled", "overhead", "both")
OF_PPO: Final = ("compiled", "overhead", "both")
PRECISIONS: Final = ("fp32", "tf32", "bf16")
CHEETAH: Final = (17, spaces.Box(-1.0, 1.0, (6,)))
# Algorithms with replay: config class, settings, observation width and actions of the task.
REPLAYED: Final[dict[str, tuple[type[ReplayConfig], dict[str, Any], int, spaces.Space[Any]]]] = {
    "sac": (SACConfig, {"network": [256, 256], "batch_size": 256}, *CHEETAH),
    "td3": (TD3Config, {"network": [256, 256], "batch_size": 256}, *CHEETAH),
    "dqn": (
        DQNConfig,
        {"network": [128, 128], "batch_size": 64, "activation": "relu"},
        4, spaces.Discrete(2),
    ),
}  # fmt: skip
NUM_ENV, STEPS, UPDATES = 16, 64, 64  # of a batch that is put in, and updates for each batch


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    try:
        return _compare(options)
    except report.Unwritable as error:
        print(error, file=sys.stderr)
        return 2


def _compare(options: argparse.Namespace) -> int:
    if not options.dry and not torch.cuda.is_available():
        print("no GPU here: nothing is measured. --dry runs it on the CPU.", file=sys.stderr)
        return 0
    device = torch.device("cpu" if options.dry else "cuda:0")
    if options.dry:
        torch.set_num_threads(1)
    folder = "dry-cpu" if options.dry else report.slug(torch.cuda.get_device_name(device))
    results = options.results or (report.DRY_RESULTS if options.dry else report.GPU_RESULTS)
    path = results / folder / "update.json"
    contenders: list[Contender] = []
    rows: list[dict[str, Any]] = []
    others = _rows_of_others(path, options.algorithms)
    report.keep(path, json.dumps(others, indent=1) + "\n")  # fails before anything is measured
    for algorithm in options.algorithms:
        for precision in options.precisions:
            for way in options.ways:
                name = _name(algorithm, precision, way).removeprefix("update/").replace("/", " ")
                if missing := _missing(algorithm, way, precision, device):
                    print(f"{name}: not run, {missing}", file=sys.stderr)
                else:
                    contenders.append(Contender(algorithm, way, precision, options, device))
    for number in range(options.rounds):
        for i in range(len(contenders)):
            contenders[(i + number) % len(contenders)].turn()
        rows = _rows(contenders, options, device)
        report.keep(path, json.dumps(others + rows, indent=1) + "\n")
    for row in rows:
        print(json.dumps(row), flush=True)
        _say(row)
    return int(any(contender.failure for contender in contenders))


def _name(algorithm: str, precision: str, way: str) -> str:
    """Returns the name of a row; those of PPO do not have the algorithm."""
    parts = [precision, way] if algorithm == "ppo" else [algorithm, precision, way]
    return "/".join(["update", *parts])


def _rows_of_others(path: Path, algorithms: Sequence[str]) -> list[dict[str, Any]]:
    """Returns the rows of a results file that are of other algorithms."""
    rows: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
    return [row for row in rows if row.get("algorithm", "ppo") not in algorithms]


class RowsPPO(PPO):
    """PPO on rows that are taken as they are: rewards are not processed."""

    num_batch_moments = 0

    def postprocess(self, batch: Batch, moments: Tensor) -> None:
        """Leaves the rows as they are."""


class Contender:
    """Runs one way at one precision, and keeps the times of its turns."""

    def __init__(
        self,
        algorithm: str,
        way: str,
        precision: str,
        options: argparse.Namespace,
        device: torch.device,
    ) -> None:
        self.algorithm, self.way, self.precision, self._device = algorithm, way, precision, device
        self.seconds: list[float] = []
        self.host: list[float] = []
        self.failure = ""
        self._repeats = options.repeats
        self.loss = float("nan")  # the value loss of an update from the same state
        pool = Pool(device) if way in ("captured", "both") else None
        if algorithm == "ppo":
            self.job: PPOJob | ReplayJob = PPOJob(way, precision, options, device, pool)
        else:
            self.job = ReplayJob(algorithm, precision, device, pool)
        self.learner = self.job.learner
        self.learner.connect(solo_group())
        self._state = _copied(self.learner.state_dict())
        began = perf_counter()
        self._guarded(self._update)
        self.first_s = perf_counter() - began

    def turn(self) -> None:
        """Takes one more measurement, the mean of a few updates."""
        self._guarded(self._measure)

    def _measure(self) -> None:
        total_s, queued_s = 0.0, 0.0
        for _ in range(self._repeats):
            update_s, update_queued_s = self._update()
            total_s, queued_s = total_s + update_s, queued_s + update_queued_s
        self.seconds.append(total_s / self._repeats)
        self.host.append(queued_s / self._repeats)

    def _update(self) -> tuple[float, float]:
        set_matmul_precision(self.precision, self._device)  # type: ignore[arg-type]
        self.learner.load_state_dict(self._state)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        start = perf_counter()
        self.job.update()
        queued = perf_counter()
        stats = self.learner.stats()  # waits for the device
        finished = perf_counter()
        loss = stats[self.job.loss]
        assert loss is not None
        self.loss = loss
        return (finished - start) / self.job.updates, (queued - start) / self.job.updates

    def _guarded(self, step: Callable[[], object]) -> None:
        if self.failure:
            return
        try:
            step()
        except Exception as error:  # mostly from a compiler: the other ways are still measured
            self.failure = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


class PPOJob:
    """Updates PPO on rows of its own."""

    updates, loss = 1, "value_loss"

    def __init__(
        self,
        way: str,
        precision: str,
        options: argparse.Namespace,
        device: torch.device,
        pool: Pool | None,
    ) -> None:
        network, self._batch, settings = _ppo_rows(precision, options, device)
        policy = ActorCriticPolicy(network)
        algorithm = RowsPPO(settings, policy, Normalizers(None, None), _loss(way))
        generator = torch.Generator(device).manual_seed(0)
        self.learner = Learner(algorithm, generator, self._batch, pool=pool)
        self.about = {
            "rows": options.rows, "minibatches": options.minibatches, "epochs": options.epochs,
            "network": options.network, "obs": options.obs, "actions": options.actions,
        }  # fmt: skip

    def update(self) -> None:
        """Takes all steps of a batch."""
        self.learner.update(self._batch)


class ReplayJob:
    """Updates from a replay, with steps put in between."""

    updates = UPDATES

    def __init__(
        self, algorithm: str, precision: str, device: torch.device, pool: Pool | None
    ) -> None:
        config, overrides, width, actions = REPLAYED[algorithm]
        settings = config(
            **overrides, precision=precision, replay_start=0, replay_capacity=2**16,
            updates_per_row=UPDATES / (NUM_ENV * STEPS),
        )  # fmt: skip
        env: Any = SimpleNamespace(
            observation_space=spaces.Box(-np.inf, np.inf, (width,)), action_space=actions,
            structure=None,
        )  # fmt: skip
        cls = algorithm_class(settings)
        network = cls.make_network(settings, env, torch.Generator().manual_seed(0)).to(device)
        instance = cls(settings, cls.make_policy(network, settings), Normalizers(None, None))
        generator = torch.Generator(device).manual_seed(0)
        self.learner = Learner(instance, generator, pool=pool)
        self._batch = _steps(width, actions, device)
        self._trains = on_replay(self.learner, self._batch, None, _no_goals)
        self.loss = instance.stats[0]
        self.about = {
            "algorithm": algorithm, "batch": settings.batch_size, "sampler": settings.sampler,
            "network": list(settings.network), "obs": width, "actions": str(actions),
        }  # fmt: skip

    def update(self) -> None:
        """Puts steps in, and takes the updates that are due."""
        updates = self.learner.updates
        self._trains.update(self._batch)
        assert self.learner.updates - updates == self.updates


def _no_goals() -> VecEnv:
    raise AssertionError("no environment says what goals are worth")


def _steps(width: int, actions: spaces.Space[Any], device: torch.device) -> Batch:
    """Returns steps of environments with episodes of a thousand steps; the last joins the first."""
    g = torch.Generator().manual_seed(0)
    observed = torch.randn(STEPS + 1, NUM_ENV, width, generator=g)
    observed[-1] = observed[0]
    done = torch.rand(STEPS, NUM_ENV, generator=g) < 0.001
    if isinstance(actions, spaces.Discrete):
        action = torch.randint(int(actions.n), (STEPS, NUM_ENV, 1), generator=g).float()
    else:
        action = 2.0 * torch.rand(STEPS, NUM_ENV, *(actions.shape or ()), generator=g) - 1.0
    columns = {
        "raw_observation": observed[:-1], "next_observation": observed[1:], "action": action,
        "reward": torch.rand(STEPS, NUM_ENV, generator=g), "done": done.float(),
        "terminated": done,
    }  # fmt: skip
    return Batch({name: column.to(device) for name, column in columns.items()})


def _ppo_rows(
    precision: str, options: argparse.Namespace, device: torch.device
) -> tuple[ActorCritic, Batch, PPOConfig]:
    """Returns the network to train and its experience, which are the same for all ways."""
    settings = PPOConfig(
        network=options.network, minibatches=options.minibatches, epochs=options.epochs
    )
    g, dist = torch.Generator().manual_seed(0), Normal(options.actions)
    sizes = hidden_sizes(settings.network)
    policy = ActorCritic(options.obs, dist, sizes, generator=g, precision=precision)  # type: ignore[arg-type]
    policy = policy.to(device)  # first: a batch holds some of its parameters
    batch = Batch.allocate(
        1, options.rows, options.obs, ActorCriticPolicy(policy), device, filled=PPO.filled
    )
    assert batch.rows is not None
    batch.rows.copy_(torch.randn(batch.rows.shape, generator=g))
    flat = batch.flat()
    with torch.no_grad():
        flat["head"].copy_(policy(flat["observation"]))
        flat["log_prob"].copy_(dist.log_prob(flat["parameters"], policy.log_std, flat["action"]))
    return policy, batch, settings


def _loss(way: str) -> Callable[..., Losses]:
    if way in ("eager", "captured"):
        return ppo_loss
    mode = "reduce-overhead" if way == "overhead" else None

    def parts(*args: Any) -> tuple[Tensor, ...]:
        losses = ppo_loss(*args)
        return losses.total, *(losses.stats[name] for name in PPO.stats)

    compiled = torch.compile(parts, mode=mode, dynamic=False)

    def loss(*args: Any) -> Losses:
        if way == "overhead":
            torch.compiler.cudagraph_mark_step_begin()  # the last step's results have been read
        total, *stats = compiled(*args)
        return Losses(total, dict(zip(PPO.stats, stats, strict=True)))

    return loss


def _copied(value: Any) -> Any:
    """Returns a copy of a state, as training writes into its tensors."""
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value


def _missing(algorithm: str, way: str, precision: str, device: torch.device) -> str:
    """Returns why a way is not measured here; "" if it is."""
    if algorithm != "ppo" and way in OF_PPO:
        return "the loss of ppo alone is compiled"
    if device.type == "cpu":
        if way in ("captured", "overhead", "both"):
            return "no GPU to capture for"
        if precision == "tf32":
            return "CPU cores compute in fp32"
        if way == "compiled" and not (shutil.which("g++") or shutil.which("clang++")):
            return "no C++ compiler"
    return ""


def _rows(
    contenders: Sequence[Contender], options: argparse.Namespace, device: torch.device
) -> list[dict[str, Any]]:
    eager = {
        (c.algorithm, c.precision): c for c in contenders if c.way == "eager" and c.seconds
    }  # fmt: skip
    gpu = {} if options.dry else {"gpu": torch.cuda.get_device_name(device)}
    note = {"note": DRY_NOTE} if options.dry else {}
    origin = {
        "torch": torch.__version__, "machine": report.machine(), "commit": report.commit(),
    }  # fmt: skip
    rows = []
    for contender in contenders:
        name = _name(contender.algorithm, contender.precision, contender.way)
        about = contender.job.about | origin
        row: dict[str, Any] = {"name": name, "unit": "s/update"}
        if contender.failure or not contender.seconds:
            rows.append(row | {"value": None, "failure": contender.failure} | about | gpu | note)
            continue
        peer = eager.get((contender.algorithm, contender.precision))
        ratio = None
        if peer is not None:
            pairs = zip(peer.seconds, contender.seconds, strict=False)
            ratio = round(statistics.median(a / b for a, b in pairs), 4)
        rows.append(
            row
            | {
                "value": statistics.median(contender.seconds),
                "peer": None if peer is None else statistics.median(peer.seconds),
                "ratio": ratio,
                "repeats": len(contender.seconds),
                "spread": [min(contender.seconds), max(contender.seconds)],
                "host_s": statistics.median(contender.host),
                "first_s": contender.first_s,
                contender.job.loss: contender.loss,
            }
            | about
            | gpu
            | note
        )
    return rows


def _say(row: dict[str, Any]) -> None:
    if row["value"] is None:
        print(f"{row['name']}: {row['failure']}", file=sys.stderr)
        return
    low, high = row["spread"]
    against = "" if row["ratio"] is None else f", {row['ratio']:.2f}x eager"
    print(
        f"{row['name']}: {row['value'] * 1e3:.3f} ms "
        f"({low * 1e3:.3f} to {high * 1e3:.3f}){against}, "
        f"host {row['host_s'] * 1e3:.3f} ms, first {row['first_s']:.1f} s",
        file=sys.stderr,
    )


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = report.parser(__doc__, minibatches=4, epochs=4, obs=60, actions=8)
    add = parser.add_argument
    add("--dry", action="store_true", help="on the CPU, small")
    add("--algorithms", nargs="+", choices=("ppo", *REPLAYED), default=["ppo"])
    add("--rows", type=int, help="of experience; default 65536, with --dry 2048")
    add("--network", choices=NETWORKS, default="ant", help="a preset of algorithm.network")
    add("--rounds", type=int, help="default 9, with --dry 3")
    add("--repeats", type=int, help="updates of a turn; default 10, with --dry 1")
    add("--ways", nargs="+", choices=WAYS, default=WAYS)
    add("--precisions", nargs="+", choices=PRECISIONS, default=PRECISIONS)
    add("--results", type=Path, metavar="FOLDER", help=report.RESULTS_HELP)
    options = parser.parse_args(arguments)
    for name, full, dry in (("rows", 65536, 2048), ("rounds", 9, 3), ("repeats", 10, 1)):
        if getattr(options, name) is None:
            setattr(options, name, dry if options.dry else full)
    if options.rows % options.minibatches:
        parser.error(f"--rows {options.rows}: --minibatches {options.minibatches} must divide it.")
    return options


if __name__ == "__main__":
    sys.exit(main())
