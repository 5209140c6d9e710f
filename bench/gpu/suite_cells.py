"""What a cell of the suite does, in a process of its own: real launches and real gangs.

Each function takes a resolved cell and the stage, and returns what it found as plain data.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import cloudpickle
import suite_bodies

from gmi_drl import runtime
from gmi_drl.comm import create_group
from gmi_drl.comm.capability import link_facts, why_not
from gmi_drl.comm.measure import latencies
from gmi_drl.gmi import Gang
from gmi_drl.gmi.meter import Meter
from gmi_drl.measured_run import Over, run_watched
from gmi_drl.placement import Config, GmiSpec, load_config
from gmi_drl.placement.reduction import Strategy, reducing
from gmi_drl.planning import planned
from gmi_drl.preload import PRELOAD
from gmi_drl.profile_watch import ProfileWatch
from gmi_drl.profiling import Patience
from gmi_drl.selector.candidate import Failed

cloudpickle.register_pickle_by_value(suite_bodies)  # GMIs do not look for modules here

_IMPORTS: Final = timedelta(seconds=60)
_ENDLESS: Final = 10**15
_ROUNDS: Final = 7  # of a reduction, after one that does not count
_REPEATS: Final = 10  # in each
_STEP: Final = timedelta(seconds=20)
What = Mapping[str, Any]
Found = dict[str, Any]
_STRATEGIES: Final[tuple[Strategy, ...]] = ("mpr", "ipc", "mrr", "har")


def config_of(what: What, stage: What) -> dict[str, Any]:
    """The configuration that a cell launches; its folder is left to the launch."""
    mode, gmis, devices = what["mode"], what["gmis"], what["devices"]
    is_async = mode == "async"
    algorithm: dict[str, Any] = {
        "name": "impala" if is_async else "ppo", "network": what["network"], "horizon": 16,
    }  # fmt: skip
    if not is_async:
        # Once: what an update of the asynchronous run takes, to be compared with it.
        once = what.get("once", False)
        algorithm |= {"minibatches": 1 if once else 4, "epochs": 1 if once else 4}
    hardware: dict[str, Any] = {"backend": what["backend"], "num_gpus": devices}
    if stage["kind"] == "cpu":
        cores = list(stage["cores"])
        hardware["cores"] = cores[: max(1, len(cores) // what.get("part_of", 1))]
    layout: dict[str, Any] = {"gmi_per_gpu": gmis}
    if is_async and devices == 1:
        layout = {"file": what["layout_file"]}
    options = {} if what.get("capture") is None else {"capture": what["capture"]}
    config = {
        "version": 1,
        "mode": mode,
        "run": {
            "name": "suite", "seed": what.get("seed", 0), "total_steps": _ENDLESS,
            "checkpoint_every": 0, "eval_episodes": 0, "max_restarts": 0,
        },
        "env": {
            "id": stage["env"], "adapter": stage["adapter"], "num_env": what["num_env"],
            "options": options,
        },
        "algorithm": algorithm,
        "hardware": hardware,
        "layout": layout,
    }  # fmt: skip
    if is_async:
        config["experience"] = {"channels": what["channels"]}
    return config


def rate(cell: What, stage: What) -> Found:
    """Steps a second of a launch, its phases, memory and what it keeps busy."""

    class Listening(ProfileWatch):
        """Hears what a profile does not ask for."""

        def show(self, record: dict[str, Any]) -> None:
            if record.get("kind") in ("iteration", "served"):
                lines.append(record)
                began.setdefault("first", time.monotonic())
            super().show(record)

    lines: list[dict[str, Any]] = []
    began = {"asked": time.monotonic()}
    what = cell["what"]
    patience = Patience(first_s=stage["first_s"])
    watch, ended = _run(what, stage, lambda meter: Listening(what["seconds"], patience, meter))
    answer = ended if ended is not None else watch.answer
    if isinstance(answer, Failed):
        return {"failed": answer.reason, "why": answer.text}
    if answer is None or not lines:
        return {"failed": "crash", "why": "the run ended by itself"}
    found = {k: v for k, v in asdict(answer).items() if v is not None}
    found["first_iteration_s"] = round(began["first"] - began["asked"], 3)
    counted = [line for line in lines if "predictions_per_s" in line][1:]
    for name in ("predictions_per_s", "policy_lag_mean"):
        if counted:
            found[name] = sum(line[name] for line in counted) / len(counted)
    found.setdefault("predictions_per_s", found["steps_per_s"])  # who trains also infers
    return found


class Following:
    """A `Watch` that lets a run train for some seconds, and keeps its returns."""

    def __init__(self, seconds: float) -> None:
        self.gang: Gang | None = None
        self.points: list[tuple[float, int, float]] = []  # seconds of training, steps, return
        self._seconds, self._over = seconds, False
        self.steps = 0

    def show(self, record: dict[str, Any]) -> None:
        """See `Watch`."""
        if record.get("kind") != "iteration":
            return
        time_s, self.steps = float(record["time_s"]), int(record["steps"])
        if record.get("return_mean") is not None:
            self.points.append((round(time_s, 4), self.steps, float(record["return_mean"])))
        self._over = self._over or time_s >= self._seconds

    def tick(self, gang: Gang) -> None:
        """See `Watch`."""
        self.gang = gang
        if self._over:
            gang.kill()
            raise Over


def curve(cell: What, stage: What) -> Found:
    """Mean return of the last episodes against seconds of training, at most 60 points."""
    what = cell["what"]
    watch, ended = _run(what, stage, lambda meter: Following(what["seconds"]))
    if isinstance(ended, Failed):
        return {"failed": ended.reason, "why": ended.text}
    points = [point for point in watch.points if point[0] <= what["seconds"]]
    if not points:
        return {"failed": "slow", "why": f"no episode ended in {what['seconds']} s"}
    every = max(1, -(-len(points) // 60))
    kept = [*points[:-1:every], points[-1]]
    return {"points": kept, "return_mean": points[-1][2], "steps": points[-1][1]}


def reduction(cell: What, stage: What) -> Found:
    """Microseconds of each strategy that can run here, at each size; why the others cannot.

    From when the last rank begins until the last one has the result; strategies take turns.
    """
    what = cell["what"]
    layout = planned(load_config(config_of(what, stage)))
    mpl = reducing(layout)
    facts = link_facts(layout.topology)
    refused = {name: why_not(name, mpl, facts) for name in _STRATEGIES}
    names = [name for name, why in refused.items() if why is None]
    ids = [gmi_id for its in mpl for gmi_id in its]
    with tempfile.TemporaryDirectory(dir=runtime.run_directory()) as folder:
        groups = {
            name: create_group(
                [f"gmi {i}" for i in ids], [layout.gmi(i).gpu_id for i in ids],
                strategy=name, directory=Path(folder),
            )
            for name in names
        }  # fmt: skip

        def arguments(spec: GmiSpec) -> tuple[Any, ...]:
            return groups, ids.index(spec.gmi_id), stage["kind"] == "gpu"

        with Gang(layout, suite_bodies.Reducing, arguments) as gang:
            gang.start("run", what["nbytes"], _ROUNDS, _REPEATS)
            if not gang.wait(_STEP * 2):
                return {"failed": "hang", "why": f"no answer within {2 * _STEP.seconds} s"}
            answers = list(gang.results().values())
    rows: list[Found] = [
        {"strategy": name, "refused": why} for name, why in refused.items() if why is not None
    ]
    for name in names:
        for nbytes in what["nbytes"]:
            times = latencies([answer[name, nbytes] for answer in answers])
            rounds = [sorted(times[i::_ROUNDS])[_REPEATS // 2] for i in range(_ROUNDS)]
            us = sorted(round(1e6 * seconds, 1) for seconds in rounds)
            rows.append({"strategy": name, "nbytes": nbytes, "us": us[_ROUNDS // 2],
                         "spread": [us[0], us[-1]]})  # fmt: skip
    return {"rows": rows, "ranks": len(ids)}


def start(cell: What, stage: What) -> Found:
    """Seconds from nothing to k GMIs in their slices, with torch at work on their device, and to
    nothing again. The fork server has its imports."""
    rows = []
    for k in cell["what"]["gmis"]:
        layout = planned(load_config(config_of({**cell["what"], "gmis": k}, stage)))
        began_s = time.monotonic()
        with Gang(layout, suite_bodies.Idle, lambda spec: ()) as gang:
            gang.call("ready", timeout=_STEP)
            slices_s = time.monotonic() - began_s
            gang.call("torch", stage["kind"] == "gpu", timeout=_STEP)
            torch_s = time.monotonic() - began_s
            ending_s = time.monotonic()
        rows.append({"gmis": k, "slices_s": round(slices_s, 4), "torch_s": round(torch_s, 4),
                     "end_s": round(time.monotonic() - ending_s, 4)})  # fmt: skip
    return {"rows": rows}


def _run(what: What, stage: What, watch_of: Callable[[Meter], Any]) -> tuple[Any, Any]:
    """Launches the cell's configuration; see `run_watched`."""

    def config_in(folder: Path) -> Config:
        filled = dict(what)
        if what["mode"] == "async" and what["devices"] == 1:
            path = folder / "layout.yaml"
            roles = (["simulator", "agent"], ["trainer"])
            gmis = [{"gpu": 0, "roles": its} for its in roles]
            path.write_text(json.dumps({"version": 1, "template": "decoupled", "gmis": gmis}))
            filled["layout_file"] = str(path)
        config = load_config(config_of(filled, stage))
        run = config.run.model_copy(update={"folder": str(folder)})
        return config.model_copy(update={"run": run})

    return run_watched(config_in, watch_of, None)


_KINDS: Final = {"rate": rate, "curve": curve, "reduction": reduction, "start": start}


def measure(cell: What, stage: What) -> Found:
    """What a cell found: its numbers, or `failed` and `why`. Starts the runtime, and ends it."""
    runtime.init([*PRELOAD, "gmi_drl.comm.mrr", "gmi_drl.comm.har"])
    try:
        runtime.preloaded(_IMPORTS)
        return _KINDS[cell["kind"]](cell, stage)
    except Exception as error:  # a cell that cannot be is a row, not the end
        refused = type(error).__name__ in ("ConfigError", "LayoutError", "EnvSpecError")
        return {"failed": "refused" if refused else "crash", "why": str(error)[-600:]}
    finally:
        runtime.shutdown()
