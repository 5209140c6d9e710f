"""Checks out another commit beside this one, so that both can be run and compared."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]


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
