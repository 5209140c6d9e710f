"""Writing a checkpoint together: every GMI its part, all of them or none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gmi_drl.comm import Group
from gmi_drl.placement import Layout

from . import checkpoint
from .errors import CheckpointError

_KEPT = 3


class Saver:
    """One GMI's hand in the checkpoints of a run. `session`: the launch that writes them."""

    def __init__(self, folder: Path, gmi_id: int, group: Group, session: str = "") -> None:
        self._folder = folder_of(folder)
        self._gmi_id, self._group, self._session = gmi_id, group, session

    def save(
        self,
        iteration: int,
        own: dict[str, Any],
        shared: Callable[[], dict[str, Any]],
        manifest: dict[str, Any],
        missing: str = "",
    ) -> tuple[bool, str]:
        """Write checkpoint `iteration`: whether it exists, and why not if the reason is here.

        Collective. `own` is this GMI's part; `shared`, the same on all, is written by rank 0.
        `missing` says why agents of this GMI have not written theirs. When one GMI fails nothing
        is left of the attempt, and older checkpoints stay.
        """
        first = self._group.rank == 0

        def write() -> None:
            checkpoint.begin(self._folder, iteration)
            checkpoint.write_part(self._folder, iteration, f"gmi{self._gmi_id}", own)
            if first:
                checkpoint.write_part(self._folder, iteration, "shared", shared())

        failure, failed = self._together(write, missing)
        if not failed:
            failure, failed = self._together(
                lambda: (
                    first
                    and checkpoint.commit(
                        self._folder, iteration, manifest | {"session": self._session}, _KEPT
                    )
                )
            )
        if failed and first:
            checkpoint.discard(self._folder, iteration)
        if not failure:
            return not failed, ""
        return False, (
            f"checkpoint at iteration {iteration} was not written: {failure}. "
            f"Older checkpoints in {self._folder} are whole; free some space."
        )

    def begin(self, iteration: int) -> str:
        """Have agents write their parts from now on, before `save`; why not, if it cannot be."""
        try:
            checkpoint.begin(self._folder, iteration)
        except OSError as error:
            return f"{type(error).__name__}: {error}"
        return ""

    def newest(self) -> Path | None:
        """The newest whole checkpoint of this launch; older ones of the folder belong to others."""
        return checkpoint.newest_of(self._folder, self._session)

    def mend(self) -> None:
        """Rank 0 clears away what a GMI was writing when it was killed, while nobody writes."""
        if self._group.rank == 0:
            checkpoint.mend(self._folder)

    def _together(self, action: Callable[[], object], failure: str = "") -> tuple[str, bool]:
        """Do `action` on every GMI: why it failed here, and whether it failed anywhere.

        With a `failure` it has failed here before it was begun.
        """
        try:
            if not failure:
                action()
        except OSError as error:
            failure = f"{type(error).__name__}: {error}"
        return failure, any(self._group.exchange(bool(failure)))


def folder_of(run: Path) -> Path:
    """Where the checkpoints of a run are."""
    return run / "checkpoints"


def gmis_of(layout: Layout) -> list[list[int]]:
    """(id, num_env) of all GMIs: what a checkpoint's parts are of."""
    return [[gmi.gmi_id, gmi.num_env] for gmi in layout.gmis]


def read(folder: Path, gmis: list[list[int]]) -> checkpoint.Checkpoint:
    """The checkpoint to resume from, if GMIs with these (id, num_env) wrote it."""
    found = checkpoint.find(folder)
    if found.manifest["gmis"] != gmis:
        raise CheckpointError(
            f"{found.folder} was written by GMIs with (id, num_env) {found.manifest['gmis']}; "
            f"this layout has {gmis}. Resume with the layout of the run's own config.yaml."
        )
    return found
