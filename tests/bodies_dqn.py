"""What GMIs do in tests of training on a replay; imported by name in their processes."""

import torch
from gymnasium import spaces

from batches import algorithm_of
from gmi_drl.placement.config.algorithms import DQNConfig
from gmi_drl.roles.algorithms.dqn import DQN
from gmi_drl.roles.optimizers.learner import Learner
from gmi_drl.roles.optimizers.replay import OnReplay
from gmi_drl.roles.policies.normalize import Normalizers, RunningNormalizer
from gmi_drl.roles.policies.q_network import QNetwork
from gmi_drl.roles.samples.batch import Batch, Sequences
from gmi_drl.roles.samples.replay import ReplayBuffer

WIDTH, ACTIONS = 4, 3
CHOICES = spaces.Discrete(ACTIONS)
SETTINGS = DQNConfig(network=[16], target_every=3, learning_rate=1e-2)


def network(its=SETTINGS):
    return QNetwork(WIDTH, ACTIONS, its, torch.Generator().manual_seed(1))


def experience(generator, steps=4, num_env=5, state_columns=0):
    """A batch [steps, num_env] as if a policy had sampled it, with its states if it has some."""
    shape = (steps, num_env)
    done = torch.rand(shape, generator=generator) < 0.2
    action = torch.randint(0, ACTIONS, (*shape, 1), generator=generator)
    batch = Batch(
        {
            "raw_observation": torch.randn(*shape, WIDTH, generator=generator),
            "next_observation": torch.randn(*shape, WIDTH, generator=generator),
            "action": action.float(),
            "reward": torch.randn(shape, generator=generator),
            "discount": torch.zeros(shape),
            "done": done.float(),
            "terminated": done & (torch.rand(shape, generator=generator) < 0.5),
        }
    )
    if state_columns:
        state = torch.randn(num_env, state_columns, generator=generator)
        batch.sequences = Sequences(state, batch["done"])
    return batch


def trains_of(seed, capacity=50, normalizers=None, pool=None, its=SETTINGS, **limits):
    """What an optimizer does with its batches, not connected yet; `pool`: as on a GPU."""
    generator = torch.Generator().manual_seed(seed)
    settings = its.model_copy(
        update={
            "replay_capacity": capacity, "replay_start": limits.get("start", 20),
            "updates_per_row": limits.get("updates_per_row", 0.2), "batch_size": 8,
            "sampler": limits.get("sampler", "uniform"),
        }
    )  # fmt: skip
    its_network = network(its)
    like = experience(torch.Generator(), state_columns=its_network.state_columns)
    replay = ReplayBuffer.of(settings, like, DQN.replayed, generator)
    algorithm = algorithm_of(its_network, its, normalizers)
    learner = Learner(algorithm, generator, pool=pool, static=None if pool is None else True)
    return OnReplay(learner, replay)


def rounds(group, count, sampler="uniform"):
    """What a GMI holds after some rounds: parameters, target, normaliser, and what was counted."""
    seen = RunningNormalizer(WIDTH, clip=10.0)
    trains = trains_of(group.rank, normalizers=Normalizers(seen, None), sampler=sampler)
    trains.learner.connect(group)
    generator = torch.Generator().manual_seed(100 + group.rank)
    for _ in range(count):
        trains.update(experience(generator))
    target = trains.learner.algorithm.target
    return {
        "parameters": trains.learner.parameters.data.detach().numpy(),
        "target": torch.cat([p.flatten() for p in target.parameters()]).numpy(),
        "mean": seen.mean.numpy(),
        "stats": trains.learner.stats(),
        "metrics": trains.metrics(),
    }
