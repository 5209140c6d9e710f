"""How the GMIs of a run are joined beside their group: links for experience, a board for policies.

The launcher makes them before any process is started, and every GMI is told of all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Wires:
    """Links by (sender's gmi_id, receiver's gmi_id), and the board that agents read policies from.

    Nothing in mode sync, where experience does not leave a GMI.
    """

    links: tuple[tuple[int, int, Any], ...] = ()
    board: Any = None
