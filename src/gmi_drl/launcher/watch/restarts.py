"""Follows GMIs that are restarted: tells the user, and notes it in the run's folder."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gmi_drl import runtime
from gmi_drl.gmi import Gang
from gmi_drl.launcher.folder.run_folder import RunFolder
from gmi_drl.launcher.wire.wiring import OUR_CLASSES

if TYPE_CHECKING:
    from gmi_drl.roles import DRL_role

_IMPORT = timedelta(seconds=60)


class Restarts:
    """Counts the restarts of a run: in words as they happen, and in run.json."""

    def __init__(self, gang: Gang, folder: RunFolder, budget: int) -> None:
        self._gang, self._folder, self._budget = gang, folder, budget
        self._of: dict[int, int] = {}

    @property
    def count(self) -> int:
        return sum(self._of.values())

    def news(self) -> list[str]:
        """Tells each restart since the last call."""
        messages = []
        for gmi_id, death in self._gang.restarts():
            self._of[gmi_id] = self._of.get(gmi_id, 0) + 1
            how = death.how()
            number = self._of[gmi_id]
            messages.append(
                f"gmi {gmi_id} {how}; restarted on its slice ({number} of {self._budget})"
            )
            self._write(gmi_id, how)
        return messages

    def _write(self, gmi_id: int, how: str) -> None:
        try:
            before = self._folder.state().get("restarts", [])
            entry: dict[str, Any] = {"gmi_id": gmi_id, "how": how, "time": time.time()}
            self._folder.update(restarts=[*before, entry])
        except OSError:  # a full disk: training is worth more than its log
            pass


def is_recoverable(role: type[DRL_role] | str, folder: Path | None) -> bool:
    """Says whether GMIs of a role are restarted; a class that cannot be loaded fails there."""
    if not isinstance(role, str):
        return role.recoverable
    if role in OUR_CLASSES or role == "gmi_drl:Holistic":
        return True
    reader = runtime.remote(_RoleReader).options(name="role", max_restarts=1).remote()
    try:
        found: bool = runtime.get(reader.recoverable.remote(role, folder), _IMPORT)
        return found
    except runtime.ActorRuntimeError:
        return False
    finally:
        runtime.kill(reader)


class _RoleReader:
    """Imports a role in a process of its own: a launcher imports neither torch nor user code."""

    def recoverable(self, reference: str, folder: Path | None) -> bool:
        from gmi_drl.roles import load_role

        return load_role(reference, folder).recoverable
