"""Folders of runs as they are compared, written without training."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gmi_drl.placement.config.yaml_text import write_yaml


def make_run(
    folder: Path,
    seed: int = 0,
    *,
    name: str = "ant",
    env: str = "CartPole-v1",
    slope: float = 1.0,
    iterations: int = 20,
    config: Mapping[str, Any] | None = None,
    tail: str = "",
) -> Path:
    """Writes a finished run whose return is `slope` times its iteration, at 100 steps each."""
    path = folder / name / f"t{seed}"
    path.mkdir(parents=True)
    settings: dict[str, Any] = {
        "version": 1,
        "run": {"name": "ant", "seed": seed, "folder": str(folder)},
        "env": {"id": env},
        **(config or {}),
    }
    (path / "config.yaml").write_text(write_yaml(settings))
    lines = [
        {"iteration": i, "steps": 100 * i, "time_s": 0.5 * i, "return_mean": slope * i}
        for i in range(1, iterations + 1)
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + tail)
    state = {"state": "finished", "env": env, "seed": seed, "started": 10.0, "finished": 32.0}
    state |= {"eval_return": slope * iterations + 1, **(lines[-1] if lines else {})}
    (path / "run.json").write_text(json.dumps(state))
    return path
