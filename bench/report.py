"""One JSON object a line for every measured claim, kept under bench/results/ as well."""

from __future__ import annotations

import datetime
import functools
import json
import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
GPU_RESULTS = HERE / "results" / "gpu"
DRY_RESULTS = HERE.parent / "runs" / "bench" / "gpu"  # ignored by git: they say nothing of a GPU


class Unwritable(OSError):
    """Results cannot be written where they are to be."""


def keep(path: Path, text: str) -> None:
    """Writes a file of results whole, or leaves the old one; Unwritable says what to do."""
    from gmi_drl.runtime.cache_files import replace_file

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, text)
    except OSError as error:
        raise Unwritable(
            f"{path} cannot be written: {error.strerror}. Make room there, or name another folder "
            "with --results."
        ) from error


def emit(
    bench: str,
    name: str,
    value: float | None,
    unit: str,
    peer: float | None,
    ratio: float | None,
    repeats: int,
    spread: Sequence[float] | None,
    **more: Any,
) -> dict[str, Any]:
    """Print one row on standard output and write it to bench/results/<bench>/<name>.json.

    `value` and `peer` are medians of `repeats`, `spread` the lowest and highest of `value`;
    `ratio` is ours over the peer's, larger is better (a time or a memory is turned over).
    """
    row = {
        "bench": bench,
        "name": name,
        "value": value,
        "unit": unit,
        "peer": peer,
        "ratio": None if ratio is None else round(ratio, 4),
        "repeats": repeats,
        "spread": None if spread is None else list(spread),
        **more,
        "machine": machine(),
        "commit": commit(),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    print(json.dumps(row), flush=True)
    path = HERE / "results" / bench / f"{name.replace('/', '-')}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(row, indent=2) + "\n")
    return row


@functools.cache
def machine(memory: bool = True) -> str:
    """What was measured on: processor, usable cores, memory, GPUs. Not whose it is.

    Without `memory` it stays the same where a virtual machine is given more of it as it runs.
    """
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    models = [line.split(":", 1)[1].strip() for line in info.splitlines() if "model name" in line]
    processor = models[0] if models else platform.machine()
    mem_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    gpus = [
        line.split(":", 1)[1].strip()
        for about in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
        for line in about.read_text().splitlines()
        if line.startswith("Model:")
    ]
    cores = len(os.sched_getaffinity(0))
    parts = [processor, f"{cores} cores", *([f"{mem_gib:.0f} GiB"] if memory else []), *gpus]
    return ", ".join([*parts, f"Python {platform.python_version()}"])


@functools.cache
def commit() -> str:
    """The commit measured, with a + when files differ from it.

    Where there is no git, or this is no checkout: the variable GMI_DRL_COMMIT.
    """

    def git(*arguments: str) -> str:
        try:
            done = subprocess.run(
                ["git", *arguments], cwd=HERE, capture_output=True, text=True, check=False,
                timeout=30,
            )  # fmt: skip
        except FileNotFoundError:
            return ""
        return done.stdout.strip()

    head = git("rev-parse", "--short=12", "HEAD")
    if not head:
        return os.environ.get("GMI_DRL_COMMIT") or "unknown"
    return head + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")
