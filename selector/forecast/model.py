"""Computes what an iteration takes on a machine: the terms, in seconds, before anything is random.

A GMI's phases are lines, a fixed time and so much for each environment or sample. GMIs that are at
work on a GPU at the same time have the second part in turn, since they share its SMs; their fixed
times, which leave SMs idle, pass side by side, and grow a little (`crowding_percent`).

An all-reduce among GPUs is NCCL's own model (its src/graph/tuning.cc): the better of a ring and a
tree, each a latency for its steps inside a host and between hosts, and bytes over a bandwidth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from gmi_drl.placement import Config, ConfigError, Fault, Layout, UpdateSize
from gmi_drl.placement.checks.memory import Sizes
from gmi_drl.placement.faults import ABSENT

from .hardware import Hardware

_FLOAT: Final = 4
_EXTRAS: Final = 4  # numbers of a step beside observation and action: reward, ends, value, log-prob
Term: TypeAlias = Literal[
    "simulate", "infer", "update", "experience", "reduce in a GPU", "reduce between GPUs",
    "reduce between hosts", "waiting for the slowest", "failures",
]  # fmt: skip


@dataclass(frozen=True)
class LinearCost:
    """Costs `fixed_s`, and `each_s` for each environment, sample or byte."""

    fixed_s: float
    each_s: float

    def seconds(self, count: float, at_once: int = 1, crowding: float = 0.0) -> float:
        """Returns what `count` take each of `at_once` GMIs that share a device.

        `crowding`: more of the fixed time for each further GMI.
        """
        return self.fixed_s * (1 + crowding * (at_once - 1)) + self.each_s * count * at_once


@dataclass(frozen=True)
class Work:
    """Holds the numbers of an iteration on each host that decide how long it takes."""

    mode: str
    env_id: str
    template: str
    rollout_gpus: int  # of a host, that have simulators
    simulators: int  # GMIs on each of these
    num_env: int  # of each simulator
    horizon: int
    trainer_gpus: int  # of a host, that have trainers; 0 in serving
    trainers: int  # GMIs on each of these
    minibatch: int  # samples of a trainer's gradient step
    gradient_steps: int  # of a trainer in an iteration
    parameters: int
    numbers: int  # float32 of a step of an environment, as it is sent
    apart: bool  # experience is sent from simulators to trainers
    samples: int  # of an update, in all of a host
    capacity: int  # async: segments on their way on a link
    checkpoint_every: int

    @property
    def gpus(self) -> int:
        """Returns the GPUs of a host that are used."""
        shared = self.mode != "async"
        return self.rollout_gpus if shared else self.rollout_gpus + self.trainer_gpus

    @property
    def gradient_bytes(self) -> int:
        return _FLOAT * self.parameters

    @property
    def segment_mb(self) -> float:
        """Returns the MB of a simulator's horizon."""
        return self.num_env * self.horizon * self.numbers * _FLOAT / 1e6


def work_of(config: Config, layout: Layout, hardware: Hardware) -> Work:
    """Returns what a config that is resolved does on each host; ConfigError where no figure is."""
    task = hardware.tasks.get(config.env.id)
    faults = []
    if task is None:
        remedy = f"Use {', '.join(hardware.tasks)}, or write its step_us and env_step_ns there."
        rule = f"{hardware.name} has no figures of it"
        faults.append(Fault("env.id", config.env.id, rule, remedy))
    elif config.env.adapter != task.adapter:
        rule = f"{hardware.name} has figures of adapter {task.adapter}"
        remedy = f"Add --set env.adapter={task.adapter}."
        faults.append(Fault("env.adapter", config.env.adapter, rule, remedy))
    algorithm = config.algorithm
    if config.mode != "serving" and (
        algorithm.kept_steps or algorithm.resolved_optimizer not in _OPTIMIZERS
    ):
        rule = "it can be projected what updates of fresh experience take, by one of "
        rule += ", ".join(_OPTIMIZERS)
        faults.append(Fault("algorithm.name", algorithm.name, rule, "Use ppo, a2c or impala."))
    if algorithm.dropped_agents:
        rule = "it is not projected how much less is waited for without the slowest"
        remedy = "Leave it out: add --set algorithm.drop_slowest=0."
        faults.append(Fault("algorithm.drop_slowest", algorithm.dropped_agents, rule, remedy))
    if config.cluster is not None and config.sampling_hosts:
        rule = "it is projected what hosts do that are alike"
        remedy = "Leave it out: add --set cluster.trainer_hosts=null."
        faults.append(Fault("cluster.trainer_hosts", config.cluster.trainer_hosts, rule, remedy))
    if len({len(gmis) for gmis in layout.mpl}) > 1 and config.mode != "async":
        rule = "GPUs have different numbers of GMIs"
        faults.append(Fault("layout", ABSENT, rule, "Use a template."))
    if faults or task is None:
        raise ConfigError(faults)
    simulating, training = ([
        [gmi for gmi in gmis if role in layout.gmi(gmi).roles] for gmis in layout.mpl
    ] for role in ("simulator", "trainer"))  # fmt: skip
    is_serving = config.mode == "serving"
    update = None if is_serving else UpdateSize.of(config, layout)
    same_gmis = all(set(a) == set(b) for a, b in zip(simulating, training, strict=True))
    return Work(
        mode=config.mode,
        env_id=config.env.id,
        template=layout.template,
        rollout_gpus=sum(map(bool, simulating)),
        simulators=max(map(len, simulating)),
        num_env=config.env.num_env,
        horizon=algorithm.horizon,
        trainer_gpus=sum(map(bool, training)),
        trainers=max(map(len, training)),
        minibatch=0 if update is None else update.minibatch // update.trainers,
        gradient_steps=(
            0 if update is None else update.gradient_steps * getattr(algorithm, "epochs", 1)
        ),
        parameters=Sizes(task.observation, action=task.action, parameters=task.action).network(
            config
        ),
        numbers=task.observation + task.action + _EXTRAS,
        apart=not is_serving and not same_gmis,
        samples=0 if update is None else update.samples,
        capacity=config.experience.capacity,
        checkpoint_every=config.run.checkpoint_every,
    )


_OPTIMIZERS: Final = ("all_reduce", "local", "async_samples")


@dataclass(frozen=True)
class Phases:
    """Holds the seconds of an iteration's parts on one host, before anything is random."""

    simulate_s: float
    infer_s: float
    experience_s: float
    gradient_steps: int
    update_s: float  # of one gradient step, as are those below
    in_gpu_s: float
    between_gpus_s: float
    between_hosts_s: float

    @property
    def rollout_s(self) -> float:
        return self.simulate_s + self.infer_s

    @property
    def reduce_s(self) -> float:
        """Returns the seconds that a gradient step's reduction takes, in all."""
        return self.in_gpu_s + self.between_gpus_s + self.between_hosts_s

    @property
    def training_s(self) -> float:
        return self.gradient_steps * (self.update_s + self.reduce_s)

    def terms(self) -> dict[Term, float]:
        """Returns the seconds of an iteration by what they go to."""
        steps = self.gradient_steps
        return {
            "simulate": self.simulate_s,
            "infer": self.infer_s,
            "update": steps * self.update_s,
            "experience": self.experience_s,
            "reduce in a GPU": steps * self.in_gpu_s,
            "reduce between GPUs": steps * self.between_gpus_s,
            "reduce between hosts": steps * self.between_hosts_s,
        }


def phases_of(work: Work, hardware: Hardware, hosts: int) -> Phases:
    """Returns the seconds of an iteration's parts on each of `hosts` hosts."""
    crowding = hardware["crowding_percent"] / 100
    task = hardware.tasks[work.env_id]
    step = LinearCost(1e-6 * task.step_us.value, 1e-9 * task.env_step_ns.value)
    act = LinearCost(
        1e-6 * hardware["infer_step_us"],
        1e-12 * hardware["infer_env_parameter_ps"] * work.parameters,
    )
    learn = LinearCost(
        1e-6 * hardware["update_us"],
        1e-12 * hardware["update_sample_parameter_ps"] * work.parameters,
    )
    sends = LinearCost(1e-6 * hardware["experience_us"], 1e-6 * hardware["experience_each_mb_us"])
    mb = work.gradient_bytes / 1e6
    in_gpu_s = 0.0
    if work.trainers > 1:
        in_gpu_s = 1e-6 * (hardware["reduce_us"] + hardware["reduce_each_mb_us"] * mb)
    one_host_s = all_reduce_s(hardware, work.trainer_gpus, 1, work.gradient_bytes)
    all_s = all_reduce_s(hardware, work.trainer_gpus, hosts, work.gradient_bytes)
    return Phases(
        simulate_s=work.horizon * step.seconds(work.num_env, work.simulators, crowding),
        infer_s=work.horizon * act.seconds(work.num_env, work.simulators, crowding),
        experience_s=sends.seconds(work.segment_mb) if work.apart else 0.0,
        gradient_steps=work.gradient_steps,
        update_s=learn.seconds(work.minibatch, work.trainers, crowding) if work.trainers else 0.0,
        in_gpu_s=in_gpu_s,
        between_gpus_s=one_host_s,
        between_hosts_s=max(0.0, all_s - one_host_s),
    )


def all_reduce_s(hardware: Hardware, gpus: int, hosts: int, nbytes: float) -> float:
    """Returns the seconds of an all-reduce among `gpus` GPUs of each of `hosts` hosts."""
    ranks = gpus * hosts
    if ranks <= 1:
        return 0.0
    within_s = 1e-6 * hardware["within_step_us"]
    between_s = 1e-6 * hardware["between_step_us"] if hosts > 1 else 0.0
    speeds = [hardware["within_bandwidth_gb_per_s"]] if gpus > 1 else []
    if hosts > 1:
        speeds.append(hardware["between_bandwidth_gb_per_s"])
    sent_s = nbytes / (1e9 * min(speeds))
    across = 2 * (hosts - 1)
    ring_s = (2 * (ranks - 1) - across) * within_s + across * between_s
    ring_s += 2 * (ranks - 1) / ranks * sent_s
    tree_s = 2 * ((gpus - 1) * within_s + math.ceil(math.log2(hosts)) * between_s) + 2 * sent_s
    return 1e-6 * hardware["within_base_us"] + min(ring_s, tree_s)
