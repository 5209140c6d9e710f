"""The end of a run that is done: GMIs close what they opened, and nothing of that can fail it."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Final

from gmi_drl.gmi import Gang, GmiDied

_LIMIT: Final = timedelta(seconds=60)
_POLL: Final = timedelta(milliseconds=100)


def close_all(gang: Gang, limit: timedelta | None = None) -> str:
    """Has every GMI close its environments; what went wrong with that, in words.

    Those that take longer than `limit` (a minute) are killed, and so are all when one crashes.
    """
    limit = _LIMIT if limit is None else limit
    deadline_s = time.monotonic() + limit.total_seconds()
    done = "The run is done, and its results are whole"
    gang.start("close")
    try:
        while not gang.wait(_POLL):
            if deaths := gang.restarts():
                gang.kill()
                gmi_id, death = deaths[0]
                return f"gmi {gmi_id} died while it closed its environments: {death}. {done}"
            if time.monotonic() > deadline_s:
                late = list(gang.at_work())
                gang.write_stacks(late[0])
                gang.kill()
                who = ", ".join(f"gmi {gmi_id}" for gmi_id in late)
                return (
                    f"{who}: close() of the environments has not returned after "
                    f"{limit.total_seconds():g} s, and the process was killed. The log of gmi "
                    f"{late[0]} ends with its Python stack. {done}"
                )
    except GmiDied as error:
        return f"{str(error).splitlines()[0]}, while it closed its environments. {done}"
    except KeyboardInterrupt:
        gang.kill()
        return f"interrupted while GMIs closed their environments. {done}"
    gang.results()
    return ""
