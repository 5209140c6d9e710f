"""A sharded parameter server: parameters in pieces, to which evaluators push gradients.

Evaluators and shards speak with each other, and the driver only says who goes on: it sees no
parameter and no gradient (Li et al., 2014; RLlib's paper, figure 5a). With one shard this is
`AsyncGradients` with the parameters elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from gmi_drl import runtime
from gmi_drl.placement import AlgorithmConfig
from gmi_drl.roles.algorithms.algorithm import Algorithm
from gmi_drl.roles.errors import CheckpointError, EvaluatorLate, RoleError
from gmi_drl.roles.evaluators.counts import checked_count
from gmi_drl.roles.evaluators.graph import PolicyGraph, tensor_of
from gmi_drl.roles.evaluators.standalone import Evaluator
from gmi_drl.roles.optimizers.descent import Descent
from gmi_drl.roles.optimizers.in_flight import InFlight
from gmi_drl.roles.optimizers.parameter_groups import check_one_group
from gmi_drl.roles.policies import PARAMETER_MULTIPLE
from gmi_drl.roles.policies.flat_parameters import FlatParameters, Piece

from .base import EvaluatorOptimizer

_CHECKPOINT_EVERY = 50  # pushes; a shard that is killed is brought back by those since


class ParameterShard:
    """A slice of the parameters, and Adam's moments of it."""

    def __init__(self, slice_: np.ndarray[Any, Any], settings: AlgorithmConfig) -> None:
        self._slice = FlatParameters(nn.ParameterList([tensor_of(slice_)]))
        self._descent = Descent.of_piece(self._slice, settings)

    def pull(self) -> np.ndarray[Any, Any]:
        """Returns a copy of the parameters [n]."""
        return self._slice.data.detach().numpy().copy()

    def push(self, gradient: np.ndarray[Any, Any], rate: float | None) -> np.ndarray[Any, Any]:
        """Takes a step down `gradient` [n], with this learning rate if there is one; as `pull`."""
        if rate is not None:
            self._descent.learning_rate = rate
        with torch.no_grad():
            self._descent.step(tensor_of(gradient), torch.zeros(()))
        return self.pull()

    def save(self) -> dict[str, Any]:
        """Returns the parameters and Adam's state."""
        state = self._descent.state_dict()
        moments = {name: tensor.numpy().copy() for name, tensor in state["state"][0].items()}
        return {"parameters": self.pull(), "rate": self._descent.learning_rate, "moments": moments}

    def restore(self, state: dict[str, Any]) -> None:
        """Loads what `save` gave."""
        with torch.no_grad():
            self._slice.data.copy_(tensor_of(state["parameters"]))
        moments = {name: tensor_of(array) for name, array in state["moments"].items()}
        groups = [{"lr": state["rate"]}]
        self._descent.load_state_dict({"state": {0: moments}, "param_groups": groups})


class ParameterServer(EvaluatorOptimizer):
    """Each evaluator pulls parameters, pushes a gradient, and goes on: nobody waits for another."""

    single_step = True

    def __init__(
        self, algorithm: type[Algorithm], evaluators: Sequence[Any], *, shards: int = 1, **rest: Any
    ) -> None:
        """`shards`: the pieces of the parameters, each in an actor (an object, for objects)."""
        super().__init__(algorithm, evaluators, **rest)
        if algorithm.changes_parameters and self._settings.learns_value_scale:
            raise RoleError(
                f"{algorithm.__name__} keeps its values by changing the network's head "
                "(normalize_value), and here that lies in the shards. Give the evaluators settings "
                "with normalize_value=False, and a reward_scale that brings returns near 1."
            )
        if self._settings.followed_kl is not None:
            raise RoleError(
                "the learning rate follows the KL divergence (schedule='adaptive'), and shards do "
                "not know it. Give the evaluators settings with schedule='constant'."
            )
        check_one_group(self.graph.algorithm)
        parameters = self.graph.parameters
        pieces = parameters.numel // PARAMETER_MULTIPLE
        reason = f"as parameters are cut in pieces of {PARAMETER_MULTIPLE}"
        shards = checked_count("shards", shards, 1, pieces, reason)
        make: Callable[..., Any] = ParameterShard
        if not all(isinstance(evaluator, Evaluator) for evaluator in evaluators):
            options = {"max_restarts": -1, "checkpoint_every": _CHECKPOINT_EVERY, "num_threads": 1}
            make = runtime.remote(**options)(ParameterShard).remote
        self._shards = [
            make(Piece(parameters, index, shards).data.detach().numpy(), self._settings)
            for index in range(shards)
        ]
        self._in_flight = InFlight(self._idle, self._ask_to_push, self._first)

    def step(self) -> dict[str, Any]:
        try:
            _, gradient, lag = self._in_flight.next(self.updates)
        except EvaluatorLate:
            self._all("pull")  # evaluators wait for shards: names those that do not answer
            raise
        algorithm, moments = self.graph.algorithm, tensor_of(gradient.moments)
        num_own = algorithm.num_batch_moments
        algorithm.learn_batch_moments(moments[None, :num_own])
        if (observations := self.graph.normalizers.observations) is not None:
            observations.update(moments[num_own:])
        self.updates += 1
        stats = dict(zip(algorithm.stats, gradient.stats.tolist(), strict=True))
        return self._result(gradient.episodes, self._horizon_steps, stats) | {"lag": lag}

    def _ask_to_push(self, number: int) -> None:
        statistics = self.graph.statistics()
        self._ask(number, "push", self._shards, statistics, self.steps, self._rate())

    def foreach_policy(self, function: Callable[[PolicyGraph], Any]) -> list[Any]:
        self._pull()
        before = self.graph.parameters.data.detach().clone()
        results = super().foreach_policy(function)
        if not torch.equal(self.graph.parameters.data, before):
            self._restore(self._saved())  # over what has been pushed meanwhile
        return results

    def evaluate(self, num_env: int = 20) -> dict[str, float]:
        self._pull()
        return super().evaluate(num_env)

    def state_dict(self) -> dict[str, Any]:
        self._pull()
        return super().state_dict() | {"shards": self._all("save")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        shards = state.get("shards", ())
        if len(shards) != len(self._shards):
            saved = f"{len(shards)} shards" if shards else "an optimizer without shards"
            raise CheckpointError(
                f"a state of {saved}; this parameter server has {len(self._shards)}, each with "
                "Adam's moments of its slice. Load it into an optimizer like the one that saved it."
            )
        self._round += 1
        while self.fleet.busy:  # with gradients of other parameters, which go to the shards
            self._first()
        self._ask_all(range(self.fleet.size), "forget")
        super().load_state_dict(state)
        self._restore(state["shards"])

    def close(self) -> None:
        if runtime.is_initialized():
            runtime.kill(
                [shard for shard in self._shards if isinstance(shard, runtime.ActorHandle)]
            )
        super().close()

    def _rate(self) -> float | None:
        """Returns the learning rate that a push is to be applied with, if it is scheduled."""
        if not (self._settings.anneals and self._total_steps):
            return None
        return float(self._settings.learning_rate * max(1.0 - self.steps / self._total_steps, 0.0))

    def _all(self, what: str, arguments: Sequence[tuple[Any, ...]] = ()) -> list[Any]:
        """Calls a method of all shards and returns what they give; EvaluatorLate names the late."""
        all_arguments = arguments or [()] * len(self._shards)
        calls = zip(self._shards, all_arguments, strict=True)
        if not isinstance(self._shards[0], runtime.ActorHandle):
            return [getattr(shard, what)(*args) for shard, args in calls]
        refs = [getattr(shard, what).remote(*args) for shard, args in calls]
        seconds = self.fleet.timeout.total_seconds()
        ready, _ = runtime.wait(refs, num_returns=len(refs), timeout=seconds)
        if late := [str(index) for index, ref in enumerate(refs) if ref not in ready]:
            raise EvaluatorLate(
                f"timed out after {seconds:g} s: shard {', '.join(late)} of the parameters has not "
                "answered. If it only takes longer, raise `timeout`."
            )
        return list(runtime.get(refs))

    def _pull(self) -> None:
        """Copies the shards' parameters into the driver's graph."""
        slices = np.concatenate(self._all("pull"))
        with torch.no_grad():
            self.graph.parameters.data.copy_(torch.from_numpy(slices))

    def _saved(self) -> list[dict[str, Any]]:
        """Returns the shards' states with the parameters of the driver's graph."""
        states, first = self._all("save"), 0
        parameters = self.graph.parameters.data.detach().numpy()
        for state in states:
            count = len(state["parameters"])
            state["parameters"] = parameters[first : first + count].copy()
            first += count
        return states

    def _restore(self, states: Sequence[dict[str, Any]]) -> None:
        self._all("restore", [(state,) for state in states])
