#!/usr/bin/env python3
"""Takes three updates of IMPALA's trainer on fixed batches.

Asynchronous runs do not repeat, but an update does. Policies, batches and minibatches are seeded.
Runs in any commit from b1b0e10 on, with PYTHONPATH=<checkout>/src; writes all tensors that came of
it to FILE and prints the SHA-256 of each algorithm's parameters as JSON.

    bench/async_update.py FILE
"""

from __future__ import annotations

import hashlib
import json
import sys
from importlib import import_module
from types import ModuleType
from typing import Any, Final

import torch
from torch import Tensor

STEPS, ENVIRONMENTS, OBSERVATION, ACTIONS = 8, 12, 5, 3
ALGORITHMS: Final = ("impala",)
UPDATES: Final = 3
Columns = dict[str, Tensor]


def batch(update: int, discrete: bool) -> Columns:
    """Returns what an older policy has sampled, [T, B, ...], and the last observation."""
    draw = torch.Generator().manual_seed(100 + update)
    size = (STEPS, ENVIRONMENTS)
    action = torch.randn(*size, ACTIONS, generator=draw)
    if discrete:
        action = action.argmax(-1, keepdim=True).float()
    return {
        "observation": 3.0 + 2.0 * torch.randn(*size, OBSERVATION, generator=draw),
        "action": action,
        "log_prob": -1.0 - torch.rand(size, generator=draw),
        "reward": torch.randn(size, generator=draw),
        "done": (torch.rand(size, generator=draw) < 0.1).float(),
        "last_observation": 3.0 + 2.0 * torch.randn(ENVIRONMENTS, OBSERVATION, generator=draw),
    }


def imported(*names: str) -> ModuleType:
    """Returns the first of these modules that this commit has."""
    for name in names:
        try:
            return import_module(f"gmi_drl.{name}")
        except ModuleNotFoundError as error:
            missing = error
    raise missing


def settings_of(name: str) -> Any:
    """Returns the settings of an algorithm; older commits have one class for all of them."""
    placement = import_module("gmi_drl.placement")
    keys = {"network": [16, 8], "epochs": 2, "minibatches": 2, "learning_rate": 1e-3}
    if hasattr(placement, "ALGORITHMS"):
        return placement.ALGORITHMS[name](**keys)
    return placement.AlgorithmConfig(name=name, **keys)


def by_optimizer(name: str, discrete: bool) -> dict[str, Any]:
    """Updates by the optimizer `async_samples` and its algorithm, and returns their state."""
    from gmi_drl.comm import solo_group
    from gmi_drl.roles.algorithms import algorithm_class
    from gmi_drl.roles.optimizers.learner import Learner
    from gmi_drl.roles.policies.actor_critic import ActorCritic, ActorCriticPolicy
    from gmi_drl.roles.policies.distributions import Categorical, Normal
    from gmi_drl.roles.policies.normalize import Normalizers
    from gmi_drl.roles.samples.codec import END_FIELD, received

    settings = settings_of(name)
    kind = Categorical if discrete else Normal
    network = ActorCritic(
        OBSERVATION, kind(ACTIONS), [16, 8], "elu", -0.3, torch.Generator().manual_seed(0)
    )
    normalizers = Normalizers.of(settings, OBSERVATION)
    policy = ActorCriticPolicy(network)
    algorithm = algorithm_class(settings)(settings, policy, normalizers)
    learner = Learner(algorithm, torch.Generator().manual_seed(1))
    learner.connect(solo_group())
    stats: dict[str, float] = {}
    for update in range(UPDATES):
        columns = batch(update, discrete)
        final_observation = {END_FIELD: columns.pop("last_observation")[None]}
        learner.update(received(columns, final_observation, algorithm.segment_fields))
        stats = learner.stats()
    state = learner.state_dict()
    return {
        "parameters": state["parameters"],
        "optimizer": state["optimizer"],
        "observation_normalizer": state["observation_normalizer"],
        "value_normalizer": state["value_normalizer"],
        "stats": stats,
    }


def by_async_learner(name: str, discrete: bool) -> dict[str, Any]:
    """Updates by `AsyncLearner`, which commits from before the optimizers have."""
    from gmi_drl.comm import solo_group

    learner_module = imported("roles.optimizers.async_learner", "roles.async_learner")
    distributions = imported("roles.policies.distributions", "roles.distributions")
    normalize = imported("roles.policies.normalize", "roles.normalize")
    segments = imported("roles.samples.segments", "roles.segments")
    policies = imported("roles.policies.policy", "roles.policy")
    settings = settings_of(name)
    kind = distributions.Categorical if discrete else distributions.Normal
    policy = policies.ActorCritic(
        OBSERVATION, kind(ACTIONS), [16, 8], "elu", -0.3, torch.Generator().manual_seed(0)
    )
    normalizers = normalize.Normalizers.of(settings, OBSERVATION)
    learner = learner_module.AsyncLearner(
        policy, normalizers, settings, torch.Generator().manual_seed(1)
    )
    learner.connect(solo_group())
    stats: dict[str, float] = {}
    for update in range(UPDATES):
        stats, _ = learner.update(segments.Segments(**batch(update, discrete)))
    state = learner.state_dict()
    return {
        "parameters": state["parameters"],
        "optimizer": state["optimizer"],
        "observation_normalizer": state["observation_normalizer"],
        "value_normalizer": state["value_normalizer"],
        "stats": stats,
    }


def main() -> None:
    torch.set_num_threads(1)
    try:
        imported("roles.async_learner", "roles.optimizers.async_learner")
        updated = by_async_learner
    except ModuleNotFoundError:
        updated = by_optimizer
    results = {
        name: {actions: updated(name, actions == "discrete") for actions in ("box", "discrete")}
        for name in ALGORITHMS
    }
    torch.save(results, sys.argv[1])
    checksums = {
        f"{name}/{actions}": hashlib.sha256(state["parameters"].numpy().tobytes()).hexdigest()
        for name, by_actions in results.items()
        for actions, state in by_actions.items()
    }
    print(json.dumps(checksums))


if __name__ == "__main__":
    main()
