"""Trains by the plain design: an agent process, a trainer process, a multiprocessing queue.

Same environments, policy, segments and loss as the system under test, so that what differs is how
the two are joined: segments are pickled into a bounded queue, parameters go back through another
one that holds the newest. With `--processes 1` one process does both, in turn.

Prints one JSON line: predictions and training samples a second, after the warm-up.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import queue
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", required=True, help="the JSON of a gmi-drl config, mode async")
    parser.add_argument("--iterations", type=int, required=True)
    parser.add_argument("--warmup", type=int, required=True)
    parser.add_argument("--processes", type=int, choices=(1, 2), default=2)
    options = parser.parse_args()
    config = json.loads(options.config)
    cores = sorted(os.sched_getaffinity(0))
    if options.processes == 1:
        print(json.dumps(_alone(config, options.iterations, options.warmup, cores)), flush=True)
        return
    context = multiprocessing.get_context("spawn")
    segments = context.Queue(config["experience"]["capacity"])
    policies, counted = context.Queue(1), context.Value("q", 0)
    half = len(cores) // 2
    agent = context.Process(
        target=_agent, args=(config, segments, policies, counted, cores[:half]), daemon=True
    )
    agent.start()
    os.sched_setaffinity(0, cores[half:])
    job, segments_of = _job(config, len(cores) - half)
    learner = job.learner
    counts: list[tuple[float, int]] = []
    with suppress(queue.Full):
        policies.put_nowait((0, _vector(learner)))
    for number in range(options.iterations):
        if number in (options.warmup, options.iterations - 1):
            counts.append((time.perf_counter(), counted.value))
        _, fields = segments.get(timeout=60)
        learner.update(segments_of(fields))
        with suppress(queue.Empty):  # the newest one counts
            policies.get_nowait()
        with suppress(queue.Full):
            policies.put_nowait((number + 1, _vector(learner)))
    agent.kill()
    agent.join()
    samples = config["algorithm"]["horizon"] * config["env"]["num_env"]
    print(json.dumps(_result(counts, options.iterations - 1 - options.warmup, samples)), flush=True)


def _result(counts: list[tuple[float, int]], iterations: int, samples: int) -> dict[str, float]:
    (start_s, before), (end_s, after) = counts
    return {
        "predictions_per_s": (after - before) / (end_s - start_s),
        "training_samples_per_s": iterations * samples / (end_s - start_s),
    }


def _alone(config: dict[str, Any], iterations: int, warmup: int, cores: list[int]) -> Any:
    from gmi_drl.roles.samples.segments import Segments

    job, _ = _job(config, len(cores))
    collector = _collector(config, len(cores), job)
    samples = config["algorithm"]["horizon"] * config["env"]["num_env"]
    counts = []
    for number in range(iterations):
        if number in (warmup, iterations - 1):
            counts.append((time.perf_counter(), number * samples))
        collector.collect(number)
        job.learner.update(Segments.of(collector))
    return _result(counts, iterations - 1 - warmup, samples)


def _agent(
    config: dict[str, Any], segments: Any, policies: Any, counted: Any, cores: list[int]
) -> None:
    os.sched_setaffinity(0, cores)
    from dataclasses import fields

    from gmi_drl.roles.samples.segments import Segments

    job, _ = _job(config, len(cores))
    collector = _collector(config, len(cores), job)
    version, vector = policies.get(timeout=60)
    samples = config["algorithm"]["horizon"] * config["env"]["num_env"]
    for number in _count():
        with suppress(queue.Empty):
            version, vector = policies.get_nowait()
        job.learner.published.load(vector)
        collector.collect(number)
        found = Segments.of(collector)
        # By value, as a queue does with numpy arrays: torch would send handles of shared files.
        arrays = {f.name: getattr(found, f.name).numpy().copy() for f in fields(found)}
        segments.put((version, arrays))
        counted.value += samples


def _count() -> Iterator[int]:
    number = 0
    while True:
        yield number
        number += 1


@dataclass(frozen=True)
class _Job:
    """What a process trains or acts with."""

    learner: Any
    policy: Any
    normalizers: Any
    settings: Any


def _job(config: dict[str, Any], threads: int) -> tuple[_Job, Any]:
    """A learner on its own, and what turns arrays into its segments."""
    import torch

    from gmi_drl.comm import solo_group
    from gmi_drl.placement import hidden_sizes, load_config
    from gmi_drl.roles.optimizers.async_learner import AsyncLearner
    from gmi_drl.roles.policies.normalize import Normalizers
    from gmi_drl.roles.policies.policy import ActorCritic, distribution_for, observation_width
    from gmi_drl.roles.samples.segments import Segments

    torch.set_num_threads(threads)
    settings = load_config(config).algorithm
    env = _env(config, 1, 1)
    width = observation_width(env.observation_space)
    policy = ActorCritic(
        width,
        distribution_for(env.action_space),
        hidden_sizes(settings.network),
        settings.activation,
        settings.init_log_std,
        torch.Generator().manual_seed(0),
    )
    env.close()
    normalizers = Normalizers.of(settings, width)
    learner = AsyncLearner(policy, normalizers, settings, torch.Generator().manual_seed(0))
    learner.connect(solo_group())

    def segments_of(arrays: dict[str, Any]) -> Segments:
        return Segments(**{name: torch.from_numpy(array) for name, array in arrays.items()})

    return _Job(learner, policy, normalizers, settings), segments_of


def _collector(config: dict[str, Any], threads: int, job: _Job) -> Any:
    import torch

    from gmi_drl.roles.samples.rollout import Collector

    settings = job.settings
    return Collector(
        _env(config, config["env"]["num_env"], threads),
        job.policy,
        job.normalizers.observations,
        job.normalizers.values,
        horizon=settings.horizon,
        gamma=settings.gamma,
        reward_scale=settings.reward_scale,
        bootstrap_time_limit=settings.bootstrap_time_limit,
        generator=torch.Generator().manual_seed(0),
    )


def _env(config: dict[str, Any], num_env: int, threads: int) -> Any:
    from gmi_drl.roles.envs import make_env

    return make_env(config["env"]["id"], num_env, seed=0, threads=threads)


def _vector(learner: Any) -> Any:
    import torch

    vector = torch.zeros(learner.published.numel)
    learner.published.write(vector)
    return vector


if __name__ == "__main__":
    main()
