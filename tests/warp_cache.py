"""Importing this keeps warp's compiled kernels where warp keeps them by itself.

Tests have a cache folder of their own, in which every session would compile them anew. Import it at
the top of a test file: what tests are collected from runs before they are given that folder. On a
machine that has no kernels yet they are compiled before the first of these tests (conftest.py), for
a minute or two: inside the test that would be taken for a hang.

As a program it compiles them: `python tests/warp_cache.py`.
"""

import fcntl
import hashlib
import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
FOLDER = Path(os.environ.setdefault("WARP_CACHE_PATH", str(_CACHE / "warp")))
_ENVS = Path(__file__).resolve().parents[1] / "roles" / "envs"
_LONGEST_S = 900  # on a slow machine


def prepare(say):
    """Compiles the kernels of all environments, if that was not done on this machine.

    `say` is given a line before it. Of several processes one compiles, and the others wait for it.
    RuntimeError with the compiler's words if it fails.
    """
    FOLDER.mkdir(parents=True, exist_ok=True)
    done = FOLDER / f"prepared-{_version()}"
    if done.exists():
        return
    with open(FOLDER / "preparing", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if done.exists():
            return
        say("Compiling warp's kernels for the tests, once on this machine; a minute or two ...")
        ran = subprocess.run(
            [sys.executable, __file__], capture_output=True, text=True, timeout=_LONGEST_S,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        if ran.returncode:
            raise RuntimeError(f"warp's kernels cannot be compiled: {ran.stdout}{ran.stderr}")
        done.touch()


def _version():
    """Names what the kernels depend on."""
    text = hashlib.sha256()
    for package in ("warp-lang", "mujoco-warp", "mujoco", "torch"):
        text.update(importlib.metadata.version(package).encode())
    for part in ("warp", "on_device"):
        for path in sorted((_ENVS / part).glob("*.*")):
            text.update(path.read_bytes())
    return text.hexdigest()[:16]


def main():
    import torch

    from gmi_drl.roles.envs import make_env
    from gmi_drl.roles.envs.on_device.tasks import WARP_OPTIONS as OPTIONS

    for env_id in sorted(OPTIONS):
        env = make_env(env_id, 2, adapter="warp")
        env.reset()
        env.step(torch.zeros(2, *env.action_space.shape))
        env.close()


if __name__ == "__main__":
    main()
