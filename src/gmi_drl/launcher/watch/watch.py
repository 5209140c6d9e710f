"""Declares what may follow a run: it hears what GMIs report, and may end the run."""

from __future__ import annotations

from typing import Any, Protocol

from gmi_drl.gmi import Gang


class Watch(Protocol):
    """Follows a run; `launch` calls both methods in its thread, which they keep meanwhile.

    What either raises ends the run as a failure does, with nothing saved, and leaves `launch`. One
    that cannot wait for the GMIs to end calls `gang.kill()` before it raises.
    """

    def show(self, record: dict[str, Any]) -> None:
        """Takes in one record, in the order they come.

        Each that a GMI reported, and of mode serving the launcher's lines of metrics too.
        """

    def tick(self, gang: Gang) -> None:
        """Is called about ten times a second, from the start of the GMIs to their end."""
