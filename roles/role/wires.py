"""Joins the GMIs of a run beside their group: links for experience, a board for policies.

The launcher makes them before any process is started, and tells every GMI of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gmi_drl.comm.shm.board import BoardSpec
    from gmi_drl.comm.transports import LinkSpec


@dataclass(frozen=True)
class Wires:
    """The links and the board of a GMI; none where it has all roles."""

    links: tuple[tuple[int, int, LinkSpec], ...] = ()  # gmi_id of the sender, of the receiver
    board: BoardSpec | None = None  # what agents read policies from; the first trainer writes

    def of(self, gmi_id: int) -> Wires:
        """Returns the wires of one GMI, as a call carries 253 descriptors at most."""
        links = tuple(link for link in self.links if gmi_id in link[:2])
        return Wires(links, self.board)

    def out_of(self, gmi_id: int) -> dict[int, LinkSpec]:
        """The links that a GMI sends by, by the receiver's gmi_id."""
        return {target: link for source, target, link in self.links if source == gmi_id}

    def into(self, gmi_id: int) -> dict[int, LinkSpec]:
        """The links that a GMI receives by, by the sender's gmi_id."""
        return {source: link for source, target, link in self.links if target == gmi_id}
