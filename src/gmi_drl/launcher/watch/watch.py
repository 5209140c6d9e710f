"""What follows a run from the launcher's side: it hears what GMIs report, and may end the run."""

from __future__ import annotations

from typing import Any, Protocol

from gmi_drl.gmi import Gang


class Watch(Protocol):
    """Given to `launch`; both methods are called in its thread, and keep it while they run.

    What either raises ends the run as a failure does, with nothing saved, and leaves `launch`. One
    that cannot wait for the GMIs to end calls `gang.kill()` before it raises.
    """

    def show(self, record: dict[str, Any]) -> None:
        """Take in one record, in the order they come: each that a GMI reported, and of mode
        serving the lines of metrics too that the launcher makes of them."""

    def tick(self, gang: Gang) -> None:
        """Called about ten times a second, from the start of the GMIs to their end."""
