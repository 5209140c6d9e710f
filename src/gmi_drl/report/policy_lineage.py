"""Answers what a version of the policy was computed from, and what became of experience.

A branch is a part of a training: it begins where training begins, is taken up from a checkpoint, or
goes back behind a GMI's death. The versions of the present policy lie on one chain of branches; one
that is on none of these was undone.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from gmi_drl.launcher.view.tables import cut
from gmi_drl.launcher.watch.policy_log import GMI_DIED, process_id
from gmi_drl.runtime.gcs.database import GcsError, WrongValue, find, scan
from gmi_drl.runtime.gcs.tables import BranchRow, EventRow, PolicyRow, policy_id

PREFIX: Final = "policy@"
_WHERE: Final = "docs/lineage.md"
_MOST_TEXT: Final = 300  # characters of what a row says


@dataclass(frozen=True)
class Version:
    """Names a version: of several with one number the branch tells which."""

    branch: int
    number: int

    @property
    def id(self) -> bytes:
        """Returns the id of its row."""
        return policy_id(self.branch, self.number)

    def __str__(self) -> str:
        return f"{PREFIX}{self.number}"


@dataclass(frozen=True)
class UsedExperience:
    """Describes experience that one process of a GMI gave to one trainer."""

    trainer: int  # gmi_id
    gmi_id: int
    process: int  # the processes that were this GMI before it in that launch
    sampled_with: Version | None  # None: it is not recorded
    behind: int  # versions that it was sampled before the policy it was used on
    parts: int  # segments, gradients or directions
    steps: int  # of environments


@dataclass(frozen=True)
class ReplayUse:
    """Describes the replay that one trainer has drawn from."""

    trainer: int  # gmi_id
    rows: int
    oldest: int  # the version whose round put its oldest row in
    minibatches: int


@dataclass(frozen=True)
class PolicyRecord:
    """Says what one version was computed from."""

    version: Version
    previous: Version | None  # None: the initial weights, or those of another run
    first_update: int | None  # of its optimizer; None: the version before is not recorded
    last_update: int
    steps: int  # of environments, by then
    lag: int  # the most updates that experience was behind
    samples: tuple[UsedExperience, ...]
    replays: tuple[ReplayUse, ...]
    optimizer: str
    layout: dict[str, Any]
    restored: str  # of the first of its branch: the checkpoint that this goes on from, or "peers"
    checkpoint: str
    made_s: float
    undone: bool  # training went back behind it


@dataclass
class Contribution:
    """Sums up what one process of a GMI has given."""

    gmi_id: int
    process: int
    session: str
    versions: int = 0
    first: int = 0
    last: int = 0
    parts: int = 0
    steps: int = 0
    most_behind: int = 0
    died: str = ""  # how, if it did

    def add(self, number: int, sample: UsedExperience) -> None:
        """Counts what it gave to a version; in the order of versions."""
        if not self.versions:
            self.first = number
        self.versions += self.last != number
        self.last = number
        self.parts += sample.parts
        self.steps += sample.steps
        self.most_behind = max(self.most_behind, sample.behind)


@dataclass
class Killed:
    """Lists the versions that saw data of a GMI's process that died."""

    gmi_id: int
    process: int
    session: str
    how: str
    parts: int = 0
    steps: int = 0
    versions: list[list[int]] = field(default_factory=list)  # [first, last] of each piece


class PolicyReader:
    """Answers questions about policies from one store."""

    def __init__(self, store: sqlite3.Connection) -> None:
        self._store = store
        rows = sorted(scan(store, BranchRow), key=lambda row: row.number)
        if not rows or not store.execute("SELECT 1 FROM policies LIMIT 1").fetchone():
            raise GcsError(
                "no version of the policy is recorded: run.lineage was 0, nothing was trained yet, "
                "or a role of the user's trains it. "
                f"What is recorded is in {_WHERE}; ask for a run that has some."
            )
        # A runtime that launches several runs has them all in the store of the last one.
        # Within one launch a branch from nothing is of GMIs that died before the first checkpoint.
        before = [None, *(row.session for row in rows)]
        begins = [
            row.number
            for row, session in zip(rows, before, strict=False)
            if not (row.generation or row.restored) and row.session != session
        ]
        first = max(begins, default=0)
        self._branches = {row.number: row for row in rows if row.number >= first}
        self._parents: dict[int, Version | None] = {}
        self._last = Version(rows[-1].number, self._newest_version(rows[-1].number))

    def find(self, text: str) -> Version:
        """Finds the version that `policy@N` names; GcsError says why there is none."""
        if re.fullmatch(rf"{PREFIX}\d{{1,15}}", text) is None:
            raise GcsError(
                f"{text!r}: not a version of the policy. Write policy@N, N iterations: "
                f"{self._last} is the last one."
            )
        number = int(text.removeprefix(PREFIX))
        if number == 0:
            raise GcsError(f"{text}: the initial weights, by run.seed, are computed from nothing.")
        on_chain = number <= self._last.number
        version = self._resolve(self._last.branch, number) if on_chain else None
        if version is not None and self._row(version) is not None:
            return version
        (min_id,) = self._store.execute("SELECT min(id) FROM policies").fetchone()
        if version is not None and min_id is not None and version.id < min_id:
            oldest = Version(int.from_bytes(min_id[:8], "big"), int.from_bytes(min_id[8:], "big"))
            raise GcsError(
                f"{text}: flushed. The control store keeps the newest versions, as many as "
                f"run.lineage says, here from {oldest} on. Ask for one of these; a run that shall "
                "keep more is launched with a larger run.lineage."
            )
        for branch in sorted(self._branches, reverse=True):  # it may have been undone
            if self._row(Version(branch, number)) is not None:
                return Version(branch, number)
        if on_chain:
            raise GcsError(
                f"{text}: not recorded, though {self._last} is: the launcher was killed or did not "
                "keep up, or the run goes on from another one's checkpoint."
            )
        raise GcsError(f"{text}: not made yet; {self._last} is the last one. Ask for one up to it.")

    def policy(self, version: Version) -> PolicyRecord | None:
        """Returns what a version was computed from; None if it is not recorded."""
        row = self._row(version)
        return None if row is None else self._policy(row)

    def chain(self, after: int = 0) -> Iterator[PolicyRecord]:
        """Yields the versions that the present policy has gone through, the oldest first."""
        pieces: list[tuple[int, int, int]] = []
        version: Version | None = self._last
        while version is not None and version.number > after:
            first_version = self._branches[version.branch].version
            pieces.append((version.branch, max(first_version, after), version.number))
            version = self._parent(version.branch)
        for branch, first, last in reversed(pieces):
            yield from map(self._policy, self._rows_between(branch, first, last))

    def contributions(self, gmi_id: int, after: int = 0) -> list[Contribution]:
        """Sums up, by process, what a GMI has given to the versions after one."""
        gmi_ids = {gmi[0] for row in self._branches.values() for gmi in _layout_of(row)["gmis"]}
        if gmi_id not in gmi_ids:
            ids = ", ".join(map(str, sorted(gmi_ids)))
            raise GcsError(f"GMI {gmi_id}: this run's layout has none such. It has GMIs {ids}.")
        deaths, sums = self._deaths(), dict[tuple[str, int], Contribution]()
        for policy in self.chain(after):
            session = self._branches[policy.version.branch].session
            for sample in policy.samples:
                if sample.gmi_id == gmi_id:
                    key = session, sample.process
                    died = deaths.get(process_id(session, gmi_id, sample.process), "")
                    sums.setdefault(
                        key, Contribution(gmi_id, sample.process, session, died=died)
                    ).add(policy.version.number, sample)
        return list(sums.values())

    def killed(self) -> list[Killed]:
        """Lists, for each process of a GMI that died, the versions that saw its data.

        Of a run with a replay these are the ones that drew from a replay with its data in it.
        """
        by_process = {
            id: Killed(
                gmi_id=int.from_bytes(id[8:12], "big"),
                process=int.from_bytes(id[12:], "big"),
                session=id[:8].hex(),
                how=how,
            )
            for id, how in self._deaths().items()
        }
        stored: dict[tuple[bytes, int], int] = {}  # by process and trainer: the last version
        for policy in self.chain():
            number, session = policy.version.number, self._branches[policy.version.branch].session
            seen = set()
            for sample in policy.samples:
                id = process_id(session, sample.gmi_id, sample.process)
                if id in by_process:
                    seen.add(id)
                    by_process[id].parts += sample.parts
                    by_process[id].steps += sample.steps
                    stored[id, sample.trainer] = number
            if policy.replays:
                oldest = {r.trainer: r.oldest for r in policy.replays if r.minibatches}
                floor = number + 1  # what a replay that is gone held, nobody sees
                if policy.optimizer.startswith("tree_search"):  # every replay holds what all put in
                    floor = min(oldest.values(), default=floor)
                seen = {id for (id, t), last in stored.items() if last >= oldest.get(t, floor)}
            for id in seen:
                pieces = by_process[id].versions
                if pieces and pieces[-1][1] == number - 1:
                    pieces[-1][1] = number
                else:
                    pieces.append([number, number])
        return list(by_process.values())

    def longest_lag(self) -> PolicyRecord:
        """Returns the version whose experience was furthest behind: the first of these."""
        longest = max(self.chain(), key=lambda policy: policy.lag, default=None)
        if longest is None:
            raise GcsError(f"no version is recorded yet. {_WHERE} says what is.")
        return longest

    # Versions and branches ----------------------------------------------------------------------

    def _row(self, version: Version) -> PolicyRow | None:
        return find(self._store, PolicyRow, version.id)

    def _rows_between(self, branch: int, first: int, last: int) -> Iterator[PolicyRow]:
        """Yields the rows of a branch after version `first` up to `last`."""
        low, high = Version(branch, first).id.hex(), Version(branch, last).id.hex()
        return scan(self._store, PolicyRow, f"id > x'{low}' AND id <= x'{high}'")

    def _newest_version(self, branch: int) -> int:
        (last,) = self._store.execute(
            "SELECT max(version) FROM policies WHERE id > ? AND id < ?",
            (Version(branch, 0).id, Version(branch + 1, 0).id),
        ).fetchone()
        return self._branches[branch].version if last is None else int(last)

    def _resolve(self, branch: int, number: int) -> Version | None:
        """Finds the version `number` of a branch: its own, or that of one it goes on from.

        None for a version that another run has made.
        """
        while number <= self._branches[branch].version and number > 0:
            parent = self._parent(branch)
            if parent is None:
                return None
            branch = parent.branch
        return Version(branch, number)

    def _parent(self, branch: int) -> Version | None:
        """Finds the version that a branch goes on from; None where this store has none."""
        if branch not in self._parents:
            self._parents[branch] = self._find_parent(self._branches[branch])
        return self._parents[branch]

    def _find_parent(self, branch: BranchRow) -> Version | None:
        earlier = [number for number in self._branches if number < branch.number]
        if not branch.restored or not branch.version or not earlier:
            return None
        if branch.restored != "peers":  # an undone version may have left the newest checkpoint
            (saved,) = self._store.execute(
                "SELECT max(branch) FROM policies WHERE version = ? AND branch < ? "
                "AND checkpoint = ?",
                (branch.version, branch.number, branch.restored),
            ).fetchone()
            if saved is not None and int(saved) in self._branches:
                return Version(int(saved), branch.version)
        return self._resolve(max(earlier), branch.version)

    def _sampled_with(self, branch: BranchRow, number: int) -> Version | None:
        """Finds the version that experience of a branch names by `number`."""
        if branch.board < 0:
            return self._resolve(branch.number, number)
        branches = [
            other
            for other in self._branches.values()
            if other.session == branch.session and other.number <= branch.number
        ]
        for other in reversed(branches):
            if 0 <= other.board <= number:
                return self._resolve(other.number, number - other.board + other.version)
        return None

    def _policy(self, row: PolicyRow) -> PolicyRecord:
        branch = self._branches.get(row.branch)
        if branch is None:
            raise WrongValue(f"policies.branch={row.branch} in a row of it; there is no such one")
        version, used_on = Version(row.branch, row.version), row.version - 1
        is_first = row.version == branch.version + 1
        previous = Version(row.branch, used_on)
        if is_first:
            previous = self._parent(row.branch) or Version(row.branch, used_on)
        parent_row = self._row(previous)
        first_update = None if parent_row is None else 1 + parent_row.updates
        if not previous.number:
            first_update = 1
        if branch.board >= 0:
            used_on += branch.board - branch.version
        samples = tuple(
            UsedExperience(
                trainer, gmi_id, process, self._sampled_with(branch, number),
                behind=used_on - number, parts=parts, steps=steps,
            )
            for trainer, gmi_id, process, number, parts, steps in _numbers_in(row, "experience", 6)
        )  # fmt: skip
        on_chain = row.version <= self._last.number
        return PolicyRecord(
            version=version,
            previous=previous,
            first_update=first_update,
            last_update=row.updates,
            steps=row.steps,
            lag=row.lag,
            samples=samples,
            replays=tuple(ReplayUse(*numbers) for numbers in _numbers_in(row, "replay", 4)),
            optimizer=branch.optimizer,
            layout=_layout_of(branch),
            restored=branch.restored if is_first else "",
            checkpoint=row.checkpoint,
            made_s=row.made_s,
            undone=not on_chain or self._resolve(self._last.branch, row.version) != version,
        )

    def _deaths(self) -> dict[bytes, str]:
        """Returns how each process of a GMI that died did so, by `process_id`."""
        sessions = {bytes.fromhex(row.session)[:8] for row in self._branches.values()}
        rows = scan(self._store, EventRow, f"kind = '{GMI_DIED}'")
        return {
            row.subject: cut(row.text, _MOST_TEXT)
            for row in rows
            if len(row.subject) == 16 and row.subject[:8] in sessions
        }


def _numbers_in(row: PolicyRow, name: str, width: int) -> list[list[int]]:
    """Returns the numbers that a column keeps as JSON; the file may be a stranger's."""
    text = getattr(row, name)
    try:
        rows = json.loads(text) if text else []
        if all(len(numbers) == width and all(type(n) is int for n in numbers) for numbers in rows):
            return list(rows)
    except (ValueError, TypeError, RecursionError):
        pass
    raise WrongValue(f"policies.{name}={text[:80]!r} in a row of it; must be JSON of numbers")


def _layout_of(branch: BranchRow) -> dict[str, Any]:
    try:
        layout = json.loads(branch.layout)
        if isinstance(layout["template"], str) and all(len(gmi) == 4 for gmi in layout["gmis"]):
            return dict(layout)
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    raise WrongValue(f"branches.layout={branch.layout[:80]!r} in a row of it; must be a layout")
