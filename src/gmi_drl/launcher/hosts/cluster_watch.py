"""Watches the cluster while hosts train: for hosts that are back or leave, and for its head."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from gmi_drl.gmi import Gang
from gmi_drl.roles.state.request import make_request

from .messages import HostLost

if TYPE_CHECKING:
    from .cluster import Cluster
    from .gang import HostsGang

_LEAVE_S: Final = 10.0  # for GMIs to save what they have when the head is gone


class ClusterWatch:
    """A `Watch` of one gang.

    When the GMIs have made room, hosts of `places` are to be taken in and those of the ranks
    `leaving` to be left out.
    """

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        """`folder`: that of the run."""
        self._cluster, self._folder, self._trains = cluster, folder, False
        self._loss: HostLost | None = None  # of the head
        self._lost_s = 0.0
        self.places: list[int] = []
        self.leaving: list[int] = []

    @property
    def wants_room(self) -> bool:
        """Tells whether GMIs were asked to make room."""
        return bool(self.places or self.leaving) or self._loss is not None

    @property
    def why(self) -> str:
        """Says for whom GMIs were asked to make room."""
        names = ", ".join(f"host {rank}, {self._cluster.hosts[rank]}" for rank in self.leaving)
        back = "hosts are there again" if self.places else ""
        return "; ".join(filter(None, (names and f"Ray drains {names}, which leaves", back)))

    def show(self, record: dict[str, Any]) -> None:
        """Takes in a record: by its first iteration a gang has come up."""
        if record.get("kind") == "iteration" and not self._trains:
            self._trains = True
            self._cluster.is_trained_on()

    def tick(self, gang: Gang) -> None:
        """Asks the head, and the lost hosts once the gang trains, which are taken in together.

        Raises HostLost for a head that is gone, when GMIs have had some time to save and end.
        """
        if self._loss is None:
            try:
                self._look(gang)
            except HostLost as error:
                self._loss, self._lost_s = error, time.monotonic()
                if self._trains:
                    cast("HostsGang", gang).make_room()
        is_late = not self._trains or time.monotonic() - self._lost_s > _LEAVE_S
        if self._loss is not None and is_late:
            raise self._loss

    def _look(self, gang: Gang) -> None:
        """Has GMIs make room for hosts that are back, and for the end of those that are drained.

        Raises HostLost for a head that is gone.
        """
        self._cluster.head.check()
        if not self._trains or self.wants_room or gang.asked_to_stop:
            return
        self.places = self._cluster.places_back()
        if drained := self._cluster.newly_drained():
            if self._cluster.can_do_without(drained):
                self.leaving = drained
            else:  # train on, for as long as they are there
                with suppress(OSError):  # what is written at the end will say so
                    make_request(self._folder)
        if self.wants_room:
            cast("HostsGang", gang).make_room()

    def check_head(self) -> None:
        """Raises HostLost when the head is gone."""
        if self._loss is not None:
            raise self._loss
