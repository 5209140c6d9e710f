"""Ends a run that is done: GMIs close what they opened, and nothing of that can fail it."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Final

from gmi_drl.gmi import Gang, GmiDied
from gmi_drl.launcher.view.view import View
from gmi_drl.runtime.errors import exit_text

_LIMIT: Final = timedelta(seconds=60)
_POLL: Final = timedelta(milliseconds=100)


def close_all(gang: Gang, screen: View) -> None:
    """Has every GMI close its environments, and warns on `screen` of what went wrong with that.

    All are killed when one takes longer than a minute, or crashes.
    """
    if trouble := _close(gang, _LIMIT):
        screen.show({"kind": "warning", "message": trouble})


def _close(gang: Gang, limit: timedelta) -> str:
    """What went wrong, in words."""
    deadline_s = time.monotonic() + limit.total_seconds()
    done = "The run is done, and its results are whole"
    try:
        gang.start("close")
        while not gang.wait(_POLL):
            if deaths := gang.restarts():
                gang.kill()
                gmi_id, death = deaths[0]
                how = exit_text(death.exit_code, death.signal)
                return f"gmi {gmi_id} {how} while it closed its environments. {done}"
            if time.monotonic() > deadline_s and (late := list(gang.at_work())):
                stack = f"The log of gmi {late[0]} ends with its Python stack. "
                stack = stack if gang.write_stacks(late[0]) else ""
                gang.kill()
                who = ", ".join(f"gmi {gmi_id}" for gmi_id in late)
                return (
                    f"{who}: close() of the environments has not returned after "
                    f"{limit.total_seconds():g} s, and the process was killed. {stack}{done}"
                )
    except GmiDied as error:
        return f"{str(error).splitlines()[0]}, while it closed its environments. {done}"
    except KeyboardInterrupt:
        gang.kill()
        return f"interrupted while GMIs closed their environments. {done}"
    gang.results()
    return ""
