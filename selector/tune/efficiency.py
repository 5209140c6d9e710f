"""Predicts how soon a candidate learns: how fast it is, and what it learns of a sample.

Goodput = throughput x statistical efficiency (Qiao et al., Pollux, OSDI 2021, eq. 1), with the
efficiency of a batch by the gradient noise scale (McCandlish et al. 2018, eq. 2.11: E / E_min = 1 +
B / B_noise samples are needed). The batch of an on-policy algorithm is its update, which one policy
has sampled (Beukman et al. 2026).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from .candidate import Answer, Candidate, Measured


@dataclass(frozen=True)
class Prediction:
    """Predicts with an update of the config as given, and its gradient noise scale, in samples."""

    own_samples: int
    noise_scale: float | None  # None: not known, and taken to be as large as `own_samples`

    def efficiency(self, samples: int) -> float:
        """Returns what an update of `samples` learns of one, of what one of `own_samples` does."""
        noise = self.noise_scale or self.own_samples
        return (1 + self.own_samples / noise) / (1 + samples / noise)

    def goodput(self, candidate: Candidate, steps_per_s: float) -> float:
        """Returns the steps/s, in updates of `own_samples`, that a candidate's are worth."""
        return steps_per_s * self.efficiency(candidate.samples)

    def as_goodput(self, answer: Answer, candidate: Candidate) -> Answer:
        """Returns a measurement with goodput for its throughput; other answers as they are."""
        if not isinstance(answer, Measured):
            return answer
        return replace(answer, steps_per_s=self.goodput(candidate, answer.steps_per_s))


def rivals(
    worth: Mapping[Candidate, float], winner: Candidate, unsure: float
) -> Sequence[Candidate]:
    """Lists those that goodput does not tell from the winner's, the best first.

    It tells apart what differs by more than the factor `unsure`.
    """
    least = worth[winner] / unsure
    others = [one for one in worth if one != winner and worth[one] >= least]
    return sorted(others, key=lambda one: worth[one], reverse=True)
