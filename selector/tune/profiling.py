"""One candidate measured: all its GMIs together, by the real launcher and the real roles.

The caller keeps a runtime warm (`runtime.init(PRELOAD)`, once), so that a candidate costs processes
and work, and no import of torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gmi_drl import runtime
from gmi_drl.placement import Config, counted

from .candidate import Ask, Failed, Measured
from .candidate_timeout import Patience
from .measured_run import measured_run, run_watched
from .profile_watch import ProfileWatch

if TYPE_CHECKING:
    from gmi_drl.roles import DRL_role

__all__ = ["Patience", "Profiler"]

_IMPORTS: Final = timedelta(seconds=120)
_PATIENCE: Final = Patience()
_ENDLESS: Final = 10**15  # environment steps; a linear schedule stays where it begins


class Profiler:
    """Measures candidates, one at a time: `profiler(ask)` returns Measured or Failed.

    `config` is the user's, `beside` the folder where its role modules lie, `roles` classes in place
    of the config's. Blocks for the asked seconds of training at most, and for start and end, each
    of which has a deadline: nothing of a candidate keeps the caller. What a candidate does never
    raises; KeyboardInterrupt does, when everything is ended, and what is wrong with the runtime or
    the disk. Afterwards no process, file or memory of the candidate is left.
    """

    def __init__(
        self,
        config: Config,
        beside: Path | None = None,
        *,
        roles: Mapping[str, type[DRL_role]] | None = None,
        patience: Patience = _PATIENCE,
    ) -> None:
        self._config, self._beside, self._roles = config, beside, roles
        self._patience = patience

    def __call__(self, ask: Ask) -> Measured | Failed:
        runtime.preloaded(_IMPORTS)  # of the first candidate: it is not to be charged for that
        watch, ended = run_watched(
            lambda folder: measured_run(self._config, ask.candidate, folder, total_steps=_ENDLESS),
            lambda meter: ProfileWatch(ask.seconds, self._patience, meter),
            self._beside,
            self._roles,
        )
        if ended is None:
            assert watch.answer is not None
            return watch.answer
        if isinstance(ended, Failed):
            return ended
        return Failed(
            "crash", f"the run ended by itself after {counted(ended.iteration, 'iteration')}"
        )
