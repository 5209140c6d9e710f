"""Predicts how soon a candidate learns: how fast it is, and what it learns of a sample.

Goodput = throughput x statistical efficiency (Qiao et al., Pollux, OSDI 2021, eq. 1). The batch of
an on-policy algorithm is its update, which one policy has sampled (Beukman et al. 2026). Its size
costs what a gradient noise scale says (McCandlish et al. 2018, eq. 2.11: E / E_min = 1 + B /
B_noise samples are needed), and a horizon shorter than advantages look ahead costs the part of
their weights that lies beyond it.

The noise scale is taken as two of the config's own updates, and not measured: on five of six tasks
that told what PPO lost by larger updates better than the noise scale of their gradients, which is a
twentieth of an update on one and thirteen updates on another (docs/tuning.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from .candidate import Candidate

# In updates of the config as given, which is taken to be written for updates about as large. One
# that is given is bounded, as it moves by more than a hundred times within a run.
_USUAL_NOISE: Final = 2.0
_LEAST_NOISE: Final = 1.0
_MOST_NOISE: Final = 8.0
_MOST_DECAY: Final = 0.9999  # what does not decay: shares are as the horizons


@dataclass(frozen=True)
class Prediction:
    """Predicts by an update of the config as given, and a gradient noise scale, in samples."""

    own_samples: int
    own_horizon: int
    noise_scale: float | None = None  # of a run; None: as usual, two updates of the config
    decay: float = 0.0  # of an advantage's weights, gamma x lambda of GAE; 0: it looks one step

    @property
    def used_noise(self) -> float:
        """Returns the noise scale; a run's between one and eight of the config's own updates."""
        if self.noise_scale is None:
            return _USUAL_NOISE * self.own_samples
        least, most = _LEAST_NOISE * self.own_samples, _MOST_NOISE * self.own_samples
        return min(max(self.noise_scale, least), most)

    def efficiency(self, samples: int, horizon: int) -> float:
        """Returns what such an update learns of a sample, of what the config's own does."""
        noise = self.used_noise
        size = (1 + self.own_samples / noise) / (1 + samples / noise)
        seen = seen_share(horizon, self.decay) / seen_share(self.own_horizon, self.decay)
        return size * min(seen, 1.0)

    def of(self, candidate: Candidate) -> float:
        """Returns the efficiency of a candidate."""
        return self.efficiency(candidate.samples, candidate.horizon)

    def goodput(self, steps_per_s: float, samples: int, horizon: int) -> float:
        """Returns steps/s of such updates, as of the config's own: time to a return is over it."""
        return steps_per_s * self.efficiency(samples, horizon)


def seen_share(horizon: int, decay: float) -> float:
    """Returns the share of an advantage's weights that falls on steps within the horizon.

    Of GAE, whose weights are decay^l (Schulman et al. 2016, eq. 16), as the mean over the steps of
    a segment: of the t-th of T steps it is 1 - decay^(T - t).
    """
    decay = min(decay, _MOST_DECAY)
    return 1 - decay * (1 - decay**horizon) / (horizon * (1 - decay))


def rivals(
    worth: Mapping[Candidate, float], winner: Candidate, unsure: float
) -> Sequence[Candidate]:
    """Lists those that goodput does not tell from the winner's, the best first.

    It tells apart what differs by more than the factor `unsure`.
    """
    least = worth[winner] / unsure
    others = [c for c in worth if c != winner and worth[c] >= least]
    return sorted(others, key=lambda c: worth[c], reverse=True)
