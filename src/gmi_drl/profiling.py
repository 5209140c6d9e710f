"""One candidate measured: all its GMIs together, by the real launcher and the real roles.

The caller keeps a runtime warm (`runtime.init(PRELOAD)`, once), so that a candidate costs processes
and work, and no import of torch. A run that is measured is killed when it has shown enough: it
saves nothing, and its folder lies in the runtime's own and goes at once.
"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gmi_drl import runtime
from gmi_drl.gmi import usage
from gmi_drl.gmi.meter import Meter
from gmi_drl.placement import Config
from gmi_drl.selector.candidate import Ask, Failed, Measured
from gmi_drl.selector.failures import classify

from .lateness import Patience
from .launcher import launch
from .measured_run import measured_run
from .profile_watch import Over, ProfileWatch

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
        kills = usage.oom_kills()
        with (
            tempfile.TemporaryDirectory(
                prefix="profile-", dir=runtime.run_directory(), ignore_cleanup_errors=True
            ) as folder,
            Meter() as meter,
        ):
            failed: Failed | None = None
            watch = ProfileWatch(ask.seconds, self._patience, meter)
            try:
                result = launch(
                    measured_run(self._config, ask.candidate, Path(folder), total_steps=_ENDLESS),
                    roles=self._roles,
                    view="none",
                    keep_gcs=False,
                    watch=watch,
                    beside=self._beside,
                )
            except Over:
                assert watch.answer is not None
                return watch.answer
            except Exception as error:
                layout = None if watch.gang is None else watch.gang.layout
                failed = classify(error, layout, oom_kills=usage.oom_kills() - kills)
                if failed is None:
                    raise
            finally:
                watch.let_go()
        if failed is not None:
            gc.collect()  # the error and its gang hold each other, and memory of the candidate
            return failed
        if result.state == "stopped":
            raise KeyboardInterrupt
        return Failed("crash", f"the run ended by itself after {result.iteration} iterations")
