"""What `gmi-drl tune` chooses on real cores, against the whole grid measured in the same run.

Claim: with a quarter of the grid's profiles the search finds a setting whose training throughput is
within 5 % of the grid's best, and well above that of a plain user (one process, num_env 64).

For each task every candidate is measured (the grid); then each search from nothing, with profiles
of its own; then what they chose, the two best of the grid and the plain start are measured again in
turn, round after round, so that a machine that slows down slows all of them and a lucky measurement
of the grid is no yardstick. The profiler is that of `tune`, on two cores, backend cpu.

Rows: `real/<task>`: value steps/s of what `default` chose, peer those of the grid's best, ratio the
median over rounds of both in a round; `paper` holds the same of Algorithm 2.

    bench/selector/grid.py --rounds 5 --pictures docs/tuning
    bench/selector/grid.py --tasks cartpole --range 32 64 --seconds 0.5 --rounds 1 --dry
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from report import emit

from gmi_drl import runtime
from gmi_drl.placement import Config, load_config
from gmi_drl.planning import find_devices
from gmi_drl.preload import PRELOAD
from gmi_drl.profiling import Profiler
from gmi_drl.selector.candidate import (
    Answer,
    Ask,
    Candidate,
    Chosen,
    Failed,
    Measured,
    Search,
    Space,
    Spent,
)
from gmi_drl.selector.findings import candidate_text
from gmi_drl.selector.plots import draw
from gmi_drl.selector.record import Recorded
from gmi_drl.selector.search import default
from gmi_drl.selector.search_paper import paper
from gmi_drl.selector.space import space_of

TASKS: Final = {
    "ant": ("Ant-v5", "ant", (4, 128)),
    "humanoid": ("Humanoid-v5", "humanoid", (4, 128)),
    "cartpole": ("CartPole-v1", [64, 64], (16, 1024)),
}
SEARCHES: Final[dict[str, Callable[[Space, float], Search]]] = {"default": default, "paper": paper}
PLAIN: Final = (1, 64)  # gmi_per_gpu and num_env of a user who has measured nothing
TOPS: Final = 2  # of the grid, that are measured again


@dataclass(frozen=True)
class Played:
    """A search to its end."""

    chosen: Chosen
    asked: tuple[tuple[Ask, Measured | Failed], ...]
    seconds: float

    @property
    def profiles(self) -> int:
        """How many it took."""
        return len(self.asked)


def config_of(task: str, search: str, limits: Sequence[int]) -> Config:
    """A training job in which both numbers are open."""
    env, network, _ = TASKS[task]
    return load_config(
        {
            "version": 1,
            "env": {"id": env, "num_env": "auto"},
            "algorithm": {"network": network, "horizon": 16, "minibatches": 4, "epochs": 4},
            "hardware": {"backend": "cpu", "num_gpus": 1, "cores": two_cores()},
            "layout": {"template": "tcg_ex", "gmi_per_gpu": "auto"},
            "tune": {"algorithm": search, "min_num_env": limits[0], "max_num_env": limits[1]},
        }
    )


def two_cores() -> list[int]:
    """Those that everything runs on."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise SystemExit("two cores are needed: one for each of two GMIs.")
    return cores[:2]


def play(search: Search, profile: Callable[[Ask], Answer]) -> Played:
    """Ask and tell until the search returns."""
    began, asked = time.monotonic(), []
    ask = next(search)
    while True:
        answer = profile(ask)
        if not isinstance(answer, Spent):
            asked.append((ask, answer))
        try:
            ask = search.send(answer)
        except StopIteration as stop:
            return Played(stop.value, tuple(asked), time.monotonic() - began)


class Stage:
    """Measures for one task until its minutes are over; says what it does."""

    def __init__(self, task: str, profiler: Profiler, space: Space, minutes: float) -> None:
        self._task, self._profiler = task, profiler
        self._rows = [its[0].row for its in space.rows]
        self._deadline = time.monotonic() + 60 * minutes

    def text(self, candidate: Candidate) -> str:
        return candidate_text(candidate, self._rows)

    def __call__(self, ask: Ask) -> Answer:
        if time.monotonic() > self._deadline:
            say(f"{self._task}: out of time")
            return Spent()
        answer = self._profiler(ask)
        told = f"failed ({answer.reason}): {answer.text}" if isinstance(answer, Failed) else ""
        if isinstance(answer, Measured):
            told = f"{answer.steps_per_s:>9,.0f} steps/s ± {100 * answer.error:.1f} %"
        say(f"  {self._task:<9} {self.text(ask.candidate):<22} {told}")
        return answer


def whole(space: Space, seconds: float, stage: Stage) -> dict[Candidate, Measured | Failed]:
    """The grid: every candidate once, the rows in turn."""
    found: dict[Candidate, Measured | Failed] = {}
    longest = max(map(len, space.rows))
    for candidate in (its[at] for at in range(longest) for its in space.rows if at < len(its)):
        answer = stage(Ask(candidate, seconds))
        if isinstance(answer, Spent):
            break
        found[candidate] = answer
    return found


def confirm(
    candidates: Sequence[Candidate], seconds: float, rounds: int, stage: Stage
) -> dict[Candidate, list[float]]:
    """steps/s of each in each round that all of them ended."""
    rates: dict[Candidate, list[float]] = {candidate: [] for candidate in candidates}
    for number in range(rounds):
        say(f"round {number + 1} of {rounds}")
        answers = {candidate: stage(Ask(candidate, seconds)) for candidate in candidates}
        if all(isinstance(answer, Measured) for answer in answers.values()):
            for candidate, answer in answers.items():
                assert isinstance(answer, Measured)
                rates[candidate].append(answer.steps_per_s)
    return rates


def measure(task: str, options: argparse.Namespace) -> dict[str, Any] | None:
    """All of a task, as a row; None when it could not be ended."""
    limits = options.range or TASKS[task][2]
    config = config_of(task, "default", limits)
    topology = find_devices(config)
    space, held = space_of(config, topology)
    stage = Stage(task, Profiler(config), space, options.minutes)
    say(f"{task}: the grid, {space.size} candidates")
    began = time.monotonic()
    grid = whole(space, options.seconds, stage)
    grid_s = time.monotonic() - began
    ran = {c: a for c, a in grid.items() if isinstance(a, Measured)}
    if not ran:
        say(f"{task}: nothing of the grid ran")
        return None
    played: dict[str, Played] = {}
    for name in options.searches:
        say(f"{task}: search {name}")
        candidates, _ = space_of(config_of(task, name, limits), topology)
        played[name] = play(SEARCHES[name](candidates, options.seconds), stage)
    if options.pictures is not None:
        header = {"env": config.env.id, "mode": config.mode, "space_size": space.size}
        its = played["default"]
        costs = (its.seconds / max(1, its.profiles),) * its.profiles  # their sum is what is told
        told_of = Recorded(Path(task), header, its.asked, costs, chosen=its.chosen)
        for path in draw(told_of, options.pictures / task):
            say(str(path))
    tops = sorted(ran, key=lambda c: ran[c].steps_per_s, reverse=True)[:TOPS]
    plain = plain_of(space)
    winners = {name: its.chosen.winner for name, its in played.items()}
    entries = list(dict.fromkeys([c for c in (*winners.values(), *tops, plain) if c is not None]))
    say(f"{task}: {', '.join(map(stage.text, entries))} again, in turn")
    rates = confirm(entries, options.confirm_seconds, options.rounds, stage)
    if not all(rates.values()) or winners.get("default") is None:
        say(f"{task}: not one round was ended by all; give it more --minutes")
        return None
    best = max(tops, key=lambda c: statistics.median(rates[c]))

    def against(one: Candidate, other: Candidate) -> dict[str, Any]:
        ratios = [a / b for a, b in zip(rates[one], rates[other], strict=True)]
        return {
            "ratio": round(statistics.median(ratios), 4),
            "ratio_spread": [round(min(ratios), 4), round(max(ratios), 4)],
        }

    def told(name: str) -> dict[str, Any]:
        winner, its = winners[name], played[name]
        assert winner is not None
        return {
            "chosen": stage.text(winner),
            **(found := against(winner, best)),
            "regret": round(1 - found["ratio"], 4),
            "profiles": its.profiles,
            "seconds_tune": round(its.seconds, 1),
            "gain_over_default": against(winner, plain)["ratio"],
            "complete": its.chosen.complete,
        }

    ours = winners["default"]
    row = told("default")
    return {
        "name": f"real/{task}",
        "value": round(statistics.median(rates[ours]), 1),
        "unit": "steps/s",
        "peer": round(statistics.median(rates[best]), 1),
        "ratio": row.pop("ratio"),
        "repeats": len(rates[ours]),
        "spread": [round(min(rates[ours]), 1), round(max(rates[ours]), 1)],
        **row,
        "best": stage.text(best),
        "grid_profiles": len(grid),
        "grid_complete": len(grid) == space.size,
        "seconds_grid": round(grid_s, 1),
        "plain_start": stage.text(plain),
        "confirmed": {
            stage.text(c): [round(rate, 1) for rate in its] for c, its in rates.items()
        },
        **{name: told(name) for name in played if name != "default" and winners[name]},
        "held": held,
        "grid": [point(candidate, answer) for candidate, answer in grid.items()],
    }  # fmt: skip


def plain_of(space: Space) -> Candidate:
    """What a plain user runs, or what lies nearest to it."""
    gmis, num_env = PLAIN
    every = [candidate for its in space.rows for candidate in its]
    return min(every, key=lambda c: (abs(c.row.gmi_per_gpu - gmis), abs(c.num_env - num_env)))


def point(candidate: Candidate, answer: Measured | Failed) -> dict[str, Any]:
    """One point of the grid."""
    its = {"gmi_per_gpu": candidate.row.gmi_per_gpu, "num_env": candidate.num_env}
    return its | {k: v for k, v in asdict(answer).items() if v is not None}


def table(rows: Sequence[dict[str, Any]]) -> None:
    """The rows for people."""
    head = f"\n{'row':<16}{'chosen':<24}{'best of the grid':<24}{'ratio':>7}{'profiles':>12}"
    say(f"{head}{'seconds':>14}{'over plain':>12}")
    for row in rows:
        for name in ("default", "paper"):
            its = row if name == "default" else row.get(name)
            if its:
                say(
                    f"{row['name'] if its is row else '  ' + name:<16}{its['chosen']:<24}"
                    f"{row['best']:<24}{its['ratio']:>7.3f}"
                    f"{its['profiles']:>5} of {row['grid_profiles']:<4}"
                    f"{its['seconds_tune']:>6.0f} of {row['seconds_grid']:<5.0f}"
                    f"{its['gain_over_default']:>11.2f}x"
                )


def say(text: str) -> None:
    """A line for people."""
    print(text, file=sys.stderr, flush=True)


def parse() -> argparse.Namespace:
    """Options from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--searches", nargs="+", choices=SEARCHES, default=list(SEARCHES))
    parser.add_argument("--rounds", type=int, default=5, help="of measuring the best few again")
    parser.add_argument("--seconds", type=float, default=3.0, help="of a profile, at most")
    parser.add_argument("--confirm-seconds", type=float, default=6.0, help="of one in a round")
    parser.add_argument("--minutes", type=float, default=12.0, help="of one task, at most")
    parser.add_argument(
        "--range", type=int, nargs=2, metavar=("LEAST", "MOST"), help="num_env of the grid"
    )
    parser.add_argument(
        "--pictures", type=Path, help="folder for <task>/tuning.png and .svg, as tune draws them"
    )
    parser.add_argument("--dry", action="store_true", help="print the rows, keep none")
    options = parser.parse_args()
    if "default" not in options.searches:
        parser.error("--searches: the rows are about `default`; add it.")
    return options


def main() -> int:
    """Measure and report; 1 if a task could not be ended."""
    options = parse()
    runtime.init(PRELOAD)
    rows = [row for task in options.tasks if (row := measure(task, options)) is not None]
    for row in rows:
        if options.dry:
            print(json.dumps(row), flush=True)
        else:
            emit("selector", **row)
    table(rows)
    return 0 if len(rows) == len(options.tasks) else 1


if __name__ == "__main__":
    sys.exit(main())
