"""Runs the tuner as a cell, and compiles kernels in one before all others."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import report

from gmi_drl.placement import load_config
from gmi_drl.selector.errors import TuneError
from gmi_drl.selector.record.report import why
from gmi_drl.selector.tune.candidate import Candidate
from gmi_drl.selector.tune.request import TuneRequest
from gmi_drl.selector.tune.session import measure

from .config import tune_config_of

What = Mapping[str, Any]
Result = dict[str, Any]


def tune(cell: What, stage: What, kept: Path) -> Result:
    """Runs `gmi-drl tune` for the cell's question, and returns all that it measured.

    Its record is in `kept`, the suite's own folder: a tune that was interrupted is resumed, and
    measurements of other code are not used.
    """
    what = cell["what"]
    question = TuneRequest.of(load_config(tune_config_of(what, stage)), None)
    question = replace(question, path=kept / f"{report.slug(cell['block'])}.jsonl")
    try:
        journal, _ = measure(question, f"suite: {cell['key']}", "plain", again=False)
    except TuneError as error:
        return {"failed": "tuner", "why": str(error)}
    recorded = journal.record
    chosen, findings = recorded.chosen, recorded.results()
    assert chosen is not None
    assert chosen.winner is not None
    measured = []
    for finding in findings.all:
        measurement = finding.measured
        fields = {
            **_setting(finding.candidate), "steps_per_s": round(measurement.steps_per_s, 1),
            "error": round(measurement.error, 4), "seconds": round(measurement.seconds, 2),
            "phases": {name: round(share, 4) for name, share in measurement.phases.items()},
            "host_bytes": measurement.host_bytes, "device_bytes": measurement.device_bytes,
            "memory": round(measurement.memory, 4),
        }  # fmt: skip
        measured.append({name: value for name, value in fields.items() if value is not None})
    return {
        "choice": {**_setting(chosen.winner), "capture": what["capture"]},
        "steps_per_s": recorded.promised,
        "error": recorded.choice["error"],
        "why": why(recorded),
        "complete": chosen.complete,
        "profiles": len(recorded.profiles),
        "space": recorded.header["space_size"],
        "spent_s": round(recorded.spent_s, 1),
        "candidates": measured,
        "refused": [
            {**_setting(candidate), "reason": failed.reason, "why": failed.text}
            for candidate, failed in findings.failures.items()
        ],
    }


def _setting(candidate: Candidate) -> Result:
    row, num_env = candidate.row, candidate.num_env
    setting: Result = {"gmis": row.gmi_per_gpu, "backend": row.backend, "num_env": num_env}
    return setting | ({"sm_overcommit": row.sm_overcommit} if row.sm_overcommit != 1.0 else {})


def warm(cell: What, stage: What, kept: Path) -> Result:
    """Compiles the kernels of an environment, which are kept for all that come later."""
    import torch

    from gmi_drl.roles.envs import make_env

    what, began_s = cell["what"], time.monotonic()
    device = torch.device("cuda" if stage["kind"] == "gpu" else "cpu")
    env = make_env(what["env"], what["num_env"], adapter=stage["adapter"], device=device)
    try:
        env.reset()
        size = math.prod(env.action_space.shape or (1,))
        env.step(torch.zeros(what["num_env"], size, device=device))
        if device.type == "cuda":
            torch.cuda.synchronize()
    finally:
        env.close()
    return {"compiled_s": round(time.monotonic() - began_s, 1)}
