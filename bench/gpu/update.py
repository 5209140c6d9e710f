#!/usr/bin/env python3
"""Measures one PPO update on the device: launched from Python, in CUDA graphs, or compiled.

    bench/gpu/update.py [--rows 65536] [--minibatches 4] [--network ant] [--rounds 9]
    bench/gpu/update.py --dry                 on the CPU, small: shows that it works

Claim to be tried: a captured update is the fastest way that needs no compiler, at each precision.
Ways: `eager`; `captured` (what `run.capture` does); `compiled` (torch.compile of the loss, default
mode), `overhead` (the same with mode reduce-overhead, torch's own CUDA graphs) and `both`
(compiled, and captured by us). At precisions fp32, tf32 and bf16. Without a GPU there is nothing
to capture (captured, overhead, both) and no tf32.

All ways train the same policy on the same rows; they take turns, in another order each round, and
begin each turn with the same state. A turn is the seconds of an update until its losses are read.
`ratio`: eager at the same precision over this way, the median of the ratios within a round.
`host_s`: until all was queued. `first_s`: the first update, with compiling and capturing.

Results: bench/results/gpu/<machine>/update.json (--dry: in runs/bench/gpu/dry-cpu, which git
ignores, and which says nothing of a GPU), written after each round, and at the end one JSON line
each. A way that fails is a row that says why; exit code 1 then. Exit code 2 if the results cannot
be written.
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
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import report
import torch
from torch import Tensor

from gmi_drl.comm import solo_group
from gmi_drl.placement import NETWORKS, PPOConfig, hidden_sizes
from gmi_drl.roles.algorithms import Losses
from gmi_drl.roles.algorithms.ppo import PPO, ppo_loss
from gmi_drl.roles.graphs import Pool
from gmi_drl.roles.optimizers.learner import Learner
from gmi_drl.roles.policies.actor_critic import ActorCritic, ActorCriticPolicy
from gmi_drl.roles.policies.distributions import Normal
from gmi_drl.roles.policies.normalize import Normalizers
from gmi_drl.roles.policies.trunk import set_matmul_precision
from gmi_drl.roles.samples.batch import Batch
from gpu.suite.store import DRY_NOTE, slug

WAYS: Final = ("eager", "captured", "compiled", "overhead", "both")
PRECISIONS: Final = ("fp32", "tf32", "bf16")


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
    folder = "dry-cpu" if options.dry else slug(torch.cuda.get_device_name(device))
    results = options.results or (report.DRY_RESULTS if options.dry else report.GPU_RESULTS)
    path = results / folder / "update.json"
    contenders: list[Contender] = []
    rows: list[dict[str, Any]] = []
    report.keep(path, "[]\n")  # where that cannot be, nothing is measured
    for precision in options.precisions:
        for way in options.ways:
            if missing := _missing(way, precision, device):
                print(f"{precision} {way}: not run, {missing}", file=sys.stderr)
            else:
                contenders.append(Contender(way, precision, options, device))
    for number in range(options.rounds):
        for i in range(len(contenders)):
            contenders[(i + number) % len(contenders)].turn()
        rows = _rows(contenders, options, device)
        report.keep(path, json.dumps(rows, indent=1) + "\n")
    for row in rows:
        print(json.dumps(row), flush=True)
        _say(row)
    return int(any(contender.failure for contender in contenders))


class RowsPPO(PPO):
    """PPO on rows that are taken as they are: nothing is made of rewards."""

    num_batch_moments = 0

    def postprocess(self, batch: Batch, moments: Tensor) -> None:
        """Leaves the rows as they are."""


class Contender:
    """One way at one precision, and what its turns took."""

    def __init__(
        self, way: str, precision: str, options: argparse.Namespace, device: torch.device
    ) -> None:
        self.way, self.precision, self._device = way, precision, device
        self.seconds: list[float] = []
        self.host: list[float] = []
        self.failure = ""
        self._repeats = options.repeats
        self.loss = float("nan")  # the value loss of an update from the same state
        network, self._batch, settings = _job(precision, options, device)
        algorithm = RowsPPO(
            settings, ActorCriticPolicy(network), Normalizers(None, None), _loss(way)
        )
        self.learner = Learner(
            algorithm,
            torch.Generator(device).manual_seed(0),
            self._batch,
            pool=Pool(device) if way in ("captured", "both") else None,
        )
        self.learner.connect(solo_group())
        self._state = _copied(self.learner.state_dict())
        began = perf_counter()
        self._guarded(self._update)
        self.first_s = perf_counter() - began

    def turn(self) -> None:
        """One more measurement, the mean of a few updates."""
        self._guarded(self._measure)

    def _measure(self) -> None:
        took, queued = 0.0, 0.0
        for _ in range(self._repeats):
            one, of_it = self._update()
            took, queued = took + one, queued + of_it
        self.seconds.append(took / self._repeats)
        self.host.append(queued / self._repeats)

    def _update(self) -> tuple[float, float]:
        set_matmul_precision(self.precision, self._device)  # type: ignore[arg-type]
        self.learner.load_state_dict(self._state)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        start = perf_counter()
        self.learner.update(self._batch)
        queued = perf_counter()
        self.loss = self.learner.stats()["value_loss"]  # waits for the device
        return perf_counter() - start, queued - start

    def _guarded(self, step: Callable[[], object]) -> None:
        if self.failure:
            return
        try:
            step()
        except (
            Exception
        ) as error:  # of a compiler, mostly: the other ways are measured all the same
            self.failure = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def _job(
    precision: str, options: argparse.Namespace, device: torch.device
) -> tuple[ActorCritic, Batch, PPOConfig]:
    """The network to train and what it has sampled: the same for all ways."""
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
            torch.compiler.cudagraph_mark_step_begin()  # what the last step gave is read
        total, *stats = compiled(*args)
        return Losses(total, dict(zip(PPO.stats, stats, strict=True)))

    return loss


def _copied(value: Any) -> Any:
    """A copy of a state: training writes into the tensors it is made of."""
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value


def _missing(way: str, precision: str, device: torch.device) -> str:
    """Says what this machine lacks for it; empty: nothing."""
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
    eager = {c.precision: c for c in contenders if c.way == "eager" and c.seconds}
    gpu = {} if options.dry else {"gpu": torch.cuda.get_device_name(device)}
    note = {"note": DRY_NOTE} if options.dry else {}
    about = {
        "rows": options.rows, "minibatches": options.minibatches, "epochs": options.epochs,
        "network": options.network, "obs": options.obs, "actions": options.actions,
        "torch": torch.__version__, "machine": report.machine(), "commit": report.commit(),
    }  # fmt: skip
    found = []
    for one in contenders:
        row: dict[str, Any] = {"name": f"update/{one.precision}/{one.way}", "unit": "s/update"}
        if one.failure or not one.seconds:
            found.append(row | {"value": None, "failure": one.failure} | about | gpu | note)
            continue
        peer = eager.get(one.precision)
        ratio = None
        if peer is not None:
            pairs = zip(peer.seconds, one.seconds, strict=False)
            ratio = round(statistics.median(a / b for a, b in pairs), 4)
        found.append(
            row
            | {
                "value": statistics.median(one.seconds),
                "peer": None if peer is None else statistics.median(peer.seconds),
                "ratio": ratio,
                "repeats": len(one.seconds),
                "spread": [min(one.seconds), max(one.seconds)],
                "host_s": statistics.median(one.host),
                "first_s": one.first_s,
                "value_loss": one.loss,
            }
            | about
            | gpu
            | note
        )
    return found


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
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--dry", action="store_true", help="on the CPU, small")
    add("--rows", type=int, help="of experience; default 65536, with --dry 2048")
    add("--minibatches", type=int, default=4)
    add("--epochs", type=int, default=4)
    add("--network", choices=NETWORKS, default="ant", help="a preset of algorithm.network")
    add("--obs", type=int, default=60)
    add("--actions", type=int, default=8)
    add("--rounds", type=int, help="default 9, with --dry 3")
    add("--repeats", type=int, help="updates of a turn; default 10, with --dry 1")
    add("--ways", nargs="+", choices=WAYS, default=WAYS)
    add("--precisions", nargs="+", choices=PRECISIONS, default=PRECISIONS)
    add("--results", type=Path, metavar="FOLDER",
        help="in which a folder of this machine is made; default: bench/results/gpu, with --dry "
        "runs/bench/gpu")  # fmt: skip
    options = parser.parse_args(arguments)
    for name, full, dry in (("rows", 65536, 2048), ("rounds", 9, 3), ("repeats", 10, 1)):
        if getattr(options, name) is None:
            setattr(options, name, dry if options.dry else full)
    if options.rows % options.minibatches:
        parser.error(f"--rows {options.rows}: --minibatches {options.minibatches} must divide it.")
    return options


if __name__ == "__main__":
    sys.exit(main())
