"""What GMIs do in tests of roles; imported by name in their processes."""

import resource

import torch

import gmi_drl
from batches import batch_for, learner_of
from gmi_drl.placement import (
    ALGORITHMS,
    MultiAgentConfig,
    PPOConfig,
    Topology,
    layout_of,
    load_config,
)
from gmi_drl.roles.algorithms.by_policy import by_policy
from gmi_drl.roles.algorithms.ppo import PPO
from gmi_drl.roles.envs import make_env
from gmi_drl.roles.optimizers import make_optimizer
from gmi_drl.roles.optimizers.learner import Learner
from gmi_drl.roles.policies.actor_critic import ActorCritic
from gmi_drl.roles.policies.distributions import Normal
from gmi_drl.roles.policies.flat_parameters import PublishedPolicy
from gmi_drl.roles.policies.normalize import Normalizers, RunningNormalizer
from gmi_drl.roles.role.manager import GMI_manager, GmiContext
from gmi_drl.roles.samples.batch import Batch
from gmi_drl.roles.samples.collector import Collector
from gmi_drl.roles.state.recovery import Snapshots, agree, spread
from gmi_drl.roles.state.saving import Saver

HORIZON, ENVS, OBS, ACTIONS = 8, 12, 5, 3
SETTINGS = PPOConfig(network=[16, 8])


def optimizer_of(group, section):
    """Returns that of a GMI of a group, which trains by a config with this section."""
    config = load_config(section, [f"layout.gmi_per_gpu={group.size}"])
    layout = layout_of(config, Topology.from_cores(range(group.size), 1))
    GMI_manager.bind(GmiContext(group.rank, layout, config, group))
    try:
        role = gmi_drl.Holistic(group.rank, "simulator+agent+trainer", 0)
    finally:
        GMI_manager.bind(None)  # a group of one is in the process of the tests
    optimizer = make_optimizer(role)
    optimizer.connect(group, 0)
    return optimizer


def experience():
    """One iteration of all environments: what a policy that differs a little has sampled."""
    policy = make_policy()
    batch = batch_for(policy, SETTINGS, HORIZON, ENVS, OBS)
    generator = torch.Generator().manual_seed(7)
    batch.rows.normal_(generator=generator)
    batch["raw_observation"].normal_(3.0, 2.0, generator=generator)
    batch["reward"].normal_(generator=generator)
    batch["done"].copy_((torch.rand(HORIZON, ENVS, generator=generator) < 0.1).float())
    batch.bootstrap["value"].normal_(generator=generator)
    flat = batch.flat()
    with torch.no_grad():
        means = policy(flat["observation"])[:, :-1]
        flat["parameters"].copy_(means + 0.1 * flat["parameters"])
        flat["log_prob"].copy_(
            policy.distribution.log_prob(
                flat["parameters"], batch.row_constants["log_std"], flat["action"]
            )
        )
    return batch


def make_policy():
    generator = torch.Generator().manual_seed(0)
    return ActorCritic(OBS, Normal(ACTIONS), [16, 8], "elu", -0.3, generator)


def shard(whole, rank, size):
    """The environments of one GMI."""
    part = batch_for(make_policy(), SETTINGS, HORIZON, ENVS // size, OBS)
    mine = slice(rank * ENVS // size, (rank + 1) * ENVS // size)
    part.rows.copy_(whole.rows[:, mine])
    for name in ("raw_observation", "reward", "done"):
        part[name].copy_(whole[name][:, mine])
    part.bootstrap["value"].copy_(whole.bootstrap["value"][mine])
    return part


def one_iteration(group, spoil=False, static=False):
    """Advantages, normalisers and three updates on this GMI's shard; everything that came of it.

    `spoil`: what one GMI has seen is something else. `static`: as on a GPU.
    """
    batch = shard(experience(), group.rank, group.size)
    if spoil:  # a GMI that trains on something else
        batch["observation"].mul_(1 + group.rank)
    settings = PPOConfig(network=[16, 8], horizon=HORIZON, minibatches=1, epochs=3, kl_target=0.01)
    policy = make_policy()
    values, seen = RunningNormalizer(1, clip=1e9), RunningNormalizer(OBS, clip=10.0)
    generator = torch.Generator().manual_seed(group.rank)
    learner = learner_of(
        policy, settings, batch, Normalizers(seen, values), generator=generator, static=static
    )
    learner.connect(group)
    learner.update(batch)
    stats = learner.stats()
    adam = learner.state_dict()["optimizer"]["state"][0]
    found = {
        "parameters": learner.parameters.data.detach(),
        "first moment": adam["exp_avg"],
        "second moment": adam["exp_avg_sq"],
        "advantages": batch["advantage"],
        "observation mean": seen.mean,
        "observation scale": seen.inv_std,
        "value mean": values.mean,
        "value scale": values.inv_std,
        "learning rate": torch.tensor(stats["learning_rate"]),
        "kl": torch.tensor(stats["kl"]),
    }
    return {name: value.numpy() for name, value in found.items()}


def update_of_two_policies(group, there, static=False):
    """Two updates of dogs and sheep, of this GMI's shard or of all joined; what came of the last.

    All are there in the first. In the last, so many rows of sheep as `there` says of each shard.
    """
    settings = PPOConfig(
        network=[8], horizon=12, minibatches=1, epochs=2, schedule="adaptive", kl_target=1e-3
    )
    two = MultiAgentConfig(policies=("dogs", "sheep"), mapping={"wolf_*": "dogs", "*": "sheep"})
    numbers = [group.rank] if group.size > 1 else range(len(there))
    env = make_env(
        "bodies_agents:Meadow", 2, adapter="pettingzoo", options={"sheep": 1}, multi_agent=two
    )
    algorithms = {}
    for number, its in enumerate(env.groups):
        generator = torch.Generator().manual_seed(number)
        network = PPO.make_network(settings, its, generator)
        normalizers = Normalizers.of(settings, its.observation_space.shape[0])
        algorithms[its.policy] = PPO(settings, PPO.make_policy(network, settings), normalizers)
    algorithm = by_policy(env.groups, algorithms)

    shards = []
    for number in numbers:
        shards.append(_come_and_go(algorithm, env.num_env, 3))
        Collector(env, algorithm, shards[-1], torch.Generator().manual_seed(number)).collect(1)
    joined = _come_and_go(algorithm, env.num_env * len(shards), 3)
    learner = Learner(algorithm, torch.Generator().manual_seed(3), joined, static=static)
    learner.connect(group)
    for last in (False, True):
        for place, rows in zip(
            algorithm.policy.rows(joined["reward"].shape[1]),
            algorithm.policy.rows(env.num_env),
            strict=True,
        ):
            joined.rows[:, place].copy_(torch.cat([shard.rows[:, rows] for shard in shards], 1))
            for name in ("raw_observation", "reward", "done"):
                columns = [shard[name][:, rows] for shard in shards]
                joined[name][:, place].copy_(torch.cat(columns, 1))
            values = [shard.bootstrap["value"][rows] for shard in shards]
            joined.bootstrap["value"][place].copy_(torch.cat(values))
        joined["present"].fill_(True)
        before = _steps_of(learner, "sheep")
        if last:
            sheep = algorithm.policy.rows(joined["reward"].shape[1])[1]
            flags = [
                (torch.arange(settings.horizon * 2) < there[number]).view(settings.horizon, 2)
                for number in numbers
            ]
            joined["present"][:, sheep] = torch.cat(flags, 1)
        learner.update(joined)
        stats = learner.stats()
    found = {f"dogs' {name}": value for name, value in _steps_of(learner, "dogs").items()}
    found |= {f"sheep's {name}": value for name, value in _steps_of(learner, "sheep").items()}
    found |= {f"sheep's {name} before": value for name, value in before.items()}
    found |= {name: torch.tensor(stats[name]) for name in ("kl", "sheep/kl", "learning_rate")}
    return {name: value.numpy() for name, value in found.items()}


def update_of_one_policy(group, there, static=False):
    """An update of agents of one policy, of this GMI's shard or of all joined: its parameters.

    So many rows of each shard are there as `there` says.
    """
    settings = PPOConfig(
        network=[8], horizon=12, minibatches=1, epochs=2, schedule="constant", max_grad_norm=0.5
    )
    numbers = [group.rank] if group.size > 1 else range(len(there))
    env = make_env(
        "bodies_agents:Meadow", 2, adapter="pettingzoo", options={"sheep": 1, "wolves": 0}
    )
    network = PPO.make_network(settings, env, torch.Generator().manual_seed(0))
    normalizers = Normalizers.of(settings, env.observation_space.shape[0])
    algorithm = PPO(settings, PPO.make_policy(network, settings), normalizers)

    shards = []
    for number in numbers:
        shards.append(_come_and_go(algorithm, env.num_env, 2))
        Collector(env, algorithm, shards[-1], torch.Generator().manual_seed(number)).collect(1)
    joined = _come_and_go(algorithm, env.num_env * len(shards), 2)
    joined.rows.copy_(torch.cat([shard.rows for shard in shards], 1))
    for name in ("raw_observation", "reward", "done"):
        joined[name].copy_(torch.cat([shard[name] for shard in shards], 1))
    joined.bootstrap["value"].copy_(torch.cat([shard.bootstrap["value"] for shard in shards]))
    flags = [(torch.arange(settings.horizon * 2) < there[n]).view(-1, 2) for n in numbers]
    joined["present"].copy_(torch.cat(flags, 1))
    learner = Learner(algorithm, torch.Generator().manual_seed(3), joined, static=static)
    learner.connect(group)
    learner.update(joined)
    learned = torch.cat([p.detach().flatten() for p in network.parameters()])
    return learned.numpy(), learner.stats()["kl"]


def _come_and_go(algorithm, num_rows, width):
    """A batch of agents that come and go, whose observations have so many numbers."""
    return Batch.allocate(
        algorithm.settings.horizon, num_rows, width, algorithm.policy, torch.device("cpu"),
        filled=algorithm.filled, bootstrap=algorithm.bootstrap, come_and_go=True,
    )  # fmt: skip


def _steps_of(learner, policy):
    """The parameters of one policy, and the moments of its optimizer."""
    network = learner.algorithm.policy.network[policy]
    parameters = torch.cat([p.detach().flatten() for p in network.parameters()])
    moments = learner.state_dict()["optimizer"][policy]["state"][0]
    return {"parameters": parameters, **{name: its.clone() for name, its in moments.items()}}


def agree_on(group, held):
    """What ranks agree on that hold these iterations: (iteration, source)."""
    kept = Snapshots()
    for iteration in held[group.rank]:
        kept.keep(iteration, {"iteration": iteration})
    return agree(group, kept)


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
    columns = {
        "raw_observation": whole["raw_observation"], "action": whole["action"],
        "log_prob": log_prob, "reward": whole["reward"], "done": whole["done"],
    }  # fmt: skip
    last = 3.0 + whole.bootstrap["value"][mine, None].expand(-1, OBS)
    return Batch({name: c[:, mine] for name, c in columns.items()}, {"observation": last})


def async_updates(group, name="impala", minibatches=1):
    """Three updates on this trainer's share; everything that came of them."""
    settings = ALGORITHMS[name](
        network=[16, 8], epochs=2, minibatches=minibatches, learning_rate=1e-3
    )
    policy, normalizers = make_policy(), Normalizers.of(settings, OBS)
    generator = torch.Generator().manual_seed(group.rank)
    learner = learner_of(policy, settings, normalizers=normalizers, generator=generator)
    learner.connect(group)
    for _ in range(3):
        learner.update(segments_of(group.rank, group.size))
        stats = learner.stats()
        del stats["noise_scale"]  # of one trainer there may be none
    state = learner.state_dict()
    adam = state["optimizer"]["state"][0]
    publisher = PublishedPolicy(learner.parameters, normalizers)
    published = torch.empty(publisher.numel)
    publisher.write(published)
    moments = state["value_normalizer"]["moments"]  # the last ones published, as float64
    found = {
        "published": published[: -moments.nbytes // 4],
        "first moment": adam["exp_avg"],
        "second moment": adam["exp_avg_sq"],
        "observations": state["observation_normalizer"]["moments"],
        "targets": moments,
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
