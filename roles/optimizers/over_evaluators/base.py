"""Optimizers over evaluators that answer in their own time: who samples, differentiates and waits.

The algorithm is the same under each (RLlib's paper, section 4 and figure 4). One `step()` is one
round; between rounds an optimizer can be asked for its policy, evaluated, saved and loaded.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
from torch import Tensor

from gmi_drl.comm import solo_group
from gmi_drl.placement import ActorCriticConfig, Fault
from gmi_drl.roles.algorithms.algorithm import Algorithm
from gmi_drl.roles.errors import CheckpointError, RoleError
from gmi_drl.roles.evaluators.counts import checked_count
from gmi_drl.roles.evaluators.fleet import TIMEOUT, Fleet
from gmi_drl.roles.evaluators.graph import PolicyGraph, tensor_of
from gmi_drl.roles.evaluators.standalone import Begun, trained_on
from gmi_drl.roles.optimizers.gradient_step import check_finite
from gmi_drl.roles.optimizers.learner import Learner
from gmi_drl.roles.samples.episodes import RecentEpisodes, Seen
from gmi_drl.roles.state.checkpoint import load_file, save_file

_OPTIMIZERS: Final = {
    "fresh experience": "AllReduce or Local",
    "kept experience": "Replay or Apex",
    "sent experience": "AsyncSamples",
    "returns": "Population",
}


class EvaluatorOptimizer(ABC):
    """Holds what the optimizers share: the policy graph of the driver, its evaluators, the counts.

    `steps` counts the steps of environments that were learned from, `updates` those of the
    parameters, `dropped` the samples that came too late and were left out.
    """

    trains_on: ClassVar[str] = "fresh experience"
    single_step: ClassVar[bool] = False  # needs an algorithm that takes one step for each batch

    def __init__(
        self,
        algorithm: type[Algorithm],
        evaluators: Sequence[Any],
        *,
        total_steps: int | None = None,
        timeout: timedelta = TIMEOUT,
    ) -> None:
        """`evaluators` are `rl.Evaluator` objects or actors, all of `algorithm`.

        `total_steps`: where a learning rate that is scheduled ends; None: it stays what it is.
        """
        self.fleet = Fleet(evaluators, timeout)
        for number in range(self.fleet.size):
            self.fleet.ask(number, "begin", number, self.fleet.size)
        replies: dict[int, Begun] = dict(self.fleet.first() for _ in range(self.fleet.size))
        specs = [replies[number].spec for number in range(self.fleet.size)]
        self._num_env = [replies[number].num_env for number in range(self.fleet.size)]
        self._make_env = replies[0].make_env
        for number, spec in enumerate(specs):
            if spec.algorithm is not algorithm:
                raise RoleError(
                    f"evaluator {number} is of {spec.algorithm.__name__}, and the optimizer of "
                    f"{algorithm.__name__}. Make both of the same algorithm."
                )
            if spec.settings != specs[0].settings or self._num_env[number] != self._num_env[0]:
                raise RoleError(
                    f"evaluator {number} has other settings or num_env than evaluator 0, and "
                    "samples are weighed alike. Make all alike."
                )
        self._spec, self._seeds = specs[0], [spec.seed for spec in specs]
        self._settings: Any = specs[0].settings
        kinds = trained_on(algorithm, self._settings)
        if self.trains_on not in kinds:
            corrected = ", or IMPALA or APPO, which correct for how old it is"
            raise RoleError(
                f"{type(self).__name__} trains on {self.trains_on}, and {algorithm.__name__} "
                f"on {' or '.join(kinds)}. Use {' or '.join(_OPTIMIZERS[kind] for kind in kinds)}"
                f"{corrected if self.trains_on == 'sent experience' else ''}."
            )
        self._check_settings()
        if self.single_step:
            updates = self._settings.gradient_steps(self._settings.horizon * self._num_env[0])
            updates *= getattr(self._settings, "epochs", 1)
            if updates != 1:
                raise RoleError(
                    f"{type(self).__name__} takes one step for each gradient, and "
                    f"{algorithm.__name__} takes {updates} for each batch. Use AllReduce or Local, "
                    "or A2C or PG."
                )
        self.graph = PolicyGraph(self._spec)
        self._total_steps = total_steps
        self.steps = self.updates = self.dropped = 0
        self._episodes = RecentEpisodes()
        self._round = 0
        self._asked: dict[int, int] = {}  # by evaluator: in which round it was asked last

    def _check_settings(self) -> None:
        """Raises RoleError unless settings fit, and minibatches divide samples, as in a config."""
        settings = self._settings
        faults = list(settings.own_faults())
        if isinstance(settings, ActorCriticConfig):
            faults += self._minibatch_faults(settings, self._num_env[0])
        if faults:
            raise RoleError(str(faults[0]))

    def _minibatch_faults(self, its: ActorCriticConfig, num_env: int) -> list[Fault]:
        if its.recurrent is None:
            product = f"num_env={num_env} x horizon={its.horizon}"
            unit, rows = "samples of an evaluator", num_env * its.horizon
            return [*its.minibatch_faults(rows, unit, product, "horizon")]
        unit = "environments of an evaluator, whose steps stay together"
        return [*its.minibatch_faults(num_env, unit, f"num_env={num_env}", "recurrent")]

    @abstractmethod
    def step(self) -> dict[str, Any]:
        """Takes one round and returns its counts, mean return and losses."""

    def foreach_policy(self, function: Callable[[PolicyGraph], Any]) -> list[Any]:
        """Returns what `function` gives for the policy graph of each policy: here there is one.

        What it changes is what evaluators get with the next weights.
        """
        return [function(self.graph)]

    def evaluate(self, num_env: int = 20) -> dict[str, float]:
        """Returns mean and deviation of greedy play in `num_env` environments of an evaluator.

        What evaluators send meanwhile is left out.
        """
        self._round += 1
        while not self._idle():
            self._first()
        self._ask(self._idle()[0], "evaluate", self.graph.acting(), num_env)
        try:
            while (answered := self._first()) is None:
                pass
        finally:
            self._round += 1  # what is answered after a timeout is left out
        return dict(answered[1])

    def _idle(self) -> list[int]:
        busy = self.fleet.busy
        return [number for number in range(self.fleet.size) if number not in busy]

    def _ask(self, number: int, what: str, *arguments: Any) -> None:
        """Ask an evaluator, in this round."""
        self._asked[number] = self._round
        self.fleet.ask(number, what, *arguments)

    def _first(self) -> tuple[int, Any] | None:
        """Returns the first answer; None if it is of a round that went on without it.

        Then it is left out, and the evaluator may be asked again.
        """
        number, answer = self.fleet.first()
        if self._asked[number] == self._round:
            return number, answer
        self.dropped += 1
        return None

    def _ask_all(
        self, numbers: Iterable[int], what: str, *arguments: Any, drop: int = 0
    ) -> dict[int, Any]:
        """Asks these evaluators for the same, each once it is idle, in a round of their own.

        Returns their answers by number; without those of the `drop` that are last.
        """
        self._round += 1
        unasked = set(numbers)
        count, answers = len(unasked) - drop, dict[int, Any]()
        while len(answers) < count:
            for number in sorted(unasked.intersection(self._idle())):
                unasked.remove(number)
                self._ask(number, what, *arguments)
            if (answered := self._first()) is not None:
                answers[answered[0]] = answered[1]
        return dict(sorted(answers.items()))

    def state_dict(self) -> dict[str, Any]:
        """Returns parameters, optimizer, statistics and counts; no episodes."""
        return {
            "weights": self.graph.weights(), "steps": self.steps, "updates": self.updates,
            "dropped": self.dropped, "episodes": self._episodes.state_dict(),
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Loads `state`; what evaluators send meanwhile is left out.

        CheckpointError if its policy or its normalisers are others.
        """
        shapes, saved_shapes = (
            {name: np.shape(array) for name, array in weights.items() if name != "algorithm"}
            for weights in (self.graph.acting(), state["weights"])
        )
        if saved_shapes != shapes:
            raise CheckpointError(
                f"a policy of {_sizes(saved_shapes)}; the evaluators' has {_sizes(shapes)}. Make "
                "them with the environment and the settings of those that were saved."
            )
        self.graph.set_weights(state["weights"])
        self.steps, self.updates = state["steps"], state["updates"]
        self.dropped = state["dropped"]
        self._episodes.load_state_dict(state["episodes"])
        self._round += 1

    def save(self, path: Path | str) -> None:
        """Writes the state to a file, which is there whole or not at all."""
        save_file(Path(path), _tensors(self.state_dict()))

    def load(self, path: Path | str) -> None:
        """Goes on from a file that `save` wrote; CheckpointError if it is none."""
        remedy = "Give a file that the `save` of such an optimizer wrote."
        state = load_file(Path(path), remedy)
        if not (isinstance(state, dict) and "weights" in state):
            raise CheckpointError(f"{path} holds no state of an optimizer. {remedy}")
        self.load_state_dict(_arrays(state))

    def close(self) -> None:
        """End the evaluators that are actors; those of this process let their environments go."""
        self.fleet.close()

    @property
    def _horizon_steps(self) -> int:
        """Returns the steps that one sample of an evaluator has."""
        return int(self._settings.horizon * self._num_env[0])

    def _result(self, seen: Seen, steps: int, stats: dict[str, float | None]) -> dict[str, Any]:
        """Counts `steps` of environments, and returns the result of a round."""
        check_finite(stats)
        self.steps += steps
        self._episodes.add(seen)
        return_mean, length_mean = self._episodes.means()
        counts = {"steps": self.steps, "updates": self.updates, "dropped": self.dropped}
        return {**counts, "return_mean": return_mean, "length_mean": length_mean, **stats}


class Learning(EvaluatorOptimizer):
    """Optimizers that take the steps of the parameters here."""

    def _learn_by(self, learner: Learner) -> None:
        """Have `learner`, of the graph's algorithm, take the steps."""
        self._learner = learner
        learner.connect(solo_group())
        self.graph.parameters = learner.parameters

    def _checked_drop(self, drop_slowest: int) -> int:
        size = self.fleet.size
        return checked_count("drop_slowest", drop_slowest, 0, size - 1, f"of {size} evaluators")

    def _anneal(self) -> None:
        """Set the learning rate for how far training is, if it is scheduled."""
        if self._total_steps:
            self._learner.anneal(self.steps / self._total_steps)

    def _learned(self, seen: Seen, steps: int) -> dict[str, Any]:
        """Returns `_result` of what the learner has done since the last time."""
        self.updates = self._learner.updates
        return self._result(seen, steps, self._learner.stats())

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"descent": self._learner.descent.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if "descent" not in state:
            raise CheckpointError(
                "a state of a parameter server, whose shards hold Adam's moments, each of its "
                "slice. Load it into one with as many shards."
            )
        super().load_state_dict(state)
        self._learner.descent.load_state_dict(state["descent"])
        self._learner.updates = self.updates


def _sizes(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{shape[0]:,} numbers of {name}" for name, shape in shapes.items())


def _tensors(state: Any) -> Any:
    """Returns a state with tensors for its arrays, which can be loaded from a file safely."""
    if isinstance(state, dict):
        return {name: _tensors(value) for name, value in state.items()}
    if isinstance(state, list):
        return [_tensors(value) for value in state]
    return tensor_of(state) if isinstance(state, np.ndarray) else state


def _arrays(state: Any) -> Any:
    """Returns a state with arrays for the tensors of its weights, as `_tensors` had it."""
    weights = {
        name: value.numpy() if isinstance(value, Tensor) else value
        for name, value in state["weights"].items()
    }
    return {**state, "weights": weights}
