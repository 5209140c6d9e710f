"""Computes the size of a config's update: its samples, and those of a gradient step."""

from __future__ import annotations

from dataclasses import dataclass

from .config.config import Config
from .layout import Layout


@dataclass(frozen=True)
class UpdateSize:
    """Holds the samples of an update, over all training GMIs, and of its minibatches."""

    trainers: int  # GMIs whose samples are trained on
    samples: int  # steps of environments that an update is made of
    minibatch: int  # samples of a gradient step
    gradient_steps: int  # in one pass over the samples; of a replay, in a round

    @classmethod
    def of(cls, config: Config, layout: Layout) -> UpdateSize:
        """Returns the size of an update of a training config on its layout."""
        algorithm, trainers = config.algorithm, len(layout.holding("trainer"))
        samples = config.env.num_env * algorithm.horizon * config.experience.batch_segments
        if algorithm.sends_gradients:  # and each is an update
            samples = config.env.num_env * algorithm.horizon
            return cls(trainers, samples, samples, len(layout.holding("agent")))
        parts = trainers
        if config.mode == "sync":  # of one or more agents each
            samples = sum(gmi.num_env for gmi in layout.gmis) // trainers
            if len(layout.gmis) == trainers:  # then a dropped agent is a whole GMI
                parts -= algorithm.dropped_agents
            else:
                samples -= algorithm.dropped_agents * config.env.num_env
            samples *= algorithm.horizon
        return cls(
            trainers=parts,
            samples=samples * parts,
            minibatch=algorithm.minibatch_size(samples) * parts,
            gradient_steps=algorithm.gradient_steps(samples),
        )

    @property
    def has_noise_scale(self) -> bool:
        """Tells whether there are gradients of two GMIs or two minibatches to compare."""
        return self.trainers > 1 or self.gradient_steps > 1
