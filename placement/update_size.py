"""Says what an update of a config is: its samples, and those of a gradient step."""

from __future__ import annotations

from dataclasses import dataclass

from .config.config import Config
from .layout import Layout


@dataclass(frozen=True)
class UpdateSize:
    """The samples of an update, over all GMIs that train, and how they are cut."""

    trainers: int  # GMIs whose samples are trained on
    samples: int  # steps of environments that an update is made of
    minibatch: int  # samples of a gradient step
    gradient_steps: int  # in which each sample is used once; of a replay, those of a round

    @classmethod
    def of(cls, config: Config, layout: Layout) -> UpdateSize:
        """Returns that of a config that trains, on its layout."""
        algorithm, trainers = config.algorithm, len(layout.holding("trainer"))
        samples = config.env.num_env * algorithm.horizon * config.experience.batch_segments
        if algorithm.sends_gradients:  # and each is an update
            samples = config.env.num_env * algorithm.horizon
            return cls(trainers, samples, samples, len(layout.holding("agent")))
        parts = trainers
        if config.mode == "sync":  # of one or more agents each
            samples = sum(gmi.num_env for gmi in layout.gmis) // trainers
            if len(layout.gmis) == trainers:  # what is left out is all that a GMI has
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
        """Tells whether there are two gradients to compare: of two GMIs, or two minibatches."""
        return self.trainers > 1 or self.gradient_steps > 1
