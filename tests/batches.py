"""Batches of experience for tests, as if a policy that differs a little had sampled them."""

import torch

from gmi_drl.roles.algorithms import algorithm_class
from gmi_drl.roles.algorithms.algorithm import Algorithm
from gmi_drl.roles.algorithms.ppo import PPO
from gmi_drl.roles.optimizers.learner import Learner
from gmi_drl.roles.policies.actor_critic import ActorCriticPolicy
from gmi_drl.roles.policies.normalize import Normalizers
from gmi_drl.roles.samples.batch import Batch, RowLayout
from gmi_drl.roles.samples.collector import Collector
from gmi_drl.roles.samples.frames import Observed


def algorithm_of(network, settings, normalizers=None, loss=None):
    """The algorithm of `settings` for a network, by default without normalisers."""
    cls = algorithm_class(settings)
    policy = cls.make_policy(network, settings)
    return cls(settings, policy, normalizers or Normalizers(None, None), loss)


def learner_of(network, settings, batch=None, normalizers=None, loss=None, **how):
    """A learner that is not connected; `how`: see Learner."""
    generator = how.pop("generator", None) or torch.Generator().manual_seed(0)
    return Learner(algorithm_of(network, settings, normalizers, loss), generator, batch, **how)


def batch_for(network, settings, steps, num_env, observed, device="cpu"):
    """The buffers of a horizon, for the algorithm of `settings`; `observed`: see Batch.allocate."""
    cls = algorithm_class(settings)
    policy = cls.make_policy(network, settings)
    return Batch.allocate(
        steps, num_env, observed, policy, torch.device(device),
        filled=cls.filled, recorded=cls.recorded, bootstrap=("value", "observation"),
    )  # fmt: skip


def collector_of(env, network, settings, normalizers=None, *, horizon, **changes):
    """A collector of `env` into a batch of its own."""
    width = env.observation_space.shape[0]
    values = {"gamma": 0.9, "reward_scale": 1.0, "bootstrap_time_limit": True}
    values = {name: changes.pop(name, value) for name, value in values.items()}
    algorithm = algorithm_of(network, settings.model_copy(update=values), normalizers)
    observed = Observed.of(env, width, algorithm)
    batch = batch_for(network, settings, horizon, env.num_env, observed, env.device)
    return Collector(env, algorithm, batch, **changes)


def row_layout_of(obs_dim, distribution):
    """Where the parts of PPO's rows stand."""
    policy = ActorCriticPolicy(_Bare(distribution))
    widths = {"observation": obs_dim, "action": policy.action_columns, **policy.columns}
    return RowLayout(widths | {"advantage": 0, "ret": 0}, policy.column_groups)


class _Bare:
    log_std = torch.zeros(0)

    def __init__(self, distribution):
        self.distribution = distribution


class _Plain(PPO):
    """PPO on rows that are taken as they are: advantages and returns are in them."""

    num_batch_moments = 0
    postprocess = Algorithm.postprocess


def learner_of_rows(network, rows, row_layout, settings, loss=None, **how):
    """A learner of PPO's minibatches from `rows` [B, width], and the batch to `update` it with."""
    old_log_std = how.pop("old_log_std", None)
    log_std = network.log_std.detach().clone() if old_log_std is None else old_log_std
    batch = Batch(row_layout.views(rows[None]), {}, {"log_std": log_std}, rows[None], row_layout)
    algorithm = _Plain(settings, ActorCriticPolicy(network), Normalizers(None, None), loss)
    generator = how.pop("generator", None) or torch.Generator().manual_seed(0)
    return Learner(algorithm, generator, batch, **how), batch
