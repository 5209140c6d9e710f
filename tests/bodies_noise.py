"""Training on gradients whose noise scale is known; imported by name in processes of GMIs.

The loss is the mean of w . x over samples x, so that a sample's gradient is x itself, whatever the
parameters are: G is the mean of x, and Sigma its covariance.
"""

from types import SimpleNamespace

import torch
from torch import nn

from gmi_drl.placement import ActorCriticConfig
from gmi_drl.placement.config.algorithms import DQNConfig
from gmi_drl.roles.algorithms.algorithm import Algorithm, Losses
from gmi_drl.roles.optimizers.learner import Learner
from gmi_drl.roles.optimizers.replay import OnReplay
from gmi_drl.roles.policies.normalize import Normalizers
from gmi_drl.roles.samples.batch import Batch, RowLayout
from gmi_drl.roles.samples.replay import Limiter, ReplayBuffer, Storage, UniformSampler

WIDTH, DEVIATION, MEAN = 64, 2.0, 0.25
NOISE_SCALE = WIDTH * DEVIATION**2 / (WIDTH * MEAN**2)  # tr(Sigma) / |G|^2 = 64 samples
STEPS, ENVS = 8, 32  # of a GMI's batch: 256 samples
ROWS = RowLayout({"observation": WIDTH}, {})


class Slope(Algorithm):
    """Rows, or what a replay has kept. `factors` multiply the losses, one after the other."""

    def __init__(self, settings, factors=()):
        network = nn.Linear(WIDTH, 1, bias=False)
        nn.init.zeros_(network.weight)
        super().__init__(settings, SimpleNamespace(network=network), Normalizers(None, None))
        self.factors = list(factors)

    def losses(self, batch):
        factor = self.factors.pop(0) if self.factors else 1.0
        return Losses(factor * self.policy.network(batch["observation"]).mean())


class SegmentSlope(Slope):
    whole_segments = True
    capturable = False
    segment_fields = ("reward",)

    def losses(self, batch):
        return super().losses(Batch({"observation": batch["observations"][:-1]}))


def batch_of_rows():
    rows = torch.zeros(STEPS, ENVS, ROWS.width)
    return Batch(ROWS.views(rows), {}, {}, rows, ROWS)


def samples(generator):
    """What environments brought [STEPS, ENVS, WIDTH]."""
    return MEAN + DEVIATION * torch.randn(STEPS, ENVS, WIDTH, generator=generator)


class Trains:
    """A learner and its samples of each update; `kind`: rows, segments or replay."""

    def __init__(self, kind="rows", group=None, factors=(), seed=0, updates_per_row=0.02, **how):
        generator = torch.Generator().manual_seed(seed)
        self.kind, self.drawn = kind, torch.Generator().manual_seed(100 + seed)
        places = {name: how.pop(name) for name in ("static", "pool") if name in how}
        if kind == "replay":
            algorithm = Slope(DQNConfig(batch_size=64), factors)
            limiter = Limiter(0, updates_per_row)
            device, shape = torch.device("cpu"), (STEPS, ENVS, WIDTH)
            batch = Batch({"raw_observation": torch.zeros(shape)})
            storage = Storage(batch, ["raw_observation"], 16_384, device)
            sampler = UniformSampler(storage.places, device)
            replay = ReplayBuffer(storage, sampler, limiter, 64, generator)
            self.learner = Learner(algorithm, generator)
            self._update = OnReplay(self.learner, replay).update
        else:
            keys = {"minibatches": 4, "epochs": 1, "schedule": "constant"} | how
            algorithm = (Slope if kind == "rows" else SegmentSlope)(
                ActorCriticConfig(**keys), factors
            )
            self.batch = batch_of_rows() if kind == "rows" else None
            self.learner = Learner(algorithm, generator, self.batch, **places)
            self._update = self.learner.update
        if group is not None:
            self.learner.connect(group)

    def update(self):
        """Trains on new samples; returns what the learner reports."""
        seen = samples(self.drawn)
        if self.kind == "rows":
            self.batch["observation"].copy_(seen)
            batch = self.batch
        else:
            last = {"observation": seen[-1]}
            batch = Batch({"raw_observation": seen, "reward": torch.zeros(STEPS, ENVS)}, last)
        self._update(batch)
        return self.learner.stats()


def noise_scales(group, kind, updates):
    """The noise scale after each of some updates."""
    trains = Trains(kind, group, seed=group.rank)
    return [trains.update()["noise_scale"] for _ in range(updates)]
