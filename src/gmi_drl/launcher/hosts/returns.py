"""Watches for hosts that were lost and are there again, and has the GMIs make room for theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from gmi_drl.gmi import Gang

if TYPE_CHECKING:
    from .cluster import Cluster
    from .gang import HostsGang


class ReturnWatch:
    """A `Watch` of one gang. `places`: of hosts to be taken in when the GMIs have made room."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._trains = cluster, False
        self.places: list[int] = []

    def show(self, record: dict[str, Any]) -> None:
        """Takes in a record: by its first iteration a gang has come up."""
        if record.get("kind") == "iteration" and not self._trains:
            self._trains = True
            self._cluster.is_trained_on()

    def tick(self, gang: Gang) -> None:
        """Asks the hosts, once the gang trains; they are taken in all at a time."""
        if self._trains and not self.places and not gang.asked_to_stop:
            self.places = self._cluster.places_back()
            if self.places:
                cast("HostsGang", gang).make_room()
