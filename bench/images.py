#!/usr/bin/env python3
"""Measures what images cost: memory and steps a second of Pong, and whether LZ4 pays for them.

    batch/before, batch/sb3      bytes of a batch of 64 environments x 128 steps, against those at
                                 another commit, and against Stable-Baselines3's rollout buffer
    memory/before                the most that the GMI of a run held, of 32 environments x 128 steps
    steps/before                 steps a second of the whole job, 4 environments x 128 steps
    lz4/job                      training samples a second of IMPALA, whose agent compresses what it
                                 sends by LZ4, against one that does not
    lz4/frames, lz4/stacks       how many times smaller LZ4 makes frames, and stacks of them, with
                                 `pays_below`: the bytes a second of a link that it speeds up

Needs gmi-drl[atari] and lz4; batch/sb3 needs stable-baselines3. Run it on a machine that does
nothing else, one or all rows at a time:

    python bench/images.py --before COMMIT [--rows steps memory]
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from checkout import ROOT, checkout, launched_in, output_of
from modes import Rates, column, in_turn
from report import emit, emit_pairs, metrics_of, parser, say

from gmi_drl.placement import load_config
from gmi_drl.roles.envs import make_env

ROWS: Final = ("batch", "memory", "steps", "lz4")
MIB: Final = 1 << 20
# Prints the bytes of a batch of 64 x 128; it is run with the gmi_drl of either commit.
BATCH: Final = """
import json, sys
from gmi_drl.roles.algorithms.ppo import PPO
from gmi_drl.roles.evaluators.standalone import Evaluator
config = json.loads(sys.argv[1])
settings = {key: its for key, its in config["algorithm"].items() if key != "name"}
env = config["env"]
evaluator = Evaluator(env["id"], PPO, settings=settings | {"horizon": 128}, options=env["options"],
                      wrappers=env["wrappers"])
batch = evaluator._graph.batch(64)
parts = [*batch.columns.values(), *batch.bootstrap.values()]
if getattr(batch, "frames", None) is not None:
    parts.append(batch.frames.kept)
memory = {part.untyped_storage().data_ptr(): part.untyped_storage().nbytes() for part in parts}
print(sum(memory.values()))
"""


def config_of(*words: str) -> dict[str, Any]:
    """Returns the config of the example in one GMI on both cores, with these changes."""
    overrides = [
        "run.eval_episodes=0", "run.checkpoint_every=0", "run.log_every=1", "layout.gmi_per_gpu=1",
        "hardware.backend=cpu", "hardware.num_gpus=1", "hardware.cores=[0, 1]", *words,
    ]  # fmt: skip
    path = ROOT / "examples" / "ppo_pong.yaml"
    return load_config(path, overrides).model_dump(mode="json", exclude_unset=True)


def job(tree: Path, config: dict[str, Any], warmup: int = 1) -> Callable[[], Rates]:
    """Returns a function that launches a run and reads its metrics."""

    def run() -> Rates:
        with launched_in(tree, config) as folder:
            lines = metrics_of(folder)
        first, last = lines[warmup - 1], lines[-1]
        rate = (last["steps"] - first["steps"]) / (last["time_s"] - first["time_s"])
        return {"steps_per_s": rate, "mem_mib": last["mem_peak_bytes"] / MIB}

    return run


def batch_rows(before: Path) -> None:
    config = json.dumps(config_of())
    nbytes, peer = (int(output_of(tree, ["-c", BATCH, config])) for tree in (ROOT, before))
    emit_pairs("images", "batch/before", "bytes", [nbytes], [peer], smaller_is_better=True)
    try:
        from stable_baselines3.common.buffers import RolloutBuffer
    except ImportError:
        say("batch/sb3: stable-baselines3 is not installed")
        return
    from gymnasium import spaces

    image = spaces.Box(0, 255, (4, 84, 84), np.uint8)
    buffer = RolloutBuffer(128, image, spaces.Discrete(6), n_envs=64)
    peers = sum(array.nbytes for array in vars(buffer).values() if isinstance(array, np.ndarray))
    emit_pairs("images", "batch/sb3", "bytes", [nbytes], [peers], smaller_is_better=True)


def compare(name: str, before: Path, key: str, rounds: int, config: dict[str, Any]) -> None:
    """Measures a job at both commits in turn, and emits one of its metrics."""
    ways = {"now": job(ROOT, config), "before": job(before, config)}
    pair = column(in_turn(ways, rounds), key).values()
    unit = "MiB" if key == "mem_mib" else "steps/s"
    emit_pairs("images", name, unit, *pair, smaller_is_better=key == "mem_mib")


def lz4_rows(rounds: int) -> None:
    import lz4.block as lz4

    env_config = config_of()["env"]
    env = make_env(
        env_config["id"], 4, options=env_config["options"], wrappers=env_config["wrappers"]
    )
    draw, frames = torch.Generator().manual_seed(0), [env.reset().clone()]
    for _ in range(256):
        frames.append(env.step(torch.randint(6, (4,), generator=draw)).observation.clone())
    env.close()
    stacks = torch.stack(frames[-128:]).numpy()
    for name, raw in (("frames", stacks[..., 3::4].tobytes()), ("stacks", stacks.tobytes())):
        began = time.perf_counter()
        packed = lz4.compress(raw, store_size=False)
        between = time.perf_counter()
        lz4.decompress(packed, uncompressed_size=len(raw))
        spent_s = time.perf_counter() - began
        factor = len(raw) / len(packed)
        emit(
            "images", f"lz4/{name}", value=round(factor, 1), unit="times smaller", peer=1,
            ratio=factor,
            compress_bytes_per_s=round(len(raw) / (between - began)),
            pays_below=round((len(raw) - len(packed)) / spent_s),
        )  # fmt: skip
    overrides = [
        "mode=async", "algorithm={name: impala, network: nature, normalize_observation: false, "
        "horizon: 20, learning_rate: 2.5e-4}", "env.num_env=8", "run.total_steps=6_400",
        "hardware.num_gpus=2", "layout.template=decoupled",
    ]  # fmt: skip
    ways = {name: job(ROOT, config_of(*overrides, f"experience.lz4={lz4}"), 5) for name, lz4 in
            (("lz4", "[observation]"), ("plain", "[]"))}  # fmt: skip
    pair = column(in_turn(ways, rounds), "steps_per_s").values()
    emit_pairs("images", "lz4/job", "steps/s", *pair)


def main() -> None:
    options_of = parser(__doc__, rounds=3)
    options_of.add_argument("--before", required=True, metavar="COMMIT")
    options_of.add_argument("--rows", nargs="+", choices=ROWS, default=ROWS)
    options = options_of.parse_args()
    with checkout(options.before) as before:
        if "batch" in options.rows:
            batch_rows(before)
        if "memory" in options.rows:
            overrides = ["env.num_env=32", "run.total_steps=8_192", "algorithm.epochs=1"]
            config = config_of(*overrides, "algorithm.minibatches=16")
            compare("memory/before", before, "mem_mib", 1, config)
        if "steps" in options.rows:
            config = config_of("env.num_env=4", "run.total_steps=2_048")
            compare("steps/before", before, "steps_per_s", options.rounds, config)
    if "lz4" in options.rows:
        lz4_rows(options.rounds)


if __name__ == "__main__":
    main()
