"""Makes the configs that the suite's cells launch, and that of its tuner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

What = Mapping[str, Any]
_ENDLESS: Final = 10**15
_HORIZON: Final = 16
# The same on all sides. A green context launches all of them (see docs/gpu-simulation.md); Ant took
# at most 7 in 38,400 physics steps with random actions, Humanoid 5.
_SOLVER_ITERATIONS: Final = 16
_UPDATES: Final = 20  # a batch is tried if a run has so many of them (selector/tune/space.py)


def config_of(what: What, stage: What) -> dict[str, Any]:
    """Returns the config that a cell launches; the launch sets its folder.

    `capture` is one switch for the graphs of the policy, of the update and, where the environment
    has one, of the simulation.
    """
    mode, devices = what["mode"], what["devices"]
    is_async = mode == "async"
    algorithm: dict[str, Any] = {
        "name": "impala" if is_async else "ppo", "network": what["network"], "horizon": _HORIZON,
        "precision": what.get("precision", "fp32"),
    }  # fmt: skip
    if not is_async:
        # Once: one epoch of one minibatch, as an update of the asynchronous run that it is beside.
        once = what.get("once", False)
        algorithm |= {"minibatches": 1 if once else 4, "epochs": 1 if once else 4}
    hardware: dict[str, Any] = {"backend": what["backend"], "num_gpus": devices}
    if "sm_overcommit" in what:
        hardware["sm_overcommit"] = what["sm_overcommit"]
    if stage["kind"] == "cpu":
        cores = list(stage["cores"])
        hardware["cores"] = cores[: max(1, len(cores) // what.get("part_of", 1))]
    layout: dict[str, Any] = {"gmi_per_gpu": what["gmis"]}
    if is_async and devices == 1:
        layout = {"file": what["layout_file"]}
    capture = what.get("capture")
    captured = {} if capture is None else {"capture": capture}
    options: dict[str, Any] = {}
    if stage["adapter"] == "warp":
        options = {**captured, "solver_iterations": _SOLVER_ITERATIONS}
    config = {
        "version": 1,
        "mode": mode,
        "run": {
            "name": "suite", "seed": what.get("seed", 0), "total_steps": _ENDLESS,
            "checkpoint_every": 0, "eval_episodes": 0, "max_restarts": 0, **captured,
        },
        "env": {
            "id": what.get("env", stage["env"]), "adapter": stage["adapter"],
            "num_env": what["num_env"], "options": options,
        },
        "algorithm": algorithm,
        "comm": {"reduction": stage.get("reduction", "auto")},
        "hardware": hardware,
        "layout": layout,
    }  # fmt: skip
    if is_async:
        config["experience"] = {"channels": what["channels"]}
    return config


def tune_config_of(what: What, stage: What) -> dict[str, Any]:
    """Returns the same config with num_env and the number of GMIs left to the tuner.

    All GMIs together have at most `cap` environments: the steps of the run allow no larger batch.
    """
    config = config_of({**what, "gmis": "auto", "num_env": "auto"}, stage)
    config["run"]["total_steps"] = _UPDATES * _HORIZON * what["cap"]
    config["tune"] = {
        "objective": "steps", "keep": "none", "budget_s": what["seconds"],
        "gmi_per_gpu": list(what["gmis"]),
        "min_num_env": what["least"], "max_num_env": what["cap"],
    }  # fmt: skip
    return config
