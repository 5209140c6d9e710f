"""Trains by the plain design: an agent process, a trainer process, a multiprocessing queue.

Same environments, policy, segments and loss as the system under test, so that what differs is how
the two are joined: segments are pickled into a bounded queue, parameters go back through another
one that holds the newest. If `processes` is 1 one process does both, in turn.

Prints one JSON line: predictions and training samples a second, after the warm-up.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import queue
import time
from contextlib import suppress
from typing import Any, NamedTuple

from _job import asked


def main() -> None:
    options = asked()
    config = options.config  # of gmi-drl, mode async
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
    job, batch_of = _job(config, len(cores) - half)
    learner = job.learner
    counts: list[tuple[float, int]] = []
    with suppress(queue.Full):
        policies.put_nowait((0, _vector(job.published)))
    for number in range(options.iterations):
        if number in (options.warmup, options.iterations - 1):
            counts.append((time.perf_counter(), counted.value))
        _, fields = segments.get(timeout=60)
        learner.update(batch_of(fields))
        with suppress(queue.Empty):  # the newest one counts
            policies.get_nowait()
        with suppress(queue.Full):
            policies.put_nowait((number + 1, _vector(job.published)))
    agent.kill()
    agent.join()
    samples = config["algorithm"]["horizon"] * config["env"]["num_env"]
    print(json.dumps(_result(counts, options.iterations - 1 - options.warmup, samples)), flush=True)


def _result(counts: list[tuple[float, int]], iterations: int, samples: int) -> dict[str, float]:
    (start_s, start_count), (end_s, end_count) = counts
    return {
        "predictions_per_s": (end_count - start_count) / (end_s - start_s),
        "training_samples_per_s": iterations * samples / (end_s - start_s),
    }


def _alone(config: dict[str, Any], iterations: int, warmup: int, cores: list[int]) -> Any:
    job, _ = _job(config, len(cores))
    collector = _collector(config, len(cores), job)
    samples = config["algorithm"]["horizon"] * config["env"]["num_env"]
    counts = []
    for number in range(iterations):
        if number in (warmup, iterations - 1):
            counts.append((time.perf_counter(), number * samples))
        collector.collect(number)
        job.learner.update(collector.batch)
    return _result(counts, iterations - 1 - warmup, samples)


def _agent(
    config: dict[str, Any], segments: Any, policies: Any, counted: Any, cores: list[int]
) -> None:
    os.sched_setaffinity(0, cores)
    job, _ = _job(config, len(cores))
    collector = _collector(config, len(cores), job)
    version, vector = policies.get(timeout=60)
    samples = config["algorithm"]["horizon"] * config["env"]["num_env"]
    for number in itertools.count():
        with suppress(queue.Empty):
            version, vector = policies.get_nowait()
        job.published.load(vector)
        collector.collect(number)
        batch, names = collector.batch, job.learner.algorithm.segment_fields
        # As NumPy arrays, which a queue sends by value: torch would send handles of shared files.
        arrays = {name: batch[name].numpy().copy() for name in names}
        arrays["observation"] = batch["raw_observation"].numpy().copy()
        arrays["last_observation"] = batch.bootstrap["observation"].numpy()[None].copy()
        segments.put((version, arrays))
        counted.value += samples


class _Job(NamedTuple):
    """Holds what a process trains or acts with."""

    learner: Any
    published: Any
    settings: Any


def _job(config: dict[str, Any], threads: int) -> tuple[_Job, Any]:
    """Returns a learner on its own, and a function that turns arrays into its batches."""
    import torch

    from gmi_drl.comm import solo_group
    from gmi_drl.placement import load_config
    from gmi_drl.roles.algorithms import algorithm_class
    from gmi_drl.roles.optimizers.learner import Learner
    from gmi_drl.roles.policies.actor_critic import observation_width
    from gmi_drl.roles.policies.flat_parameters import PublishedPolicy
    from gmi_drl.roles.policies.networks import actor_critic_of
    from gmi_drl.roles.policies.normalize import Normalizers
    from gmi_drl.roles.samples.batch import Batch
    from gmi_drl.roles.samples.codec import received

    torch.set_num_threads(threads)
    settings = load_config(config).algorithm
    env = _env(config, 1, 1)
    width = observation_width(env.observation_space)
    cls, draw = algorithm_class(settings), torch.Generator().manual_seed(0)
    policy = cls.make_policy(actor_critic_of(settings, env, draw), settings)
    env.close()
    normalizers = Normalizers.of(settings, width)
    algorithm = cls(settings, policy, normalizers)
    learner = Learner(algorithm, torch.Generator().manual_seed(0))
    learner.connect(solo_group())

    def batch_of(arrays: dict[str, Any]) -> Batch:
        columns = {name: torch.from_numpy(array) for name, array in arrays.items()}
        last = {"last_observation": columns.pop("last_observation")}
        return received(columns, last, algorithm.segment_fields)

    return _Job(learner, PublishedPolicy(learner.parameters, normalizers), settings), batch_of


def _collector(config: dict[str, Any], threads: int, job: _Job) -> Any:
    import torch

    from gmi_drl.roles.samples.batch import Batch
    from gmi_drl.roles.samples.collector import Collector

    settings, algorithm = job.settings, job.learner.algorithm
    env = _env(config, config["env"]["num_env"], threads)
    batch = Batch.allocate(
        settings.horizon, env.num_env, env.observation_space.shape[0], algorithm.policy,
        torch.device("cpu"), filled=algorithm.filled, bootstrap=algorithm.bootstrap,
    )  # fmt: skip
    return Collector(env, algorithm, batch, torch.Generator().manual_seed(0))


def _env(config: dict[str, Any], num_env: int, threads: int) -> Any:
    from gmi_drl.roles.envs import make_env

    return make_env(config["env"]["id"], num_env, seed=0, threads=threads)


def _vector(published: Any) -> Any:
    import torch

    vector = torch.zeros(published.numel)
    published.write(vector)
    return vector


if __name__ == "__main__":
    main()
