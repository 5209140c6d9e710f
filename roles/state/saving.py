"""Writing a checkpoint together: every GMI its part, all of them or none."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gmi_drl.comm import Group
from gmi_drl.placement import Layout
from gmi_drl.roles.errors import CheckpointError

from . import checkpoint

_KEPT = 3
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class Saver:
    """One GMI's hand in the checkpoints of a run. `session`: the launch that writes them.

    `epoch`: that of the gang, where the run is on several hosts. CheckpointError refuses to make a
    checkpoint when run.json has a higher one: this host was cut off, and others have gone on.
    """

    def __init__(
        self, folder: Path, gmi_id: int, group: Group, session: str = "", epoch: int = 0
    ) -> None:
        self._folder = folder_of(folder)
        self._gmi_id, self._group, self._epoch = gmi_id, group, epoch
        self._known = {"session": session} | ({"epoch": epoch} if epoch else {})

    def save(
        self,
        iteration: int,
        own: dict[str, Any],
        shared: Callable[[bool], dict[str, Any]],
        manifest: dict[str, Any],
        missing: str = "",
    ) -> tuple[bool, str]:
        """Write checkpoint `iteration`: whether there is one, and what this GMI has to tell of it.

        Collective. `own` is this GMI's part; `shared(whole)`, the same on all, is written by rank
        0. `missing` says why agents of this GMI have not written theirs. When one GMI finds no
        room and there are older checkpoints, all but the newest go, and it is tried again. When
        that fails, rank 0 tries to write the policy alone, `shared(False)`, which needs the least
        room; when that fails as well nothing is left of the attempt.
        """
        first = self._group.rank == 0
        manifest = manifest | self._known
        unremoved, full = "", False
        removed: list[str] = []

        def begin() -> None:
            nonlocal full
            self.check_epoch()  # others may write parts of the same names there
            try:
                checkpoint.begin(self._folder, iteration)
                checkpoint.write_part(self._folder, iteration, f"gmi{self._gmi_id}", own)
                if first:
                    checkpoint.write_part(self._folder, iteration, "shared", shared(True))
            except OSError as error:
                full = error.errno in _NO_ROOM
                raise

        def commit(**more: bool) -> None:
            nonlocal unremoved
            if first:
                self.check_epoch()
                path = checkpoint.commit(self._folder, iteration, manifest | more)
                unremoved = checkpoint.prune(self._folder, path, _KEPT)

        def policy_alone() -> None:
            if first:
                checkpoint.begin(self._folder, iteration)
                checkpoint.write_part(self._folder, iteration, "shared", shared(False))
                commit(policy_only=True)

        failure, failed = self._together(begin, missing)
        if failed and any(self._group.exchange(full)):
            if first:
                removed = checkpoint.make_room(self._folder)
            if any(self._group.exchange(bool(removed))):
                failure, failed = self._together(begin, missing)
        if not failed:
            failure, failed = self._together(commit)
        told, lost = "", False
        if failed:
            if first:
                checkpoint.discard(self._folder, iteration)
            why, lost = self._together(policy_alone)
            if lost and first:
                checkpoint.discard(self._folder, iteration)
            if failure or why:
                told = self._failure_text(iteration, failure, why, lost)
        if removed:
            told += f" For room these were removed: {', '.join(removed)}."
        if unremoved:
            told += f" Old checkpoints are still there: {unremoved}."
        return not lost, told.strip()

    def save_alone(self, iteration: int, shared: dict[str, Any], manifest: dict[str, Any]) -> str:
        """Write a checkpoint of what all share, as others are lost: why it could not be, or "".

        For one GMI, when no other writes any more.
        """
        self.check_epoch()
        try:
            checkpoint.begin(self._folder, iteration)
            checkpoint.write_part(self._folder, iteration, "shared", shared)
            manifest = manifest | self._known
            self.check_epoch()
            path = checkpoint.commit(self._folder, iteration, manifest)
        except OSError as error:
            checkpoint.discard(self._folder, iteration)
            return f"iteration {iteration} was not saved: {type(error).__name__}: {error}"
        checkpoint.prune(self._folder, path, _KEPT)
        return ""

    def _failure_text(self, iteration: int, failure: str, why: str, lost: bool) -> str:
        """That checkpoint `iteration` failed by `failure`, and what there is in its place.

        Where that is nothing (`lost`), `why` the policy alone could not be written, if it is known.
        """
        said = [f"checkpoint at iteration {iteration} was not written: {failure or why}."]
        if lost:
            said.append(f"The policy alone could not be written either{why and f': {why}'}.")
        else:
            said.append(
                "The policy alone (parameters and normalisers) was saved in "
                f"{checkpoint.folder_of(self._folder, iteration)}: it can be served, and a resume "
                "begins the optimizer's moments and the episodes anew."
            )
        if (complete := self._newest(complete=True)) is not None:
            said.append(f"The newest complete checkpoint is {complete}.")
        elif lost and (partial := self._newest(complete=False)) is not None:
            said.append(f"The newest checkpoint is {partial}, of the policy alone.")
        elif lost:
            said.append(
                f"There is no checkpoint in {self._folder}: a policy that ends now is lost."
            )
        return " ".join([*said, f"Free some space for {self._folder}, or mend what is named."])

    def _newest(self, complete: bool) -> Path | None:
        try:
            return checkpoint.newest(
                self._folder, lambda found: not (complete and found.policy_only)
            )
        except OSError:  # out of file descriptors, perhaps
            return None

    def begin(self, iteration: int) -> str:
        """Have agents write their parts from now on, before `save`; why not, if it cannot be."""
        try:
            checkpoint.begin(self._folder, iteration)
        except OSError as error:
            return f"{type(error).__name__}: {error}"
        return ""

    def newest(self) -> Path | None:
        """The newest whole checkpoint of this launch; older ones of the folder belong to others."""
        mine = self._known["session"]
        return checkpoint.newest(self._folder, lambda found: found.manifest.get("session") == mine)

    def mend(self) -> None:
        """Rank 0 clears away what a GMI was writing when it was killed, while nobody writes."""
        if self._group.rank == 0:
            checkpoint.mend(self._folder)

    def check_epoch(self) -> None:
        """Raises CheckpointError if this host was taken for lost, and others have gone on."""
        if not self._epoch:
            return
        run = self._folder.parent / "run.json"
        now = json.loads(run.read_text(encoding="utf-8")).get("epoch", 0)
        if now > self._epoch:
            raise CheckpointError(
                f"{run} has epoch {now}, and this host is in epoch {self._epoch}: it was taken for "
                "lost, and others have gone on. It writes nothing more of this run."
            )

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
    """Returns the folder of a run's checkpoints."""
    return run / "checkpoints"


def gmis_of(layout: Layout) -> list[list[int]]:
    """Returns (id, num_env) of all GMIs: what a checkpoint's parts are of."""
    return [[gmi.gmi_id, gmi.num_env] for gmi in layout.gmis]


def begun_anew(found: checkpoint.Checkpoint, layout: Layout) -> list[int]:
    """Returns the GMIs of a layout that have no part in a checkpoint, as another layout wrote it.

    A part is of as many environments, in the roles of that template; that of a GMI without any is
    of what the others sample.
    """
    is_of_template = found.manifest.get("template") == layout.template
    wrote, gmis = found.manifest["gmis"] if is_of_template else [], gmis_of(layout)
    return [
        gmi_id
        for gmi_id, num_env in gmis
        if [gmi_id, num_env] not in wrote or (num_env == 0 and wrote != gmis)
    ]
