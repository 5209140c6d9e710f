#!/usr/bin/env python3
"""Tells whether warp takes its GPU kernels from the cache or compiles them: one JSON line.

    bench/gpu/pack/kernel_cache.py [--env Ant-v5] [--num-env 64] [--device cuda] [--must-be-cached]

It makes the environments of adapter `warp`, resets them and takes one step, and says which of
warp's modules were found in the kernel cache ($WARP_CACHE_PATH) and which had to be compiled, with
the seconds of each. A pack from scripts/gpu-pack brings the kernels of its environments, so that
`compiled` is empty on its node. The exit code is 0, or 1 with --must-be-cached if a module was
compiled.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Loaded:
    """One module of warp that was loaded on a device, for one number of threads in a block."""

    module: str  # its folder in the kernel cache: name and hash
    file: str  # the binary's name: folder, architecture and kind
    block_dim: int
    compiled: bool  # false: it was found in the cache
    seconds: float  # to compile it, or to find it


@contextlib.contextmanager
def watched() -> Iterator[list[Loaded]]:
    """Yields the list of modules that warp loads in the block, in order, as it grows.

    A module is loaded once for each device, so modules loaded before are missing. It is not for
    several threads at once.
    """
    import warp._src.context as context

    loaded: list[Loaded] = []
    compile_module = context.Module._compile

    def watch(self: Any, device: Any, output_dir: Any, output_name: str, *args: Any, **kw: Any):
        begin = time.perf_counter()
        compiled = compile_module(self, device, output_dir, output_name, *args, **kw)
        seconds = time.perf_counter() - begin
        block_dim = kw["options"]["block_dim"]
        loaded.append(Loaded(Path(output_dir).name, output_name, block_dim, compiled, seconds))
        return compiled

    context.Module._compile = watch
    try:
        yield loaded
    finally:
        context.Module._compile = compile_module


def summary(loaded: Sequence[Loaded]) -> dict[str, Any]:
    """Returns the JSON line's fields: modules found in the cache, and modules compiled."""
    compiled = [module for module in loaded if module.compiled]
    return {
        "modules": len(loaded),
        "from_cache": len(loaded) - len(compiled),
        "compiled": [
            {"module": m.module, "block_dim": m.block_dim, "seconds": round(m.seconds, 2)}
            for m in compiled
        ],
        "compile_s": round(sum(module.seconds for module in compiled), 2),
        "cache": os.environ.get("WARP_CACHE_PATH", ""),
    }


def observed(env_id: str, num_env: int, device: str) -> dict[str, Any]:
    """Makes environments, resets them and takes a step; returns what warp loaded for that."""
    import torch

    from gmi_drl.roles.envs import make_env

    begin = time.perf_counter()
    with watched() as loaded:
        env = make_env(env_id, num_env, adapter="warp", device=device)
        observation = env.reset()
        action = torch.zeros(num_env, *env.action_space.shape, device=observation.device)
        env.step(action)
        if observation.is_cuda:
            torch.cuda.synchronize()
    first_step_s = time.perf_counter() - begin
    captured = getattr(env, "captured", False)
    env.close()
    result = {"name": "kernels", "env": env_id, "num_env": num_env, "device": device}
    return result | {"captured": captured, "first_step_s": round(first_step_s, 2)} | summary(loaded)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--env", default="Ant-v5", metavar="ID")
    parser.add_argument("--num-env", type=int, default=64, metavar="N")
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--must-be-cached", action="store_true", help="exit code 1 if anything was compiled"
    )
    options = parser.parse_args(argv)
    import torch

    if options.device.startswith("cuda") and not torch.cuda.is_available():
        print("no GPU here: no kernel is loaded. --device cpu tries it without.", file=sys.stderr)
        return 4
    result = observed(options.env, options.num_env, options.device)
    print(json.dumps(result), flush=True)
    return int(options.must_be_cached and bool(result["compiled"]))


if __name__ == "__main__":
    sys.exit(main())
