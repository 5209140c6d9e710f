#!/usr/bin/env python3
"""Measures the time from `gmi-drl launch` to the end of its first training step.

Claim: it is under 3 s with a warm disk cache. Everything counts: the interpreter, the config, the
fork server's import of torch and MuJoCo, two GMIs, their environments, one PPO update of 16 steps
and its line in metrics.jsonl. Peer: a bare interpreter that imports torch, gymnasium and mujoco.

    bench/runtime/first_step.py --repeats 7
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from report import emit_pairs, parser

_CONFIG = """
version: 1
run: {{name: first, folder: {folder}, total_steps: 16, checkpoint_every: 0, eval_episodes: 0}}
env: {{id: Ant-v5, num_env: 8}}
algorithm: {{horizon: 1, minibatches: 1, epochs: 1}}
layout: {{gmi_per_gpu: 2}}
"""


def ours(folder: Path) -> float:
    """Returns the seconds from the command to the first line of metrics."""
    config = folder / "config.yaml"
    config.write_text(_CONFIG.format(folder=folder))
    command = [sys.executable, "-m", "gmi_drl", "launch", str(config), "--quiet"]
    start = time.perf_counter()
    process = subprocess.Popen(command)
    while not any(path.stat().st_size for path in folder.glob("first/*/metrics.jsonl")):
        if process.poll() not in (None, 0):
            raise SystemExit(f"the launch failed with code {process.returncode}")
        time.sleep(0.002)
    seconds = time.perf_counter() - start
    process.wait()
    return seconds


def imports() -> float:
    """Returns the seconds that a bare interpreter takes to import what a GMI needs."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch, gymnasium, mujoco"], check=True)
    return time.perf_counter() - start


def main() -> None:
    repeats = parser(__doc__, repeats=7).parse_args().repeats
    imports()  # warm the disk cache
    launch_s, import_s = [], []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            launch_s.append(ours(Path(folder)))
        import_s.append(imports())
    name = "command_to_first_training_step/imports"
    emit_pairs("first_step", name, "s", launch_s, import_s, smaller_is_better=True, digits=4)


if __name__ == "__main__":
    main()
