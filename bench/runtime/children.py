"""Runs a measurement in a process of its own, so that nothing it starts disturbs the next."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from typing import Any

LIMIT_S = 300.0  # the longest time of a child, with its start and end


def answer(work: Callable[[], Any]) -> None:
    """Prints the result of `work` or its error, in the child."""
    try:
        result = {"found": work()}
    except Exception as error:
        traceback.print_exc()
        result = {"error": f"{type(error).__name__}: {error}"[:500]}
    print(json.dumps(result), flush=True)


def ask(*arguments: str) -> dict[str, Any]:
    """Runs `python ARGUMENTS` and returns its answer, also if that is an error."""
    # Ray's warnings about its next versions, and its usage reports, are switched off.
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONWARNINGS": "ignore"}
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as log:
        child = subprocess.Popen(
            [sys.executable, *arguments], stdout=out, stderr=log, env=environment,
            start_new_session=True,
        )  # fmt: skip
        outcome = f"not done after {LIMIT_S:g} s"
        try:
            outcome = f"exit code {child.wait(LIMIT_S)}"
        except subprocess.TimeoutExpired:
            pass
        finally:
            # Ends what is left in its session; both runtimes also end with their driver.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        for stream in (out, log):
            stream.seek(0)
        answers = [line for line in out.read().splitlines() if line.startswith('{"')]
        if answers:
            return json.loads(answers[-1])
        return {"error": f"{outcome}: {log.read()[-400:]}"}
