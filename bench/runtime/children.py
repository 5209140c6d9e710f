"""Runs a measurement in a process of its own, so that nothing it starts disturbs the next."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

LIMIT_S = 300.0  # the longest time of a child, with its start and end


def answer(work: Callable[[], Any], out: Path) -> None:
    """Writes the result of `work` or its error, in the child."""
    try:
        result = {"found": work()}
    except Exception as error:
        traceback.print_exc()
        result = {"error": f"{type(error).__name__}: {error}"[:500]}
    out.write_text(json.dumps(result))


def ask(arguments: Sequence[str], folder: Path) -> dict[str, Any]:
    """Runs `python ARGUMENTS --out FILE` and returns its answer, also if that is an error."""
    out, log = folder / "out.json", folder / "log"
    out.unlink(missing_ok=True)
    # Ray's warnings about its next versions, and its usage reports, are switched off.
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONWARNINGS": "ignore"}
    with log.open("w") as stream:
        child = subprocess.Popen(
            [sys.executable, *arguments, "--out", str(out)],
            stdout=stream,
            stderr=stream,
            env=environment,
            start_new_session=True,
        )
        try:
            code = child.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            return {"error": f"not done after {LIMIT_S:g} s: {_tail(log)}"}
        finally:
            # Ends what is left in its session; both runtimes also end with their driver.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    if not out.exists():
        return {"error": f"exit code {code}: {_tail(log)}"}
    return json.loads(out.read_text())


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-400:]
