"""Launches one seed, as its parent says on standard input, and tells how it ended on a pipe."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from gmi_drl.errors import GmiDrlError

if TYPE_CHECKING:
    from gmi_drl.launcher.start.result import RunResult

_MOST_TEXT: Final = 16_000  # of an error; a pipe takes 64 KB before anyone reads


@dataclass(frozen=True)
class SeedOutcome:
    """Says how a launch ended: with a result, or an error and its exit code."""

    result: RunResult | None = None
    error: str = ""
    exit_code: int = 0


def main() -> int:
    """Runs the job on standard input; the first argument is the pipe's descriptor."""
    from gmi_drl.runtime.process.child_setup import PR_SET_PDEATHSIG, prctl

    pipe, parent = int(sys.argv[1]), int(sys.argv[2])
    os.set_inheritable(pipe, False)
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)  # a parent that is killed stops its launches
    if os.getppid() != parent:
        return 1
    sys.path[:] = pickle.load(sys.stdin.buffer)
    outcome = _launched(pickle.load(sys.stdin.buffer))
    os.write(pipe, pickle.dumps(outcome))
    return outcome.exit_code


def _launched(options: Mapping[str, Any]) -> SeedOutcome:
    """Calls `launch` with these arguments."""
    from gmi_drl.cli.app import FAILED, INTERRUPTED
    from gmi_drl.cli.main import warnings_without_source
    from gmi_drl.launcher.interrupts import terminate_as_interrupt
    from gmi_drl.launching import launch

    try:
        with terminate_as_interrupt(), warnings_without_source():
            result = launch(**options, keep_gcs=True)
    except KeyboardInterrupt:
        return SeedOutcome(error="interrupted", exit_code=INTERRUPTED)
    except GmiDrlError as error:
        return SeedOutcome(error=str(error)[:_MOST_TEXT], exit_code=error.command_exit_code)
    except Exception as error:  # a fault of this program, or of a callback
        traceback.print_exc()
        text = f"{type(error).__name__}: {error}"
        return SeedOutcome(error=text[:_MOST_TEXT], exit_code=FAILED)
    # What roles have returned may be of classes that the parent does not have.
    return SeedOutcome(replace(result, gmis=[]), exit_code=0)


if __name__ == "__main__":
    # Not as __main__: the classes of what is pickled must be those of the module.
    from gmi_drl.seeds import child

    raise SystemExit(child.main())
