"""What GMIs do in tests of SAC and TD3; imported by name in their processes."""

from types import SimpleNamespace

import numpy as np
import torch
from gymnasium import spaces

from batches import algorithm_of
from gmi_drl.comm import Group
from gmi_drl.placement import SACConfig, TD3Config
from gmi_drl.roles.algorithms import algorithm_class
from gmi_drl.roles.optimizers.learner import Learner
from gmi_drl.roles.samples.batch import Batch

WIDTH, ACTION, CHOICES, ROWS = 3, 2, 4, 12
SHARED = {"network": [16, 16], "learning_rate": 1e-2, "gamma": 0.9, "tau": 0.25}
BOX = spaces.Box(-1.0, 1.0, (ACTION,))
KINDS = {
    "sac": (SACConfig, {}, BOX),
    "sac_fixed": (SACConfig, {"temperature": 0.3, "critics": 3}, BOX),
    "sac_choices": (SACConfig, {}, spaces.Discrete(CHOICES)),
    "td3": (TD3Config, {"max_grad_norm": 0.1, "critic_learning_rate": 3e-2}, BOX),
}


def env_of(action_space):
    """What a network is made for."""
    observation_space = spaces.Box(-np.inf, np.inf, (WIDTH,))
    return SimpleNamespace(
        observation_space=observation_space, action_space=action_space, structure=None
    )


def algorithm(kind, **settings):
    """An algorithm whose target networks are others than those that are trained."""
    cls, its, space = KINDS[kind]
    settings = cls(**SHARED, **its, **settings)
    generator = torch.Generator().manual_seed(1)
    network = algorithm_class(settings).make_network(settings, env_of(space), generator)
    made = algorithm_of(network, settings)
    with torch.no_grad():
        for parameter in (*network.parameters(), *made.target.parameters()):
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return made


def rows_of(made, seed=2, rows=ROWS):
    """A minibatch [rows], as a replay would draw it."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    action = normal(rows, ACTION).clamp(-1, 1)
    if made.policy.action_columns == 1:
        action = torch.randint(0, CHOICES, (rows, 1), generator=generator).float()
    over = torch.rand(rows, generator=generator) < 0.3
    return Batch(
        {
            "observation": normal(rows, WIDTH), "next_observation": normal(rows, WIDTH),
            "action": action, "reward": normal(rows),
            "discount": torch.where(over, 0.0, 0.9),
            "noise": normal(rows, made.loss_noise_columns),
        }
    )  # fmt: skip


def connected(made, group: Group):
    learner = Learner(made, torch.Generator().manual_seed(0))
    learner.connect(group)
    return learner


def steps_on_a_part(group: Group, kind, count):
    """The parameters after one step on this rank's part of minibatches, then those after all steps
    and the target's."""
    made = algorithm(kind)
    learner = connected(made, group)
    after_one = None
    for number in range(count):
        whole, part = rows_of(made, 10 + number), slice(group.rank, None, group.size)
        learner.step(Batch({name: column[part] for name, column in whole.columns.items()}))
        if after_one is None:
            after_one = learner.parameters.data.detach().clone().numpy()
    target = torch.cat([one.flatten() for one in made.target.parameters()])
    return after_one, learner.parameters.data.detach().numpy(), target.numpy()
