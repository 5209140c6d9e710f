"""Searches the tuner's candidates on the model, for machines that are not here."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from gmi_drl.placement import Config, Topology, layout_of
from gmi_drl.selector.tune.candidate import Candidate
from gmi_drl.selector.tune.keep import by_learning, prediction_of
from gmi_drl.selector.tune.space import config_of, space_of

from .forecast import iteration_of
from .hardware import Hardware
from .model import phases_of, work_of


@dataclass(frozen=True)
class ProjectedCandidate:
    """Holds what the model says of a candidate, with every figure at its value."""

    candidate: Candidate
    steps_per_s: float  # of all hosts
    learned: float  # of a step, over what one of the config's own updates teaches

    def worth(self, objective: str) -> float:
        """Returns what is compared: steps/s, or what is learned a second."""
        return self.steps_per_s * (self.learned if objective == "learning" else 1.0)


def best_candidates(config: Config, hardware: Hardware, hosts: int) -> list[ProjectedCandidate]:
    """Lists what `tune` could try of `config` on these hosts, the best first.

    Shares of SMs are not in the model, so that candidates which differ in them alone are one.
    """
    topology = hardware.topology(config.hardware.num_gpus)
    prediction = prediction_of(config, topology)
    projected = []
    for candidate in _candidates(config, topology):
        chosen = config_of(config, candidate)
        work = work_of(chosen, layout_of(chosen, topology), hardware)
        phases = phases_of(work, hardware, hosts)
        seconds, samples, _ = iteration_of(work, phases, hardware, hosts, np.random.default_rng(0))
        learned = prediction.efficiency(candidate.samples * hosts, candidate.horizon)
        projected.append(ProjectedCandidate(candidate, samples / seconds, learned))
    return sorted(projected, key=lambda result: -result.worth(objective_of(config)))


def objective_of(config: Config) -> str:
    """Returns what candidates are compared by: "steps", where tuning knows throughput alone."""
    return "learning" if by_learning(config) else "steps"


def _candidates(config: Config, topology: Topology) -> Iterable[Candidate]:
    space, _ = space_of(config, topology, works=("direct", "mps"))
    by_shape: dict[tuple[int, int, int], Candidate] = {}
    for candidate in itertools.chain(*space.rows):
        if candidate.row.percents is None:
            shape = (candidate.row.gmi_per_gpu, candidate.num_env, candidate.horizon)
            by_shape.setdefault(shape, candidate)
    return by_shape.values()
