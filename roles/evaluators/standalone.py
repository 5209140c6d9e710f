"""An evaluator on its own, in this process or as an actor of the runtime: what Python asks of one.

    evaluator = Evaluator.remote(env="CartPole-v1", algorithm=PG)

It samples, and differentiates what it has sampled; who asks it, and for what, is the optimizer's
business (see `gmi_drl.rl`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gmi_drl import runtime
from gmi_drl.comm import solo_group
from gmi_drl.placement import ALGORITHMS, AlgorithmConfig, EvolutionConfig, ReplayConfig
from gmi_drl.placement.config.algorithms import validated
from gmi_drl.placement.faults import listed
from gmi_drl.roles.algorithms.algorithm import Algorithm
from gmi_drl.roles.envs import make_env
from gmi_drl.roles.envs.protocol import VecEnv
from gmi_drl.roles.errors import RoleError, SampleLost
from gmi_drl.roles.optimizers.learner import Shard
from gmi_drl.roles.policies.structure import structured_space
from gmi_drl.roles.samples.batch import Batch
from gmi_drl.roles.samples.codec import BatchCodec, sent_columns
from gmi_drl.roles.samples.collector import Collector
from gmi_drl.roles.samples.episodes import Seen
from gmi_drl.roles.samples.minibatch import Minibatch, joined
from gmi_drl.roles.seeds import ACTIONS, ENVIRONMENTS, LOSSES, seed_of

from .aggregator import Tried
from .counts import checked_count
from .episodes import PerturbedEpisodes
from .evaluate import evaluate_together
from .first_priorities import FirstPriorities
from .gradients import GradientMaker
from .graph import GraphSpec, PolicyGraph, Weights, tensor_of


@dataclass(frozen=True)
class Sample:
    """A horizon of experience as bytes (see BatchCodec), and the episodes that ended in it."""

    memory: np.ndarray[Any, Any]
    episodes: Seen
    priorities: np.ndarray[Any, Any] | None = None  # [T, N], where they were asked for


@dataclass(frozen=True)
class Begun:
    """Describes an evaluator that has begun."""

    spec: GraphSpec
    num_env: int
    make_env: Callable[..., VecEnv]  # one environment like its own, of a `seed`


@dataclass(frozen=True)
class Gradient:
    """The gradient of a loss, and what the others are to know of what it was made of."""

    vector: np.ndarray[Any, Any]  # [n] float32, as FlatParameters lays it out
    stats: np.ndarray[Any, Any]  # what the algorithm reports, in the order of its `stats`
    moments: np.ndarray[Any, Any]  # [m] float64: the algorithm's, then those of observations
    episodes: Seen


class Evaluator:
    """Environments, a policy and its algorithm in one place."""

    def __init__(
        self,
        env: str,
        algorithm: type[Algorithm],
        *,
        num_env: int = 8,
        seed: int = 0,
        settings: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        wrappers: Sequence[Any] = (),
    ) -> None:
        """`num_env` environments `env`, with their `options` and in `wrappers` (see `make_env`).

        `settings` are the algorithm's keys.

        Raises EnvSpecError, ConfigError or RoleError for what is wrong with them. Nothing is
        sampled before `begin`.
        """
        if not (isinstance(algorithm, type) and issubclass(algorithm, Algorithm)):
            raise RoleError(
                f"algorithm={algorithm!r}; must be a class of an algorithm. Use one such as rl.A2C."
            )
        self._id, self._num_env = env, checked_count("num_env", num_env, 1)
        self._seed = seed = checked_count("seed", seed, 0, 2**32 - 1)
        self._env_arguments: dict[str, Any] = {"options": options, "wrappers": wrappers}
        for key in ("optimizer", "drop_slowest"):
            if settings is not None and key in settings:
                raise RoleError(
                    f"settings has {key}: {settings[key]!r}; from Python the optimizer is an "
                    "object that is given its evaluators. Leave it out, and make one such as "
                    "rl.AllReduce(algorithm, evaluators, drop_slowest=1)."
                )
        valid = validated(algorithm.Settings, settings or {})
        self._kinds = trained_on(algorithm, valid)
        if not self._kinds:
            raise RoleError(
                f"{algorithm.__name__} runs under {listed(valid.optimizers, 'or')}, and an "
                "evaluator samples fresh experience with values, or such as is sent or kept, or "
                f"plays episodes. Use one of {', '.join(_trainable())}."
            )
        probe = make_env(env, 1, **self._env_arguments)
        try:
            spec = GraphSpec(
                algorithm, valid, probe.observation_space, structured_space(probe),
                probe.action_space, seed, getattr(probe, "stacking", None),
            )  # fmt: skip
        finally:
            probe.close()
        self._graph = PolicyGraph(spec)
        self._rank = self._lives = self._total = -1
        self._env: VecEnv | None = None
        self._collector: Collector | None = None

    @classmethod
    def remote(cls, *arguments: Any, **named: Any) -> runtime.ActorHandle:
        """Starts one as an actor of the runtime, which is started if it is not there.

        One that is killed comes back, with new episodes, and is asked again what it was asked.
        """
        if not runtime.is_initialized():
            runtime.init(["gmi_drl.rl"])
        actor = runtime.remote(max_restarts=-1, checkpoint_every=1, num_threads=1)(cls)
        handle: runtime.ActorHandle = actor.remote(*arguments, **named)
        return handle

    def begin(self, rank: int, total: int) -> Begun:
        """Begins as evaluator number `rank` of `total`, with episodes of its own."""
        self._start(rank, total, 0)
        make_one = partial(make_env, self._id, 1, **self._env_arguments)
        return Begun(self._graph.spec, self._num_env, make_one)

    def _start(self, rank: int, total: int, lives: int) -> None:
        self.close()
        self._rank, self._total, self._lives = rank, total, lives
        graph, num_env = self._graph, self._num_env
        seeds = partial(seed_of, self._seed, rank, lives=lives)
        self._env = make_env(self._id, num_env, **self._env_arguments, seed=seeds(ENVIRONMENTS))
        if isinstance(graph.spec.settings, EvolutionConfig):
            settings = graph.spec.settings
            self._episodes = PerturbedEpisodes(
                self._env,
                graph.policy.network,  # type: ignore[arg-type]
                graph.normalizers.observations,
                seed=self._seed, longest=settings.horizon, noise=settings.noise,
            )  # fmt: skip
            return
        self._batch, generator = graph.batch(num_env), torch.Generator().manual_seed(seeds(ACTIONS))
        graph.algorithm.explore_as(range(rank * num_env, (rank + 1) * num_env), total * num_env)
        self._collector = Collector(self._env, graph.algorithm, self._batch, generator)
        self._codec = codec_of(graph, num_env)
        self._iteration = 0
        if isinstance(graph.spec.settings, ReplayConfig):
            noise = torch.Generator().manual_seed(seeds(LOSSES))
            self._first_priorities = FirstPriorities.wanted(
                graph.algorithm, self._batch, noise, graph.spec.stacking
            )
            return
        if "fresh experience" in self._kinds:
            self._start_gradients()

    def _start_gradients(self) -> None:
        graph, num_env = self._graph, self._num_env
        self._parts: list[Tensor] = []
        self._count: int = getattr(graph.spec.settings, "minibatches", 1)
        self._minibatch = Minibatch(self._batch, self._count)
        self._shard = Shard.of(graph.pieces_each, num_env, self._seed, self._rank)
        self._maker = GradientMaker(graph.algorithm, graph.normalizers, graph.parameters)
        self._moments: Tensor | None = None  # of the present batch
        self._pulled: list[Any] = []  # what the shards of a parameter server have answered last

    def save(self) -> tuple[int, int, int]:
        """Returns what the runtime keeps of it: its rank, their total, and its lives."""
        return self._rank, self._total, self._lives

    def restore(self, state: tuple[int, int, int]) -> None:
        """Goes on, in a new process, as the one that gave `state`: in new episodes."""
        rank, total, lives = state
        if rank >= 0:
            self._start(rank, total, lives + 1)

    def sample(self, weights: Weights, steps: int, priorities: bool = False) -> Sample:
        """Collects a horizon with a policy that has learned from `steps` steps.

        `priorities`: give those of each step too, where a replay draws by them and the algorithm
        says how.
        """
        self._collect(weights, steps)
        memory = torch.zeros(self._codec.nbytes, dtype=torch.uint8)
        self._codec.pack(memory, self._batch, ())
        step_priorities: np.ndarray[Any, Any] | None = None
        if priorities and self._first_priorities is not None:
            step_priorities = self._first_priorities.of(self._batch).numpy().copy()
        return Sample(memory.numpy(), self._seen, step_priorities)

    def gradient(self, weights: Weights, steps: int) -> Gradient:
        """Collects a horizon, and differentiates the loss of all of it, by its own moments."""
        moments = self.measure(weights, steps)
        self.minibatches(moments[None])
        return self._gradient_of(joined(self._batch))

    def push(
        self, shards: Sequence[Any], statistics: Weights, steps: int, rate: float | None
    ) -> Gradient:
        """Collects and differentiates as `gradient`, by the parameters that `shards` hold.

        Each shard is pushed its slice of the gradient, clipped as a whole, and applies it with the
        learning rate `rate`, if there is one. What they answer, the slices of new parameters, is
        taken at the next call: meanwhile nobody waits. `statistics`: weights without parameters.
        """
        slices = [_value(answer) for answer in self._pulled or [_ask(s, "pull") for s in shards]]
        self._pulled = []
        gradient = self.gradient({**statistics, "parameters": np.concatenate(slices)}, steps)
        self._maker.clip(self._graph.spec.settings.max_grad_norm)
        ends = np.cumsum([len(part) for part in slices])[:-1]
        parts = np.split(self._maker.gradient.numpy().copy(), ends)
        self._pulled = [_ask(s, "push", part, rate) for s, part in zip(shards, parts, strict=True)]
        return replace(gradient, vector=gradient.vector[:0])

    def forget(self) -> None:
        """Waits until the shards have taken what was pushed; the next `push` pulls anew."""
        for answer in self._pulled:
            _value(answer)
        self._pulled = []

    def score(self, weights: Weights, number: int, first: int, end: int) -> Tried:
        """Tries directions `first` to `end` of round `number` around parameters, both ways each."""
        graph = self._graph
        graph.set_weights(weights)
        parameters = graph.parameters.packed(graph.parameters.data.detach())
        return Tried.of(self._episodes.play(parameters, number, range(first, end)), first)

    def measure(self, weights: Weights, steps: int) -> np.ndarray[Any, Any]:
        """Collects a horizon; returns its moments, the algorithm's and those of observations."""
        self._collect(weights, steps)
        self._moments = self._maker.measure(self._batch).clone()
        return self._moments.numpy()

    def minibatches(self, everyone: np.ndarray[Any, Any]) -> None:
        """Begins an update of what was measured, with the moments [k, m] of all evaluators."""
        self._sampled_moments()
        self._maker.prepare(self._batch, tensor_of(everyone))
        self._parts = []

    def minibatch(self, weights: Weights) -> Gradient:
        """Differentiates the next minibatch, with these parameters, of epochs without end."""
        self._sampled_moments()
        if not self._parts:
            self._parts = list(self._shard.rows().view(self._count, -1))
        self._graph.set_weights(weights)
        self._minibatch.fill(self._parts.pop(0))
        return self._gradient_of(self._minibatch.batch)

    def evaluate(self, weights: Weights, num_env: int = 20, seed: int = 2) -> dict[str, float]:
        """Plays an episode in each of `num_env` new environments, greedily: mean and deviation."""
        self._graph.set_weights(weights)
        env = make_env(self._id, num_env, **self._env_arguments, seed=seed)
        try:
            return evaluate_together(
                env, self._graph.policy, self._graph.normalizers.observations, solo_group(),
                lambda: False, lambda: None,
            )  # fmt: skip
        finally:
            env.close()

    def close(self) -> None:
        """Lets the environments go."""
        if self._collector is not None:
            self._collector.close()
        if self._env is not None:
            self._env.close()
        self._collector = self._env = None

    def _sampled_moments(self) -> Tensor:
        """Returns the moments of what was sampled; SampleLost if that was by a process before."""
        if self._moments is None:
            raise SampleLost(self._rank)
        return self._moments

    def _collect(self, weights: Weights, steps: int) -> None:
        self._graph.set_weights(weights)
        self._graph.algorithm.before_sampling(steps)
        assert self._collector is not None, "begin comes first"
        self._collector.collect(self._iteration)
        self._iteration += 1
        _, self._seen = self._collector.read()

    def _gradient_of(self, minibatch: Batch) -> Gradient:
        stats = self._maker.differentiate(minibatch)
        gradient, moments = self._maker.gradient.numpy().copy(), self._sampled_moments().numpy()
        return Gradient(gradient, stats.numpy(), moments, self._seen)


def _ask(shard: Any, method: str, *arguments: Any) -> Any:
    """Asks a shard, an object or an actor; returns its answer, or a reference to that."""
    if isinstance(shard, runtime.ActorHandle):
        return getattr(shard, method).remote(*arguments)
    return getattr(shard, method)(*arguments)


def _value(answer: Any) -> Any:
    return runtime.get(answer) if isinstance(answer, runtime.ObjectRef) else answer


def codec_of(graph: PolicyGraph, num_env: int) -> BatchCodec:
    """Returns the codec of what an evaluator of `num_env` environments samples."""
    columns = sent_columns(graph.policy, graph.algorithm.recorded)
    if trained_on(graph.spec.algorithm, graph.spec.settings) == ["sent experience"]:
        columns = ["raw_observation", *graph.algorithm.segment_fields]
    return BatchCodec(graph.batch(1), num_env, columns, stats=0)


def trained_on(algorithm: type[Algorithm], settings: AlgorithmConfig) -> list[str]:
    """Says what evaluators can bring that an algorithm of these settings is trained on."""
    if isinstance(settings, EvolutionConfig):
        return ["returns"]
    if isinstance(settings, ReplayConfig):
        return ["kept experience"]
    fresh = not algorithm.whole_segments and "value" in algorithm.bootstrap
    kinds = {"fresh experience": fresh, "sent experience": "async_samples" in settings.optimizers}
    return [kind for kind, is_possible in kinds.items() if is_possible]


def _trainable() -> Sequence[str]:
    optimizers = {"all_reduce", "async_samples", "replay", "population"}
    return [name for name, settings in ALGORITHMS.items() if optimizers & {*settings.optimizers}]
