"""What trainers tell each other after an iteration of asynchronous training. Collective.

One gather: whether to stop, the episodes and times that came with the segments, how old these
were, what became of all segments, and how far each trainer is with each agent. The last is what a
trainer that is killed now must know to train on nothing twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from gmi_drl.comm import Group
from gmi_drl.comm.experience import BatchCounts, ExperienceBatch
from gmi_drl.placement import Layout
from gmi_drl.roles.evaluators.async_agent import STATS, STATS_FIELD

from .progress import EpisodeWindow

Marks = dict[int, tuple[int, ...]]  # by agent: see Batcher.trained

_PHASES: Final = ("wait", "train", "reduce")
_AGENT_PHASES: Final = ("simulate", "infer", "send")
_FATES: Final = ("trained", "stale", "incomplete", "missing", "repeated")
_MARK: Final = 6  # numbers of a mark


@dataclass(frozen=True)
class AsyncAgreement:
    """What all trainers know after an iteration."""

    stop: bool  # somebody was asked to
    metrics: dict[str, Any]
    gmi_seconds: list[dict[str, float]]  # of each GMI of the layout
    marks: dict[int, Marks]  # by trainer


class AsyncProgress:
    """Merges what trainers saw. `samples`: steps of one segment times its environments."""

    def __init__(self, layout: Layout, samples: int) -> None:
        self._layout, self._samples = layout, samples
        self._agents = [gmi.gmi_id for gmi in layout.holding("agent")]
        self._trainers = [gmi.gmi_id for gmi in layout.holding("trainer")]
        self._window = EpisodeWindow()
        self._rates = dict.fromkeys(self._agents, 0.0)  # predictions a second of each agent

    def connect(self, group: Group) -> None:
        """Make the bucket; again after the group was re-formed."""
        own = 1 + 3 + len(_PHASES) + 2 + len(_FATES)
        each = 1 + len(_AGENT_PHASES) + _MARK
        self._bucket = group.bucket("progress", own + each * len(self._agents), torch.float64)

    def agree(
        self,
        batch: ExperienceBatch,
        version: int,
        phases: Sequence[float],
        counts: BatchCounts,
        marks: Marks,
        stop: bool,
    ) -> AsyncAgreement:
        """Merge what this trainer did with `batch` with what the others did.

        `version` is the policy's that was trained; `counts` and `marks` include the batch.
        """
        stats = batch.per_segment[STATS_FIELD].tolist()
        lags = [version - segment.policy_version for segment in batch.segments]
        episodes = [sum(row[i] for row in stats) for i in range(3)]
        fates = [getattr(counts, fate) for fate in _FATES]
        mine = [float(stop), *episodes, *phases, float(sum(lags)), float(max(lags)), *fates]
        for agent in self._agents:
            its = [r for r, s in zip(stats, batch.segments, strict=True) if s.gmi_id == agent]
            first = STATS.index("simulate_s")
            mine += [len(its), *(sum(row[first + i] for row in its) for i in range(3))]
            mine += marks.get(agent, (-1, -1, *([0] * (_MARK - 2))))
        self._bucket.buffer.copy_(torch.tensor(mine, dtype=torch.float64))
        rows = self._bucket.gather().tolist()
        return self._merged(rows, len(batch.segments))

    def _merged(self, rows: list[list[float]], segments: int) -> AsyncAgreement:
        sums = [sum(column) for column in zip(*rows, strict=True)]
        self._window.add(*sums[1:4])
        return_mean, length_mean = self._window.means()
        at = 4 + len(_PHASES)
        trainer_seconds = [dict(zip(_PHASES, row[4:at], strict=True)) for row in rows]
        fates = dict(zip(_FATES, map(int, sums[at + 2 :]), strict=False))
        start, each = at + 2 + len(_FATES), 1 + len(_AGENT_PHASES) + _MARK
        agent_seconds, marks = [], [Marks() for _ in rows]
        for place, agent in enumerate(self._agents):
            begin = start + place * each
            count, *spent = sums[begin : begin + 1 + len(_AGENT_PHASES)]
            agent_seconds.append(dict(zip(_AGENT_PHASES, spent, strict=True)))
            if sum(spent):
                self._rates[agent] = count * self._samples / sum(spent)
            for row, its in zip(rows, marks, strict=True):
                its[agent] = tuple(map(int, row[begin + each - _MARK : begin + each]))
        wall = max(sum(seconds.values()) for seconds in trainer_seconds)
        trained = segments * len(rows) * self._samples
        metrics = {
            "steps_per_s": trained / wall,
            "return_mean": return_mean,
            "length_mean": length_mean,
            "episodes": int(sums[1]),
            "policy_lag_mean": sums[at] / (segments * len(rows)),
            "policy_lag_max": max(row[at + 1] for row in rows),
            "predictions_per_s": sum(self._rates.values()),
            "training_samples_per_s": trained / wall,
            **{f"segments_{fate}": number for fate, number in fates.items()},
            **_means(_AGENT_PHASES, agent_seconds),
            **_means(_PHASES, trainer_seconds),
        }
        of = dict(zip(self._agents, agent_seconds, strict=True))
        of |= dict(zip(self._trainers, trainer_seconds, strict=True))
        return AsyncAgreement(
            bool(sums[0]),
            metrics,
            [of[gmi.gmi_id] for gmi in self._layout.gmis],
            dict(zip(self._trainers, marks, strict=True)),
        )

    def state_dict(self) -> list[list[float]]:
        return self._window.state_dict()

    def load_state_dict(self, state: list[list[float]]) -> None:
        self._window.load_state_dict(state)


def _means(phases: Sequence[str], seconds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {f"{phase}_s": sum(s[phase] for s in seconds) / len(seconds) for phase in phases}
