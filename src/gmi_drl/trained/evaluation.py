"""Evaluates the policies of runs by whole episodes."""

from __future__ import annotations

import json
import math
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from gmi_drl import __version__
from gmi_drl.launcher.folder.run_folder import EVALUATION
from gmi_drl.placement.faults import counted
from gmi_drl.report.statistics import estimate, interquartile_mean
from gmi_drl.roles.evaluators.evaluate import EpisodeCount, longest_episode, play
from gmi_drl.roles.loading import importable

from .policy import PolicyNotLoaded, TrainedPolicy, load_all

if TYPE_CHECKING:
    from rich.console import Console

_Episodes = tuple[NDArray[np.float64], NDArray[np.int64], int]


@dataclass(frozen=True)
class Evaluation:
    """Holds the returns and lengths of a policy's episodes."""

    run: Path
    checkpoint: Path
    env_id: str
    steps: int  # environment steps that the policy was trained with
    stochastic: bool
    seed: int | None  # None: the seeds by which the run itself evaluates
    returns: tuple[float, ...]  # of every episode, undiscounted
    lengths: tuple[int, ...]
    cut: int  # episodes that had not ended when they were given up

    @property
    def mean(self) -> float:
        return float(np.mean(self.returns))

    @property
    def std(self) -> float:
        """Returns the standard deviation over episodes."""
        return float(np.std(self.returns))

    @property
    def iqm(self) -> float:
        """Returns the interquartile mean: that of the middle half of the episodes."""
        return interquartile_mean(self.returns)

    def as_json(self) -> dict[str, Any]:
        """Returns what report/eval.json holds, as JSON's types."""
        return {
            "run": str(self.run),
            "checkpoint": self.checkpoint.name,
            "environment": self.env_id,
            "trained_steps": self.steps,
            "episodes": len(self.returns),
            "stochastic": self.stochastic,
            "seed": self.seed,
            "mean": self.mean,
            "std": self.std,
            "iqm": self.iqm,
            "min": min(self.returns),
            "max": max(self.returns),
            "length_mean": float(np.mean(self.lengths)),
            "cut": self.cut,
            "returns": list(self.returns),
            "lengths": list(self.lengths),
            "versions": {
                "gmi_drl": __version__,
                "torch": torch.__version__,
                "numpy": np.__version__,
            },
        }


def evaluate(
    run: Path | str,
    *,
    checkpoint: int | None = None,
    episodes: int = 20,
    seed: int | None = None,
    stochastic: bool = False,
    num_env: int | None = None,
    overrides: Iterable[str] = (),
    device: str = "cpu",
    progress: Callable[[int, int, float], None] = lambda ended, of, mean: None,
) -> Evaluation:
    """Plays whole episodes with the policy of a run, and keeps what came of it in its folder.

    `episodes`, or a few more where `num_env` environments, or without it the GMIs that trained, do
    not divide them; by default each has an environment of its own. Without `seed` and `num_env`
    they are those of the run's own evaluation, and give what that gave. `stochastic` draws actions
    as in training; else the most likely one is taken. `progress` is called now and then with how
    many episodes have ended, of how many, and their mean return (nan while none has). The rest is
    as for `load_policy`, errors too.
    """
    for name, value in (("episodes", episodes), ("num_env", num_env)):
        if value is not None and value < 1:
            raise PolicyNotLoaded(f"{name}={value}; must be at least 1. Use 1 or more.")
    policy = load_all(run, checkpoint=checkpoint, overrides=overrides, device=device)
    parts = list(_play(policy, episodes, seed, stochastic, num_env, progress))
    cut = sum(part[2] for part in parts)
    evaluation = Evaluation(
        run=policy.origin.folder.path,
        checkpoint=policy.origin.checkpoint,
        env_id=policy.origin.env_id,
        steps=policy.origin.steps,
        stochastic=stochastic,
        seed=seed,
        returns=tuple(value for returns, _, _ in parts for value in returns.tolist()),
        lengths=tuple(value for _, lengths, _ in parts for value in lengths.tolist()),
        cut=cut,
    )
    _keep(policy, evaluation)
    return evaluation


def _play(
    policy: TrainedPolicy,
    episodes: int,
    seed: int | None,
    stochastic: bool,
    num_env: int | None,
    progress: Callable[[int, int, float], None],
) -> Iterator[_Episodes]:
    """Yields returns [n], lengths [n] and how many were cut, of one batch of environments each."""
    generator = None
    if stochastic:  # one for all batches, which draw other actions so
        generator = torch.Generator(policy.device)
        generator.manual_seed(policy.origin.config.run.seed if seed is None else seed)
    if seed is None and num_env is None:
        trainers = policy.origin.layout.holding("trainer")
        share = -(-episodes // len(trainers))
        batches: list[tuple[int, int, int | None]] = [
            (share, 1, trainer.gmi_id) for trainer in trainers
        ]
    else:
        at_once = min(num_env or episodes, episodes)
        batches = [(at_once, -(-episodes // at_once), None)]
    total, before, paid = sum(count * per_env for count, per_env, _ in batches), 0, 0.0
    for index, (count, per_env, gmi_id) in enumerate(batches):

        def tell(episodes: EpisodeCount, before: int = before, paid: float = paid) -> None:
            places = torch.arange(episodes.returns.shape[1], device=episodes.ended.device)
            ended = episodes.returns[places < episodes.ended[:, None]]
            count = before + len(ended)
            of = max(total, before + int(episodes.counted.sum()))  # agents have more
            progress(count, of, (paid + float(ended.sum())) / count if count else math.nan)

        with importable(policy.origin.import_path), closing(policy.make_env(count, gmi_id)) as env:
            actor = policy.actor(env.num_env, generator, index, len(batches))
            with policy.use_threads():
                played = play(env, actor, per_env, seed, tell)
            mask = played.begun.cpu()  # without agents who were not there
            returns, lengths = (tensor.cpu()[mask] for tensor in (played.returns, played.lengths))
            unfinished = len(returns) - int(played.ended.sum())
            if unfinished:
                warnings.warn(
                    f"{counted(unfinished, 'episode')} had not ended after "
                    f"{longest_episode(env):,} steps each, and count as they were by then. "
                    "--set env.max_episode_steps=... sets another limit.",
                    stacklevel=3,
                )
            yield returns.double().numpy(), lengths.numpy(), unfinished
        before, paid = before + len(returns), paid + float(returns.sum())


def _keep(policy: TrainedPolicy, evaluation: Evaluation) -> None:
    """Writes report/eval.json; where that cannot be, the numbers are shown all the same."""
    folder = policy.origin.folder
    file = folder.path / EVALUATION
    try:
        os.makedirs(folder.path / "report", exist_ok=True)
        folder.write_atomic(EVALUATION, json.dumps(evaluation.as_json(), indent=1) + "\n")
    except OSError as error:
        warnings.warn(f"{file} was not written ({error.strerror}).", stacklevel=3)


def print_evaluations(console: Console, evaluations: Sequence[Evaluation]) -> None:
    """Prints a row for each run, and where there are several one for each config over its seeds."""
    from rich.table import Table
    from rich.text import Text

    from gmi_drl.launcher.view.tables import print_table, printable

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("run", no_wrap=True)
    for name in ("steps", "played", "mean ± std", "IQM", "min to max"):
        table.add_column(name, justify="right", no_wrap=True)
    for e in evaluations:
        table.add_row(
            Text(f"{printable(e.run.parent.name)}\n{printable(e.run.name)}"),
            f"{e.steps:,}",
            str(len(e.returns)),
            f"{e.mean:,.1f} ± {e.std:,.1f}",
            f"{e.iqm:,.1f}",
            f"{min(e.returns):,.0f} to {max(e.returns):,.0f}",
        )
    console.print(table)
    if len(evaluations) > 1:
        columns = ("config", "runs", "mean", "IQM (95 %)")
        print_table(console, "Over seeds", columns, list(_rows_over_seeds(evaluations)))


def _rows_over_seeds(evaluations: Sequence[Evaluation]) -> Iterator[list[str]]:
    """Yields the cells of a row for each config: its runs differ in the seed alone."""
    from gmi_drl.report.comparison.groups import group_by_config, interval_text
    from gmi_drl.report.comparison.runs import read_settings

    counts = Counter(e.run for e in evaluations)
    runs = []
    for e in evaluations:
        settings, _ = read_settings(e.run)
        if settings is not None and counts[e.run] > 1:  # checkpoints of one run are no seeds
            settings["checkpoint"] = e.checkpoint.name
        runs.append((e.run.parent.name, settings))
    for label, places in group_by_config(runs):
        summary = estimate([evaluations[place].mean for place in places])
        assert summary is not None  # there is one value or more
        yield [label, str(summary.count), f"{summary.mean:,.1f}", interval_text(summary)]
