"""Asynchronous training in one process: an agent whose policy is a given number of updates old."""

from collections import deque

import torch

from batches import collector_of, learner_of
from gmi_drl.comm import solo_group
from gmi_drl.placement import hidden_sizes, load_config
from gmi_drl.roles.envs import make_env
from gmi_drl.roles.evaluators.evaluate import evaluate_together
from gmi_drl.roles.policies.actor_critic import ActorCritic, distribution_for, observation_width
from gmi_drl.roles.policies.flat_parameters import FlatParameters, PublishedPolicy
from gmi_drl.roles.policies.normalize import Normalizers


def environments(config, num_env, seed):
    return make_env(
        config.env.id,
        num_env,
        seed=seed,
        adapter=config.env.adapter,
        max_episode_steps=config.env.max_episode_steps,
        options=config.env.options,
    )


def train(config, lag, eval_episodes=20, watch=None):
    """Greedy evaluation return after `run.total_steps` with a policy lag of `lag` updates."""
    settings, seed = config.algorithm, config.run.seed
    env = environments(config, config.env.num_env, seed)
    width = observation_width(env.observation_space)

    def new_policy():
        return ActorCritic(
            width, distribution_for(env.action_space), hidden_sizes(settings.network),
            settings.activation, settings.init_log_std, torch.Generator().manual_seed(seed),
        )  # fmt: skip

    policy, normalizers = new_policy(), Normalizers.of(settings, width)
    own = torch.Generator().manual_seed(seed + 1)
    learner = learner_of(policy, settings, normalizers=normalizers, generator=own)
    learner.connect(solo_group())
    behind = PublishedPolicy(learner.parameters, normalizers)
    behaviour, its = new_policy(), Normalizers.of(settings, width)
    acting = PublishedPolicy(FlatParameters(behaviour), its)
    collector = collector_of(
        env, behaviour, settings, its,
        horizon=settings.horizon, gamma=settings.gamma, reward_scale=settings.reward_scale,
        bootstrap_time_limit=settings.bootstrap_time_limit, generator=own,
    )  # fmt: skip
    segment = settings.horizon * config.env.num_env
    published = deque(maxlen=lag + 1)
    for update in range(-(-config.run.total_steps // segment)):
        published.append(torch.empty(behind.numel))
        behind.write(published[-1])
        acting.load(published[0])
        collector.collect(update)
        learner.anneal(update * segment / config.run.total_steps)
        learner.update(collector.batch)
        stats = learner.stats()
        if watch is not None:
            watch(update, stats, collector)
    env.close()
    if not eval_episodes:
        return None
    env = environments(config, eval_episodes, seed + 10_000)
    group = solo_group()
    found = evaluate_together(
        env, learner.algorithm.policy, normalizers.observations, group, lambda: False, lambda: None
    )
    env.close()
    return found["eval_return"]


def config_of(env, algorithm, **run):
    return load_config({"version": 1, "run": run, "env": env, "algorithm": algorithm})
