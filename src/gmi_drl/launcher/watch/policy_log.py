"""Records every version of the policy in the control store: what it was computed from."""

from __future__ import annotations

import json
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

from gmi_drl import runtime
from gmi_drl.gmi import Gang
from gmi_drl.placement import Config, Layout
from gmi_drl.runtime.gcs.database import SQLITE_ERRORS, open_to_read
from gmi_drl.runtime.gcs.tables import BranchRow, EventRow, PolicyRow, Row, branch_id, policy_id

_RECENT: Final = 1000  # versions; a checkpoint may be told of when later ones are known
# What roles tell of a version, beside the group's generation, and of a branch, beside the last
# versions before it.
_POLICY_KEYS: Final = {"version", "updates", "steps", "lag", "experience", "replay", "made_s"}
_BRANCH_KEYS: Final = {"generation", "version", "board", "restored", "optimizer", "began_s"}
GMI_DIED: Final = "gmi died"  # the kind of an event, of subject `process_id`


def process_id(session: str, gmi_id: int, process: int) -> bytes:
    """Returns the id of a GMI's process: the one after `process` others of that launch."""
    return bytes.fromhex(session)[:8] + gmi_id.to_bytes(4, "big") + process.to_bytes(4, "big")


class PolicyLog:
    """Takes lineage out of the records of a run, and puts it into the store, ten times a second.

    On several hosts one GMI of each reports every version in order, so that what a lost host has
    not reported is known from the others.

    A branch begins where training begins, is taken up again, or goes back to an earlier version:
    its rows replace none of those before it.
    """

    def __init__(
        self,
        store: Path | None,
        session: str,
        config: Config,
        layout: Layout,
        earlier: PolicyLog | None = None,
    ) -> None:
        """`store`: that of the run; None where it is not the run's own, so that nothing is kept.

        `earlier`: of the layout before, whose rows may still be on their way into the store.
        """
        self._session, self._is_on = session, store is not None and config.run.lineage > 0
        self._layout = json.dumps(
            {
                "template": layout.template,
                "gmis": [
                    [gmi.gmi_id, gmi.gpu_id, "+".join(gmi.roles), gmi.num_env]
                    for gmi in layout.gmis
                ],
            }
        )
        self._branches: dict[int, int] = {}  # their numbers, by the group's generation
        self._rows: list[Row] = []
        self._recent: dict[bytes, PolicyRow] = {}  # the last ones
        self._newest: dict[int, int] = {}  # version of each branch, or the one it goes on from
        self._next = 0
        if self._is_on:
            assert store is not None
            self._next = _next_branch(store) if earlier is None else earlier._next
            runtime.bound_rows(PolicyRow, config.run.lineage)

    def show(self, record: dict[str, Any]) -> None:
        """Takes the lineage out of a record, and keeps it."""
        kind = record.get("kind")
        lineage = record.pop("lineage", None) if kind in ("iteration", "lineage") else None
        if not self._is_on:
            return
        if kind == "branch" and record.keys() >= {*_BRANCH_KEYS, "last"}:
            for lineage in record["last"]:
                self._put(lineage)
            self._begin(record)
        elif kind in ("iteration", "lineage"):
            self._put(lineage)
        elif kind == "checkpoint" and record.keys() >= {"iteration", "path"}:
            for row in reversed(self._recent.values()):
                if record["iteration"] == row.version:
                    self._recent[row.id] = row = row._replace(checkpoint=str(record["path"]))
                    self._rows.append(row)
                    return

    def tick(self, gang: Gang) -> None:
        """Puts what has come together into the store."""
        self.flush()

    def died(self, gmi_id: int, process: int, how: str) -> None:
        """Records that a GMI's process died."""
        if self._is_on:
            subject = process_id(self._session, gmi_id, process)
            text = f"gmi {gmi_id}, process {process}, {how}"
            self._rows.append(EventRow(time.time(), GMI_DIED, subject, text))

    def flush(self) -> None:
        """Puts all that has come into the store, and waits for nothing."""
        if self._rows:
            rows, self._rows = self._rows, []
            runtime.record_rows(rows)

    def _begin(self, record: dict[str, Any]) -> None:
        generation = record["generation"]
        if generation in self._branches:
            return
        number = self._branches[generation] = self._next
        self._newest[number] = record["version"]
        self._next += 1
        told = {key: record[key] for key in _BRANCH_KEYS}
        id, session = branch_id(number), self._session
        row = BranchRow(id=id, number=number, session=session, layout=self._layout, **told)
        self._rows.append(row)

    def _put(self, policy: Any) -> None:
        if not isinstance(policy, dict) or not policy.keys() >= {*_POLICY_KEYS, "generation"}:
            return  # a role of the user's may report anything
        branch, version = self._branches.get(policy["generation"]), policy["version"]
        if branch is None:  # its record was lost: the launcher did not keep up
            return
        if version <= self._newest[branch]:  # told again by `branch`, or by another host
            return
        self._newest[branch], id = version, policy_id(branch, version)
        told = {key: policy[key] for key in _POLICY_KEYS}
        row = self._recent[id] = PolicyRow(id=id, branch=branch, **told)
        self._rows.append(row)
        while len(self._recent) > _RECENT:
            del self._recent[next(iter(self._recent))]


def _next_branch(store: Path) -> int:
    """Returns the number after those of the branches in a store; 0 if it cannot be read."""
    with suppress(runtime.GcsError, *SQLITE_ERRORS), closing(open_to_read(store)) as opened:
        (last,) = opened.execute("SELECT max(number) FROM branches").fetchone()
        return 0 if last is None else int(last) + 1
    return 0
