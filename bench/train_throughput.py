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
`against/<case>`: training on Ant, Humanoid and CartPole (64 and 1,024 environments).

    bench/train_throughput.py --against COMMIT [--cases ant humanoid ...] --rounds 5
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any

import against
from jobs import Job, JobError, importable, run_ours, run_peer
from peers._job import Settings
from report import emit_pairs, parser, ratios_of, say, spread_of

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
    jobs: list[Job] = field(default_factory=list)

    @property
    def rates(self) -> list[float]:
        """Returns the steps/s of each round."""
        return [job.steps_per_s for job in self.jobs]

    @property
    def steps_per_s(self) -> float:
        """Returns the median over the rounds."""
        return statistics.median(self.rates)

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
        for way, gmis in ((ONE_GMI, 1), (GMI_A_CORE, cores)):
            run = partial(run_ours, job, timeout, gmis, algorithm=algorithm)
            entries.append(Contestant(task, "ours", way, run))
        limits = {}
        if task in PHYSICS_HORIZON:
            bare = replace(job, n_envs=64, horizon=PHYSICS_HORIZON[task])
            limits = {"physics": bare, "products": job}
        for name, settings in limits.items():
            run = partial(run_peer, sys.executable, f"{name}.py", settings, timeout)
            entries.append(Contestant(task, name, "", run))
        for name, script, vec in peers:
            if job.method == "ppo" or name != "rl_games":  # which has no A2C, nor single steps
                run = partial(run_peer, options.python, script, replace(job, vec=vec), timeout)
                entries.append(Contestant(task, name, vec, run))
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


def report(task: str, entries: list[Contestant], dry: bool) -> None:
    """Emits the rows of a task."""

    def row(
        name: str, rates: list[float], peers: list[float], cpu_s: float | None,
        peer_cpu_s: float | None, **fields: Any,
    ) -> None:  # fmt: skip
        emit_pairs(
            "train_throughput", f"{task}/{name}", "steps/s", rates, peers,
            ratio_spread=spread_of(ratios_of(rates, peers), 3), cpu_s_per_1000_steps=cpu_s,
            peer_cpu_s_per_1000_steps=peer_cpu_s, dry=dry, **fields,
        )  # fmt: skip

    ours = [entry for entry in entries if entry.system == "ours"]
    if not ours:
        return
    winner, peers = best(ours), [entry for entry in entries if entry.system in PEERS]
    for name in (*PEERS, "best_peer"):
        if rivals := [peer for peer in peers if name in (peer.system, "best_peer")]:
            rival = best(rivals)
            row(
                name, winner.rates, rival.rates, winner.cpu_s, rival.cpu_s, ours=winner.variant,
                peer_system=f"{rival.system}/{rival.variant}",
                all_peer_steps_per_s={
                    f"{r.system}/{r.variant}": round(r.steps_per_s, 1) for r in rivals
                },
                versions=rival.jobs[0].versions,
            )  # fmt: skip
    limits = {entry.system: entry for entry in entries if entry.system in ("physics", "products")}
    if physics := limits.get("physics"):
        versions = physics.jobs[0].versions
        simulating = [job.simulate_steps_per_s for job in winner.jobs]
        if is_known := None not in simulating:
            share = statistics.median(ratios_of(winner.rates, physics.rates))
            row(  # CPU seconds are known of the whole job only
                "physics", simulating, physics.rates, None, physics.cpu_s, ours=winner.variant,
                whole_job_share=round(share, 3), versions=versions,
            )  # fmt: skip
        if products := limits.get("products"):
            rates = {"physics": physics.rates, "products": products.rates,
                     "whole_job": winner.rates}  # fmt: skip
            rates |= {"simulating": simulating} if is_known else {}
            row(
                "floor", winner.rates,
                [1 / (1 / a + 1 / b) for a, b in zip(physics.rates, products.rates, strict=True)],
                winner.cpu_s, None, ours=winner.variant,
                us_per_step={k: round(1e6 / statistics.median(r), 1) for k, r in rates.items()},
                versions=versions | products.jobs[0].versions,
            )  # fmt: skip
    if len(ours) > 1:
        for entry, rival in zip(ours, reversed(ours), strict=True):
            wins = entry is winner
            row(entry.variant, entry.rates, rival.rates, entry.cpu_s, rival.cpu_s, wins=wins)


def parse() -> argparse.Namespace:
    """Returns the options from the command line."""
    options_of = parser(__doc__, rounds=5)
    add, cases = options_of.add_argument, list(against.cases(True))
    add("--python", default=sys.executable, help="interpreter that has the peers")
    add("--tasks", nargs="+", choices=TASKS, default=["ant", "humanoid"])
    add("--peers", nargs="*", choices=PEERS, default=list(PEERS))
    add("--against", metavar="COMMIT", help="compare with this commit, not peers")
    add("--cases", nargs="+", choices=cases, default=cases, help="of --against; default: all")
    add("--steps", type=int, help="timed steps of each job; default: the task's")
    add("--peer-threads", type=int, default=1, help="torch threads of a peer")
    add("--timeout-minutes", type=float, default=15.0, help="of one job")
    add("--dry", action="store_true", help="one tiny round: does it run at all?")
    options = options_of.parse_args()
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
    for task in options.tasks:
        report(task, [entry for entry in entries if entry.task == task], options.dry)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
