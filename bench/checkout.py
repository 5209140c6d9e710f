"""Checks out another commit beside this one, so that both can be run and compared."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
_TIMEOUT_S: Final = 900


def git(*arguments: str) -> str:
    """Returns the output of a git command here; if it fails, SystemExit has its error message."""
    completed = subprocess.run(
        ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False
    )
    if completed.returncode:
        raise SystemExit(f"git {' '.join(arguments)}: {completed.stderr.strip()}")
    return completed.stdout.strip()


@contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """Yields a working tree of `commit` in a temporary folder, which is removed at the end."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # else nothing would be removed
    with tempfile.TemporaryDirectory(prefix="gmi-commit-") as folder:
        tree = Path(folder, "tree")
        git("worktree", "add", "--detach", str(tree), commit)
        try:
            yield tree
        finally:
            git("worktree", "remove", "--force", str(tree))


def environment(tree: Path) -> Mapping[str, str]:
    """Returns the environment variables of a process that imports gmi_drl from `tree`."""
    return {**os.environ, "PYTHONPATH": str(tree / "src")}


def output_of(tree: Path, program: Sequence[str], folder: str | None = None) -> str:
    """Returns the output of a Python program that imports gmi_drl from `tree`."""
    completed = subprocess.run(
        [sys.executable, *program], cwd=folder, capture_output=True, text=True, check=False,
        env=environment(tree), timeout=_TIMEOUT_S,
    )  # fmt: skip
    if completed.returncode:
        raise SystemExit(f"in {tree}:\n{completed.stdout}{completed.stderr[-3000:]}")
    return completed.stdout


@contextmanager
def launched_in(tree: Path, config: Mapping[str, Any]) -> Iterator[Path]:
    """Launches a config by the gmi_drl of `tree`, and yields the folder of the finished run."""
    with tempfile.TemporaryDirectory(prefix="gmi-bench-") as folder:
        run = {**config["run"], "folder": "runs", "name": "bench"}
        Path(folder, "config.yaml").write_text(json.dumps({**config, "run": run}))
        output_of(tree, ["-m", "gmi_drl", "launch", "config.yaml", "--quiet"], folder)
        (run_folder,) = Path(folder).glob("runs/bench/*")
        yield run_folder
