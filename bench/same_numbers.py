#!/usr/bin/env python3
"""Shows that seeded training gives the same numbers, bit for bit, as at another commit.

    bench/same_numbers.py --against COMMIT [--case NAME ...] [--row NAME]

Launches short seeded runs in this tree and in a checkout of COMMIT, and compares all tensors and
numbers of the last checkpoints (parameters, optimizer, normalisers, and what is each GMI's own)
and every column of metrics.jsonl but times and memory. Asynchronous runs do not repeat.

Prints one JSON line and a table. Exit code 1 if a case is not bit-equal.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from checkout import ROOT, checkout, git, launched_in
from report import emit, metrics_of, parser, say

# Suffixes of metrics and checkpoint items that differ from run to run: times and memory.
UNREPEATABLE: Final = ("_s", "_bytes")
# What this tree records in addition to an older one.
ADDED: Final = frozenset({"updates", "noise_scale"})

Numbers = dict[str, Any]  # by path: parameters, optimizer/state/0/exp_avg, metrics/3/kl ...


def config(
    env: str, num_env: int, template: str, gmis: int, wrappers: Sequence[Any] = (), **algorithm: Any
) -> dict[str, Any]:
    """Returns the config of a run of five iterations."""
    horizon = 32
    return {
        "version": 1,
        "run": {
            "seed": 7, "checkpoint_every": 0, "eval_episodes": 2,
            "total_steps": 5 * horizon * num_env * (gmis if template == "tcg_ex" else 1),
        },
        "env": {
            "id": env, "num_env": num_env, "max_episode_steps": 60,
            **({"wrappers": list(wrappers)} if wrappers else {}),
        },
        "algorithm": {
            "horizon": horizon, "minibatches": 4, "epochs": 2, "learning_rate": 1e-3,
            "network": [32, 16], **algorithm,
        },
        "layout": {"template": template, "gmi_per_gpu": gmis},
        "comm": {"reduction": "mpr" if template == "tcg_ex" and gmis > 1 else "local"},
    }  # fmt: skip


IMAGES: Final = {"network": "impala", "normalize_observation": False}
STACKED: Final = ({"frame_stack": {"count": 3}}, "clip_reward")
RUNS: Final = {
    "ppo/cartpole": config("CartPole-v1", 8, "tcg_ex", 1),
    "ppo/cartpole/two_gmis": config("CartPole-v1", 8, "tcg_ex", 2),
    "ppo/pendulum": config("Pendulum-v1", 8, "tcg_ex", 1, schedule="linear"),
    "ppo/pendulum/two_gmis": config("Pendulum-v1", 8, "tcg_ex", 2, entropy_coef=0.01),
    "ppo/ant": config("Ant-v5", 4, "tcg_ex", 1, network="ant", value_coef=1.0),
    "ppo/ant/two_gmis": config("Ant-v5", 4, "tcg_ex", 2, network="ant", bounds_coef=1.0),
    "ppo/cartpole/tdg_ex": config("CartPole-v1", 8, "tdg_ex", 2),
    "ppo/pendulum/tdg_ex": config("Pendulum-v1", 8, "tdg_ex", 2),
    "ppo/breakout": config("MinAtar/Breakout-v1", 4, "tcg_ex", 1, **IMAGES),
    "ppo/breakout/stacked": config("MinAtar/Breakout-v1", 4, "tcg_ex", 1, STACKED, **IMAGES),
    "ppo/breakout/tdg_ex": config("MinAtar/Breakout-v1", 4, "tdg_ex", 2, STACKED, **IMAGES),
}


def flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the tensors, numbers and texts in nested dicts and lists, each with its path."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from flat(item, f"{path}/{key}" if path else str(key))
    elif isinstance(value, (list, tuple)):
        for place, item in enumerate(value):
            yield from flat(item, f"{path}/{place}")
    elif not path.endswith(UNREPEATABLE):
        yield path, value


def run(tree: Path, case: str) -> Numbers:
    """Trains a case with the gmi_drl of `tree`, and returns all numbers of the run."""
    with launched_in(tree, RUNS[case]) as folder:
        return dict(_run_numbers(folder))


def _run_numbers(folder: Path) -> Iterator[tuple[str, Any]]:
    (checkpoint,) = (folder / "checkpoints").glob("iteration_*")
    yield from flat(torch.load(checkpoint / "shared.pt", weights_only=True))
    for part in sorted(checkpoint.glob("gmi*.pt")):
        yield from flat(torch.load(part, weights_only=True), part.stem)
    for line in metrics_of(folder):
        clocked = ("gmi_seconds", "gmi_mem_peak_bytes")
        numbers = {name: value for name, value in line.items() if name not in clocked}
        yield from flat(numbers, f"metrics/{line['iteration']}")


@dataclass
class Comparison:
    """Holds how the numbers of one case differ between two commits."""

    compared: int = 0
    largest: float = 0.0  # difference of two numbers
    differing: dict[str, float] = field(default_factory=dict)  # largest difference, by path
    only_here: list[str] = field(default_factory=list)
    only_there: list[str] = field(default_factory=list)

    @property
    def bit_equal(self) -> bool:
        added = [path for path in self.only_here if ADDED.isdisjoint(path.split("/"))]
        return not (self.differing or added or self.only_there)


def compare(here: Numbers, there: Numbers) -> Comparison:
    """Compares all numbers of two runs by their paths."""
    comparison = Comparison(
        only_here=sorted(here.keys() - there.keys()),
        only_there=sorted(there.keys() - here.keys()),
    )
    for path in sorted(here.keys() & there.keys()):
        comparison.compared += 1
        difference = _difference(here[path], there[path])
        if difference is not None:
            comparison.differing[path] = difference
            comparison.largest = max(comparison.largest, difference)
    return comparison


def _difference(first: Any, second: Any) -> float | None:
    """Returns the largest difference of two tensors or numbers; None if they are bit-equal."""
    if not isinstance(first, torch.Tensor) or not isinstance(second, torch.Tensor):
        if repr(first) == repr(second):
            return None
        numbers = isinstance(first, (int, float)) and isinstance(second, (int, float))
        return abs(first - second) if numbers else float("inf")
    if first.dtype != second.dtype or first.shape != second.shape:
        return float("inf")
    if first.numpy().tobytes() == second.numpy().tobytes():
        return None
    return float((first.double() - second.double()).abs().max())


def table(comparisons: Mapping[str, Comparison], commit: str) -> str:
    """Returns the table of cases for people."""
    lines = [f"{'case':<24}{'numbers':>8}  against {commit}"]
    for case, comparison in comparisons.items():
        answer = "bit-equal" if comparison.bit_equal else f"differs by {comparison.largest:.3g}"
        lines.append(f"{case:<24}{comparison.compared:>8}  {answer}")
        for path, difference in list(comparison.differing.items())[:12]:
            lines.append(f"    {path}: {difference:.3g}")
        for side, paths in (("here", comparison.only_here), ("there", comparison.only_there)):
            if paths:
                lines.append(f"    only {side}: {', '.join(paths[:12])}")
    return "\n".join(lines)


def main() -> int:
    options_of = parser(__doc__)
    options_of.add_argument("--against", required=True, metavar="COMMIT")
    options_of.add_argument("--case", nargs="+", choices=RUNS, default=list(RUNS), metavar="NAME")
    options_of.add_argument("--row", default="bit_equal", metavar="NAME", help="of the result")
    options = options_of.parse_args()
    commit = git("rev-parse", "--short=12", options.against)
    comparisons: dict[str, Comparison] = {}
    with checkout(commit) as tree:
        for case in options.case:
            say(case)
            comparisons[case] = compare(run(ROOT, case), run(tree, case))
    equal = sum(comparison.bit_equal for comparison in comparisons.values())
    emit(
        "same_numbers", options.row, value=equal, unit="cases", peer=len(comparisons),
        ratio=equal / len(comparisons), against=commit,
        cases={
            case: {
                "bit_equal": comparison.bit_equal,
                "numbers": comparison.compared,
                "largest_difference": comparison.largest,
                "differing": len(comparison.differing),
                "only_here": len(comparison.only_here),
                "only_there": len(comparison.only_there),
            }
            for case, comparison in comparisons.items()
        },
    )  # fmt: skip
    say(table(comparisons, commit))
    return 0 if equal == len(comparisons) else 1


if __name__ == "__main__":
    sys.exit(main())
