"""Trains one job by an optimizer of `gmi_drl.rl` over evaluators that are actors; prints a line.

    bench/rl/job.py Apex 2 <the job's configuration, as JSON>

The optimizer is given by its name, and then how many evaluators there are. The line is a JSON
object, as those of the peers' jobs; the clock starts before the first step.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from peers._job import tree_cpu_s

from gmi_drl import rl


def main() -> None:
    name, count, job = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
    torch.set_num_threads(1)
    run, env, settings = job["run"], job["env"], job["algorithm"]
    algorithm = getattr(rl, settings.pop("name").upper())
    evaluators = [
        rl.Evaluator.remote(
            env=env["id"], algorithm=algorithm, num_env=env["num_env"], seed=run["seed"],
            settings=settings, wrappers=env["wrappers"],
        )
        for _ in range(count)
    ]  # fmt: skip
    optimizer = getattr(rl, name)(algorithm, evaluators, total_steps=run["total_steps"])
    curve: list[tuple[int, float]] = []
    began_s, began_cpu_s = time.perf_counter(), tree_cpu_s()
    while optimizer.steps < run["total_steps"]:
        stats = optimizer.step()
        if stats["return_mean"] is not None:
            curve.append((stats["steps"], round(stats["return_mean"], 3)))
    seconds, cpu_s = time.perf_counter() - began_s, tree_cpu_s() - began_cpu_s
    episodes = run["eval_episodes"]
    score = optimizer.evaluate(episodes)["eval_return"] if episodes else None
    optimizer.close()
    line: dict[str, Any] = {
        "steps": optimizer.steps, "seconds": seconds, "steps_per_s": optimizer.steps / seconds,
        "cpu_seconds_per_1000_steps": cpu_s / optimizer.steps * 1000, "curve": curve,
        "evaluation": score and {"episodes": episodes, "mean": round(score, 3)}, "versions": {},
    }  # fmt: skip
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
