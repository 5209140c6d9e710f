"""Measures a cell of the suite, in a process of its own: real launches and real gangs.

Each function takes a resolved cell and the stage, and returns its results as plain data. Files that
a later command continues from go to the folder `kept`.
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

from gmi_drl import runtime
from gmi_drl.comm import create_group
from gmi_drl.comm.plan.capability import link_facts, why_not
from gmi_drl.comm.plan.measure import latencies
from gmi_drl.gmi import Gang
from gmi_drl.gmi.usage.meter import Meter
from gmi_drl.launcher.plan.planning import planned
from gmi_drl.launcher.start.preload import preload_of
from gmi_drl.placement import Config, GmiSpec, load_config
from gmi_drl.placement.reduction import Strategy, reducing
from gmi_drl.selector.tune.candidate import Failed
from gmi_drl.selector.tune.profile.candidate_run import CandidateTimeout, run_watched

from . import bodies
from .config import config_of
from .tuning import tune, warm
from .watch import Following, Listening

cloudpickle.register_pickle_by_value(bodies)  # GMIs do not look for modules here

_IMPORTS: Final = timedelta(seconds=60)
_ROUNDS: Final = 7  # of a reduction, after a round that does not count
_REPEATS: Final = 10  # in each
_STEP: Final = timedelta(seconds=20)
What = Mapping[str, Any]
Result = dict[str, Any]
_STRATEGIES: Final[tuple[Strategy, ...]] = ("mpr", "ipc", "mrr", "har")


def rate(cell: What, stage: What, kept: Path) -> Result:
    """Measures the steps a second of a launch, its phases, memory and utilisation."""
    what, timeout = cell["what"], CandidateTimeout(first_s=stage["first_s"])
    watch, ended = _run(
        what,
        stage,
        lambda meter, folders: Listening(
            what["seconds"], timeout, meter, folders, stage["least_s"]
        ),
    )
    answer = ended if ended is not None else watch.answer
    if isinstance(answer, Failed):
        return {"failed": answer.reason, "why": answer.text}
    if answer is None:
        return {"failed": "crash", "why": "the run ended by itself"}
    result = {k: v for k, v in asdict(answer).items() if v is not None} | watch.more()
    result.setdefault("predictions_per_s", result["steps_per_s"])  # trainers also predict
    return result


def curve(cell: What, stage: What, kept: Path) -> Result:
    """Measures the mean return of the last episodes against seconds of training, in 60 points."""
    what = cell["what"]
    watch, ended = _run(what, stage, lambda meter, _: Following(what["seconds"]))
    if isinstance(ended, Failed):
        return {"failed": ended.reason, "why": ended.text}
    points = [point for point in watch.points if point[0] <= what["seconds"]]
    if not points:
        return {"failed": "slow", "why": f"no episode ended in {what['seconds']} s"}
    stride = max(1, -(-len(points) // 60))
    thinned = [*points[:-1:stride], points[-1]]
    return {"points": thinned, "return_mean": points[-1][2], "steps": points[-1][1]}


def reduction(cell: What, stage: What, kept: Path) -> Result:
    """Measures microseconds of each strategy that can run here, at each size; why others cannot.

    A reduction lasts from the last rank's start to the last one's end; strategies take turns.
    """
    what = cell["what"]
    layout = planned(load_config(config_of(what, stage)))
    mpl = reducing(layout)
    facts = link_facts(layout.topology)
    refused = {name: why_not(name, mpl, facts) for name in _STRATEGIES}
    names = [name for name, why in refused.items() if why is None]
    ids = [gmi_id for device_ids in mpl for gmi_id in device_ids]
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

        with Gang(layout, bodies.Reducing, arguments) as gang:
            gang.start("run", what["nbytes"], _ROUNDS, _REPEATS)
            if not gang.wait(_STEP * 2):
                return {"failed": "hang", "why": f"no answer within {2 * _STEP.seconds} s"}
            answers = list(gang.results().values())
    rows: list[Result] = [
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


def start(cell: What, stage: What, kept: Path) -> Result:
    """Measures the seconds to start k GMIs in their slices, to run torch there, and to end them.

    The fork server has done its imports.
    """
    rows = []
    for k in cell["what"]["gmis"]:
        layout = planned(load_config(config_of({**cell["what"], "gmis": k}, stage)))
        began_s = time.monotonic()
        with Gang(layout, bodies.Idle, lambda spec: ()) as gang:
            gang.call("ready", timeout=_STEP)
            slices_s = time.monotonic() - began_s
            gang.call("torch", stage["kind"] == "gpu", timeout=_STEP)
            torch_s = time.monotonic() - began_s
            ending_s = time.monotonic()
        rows.append({"gmis": k, "slices_s": round(slices_s, 4), "torch_s": round(torch_s, 4),
                     "end_s": round(time.monotonic() - ending_s, 4)})  # fmt: skip
    return {"rows": rows}


def _run(what: What, stage: What, watch_of: Callable[[Meter, list[Path]], Any]) -> tuple[Any, Any]:
    """Launches the cell's config; see `run_watched`. `watch_of` gets a list with its folder."""
    folders: list[Path] = []

    def config_in(folder: Path) -> Config:
        folders.append(folder)
        filled = dict(what)
        if what["mode"] == "async" and what["devices"] == 1:
            path = folder / "layout.yaml"
            roles = (["simulator", "agent"], ["trainer"])
            gmis = [{"gpu": 0, "roles": gmi_roles} for gmi_roles in roles]
            path.write_text(json.dumps({"version": 1, "template": "decoupled", "gmis": gmis}))
            filled["layout_file"] = str(path)
        config = load_config(config_of(filled, stage))
        run = config.run.model_copy(update={"folder": str(folder)})
        return config.model_copy(update={"run": run})

    with Meter() as meter:
        watch = watch_of(meter, folders)
        return watch, run_watched(config_in, watch, None)


_KINDS: Final[dict[str, Callable[[What, What, Path], Result]]] = {
    "rate": rate, "curve": curve, "reduction": reduction, "start": start, "tune": tune,
    "warm": warm,
}  # fmt: skip


def measure(cell: What, stage: What, kept: Path) -> Result:
    """Measures a cell: its numbers, or `failed` and `why`. Starts the runtime, and ends it."""
    env = {"env": {"adapter": stage["adapter"]}}
    runtime.init([*preload_of(env), "gmi_drl.comm.reducers.mrr", "gmi_drl.comm.reducers.har"])
    try:
        runtime.preloaded(_IMPORTS)
        return _KINDS[cell["kind"]](cell, stage, kept)
    except Exception as error:  # a cell that fails is a row, and the suite continues
        refused = type(error).__name__ in ("ConfigError", "LayoutError", "EnvSpecError")
        return {"failed": "refused" if refused else "crash", "why": str(error)[-600:]}
    finally:
        runtime.shutdown()
