"""Counts what became of the segments of an asynchronous run, at both ends.

    begun = unsent + trained + stale + incomplete + missing + left + unheard

Agents count what they begin to send, in memory that outlives them; trainers count what they were
sent. `unheard` is the rest: a segment of which an agent that was killed had sent nothing yet, one
at most a death. A trainer without peers that is killed forgets what it had settled since its last
checkpoint; that is counted in such memory too (`undone`), and is found as missing, but for what a
killed agent had sent in its life before: that is unheard of as well. Anything else is an error of
this program, and said.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

from gmi_drl.comm.shm.tally import Tally
from gmi_drl.placement import Layout

_STATUSES: Final = ("trained", "stale", "incomplete", "missing", "repeated")


@dataclass(frozen=True)
class SegmentCounts:
    """Segments of one launch, over all GMIs and all their processes."""

    begun: int  # agents began to send them
    sent: int  # whole, as agents know
    lost: int  # given up at the end of the run, when a part was sent
    unsent: int  # given up before any part was
    trained: int  # and in the policy
    stale: int  # older than experience.max_policy_lag
    incomplete: int  # a part came, and the rest never will
    missing: int  # nothing came, or it was undone
    undone: int  # trained on by a trainer without peers, and lost with it
    repeated: int  # given twice to a trainer that was restarted, and not trained on again
    left: int  # came too late for the last update
    unheard: int  # see above
    agent_deaths: int
    at_hand: int  # at most so many were given back and not counted yet when trainers were killed

    @property
    def add_up(self) -> bool:
        """Says whether both ends agree."""
        forgotten = max(0, self.undone + self.at_hand - self.missing)
        return 0 <= self.unheard <= self.agent_deaths + forgotten

    def as_json(self) -> dict[str, Any]:
        """Returns what run.json has."""
        return asdict(self) | {"add_up": self.add_up}

    def __str__(self) -> str:
        parts = [f"{self.begun:,} sent", f"{self.trained:,} trained on"]
        for name in ("stale", "incomplete", "missing", "undone", "repeated", "unheard"):
            if count := getattr(self, name):
                parts.append(f"{count:,} {name}")
        if rest := self.left + self.unsent:
            parts.append(f"{rest:,} left at the end")
        return ", ".join(parts)


def segment_counts_of(
    layout: Layout, tally: Tally, answers: list[Any], batch_segments: int
) -> SegmentCounts | None:
    """Counts by the agents' counters and the trainers' answers; None if these do not say."""
    agents = [tally.row(gmi.gmi_id) for gmi in layout.holding("agent")]
    trained = [answers[gmi.gmi_id] for gmi in layout.holding("trainer")]
    if not trained or not all(isinstance(one, dict) and "experience" in one for one in trained):
        return None
    sent = {name: sum(row[name] for row in agents) for name in ("begun", "sent", "lost", "unsent")}
    statuses = {name: sum(one["experience"][name] for one in trained) for name in _STATUSES}
    trainers = [tally.row(gmi.gmi_id) for gmi in layout.holding("trainer")]
    left = sum(one["experience"]["under_way"] for one in trained)
    known = sum(statuses.values()) - statuses["repeated"] + left + sent["unsent"]
    return SegmentCounts(
        **sent,
        **statuses,
        left=left,
        unheard=sent["begun"] - known,
        undone=sum(row["undone"] for row in trainers),
        agent_deaths=sum(row["lives"] - 1 for row in agents),
        at_hand=batch_segments * sum(row["lives"] - 1 for row in trainers),
    )
