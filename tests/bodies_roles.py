"""What GMIs do in tests of roles; imported by name in their processes."""

import resource

import torch

from gmi_drl.placement import ALGORITHMS, PPOConfig
from gmi_drl.roles.algorithms.ppo import Learner
from gmi_drl.roles.optimizers.async_learner import AsyncLearner
from gmi_drl.roles.policies.distributions import Normal
from gmi_drl.roles.policies.normalize import Normalizers, RunningNormalizer
from gmi_drl.roles.policies.policy import ActorCritic
from gmi_drl.roles.returns.targets import Targets
from gmi_drl.roles.samples.rollout import Rollout
from gmi_drl.roles.samples.segments import Segments
from gmi_drl.roles.state.recovery import Snapshots, agree, spread
from gmi_drl.roles.state.saving import Saver

HORIZON, ENVS, OBS, ACTIONS = 8, 12, 5, 3


def experience():
    """One iteration of all environments: what a policy that differs a little has sampled."""
    policy = make_policy()
    rollout = Rollout(HORIZON, ENVS, OBS, policy, torch.device("cpu"))
    generator = torch.Generator().manual_seed(7)
    rollout.rows.normal_(generator=generator)
    rollout.raw_observation.normal_(3.0, 2.0, generator=generator)
    rollout.reward.normal_(generator=generator)
    rollout.done.copy_((torch.rand(HORIZON, ENVS, generator=generator) < 0.1).float())
    rollout.last_value.normal_(generator=generator)
    flat, columns = rollout.flat, rollout.columns
    with torch.no_grad():
        means = policy(flat[:, columns.observation])[:, :-1]
        flat[:, columns.parameters] = means + 0.1 * flat[:, columns.parameters]
        flat[:, columns.log_prob] = policy.distribution.log_prob(
            flat[:, columns.parameters], rollout.log_std, flat[:, columns.action]
        )
    return rollout


def make_policy():
    generator = torch.Generator().manual_seed(0)
    return ActorCritic(OBS, Normal(ACTIONS), [16, 8], "elu", -0.3, generator)


def shard(whole, rank, size):
    """The environments of one GMI."""
    part = Rollout(HORIZON, ENVS // size, OBS, make_policy(), torch.device("cpu"))
    mine = slice(rank * ENVS // size, (rank + 1) * ENVS // size)
    for name in ("rows", "raw_observation", "reward", "done"):
        getattr(part, name).copy_(getattr(whole, name)[:, mine])
    part.last_value.copy_(whole.last_value[mine])
    return part


def one_iteration(group, spoil=False, static=False):
    """Targets, normalisers and three updates on this GMI's shard; everything that came of it.

    `static`: as on a GPU.
    """
    rollout = shard(experience(), group.rank, group.size)
    settings = PPOConfig(network=[16, 8], horizon=HORIZON, minibatches=1, epochs=3, kl_target=0.01)
    policy = make_policy()
    value_norm, obs_norm = RunningNormalizer(1, clip=1e9), RunningNormalizer(OBS, clip=10.0)
    targets = Targets(rollout, settings, value_norm, static=static)
    targets.connect(group)
    obs_norm.update(targets.fill())
    learner = Learner(
        policy, rollout.columns, rollout.reward.numel(), settings,
        torch.Generator().manual_seed(group.rank), static=static,
    )  # fmt: skip
    learner.connect(group)
    if spoil:  # a GMI that trains on something else
        rollout.rows.mul_(1 + group.rank)
    learner.update(rollout.flat, rollout.log_std)
    stats = learner.stats()
    adam = learner.state_dict()["optimizer"]["state"][0]
    found = {
        "parameters": learner.parameters.data.detach(),
        "first moment": adam["exp_avg"],
        "second moment": adam["exp_avg_sq"],
        "advantages": rollout["advantage"],
        "observation mean": obs_norm.mean,
        "observation scale": obs_norm.inv_std,
        "value mean": value_norm.mean,
        "value scale": value_norm.inv_std,
        "learning rate": torch.tensor(stats["learning_rate"]),
        "kl": torch.tensor(stats["kl"]),
    }
    return {name: value.numpy() for name, value in found.items()}


def agree_on(group, held):
    """What ranks agree on that hold these iterations: (iteration, source)."""
    kept = Snapshots()
    for iteration in held[group.rank]:
        kept.keep(iteration, {"iteration": iteration})
    found = agree(group, kept)
    return found and (found.iteration, found.source)


def bits_of(numel):
    """Bit patterns of all kinds, NaNs with payloads too."""
    generator = torch.Generator().manual_seed(numel)
    return torch.randint(-(2**31), 2**31, (numel,), dtype=torch.int32, generator=generator).tolist()


def spread_state(group, source, numel):
    """The state of one rank, as every rank receives it: its bits, and the rest."""
    state = None
    if group.rank == source:
        floats = torch.tensor(bits_of(numel), dtype=torch.int32).view(torch.float32)
        state = {"floats": floats, "rest": {"lr": 0.1, "none": None, "list": [1, [2.5, "s"]]}}
    got = spread(group, source, state)
    return got["floats"].view(torch.int32).tolist(), got["rest"]


def segments_of(rank, size):
    """What the environments of one trainer out of `size` brought, from an older policy."""
    whole = experience()
    log_prob = whole["log_prob"] + 0.3 * whole["value"]
    mine = slice(rank * ENVS // size, (rank + 1) * ENVS // size)
    return Segments(
        *(part[:, mine] for part in (
            whole.raw_observation, whole["action"], log_prob, whole.reward, whole.done,
        )),
        3.0 + whole.last_value[mine, None].expand(-1, OBS),
    )  # fmt: skip


def async_updates(group, name="impala", minibatches=1):
    """Three updates on this trainer's share; everything that came of them."""
    settings = ALGORITHMS[name](
        network=[16, 8], epochs=2, minibatches=minibatches, learning_rate=1e-3
    )
    policy, normalizers = make_policy(), Normalizers.of(settings, OBS)
    learner = AsyncLearner(policy, normalizers, settings, torch.Generator().manual_seed(group.rank))
    learner.connect(group)
    for _ in range(3):
        stats, _ = learner.update(segments_of(group.rank, group.size))
    state = learner.state_dict()
    adam = state["optimizer"]["state"][0]
    published = torch.empty(learner.published.numel)
    learner.published.write(published)
    found = {
        "published": published,
        "first moment": adam["exp_avg"],
        "second moment": adam["exp_avg_sq"],
        "observations": state["observation_normalizer"]["moments"],
        "targets": state["value_normalizer"]["moments"],
        "stats": torch.tensor(list(stats.values())),
    }
    return {name: value.numpy() for name, value in found.items()}


def save_with_a_limit(group, run, limited):
    """A checkpoint of two ranks, of which rank `limited` may write little: what each is told."""
    if group.rank == limited:
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (65_536, hard))
    saver = Saver(run, group.rank, group, "now")
    own = {"environments": torch.zeros(100_000)}
    return saver.save(5, own, lambda whole: {"parameters": torch.ones(5)}, {})
