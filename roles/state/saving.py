"""Writes a checkpoint together: every GMI its part, all of them or none."""

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
    """Writes one GMI's share of a run's checkpoints.

    `session` names the launch that writes them. `epoch` is the gang's, where the run is on several
    hosts: CheckpointError when run.json has a higher one, as others have gone on without this host.
    """

    def __init__(
        self, folder: Path, gmi_id: int, group: Group, session: str = "", epoch: int = 0
    ) -> None:
        self._folder = folder_of(folder)
        self._gmi_id, self._group, self._epoch = gmi_id, group, epoch
        self._stamp = {"session": session} | ({"epoch": epoch} if epoch else {})

    def save(
        self,
        iteration: int,
        own: dict[str, Any],
        shared: Callable[[bool], dict[str, Any]],
        manifest: dict[str, Any],
        missing: str = "",
    ) -> tuple[bool, str]:
        """Writes checkpoint `iteration`; returns whether there is one, and a warning or "".

        Collective. `own` is this GMI's part; `shared(whole)`, the same on all, is written by rank
        0. `missing` says why agents of this GMI have not written theirs. When one GMI finds no
        room and there are older checkpoints, all but the newest go, and it is tried again. When
        that fails, rank 0 tries to write the policy alone, `shared(False)`, which needs the least
        room; when that fails as well nothing is left of the attempt.
        """
        is_first = self._group.rank == 0
        manifest = manifest | self._stamp
        unremoved, no_room = "", False
        removed: list[str] = []

        def begin() -> None:
            nonlocal no_room
            self.check_epoch()  # others may write parts of the same names there
            try:
                checkpoint.begin(self._folder, iteration)
                checkpoint.write_part(self._folder, iteration, f"gmi{self._gmi_id}", own)
                if is_first:
                    checkpoint.write_part(self._folder, iteration, "shared", shared(True))
            except OSError as error:
                no_room = error.errno in _NO_ROOM
                raise

        def commit(**more: bool) -> None:
            nonlocal unremoved
            if is_first:
                self.check_epoch()
                path = checkpoint.commit(self._folder, iteration, manifest | more)
                unremoved = checkpoint.prune(self._folder, path, _KEPT)

        def policy_alone() -> None:
            if is_first:
                checkpoint.begin(self._folder, iteration)
                checkpoint.write_part(self._folder, iteration, "shared", shared(False))
                commit(policy_only=True)

        failure, failed = self._try_on_all(begin, missing)
        if failed and any(self._group.exchange(no_room)):
            if is_first:
                removed = checkpoint.make_room(self._folder)
            if any(self._group.exchange(bool(removed))):
                failure, failed = self._try_on_all(begin, missing)
        if not failed:
            failure, failed = self._try_on_all(commit)
        warning, lost = "", False
        if failed:
            if is_first:
                checkpoint.discard(self._folder, iteration)
            policy_failure, lost = self._try_on_all(policy_alone)
            if lost and is_first:
                checkpoint.discard(self._folder, iteration)
            if failure or policy_failure:
                warning = self._failure_text(iteration, failure, policy_failure, lost)
        if removed:
            warning += f" For room these were removed: {', '.join(removed)}."
        if unremoved:
            warning += f" Old checkpoints are still there: {unremoved}."
        return not lost, warning.strip()

    def save_alone(self, iteration: int, shared: dict[str, Any], manifest: dict[str, Any]) -> str:
        """Writes a checkpoint of the shared state, as peers are lost; returns why it failed, or "".

        For one GMI, when no other writes any more.
        """
        self.check_epoch()
        try:
            checkpoint.mend(self._folder)  # a lost one may have been in the midst of a commit
            checkpoint.begin(self._folder, iteration)
            checkpoint.write_part(self._folder, iteration, "shared", shared)
            manifest = manifest | self._stamp
            self.check_epoch()
            path = checkpoint.commit(self._folder, iteration, manifest)
        except OSError as error:
            checkpoint.discard(self._folder, iteration)
            return f"iteration {iteration} was not saved: {type(error).__name__}: {error}"
        checkpoint.prune(self._folder, path, _KEPT)
        return ""

    def _failure_text(self, iteration: int, failure: str, why: str, lost: bool) -> str:
        """Returns the warning that checkpoint `iteration` failed, and what there is in its place.

        `lost`: there is nothing, as the policy alone could not be written; `why`, if it is known.
        """
        sentences = [f"checkpoint at iteration {iteration} was not written: {failure or why}."]
        if lost:
            sentences.append(f"The policy alone could not be written either{why and f': {why}'}.")
        else:
            sentences.append(
                "The policy alone (parameters and normalisers) was saved in "
                f"{self.path_of(iteration)}: it can be served, and a resume "
                "begins the optimizer's moments and the episodes anew."
            )
        if (complete := self._newest(complete=True)) is not None:
            sentences.append(f"The newest complete checkpoint is {complete}.")
        elif lost and (partial := self._newest(complete=False)) is not None:
            sentences.append(f"The newest checkpoint is {partial}, of the policy alone.")
        elif lost:
            sentences.append(
                f"There is no checkpoint in {self._folder}: a policy that ends now is lost."
            )
        return " ".join([*sentences, f"Free some space for {self._folder}, or mend what is named."])

    def _newest(self, complete: bool) -> Path | None:
        try:
            newest = checkpoint.newest(
                self._folder,
                lambda manifest: not (complete and manifest.get("policy_only")),
                ["shared"],  # others wait meanwhile, and a replay would take long
            )
        except OSError:  # out of file descriptors, perhaps
            return None
        return None if newest is None else newest.folder

    def begin(self, iteration: int) -> str:
        """Lets agents write their parts, before `save`; returns why it failed, or ""."""
        try:
            checkpoint.begin(self._folder, iteration)
        except OSError as error:
            return f"{type(error).__name__}: {error}"
        return ""

    def path_of(self, iteration: int) -> Path:
        """Returns the folder of the checkpoint of an iteration."""
        return checkpoint.folder_of(self._folder, iteration)

    def newest(self) -> checkpoint.Checkpoint | None:
        """Returns the newest whole checkpoint of this launch; older ones are of other launches."""
        session = self._stamp["session"]
        # All parts are read, so that all GMIs go on from the same one, whosever part is damaged.
        return checkpoint.newest(self._folder, lambda manifest: manifest.get("session") == session)

    def mend(self) -> None:
        """Clears away, in rank 0, what a killed GMI was writing; call it while nobody writes."""
        if self._group.rank == 0:
            checkpoint.mend(self._folder)

    def check_epoch(self) -> None:
        """Raises CheckpointError if this host was taken for lost, and others have gone on."""
        if not self._epoch:
            return
        run_file = self._folder.parent / "run.json"
        epoch = json.loads(run_file.read_text(encoding="utf-8")).get("epoch", 0)
        if epoch > self._epoch:
            raise CheckpointError(
                f"{run_file} has epoch {epoch}, and this host is in epoch {self._epoch}: it was "
                "taken for lost, and others have gone on. It writes nothing more of this run."
            )

    def _try_on_all(self, action: Callable[[], object], failure: str = "") -> tuple[str, bool]:
        """Does `action` on every GMI; returns why it failed here, and whether it failed anywhere.

        With a `failure` it counts as failed here, and is not begun.
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

    A part fits a GMI with as many environments in the same template. That of a GMI without any
    holds what the others sample, and fits where all of them are the same.
    """
    is_of_template = found.manifest.get("template") == layout.template
    saved_gmis, gmis = found.manifest["gmis"] if is_of_template else [], gmis_of(layout)
    return [
        gmi_id
        for gmi_id, num_env in gmis
        if [gmi_id, num_env] not in saved_gmis or (num_env == 0 and saved_gmis != gmis)
    ]
