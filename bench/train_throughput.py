#!/usr/bin/env python3
"""Measures training steps/s of whole PPO jobs beside the peers' and bare physics.

Claim: `gmi-drl launch` trains Gymnasium's MuJoCo tasks several times as fast as the best of
Stable-Baselines3, a single-file PPO and rl_games on the same CPU cores, with the same number of
environments, horizon, minibatch, epochs and network. Every job runs in turn, round after round,
so that a machine that slows down slows all of them; the ratio is the median over rounds of the
ratio within a round. A peer may run its environments in any way it has and its best way counts;
so does ours (one GMI on all cores, or one GMI a core).

The other tasks are CartPole, LunarLander and HalfCheetah, by PPO and by A2C (`--tasks`).

Rows: `<task>/sb3`, `<task>/cleanrl`, `<task>/rl_games`, `<task>/best_peer`: ours over the peer;
`<task>/physics`: our steps/s while simulating as a share of bare `mujoco.rollout` physics;
`<task>/floor`: our whole job over what it cannot do without, that physics and then the matrix
products of roll-out and updates (bench/peers/products.py);
`<task>/one_gmi_two_cores` and `<task>/two_gmis_one_core_each`: each over the other (the names
are of a two-core machine; on others read "all cores" and "one GMI a core").

    bench/train_throughput.py --python /path/to/python-with-the-peers --rounds 5 --steps 20480

Or this tree against another commit, whole jobs in pairs that take turns, with rows
`against/<case>`: training on Ant, Humanoid and CartPole (64 and 1,024 environments), async
CartPole, serving, the start of a launch and of a GMI, the modules that a launch imports, and the
runtime's tasks and calls of an actor.

    bench/train_throughput.py --against COMMIT [--cases ant serving ...] --rounds 5
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import against
from jobs import Job, JobError, importable, run_ours, run_peer
from peers._job import Settings
from report import emit, say

_SMALL = Settings(net="64:64", activation="tanh", horizon=64, minibatch=256, epochs=10)
# A2C is PPO with one epoch of one minibatch, which is how peers without it run it.
_A2C = {"method": "a2c", "horizon": 8, "minibatch": 128, "epochs": 1}
TASKS = {
    "ant": Settings(env="Ant-v5"),
    "humanoid": Settings(env="Humanoid-v5"),
    "halfcheetah": Settings(env="HalfCheetah-v5"),
    "cartpole": replace(_SMALL, env="CartPole-v1", steps=102_400),
    "lunarlander": replace(_SMALL, env="LunarLander-v3", horizon=128, minibatch=512, epochs=4),
    "halfcheetah_a2c": replace(_SMALL, env="HalfCheetah-v5", warmup=16, **_A2C),
    "cartpole_a2c": replace(_SMALL, env="CartPole-v1", warmup=16, steps=51_200, **_A2C),
    "lunarlander_a2c": replace(_SMALL, env="LunarLander-v3", warmup=16, **_A2C),
}
PEERS = {  # name: script, its ways to run environments
    "sb3": ("sb3.py", ("dummy", "subproc")),
    "cleanrl": ("cleanrl_style.py", ("sync", "envpool")),
    "rl_games": ("rl_games_job.py", ("sync", "envpool")),
}
ONE_GMI, GMI_A_CORE = "one_gmi_two_cores", "two_gmis_one_core_each"
OURS = (ONE_GMI, GMI_A_CORE)
# Physics in stretches as long as an untrained policy's episodes: a Humanoid left lying on the
# floor simulates half as fast, which would lower the limit and flatter us.
PHYSICS_HORIZON = {"ant": 128, "humanoid": 32}


@dataclass
class Contestant:
    """One way to run the job, and what it measured in each round."""

    task: str
    system: str  # "ours", "physics", "products" or a peer's name
    variant: str
    run: Callable[[], Job]
    jobs: list[Job]

    @property
    def steps_per_s(self) -> float:
        """Returns the median over the rounds."""
        return statistics.median(job.steps_per_s for job in self.jobs)

    @property
    def cpu_s(self) -> float | None:
        """Returns the median CPU seconds per 1,000 steps."""
        known = [j.cpu_s_per_1000_steps for j in self.jobs if j.cpu_s_per_1000_steps is not None]
        return round(statistics.median(known), 4) if known else None


def contestants(options: argparse.Namespace) -> list[Contestant]:
    """Returns all that can run here; what cannot is reported on standard error and left out."""
    timeout = timedelta(minutes=options.timeout_minutes)
    peers: list[tuple[str, str, str]] = []
    for name in options.peers:
        script, vecs = PEERS[name]
        for vec in vecs:
            problem = importable(options.python, script, vec)
            if problem is None:
                peers.append((name, script, vec))
            else:
                say(f"skipped {name}/{vec}: {options.python} says: {problem}")
    cores = len(os.sched_getaffinity(0))
    entries = []
    for task in options.tasks:
        job = replace(TASKS[task], threads=options.peer_threads)
        if options.steps is not None:
            job = replace(job, steps=options.steps)
        algorithm = {} if job.method == "ppo" else {"name": job.method}
        variants: list[tuple[str, str, Callable[[], Job]]] = [
            (
                "ours", way,
                lambda job=job, gmis=gmis, x=algorithm: run_ours(job, timeout, gmis, algorithm=x),
            )
            for way, gmis in ((ONE_GMI, 1), (GMI_A_CORE, cores))
        ]  # fmt: skip
        if task in PHYSICS_HORIZON:
            bare = replace(job, n_envs=64, horizon=PHYSICS_HORIZON[task])
            run = lambda bare=bare: run_peer(sys.executable, "physics.py", bare, timeout)  # noqa: E731
            variants.append(("physics", "", run))
            run = lambda job=job: run_peer(sys.executable, "products.py", job, timeout)  # noqa: E731
            variants.append(("products", "", run))
        for name, script, vec in peers:
            if job.method != "ppo" and name == "rl_games":
                continue  # it has no A2C, and its PPO takes no single step
            settings = replace(job, vec=vec)
            variants.append(
                (name, vec, lambda s=script, x=settings: run_peer(options.python, s, x, timeout))
            )
        entries += [Contestant(task, system, vec, run, []) for system, vec, run in variants]
    return entries


def measure(entries: list[Contestant], rounds: int) -> list[str]:
    """Runs all in turn, `rounds` times; returns what failed, which is removed from `entries`."""
    failures = []
    for number in range(rounds):
        for entry in list(entries):
            name = f"{entry.task}/{entry.system} {entry.variant}".strip()
            try:
                job = entry.run()
            except JobError as error:
                say(f"round {number + 1} of {rounds}  {name}: FAILED and left out: {error}")
                failures.append(name)
                entries.remove(entry)
                continue
            entry.jobs.append(job)
            cpu = job.cpu_s_per_1000_steps
            used = "unknown" if cpu is None else f"{cpu:.3f}"
            say(
                f"round {number + 1} of {rounds}  {name:<34}{job.steps_per_s:>9,.0f} steps/s"
                f"   CPU s per 1,000 steps {used}"
            )
    return failures


def best(entries: list[Contestant]) -> Contestant:
    """Returns the fastest by median."""
    return max(entries, key=lambda entry: entry.steps_per_s)


def paired(ours: list[float], theirs: list[float]) -> dict[str, Any]:
    """Returns the median over rounds of ours over theirs, and its extremes."""
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    return {
        "ratio": round(statistics.median(ratios), 3),
        "ratio_spread": [round(min(ratios), 3), round(max(ratios), 3)],
    }


def speeds(entry: Contestant) -> list[float]:
    return [job.steps_per_s for job in entry.jobs]


def rows(task: str, entries: list[Contestant]) -> list[dict[str, Any]]:
    """Returns the rows of a task, ready to be reported."""
    task_entries = [entry for entry in entries if entry.task == task]
    ours = [entry for entry in task_entries if entry.system == "ours"]
    if not ours:
        return []
    winner = best(ours)
    results = []

    def against(name: str, rivals: list[Contestant]) -> None:
        rival = best(rivals)
        results.append(
            {
                "name": f"{task}/{name}",
                "samples": speeds(winner),
                "peer_samples": speeds(rival),
                **paired(speeds(winner), speeds(rival)),
                "ours": winner.variant,
                "peer_system": f"{rival.system}/{rival.variant}",
                "cpu_s_per_1000_steps": winner.cpu_s,
                "peer_cpu_s_per_1000_steps": rival.cpu_s,
                "all_peer_steps_per_s": {
                    f"{r.system}/{r.variant}": round(r.steps_per_s, 1) for r in rivals
                },
                "versions": rival.jobs[0].versions,
            }
        )

    peers = [entry for entry in task_entries if entry.system in PEERS]
    for name in PEERS:
        rivals = [entry for entry in peers if entry.system == name]
        if rivals:
            against(name, rivals)
    if peers:
        against("best_peer", peers)
    limits = {e.system: e for e in task_entries if e.system in ("physics", "products")}
    if physics := limits.get("physics"):
        results += _physics_row(task, winner, physics)
        if products := limits.get("products"):
            results.append(_floor_row(task, winner, physics, products))
    for entry, rival in zip(ours, reversed(ours), strict=True):
        if entry is not rival:
            results.append(
                {
                    "name": f"{task}/{entry.variant}",
                    "samples": speeds(entry),
                    "peer_samples": speeds(rival),
                    **paired(speeds(entry), speeds(rival)),
                    "wins": entry is winner,
                    "cpu_s_per_1000_steps": entry.cpu_s,
                    "peer_cpu_s_per_1000_steps": rival.cpu_s,
                }
            )
    return results


def _physics_row(task: str, ours: Contestant, physics: Contestant) -> list[dict[str, Any]]:
    simulating = [job.simulate_steps_per_s for job in ours.jobs]
    if None in simulating:
        return []
    known = [value for value in simulating if value is not None]
    return [
        {
            "name": f"{task}/physics",
            "samples": known,
            "peer_samples": speeds(physics),
            **paired(known, speeds(physics)),
            "ours": ours.variant,
            "cpu_s_per_1000_steps": None,  # of the whole job only
            "peer_cpu_s_per_1000_steps": physics.cpu_s,
            "whole_job_share": paired(speeds(ours), speeds(physics))["ratio"],
            "versions": physics.jobs[0].versions,
        }
    ]


def _floor_row(
    task: str, ours: Contestant, physics: Contestant, products: Contestant
) -> dict[str, Any]:
    """Returns the row of our whole job over physics and then the products alone."""
    floor = [
        1 / (1 / physics_rate + 1 / products_rate)
        for physics_rate, products_rate in zip(speeds(physics), speeds(products), strict=True)
    ]

    def us(rates: list[float]) -> float:
        return round(1e6 / statistics.median(rates), 1)

    simulating = [job.simulate_steps_per_s for job in ours.jobs]
    known = [rate for rate in simulating if rate is not None]
    return {
        "name": f"{task}/floor",
        "samples": speeds(ours),
        "peer_samples": floor,
        **paired(speeds(ours), floor),
        "ours": ours.variant,
        "cpu_s_per_1000_steps": ours.cpu_s,
        "peer_cpu_s_per_1000_steps": None,  # of two jobs
        "us_per_step": {
            "physics": us(speeds(physics)),
            "products": us(speeds(products)),
            "whole_job": us(speeds(ours)),
            **({"simulating": us(known)} if known else {}),
        },
        "versions": physics.jobs[0].versions | products.jobs[0].versions,
    }


def report(row: dict[str, Any], dry: bool) -> None:
    """Prints a row as a JSON line; a dry one is not kept."""
    row = dict(row)
    samples, peer_samples = row.pop("samples"), row.pop("peer_samples")
    fields = {
        "bench": "train_throughput",
        "name": row.pop("name"),
        "value": round(statistics.median(samples), 1),
        "unit": "steps/s",
        "peer": round(statistics.median(peer_samples), 1),
        "ratio": row.pop("ratio"),
        "repeats": len(samples),
        "spread": [round(min(samples), 1), round(max(samples), 1)],
        "peer_spread": [round(min(peer_samples), 1), round(max(peer_samples), 1)],
        **row,
    }
    if dry:
        print(json.dumps(fields | {"dry": True}), flush=True)
    else:
        emit(**fields)


def print_table(table: list[dict[str, Any]]) -> None:
    """Prints the rows for people."""
    say(
        f"\n{'row':<34}{'ours':>9}{'peer':>9}  ratio (lowest, highest)"
        "    CPU s per 1,000 steps: ours, peer"
    )
    for row in table:
        ours, peer = (statistics.median(row[key]) for key in ("samples", "peer_samples"))
        low, high = row["ratio_spread"]
        say(
            f"{row['name']:<34}{ours:>9,.0f}{peer:>9,.0f}  {row['ratio']:.2f} ({low:.2f}, "
            f"{high:.2f})    {row['cpu_s_per_1000_steps']}, {row['peer_cpu_s_per_1000_steps']}"
            f"    {row.get('peer_system', '')}"
        )


def parse() -> argparse.Namespace:
    """Returns the options from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", default=sys.executable, help="interpreter that has the peers")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=["ant", "humanoid"])
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS))
    parser.add_argument("--against", metavar="COMMIT", help="compare with this commit, not peers")
    parser.add_argument(
        "--cases", nargs="+", choices=against.cases(True), default=list(against.cases(True)),
        metavar="NAME", help="of --against; default: all",
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, help="timed steps of each job; default: the task's")
    parser.add_argument("--peer-threads", type=int, default=1, help="torch threads of a peer")
    parser.add_argument("--timeout-minutes", type=float, default=15.0, help="of one job")
    parser.add_argument("--dry", action="store_true", help="one tiny round: does it run at all?")
    options = parser.parse_args()
    if options.dry:
        options.rounds, options.steps, options.tasks = 1, 4096, options.tasks[:1]
    return options


def main() -> int:
    """Measures and reports; returns 1 if something that should run failed."""
    options = parse()
    if options.against:
        return against.compare(options)
    entries = contestants(options)
    failures = measure(entries, options.rounds)
    table = []
    for task in options.tasks:
        for row in rows(task, entries):
            report(row, options.dry)
            table.append(row)
    print_table(table)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
