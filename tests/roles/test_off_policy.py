"""SAC, TD3 and DDPG: their losses, who takes which step, how they explore, what they refuse."""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch.distributions import Independent, Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform

import bodies_off_policy as bodies
from gmi_drl.comm import solo_group
from gmi_drl.placement import (
    ConfigError,
    DDPGConfig,
    SACConfig,
    TD3Config,
    Topology,
    check,
    load_config,
)
from gmi_drl.roles.algorithms import algorithm_class
from gmi_drl.roles.algorithms.sac import SAC
from gmi_drl.roles.algorithms.td3 import TD3
from gmi_drl.roles.envs import EnvSpecError
from gmi_drl.roles.errors import CheckpointError, RoleError
from gmi_drl.roles.optimizers.parameter_groups import GroupedDescent
from gmi_drl.roles.policies.flat_parameters import FlatParameters
from gmi_drl.roles.policies.normalize import Normalizers
from gmi_drl.roles.policies.off_policy import (
    SampledChoicePolicy,
    SquashedNormalPolicy,
    uniform,
)
from ranks import run_ranks


def weights(module):
    return torch.cat([one.detach().flatten() for one in module.parameters()])


def gradients(made, total):
    """The gradient of each parameter, by name; 0 where the loss does not depend on it."""
    named = dict(made.policy.network.named_parameters())
    found = torch.autograd.grad(total, list(named.values()), allow_unused=True)
    return {
        name: torch.zeros_like(parameter) if its is None else its
        for (name, parameter), its in zip(named.items(), found, strict=True)
    }


def squashed(out):
    """The distribution of actions, by torch's own."""
    mean, log_std = out.chunk(2, -1)
    normal = Normal(mean, log_std.clamp(-20, 2).exp())
    return Independent(TransformedDistribution(normal, TanhTransform()), 1)


# The losses, written out by the papers' formulas, each part differentiated by itself --------------


def sac_written_out(made, batch):
    """The gradients of Haarnoja et al. (2018, equations 5, 9 and 18), part by part."""
    network, target, alpha = made.policy.network, made.target, made._temperature
    after, now = batch["noise"].chunk(2, -1)

    def acted(observation, noise):
        out = network.actor(observation)
        mean, log_std = out.chunk(2, -1)
        action = torch.tanh(mean + log_std.clamp(-20, 2).exp() * noise)
        return action, squashed(out).log_prob(action)

    with torch.no_grad():
        action, log_prob = acted(batch["next_observation"], after)
        values = [critic(batch["next_observation"], action)[:, 0] for critic in target.critics]
        soft = torch.stack(values).min(0).values - alpha * log_prob
        goal = batch["reward"] + batch["discount"] * soft
    errors = [
        critic(batch["observation"], batch["action"])[:, 0] - goal for critic in network.critics
    ]
    of_critics = gradients(made, sum(0.5 * (error**2).mean() for error in errors))
    action, log_prob = acted(batch["observation"], now)
    values = [critic(batch["observation"], action)[:, 0] for critic in network.critics]
    of_actor = gradients(made, (alpha * log_prob - torch.stack(values).min(0).values).mean())
    wanted = {name: of_critics[name] for name in of_critics if name.startswith("critics")}
    wanted |= {name: of_actor[name] for name in of_actor if name.startswith("actor")}
    if network.log_temperature is not None:
        surplus = -log_prob.detach() - made._target_entropy
        wanted["log_temperature"] = surplus.mean().reshape(1)
    return wanted, sum(error.detach().abs() for error in errors) / len(errors)


@pytest.mark.parametrize("kind", ["sac", "sac_fixed"])
def test_each_part_of_sac_has_the_gradient_of_its_own_loss(kind):
    made = bodies.algorithm(kind)
    batch = bodies.rows_of(made)
    given = made.losses(batch)
    wanted, priorities = sac_written_out(made, batch)
    found = gradients(made, given.total)
    assert found.keys() == wanted.keys()
    for name in found:
        torch.testing.assert_close(found[name], wanted[name], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(given.extras["priorities"], priorities)
    assert all(p.requires_grad for p in made.policy.network.parameters())


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_values_may_be_differentiated_by_the_action_in_a_loss_of_ones_own(precision):
    made = bodies.algorithm("sac", precision=precision)
    batch = bodies.rows_of(made)
    action = batch["action"].requires_grad_()
    whole = made.policy.network.values(batch["observation"], action)
    (by_action,) = torch.autograd.grad(whole.sum(), action)
    _, worth = made.policy.network.values_of_both(batch["observation"], action.detach(), action)
    (wanted,) = torch.autograd.grad(worth.sum(), action)
    torch.testing.assert_close(by_action, wanted)
    assert by_action.any()


def test_sac_of_choices_is_the_expectation_over_them():
    made = bodies.algorithm("sac_choices")
    batch, network, alpha = bodies.rows_of(made), made.policy.network, made._temperature
    assert made._target_entropy == pytest.approx(0.98 * math.log(bodies.CHOICES))
    critic_loss = actor_loss = surplus = 0.0
    for row in range(bodies.ROWS):
        at = {name: column[row : row + 1] for name, column in batch.columns.items()}
        with torch.no_grad():
            probs = network.actor(at["next_observation"]).softmax(-1)[0]
            each = [critic(at["next_observation"])[0] for critic in made.target.critics]
            soft = sum(
                probs[a] * (min(float(q[a]) for q in each) - alpha * probs[a].log())
                for a in range(bodies.CHOICES)
            )
            goal = at["reward"] + at["discount"] * soft
        taken = int(at["action"])
        for critic in network.critics:
            critic_loss += 0.5 * (critic(at["observation"])[0, taken] - goal[0]) ** 2
        probs = network.actor(at["observation"]).softmax(-1)[0]
        each = [critic(at["observation"])[0].detach() for critic in network.critics]
        for a in range(bodies.CHOICES):
            worth = min(float(q[a]) for q in each)
            actor_loss += probs[a] * (alpha * probs[a].log() - worth)
            surplus -= float((probs[a] * probs[a].log()).detach())
    found = gradients(made, made.losses(batch).total)
    wanted = gradients(made, (critic_loss + actor_loss) / bodies.ROWS)
    for name in found:
        if name != "log_temperature":
            torch.testing.assert_close(found[name], wanted[name], rtol=1e-4, atol=1e-6)
    temperature = surplus / bodies.ROWS - made._target_entropy
    assert float(found["log_temperature"]) == pytest.approx(temperature, rel=1e-4)


def test_td3_smooths_its_target_and_its_actor_follows_the_first_critic():
    made = bodies.algorithm("td3", policy_delay=1, target_noise=0.4, target_noise_clip=0.3)
    batch, network, target = bodies.rows_of(made), made.policy.network, made.target
    given = made.losses(batch)
    with torch.no_grad():
        noise = torch.clamp(0.4 * batch["noise"], -0.3, 0.3)
        action = (target.actor(batch["next_observation"]).tanh() + noise).clamp(-1, 1)
        values = [critic(batch["next_observation"], action)[:, 0] for critic in target.critics]
        goal = batch["reward"] + batch["discount"] * torch.minimum(*values)
    loss = sum(
        0.5 * ((critic(batch["observation"], batch["action"])[:, 0] - goal) ** 2).mean()
        for critic in network.critics
    )
    of_critics = gradients(made, loss)
    chosen = network.actor(batch["observation"]).tanh()
    of_actor = gradients(made, -network.critics[0](batch["observation"], chosen).mean())
    found = gradients(made, given.total)
    for name, gradient in found.items():
        wanted = (of_critics if name.startswith("critics") else of_actor)[name]
        torch.testing.assert_close(gradient, wanted, rtol=1e-4, atol=1e-6)


def test_ddpg_is_td3_with_one_critic_no_smoothing_and_no_delay():
    ddpg = DDPGConfig()
    assert (ddpg.critics, ddpg.target_noise, ddpg.policy_delay) == (1, 0.0, 1)
    assert issubclass(algorithm_class(ddpg), TD3)
    made = bodies.algorithm("td3", critics=1, target_noise=0.0, policy_delay=1)
    assert made.loss_noise_columns == 0
    assert made.losses(bodies.rows_of(made)).groups == ("actor", "critics")


def test_a_row_counts_as_much_as_its_weight():
    made = bodies.algorithm("sac")
    batch = bodies.rows_of(made)
    plain = made.losses(batch)
    weight = torch.zeros(bodies.ROWS)
    weight[3] = bodies.ROWS
    batch.columns["weight"] = weight
    weighed = made.losses(batch)
    alone = bodies.rows_of(made)
    alone = type(alone)({name: column[3:4] for name, column in alone.columns.items()})
    of_one = made.losses(alone).stats["critic_loss"]
    torch.testing.assert_close(weighed.stats["critic_loss"], of_one)
    assert torch.equal(weighed.extras["priorities"], plain.extras["priorities"])


def test_what_was_seen_where_an_episode_ended_counts_for_nothing():
    for kind in ("sac", "sac_choices", "td3"):
        made = bodies.algorithm(kind)
        batch = bodies.rows_of(made)
        wanted = made.losses(batch).stats["critic_loss"]
        batch["next_observation"][batch["discount"] == 0.0] = torch.nan
        torch.testing.assert_close(made.losses(batch).stats["critic_loss"], wanted)


# The step ----------------------------------------------------------------------------------------


def test_an_actor_that_is_not_due_keeps_its_parameters_moments_and_target():
    made = bodies.algorithm("td3", policy_delay=3)
    learner = bodies.connected(made, solo_group())
    actor, target = weights(made.policy.network.actor), weights(made.target)
    for update in range(1, 8):
        before = weights(made.policy.network.critics)
        learner.step(bodies.rows_of(made, update))
        now, target_now = weights(made.policy.network.actor), weights(made.target)
        assert not torch.equal(before, weights(made.policy.network.critics))
        assert torch.equal(now, actor) == (update % 3 != 0)
        if update % 3 == 0:
            trained = torch.cat([now, weights(made.policy.network.critics)])
            torch.testing.assert_close(target_now, target + 0.25 * (trained - target))
        else:
            assert torch.equal(target_now, target)
        actor, target = now, target_now
    steps = {name: its["state"][0]["step"] for name, its in learner.descent.state_dict().items()}
    assert {name: float(count) for name, count in steps.items()} == {"actor": 2, "critics": 7}


def test_groups_have_their_own_rate_and_clipping():
    made = bodies.algorithm("td3", policy_delay=1)
    learner, twin = bodies.connected(made, solo_group()), bodies.algorithm("td3", policy_delay=1)
    settings = made.settings
    parts = {"actor": 1e-2, "critics": 3e-2}
    adams = {
        name: torch.optim.Adam(getattr(twin.policy.network, name).parameters(), lr=rate, eps=1e-8)
        for name, rate in parts.items()
    }
    for update in range(3):
        learner.anneal(0.0)
        learner.step(bodies.rows_of(made, update))
        loss = twin.losses(bodies.rows_of(twin, update)).total
        loss.backward()
        for name, adam in adams.items():
            its = list(getattr(twin.policy.network, name).parameters())
            torch.nn.utils.clip_grad_norm_(its, settings.max_grad_norm)
            adam.step()
            adam.zero_grad()
        twin.after_step(update + 1)
        torch.testing.assert_close(
            weights(made.policy.network), weights(twin.policy.network), rtol=1e-4, atol=1e-6
        )
    assert learner.descent.learning_rate == pytest.approx(1e-2)
    learner.descent.learning_rate = 5e-3
    assert learner.descent.read_beside(torch.zeros(1)) == pytest.approx([0.0, 5e-3])


def test_a_parameter_without_a_group_is_named():
    made = bodies.algorithm("sac")
    made.policy.network.extra = torch.nn.Parameter(torch.zeros(3))
    with pytest.raises(RoleError, match="parameters extra are in none of the groups actor, critic"):
        bodies.connected(made, solo_group())


@pytest.mark.parametrize(
    ("rates", "said"),
    [
        ({"trunk": 1e-3}, "parameters head.bias, head.weight are in none of the groups trunk"),
        ({"trunk": 1e-3, "head": 1e-3, "head.bias": 1e-3}, "parameters head.bias are in several"),
        ({"trunk": 1e-3, "head": 1e-3, "mind": 1e-3}, "the network has no parameters of mind"),
        ({"trunk": 0.0, "head": 1e-3}, r"learning_rates\['trunk'\]=0.0; must be more than 0"),
    ],
)
def test_groups_that_are_none_are_told(rates, said):
    layers = {"trunk": torch.nn.Linear(2, 3), "head": torch.nn.Linear(3, 1)}
    parameters = FlatParameters(torch.nn.ModuleDict(layers))
    with pytest.raises(RoleError, match=said):
        GroupedDescent(parameters, SACConfig(), rates)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sac", "sac_choices", "td3"])
def test_gmis_with_a_part_each_take_the_steps_of_one_with_all(kind):
    alone = bodies.steps_on_a_part(solo_group(), kind, 5)
    one, other = run_ranks(bodies.steps_on_a_part, 2, kind, 5)
    for mine, its, whole in zip(one, other, alone, strict=True):
        assert np.array_equal(mine, its)
        np.testing.assert_allclose(mine, whole, rtol=1e-3, atol=1e-5)
    if kind != "td3":
        np.testing.assert_allclose(one[0], alone[0], rtol=0, atol=1e-6)  # after one step


@pytest.mark.parametrize("kind", ["sac", "td3"])
def test_steps_that_are_gone_on_with_give_the_same_bits(kind):
    def go_on(learner, first):
        for update in range(first, first + 3):
            learner.step(bodies.rows_of(learner.algorithm, update))
        return learner.parameters.data.detach().clone(), weights(learner.algorithm.target)

    whole = bodies.connected(bodies.algorithm(kind), solo_group())
    go_on(whole, 0)
    resumed = bodies.connected(bodies.algorithm(kind), solo_group())
    resumed.load_state_dict(whole.state_dict())
    for one, other in zip(go_on(whole, 3), go_on(resumed, 3), strict=True):
        assert torch.equal(one, other)


def test_a_rate_of_a_group_that_was_changed_is_gone_on_with():
    """As where a member of a population goes on from another's checkpoint."""
    saved = bodies.connected(bodies.algorithm("td3"), solo_group())
    saved.descent.learning_rate *= 0.5  # as a schedule has it
    made = bodies.algorithm("td3")
    made.settings = made.settings.model_copy(update={"critic_learning_rate": 7e-2})
    resumed = bodies.connected(made, solo_group())
    resumed.load_state_dict(saved.state_dict())
    state = resumed.descent.state_dict()
    rates = {name: float(its["param_groups"][0]["lr"]) for name, its in state.items()}
    assert rates == pytest.approx({"actor": 5e-3, "critics": 3.5e-2})


def test_a_checkpoint_of_other_groups_is_refused():
    learned = bodies.connected(bodies.algorithm("sac"), solo_group())
    fixed = bodies.connected(bodies.algorithm("sac_fixed"), solo_group())
    with pytest.raises(CheckpointError, match="groups actor, critics, log_temperature"):
        fixed.descent.load_state_dict(learned.descent.state_dict())


# Acting ------------------------------------------------------------------------------------------


def test_the_log_probability_of_a_squashed_action_is_that_of_torch_also_far_out():
    generator = torch.Generator().manual_seed(0)
    out = 1.5 * torch.randn(500, 4, generator=generator, dtype=torch.float64)
    noise = torch.randn(500, 2, generator=generator, dtype=torch.float64)
    action, log_prob, *_ = SquashedNormalPolicy.samples(out, noise, len(out))
    keep = action.abs().max(-1).values < 1 - 1e-9  # beyond, torch's inverse of tanh has no digits
    assert keep.sum() > 450
    torch.testing.assert_close(
        log_prob[keep], squashed(out).log_prob(action)[keep], rtol=1e-5, atol=1e-5
    )
    far = torch.tensor([[40.0, -40.0, 0.0, 0.0]])
    assert torch.isfinite(SquashedNormalPolicy.samples(far, torch.zeros(1, 2), 1)[1]).all()


def act(made, at_random, rows=20_000, width=None):
    """The actions of a policy in one and the same state."""
    made.before_sampling(0 if at_random else made.settings.random_steps)
    policy = made.policy
    generator = torch.Generator().manual_seed(4)
    step = {
        "observation": torch.ones(rows, bodies.WIDTH),
        "noise": torch.randn(rows, policy.noise_columns, generator=generator),
        "action": torch.zeros(rows, policy.action_columns),
    }
    with torch.no_grad():
        return policy.act(step).clone()


def test_actions_are_uniform_at_first():
    for kind in ("sac", "td3"):
        actions = act(bodies.algorithm(kind), at_random=True)
        shares = torch.histc(actions[:, 0], 10, -1.0, 1.0) / len(actions)
        torch.testing.assert_close(shares, torch.full((10,), 0.1), rtol=0, atol=0.01)
    choices = act(bodies.algorithm("sac_choices"), at_random=True)
    shares = torch.bincount(choices[:, 0].long(), minlength=bodies.CHOICES) / len(choices)
    torch.testing.assert_close(shares, torch.full((bodies.CHOICES,), 0.25), rtol=0, atol=0.02)
    assert float(uniform(torch.tensor([-50.0, 50.0])).abs().max()) == 1.0


def test_then_they_are_the_actors_with_noise():
    made = bodies.algorithm("td3", action_noise=0.05)
    mode = made.policy.mode(torch.ones(1, bodies.WIDTH))[0].detach()
    found = act(made, at_random=False)
    torch.testing.assert_close(found.mean(0), mode, rtol=0, atol=0.01)
    torch.testing.assert_close(found.std(0), torch.full((bodies.ACTION,), 0.05), rtol=0, atol=0.005)
    made = bodies.algorithm("sac_choices")
    found = act(made, at_random=False)[:, 0].long()
    wanted = made.policy.network(torch.ones(1, bodies.WIDTH)).softmax(-1)[0].detach()
    shares = torch.bincount(found, minlength=bodies.CHOICES) / len(found)
    torch.testing.assert_close(shares, wanted, rtol=0, atol=0.02)
    assert int(made.policy.mode(torch.ones(1, bodies.WIDTH))) == int(wanted.argmax())


# What they refuse --------------------------------------------------------------------------------


def test_sac_takes_the_one_action_that_there_is():
    settings = SACConfig(network=[4])
    network = SAC.make_network(settings, bodies.env_of(spaces.Discrete(1)), None)
    policy = SAC.make_policy(network, settings)
    assert isinstance(policy, SampledChoicePolicy)
    made = SAC(settings, policy, Normalizers(None, None))
    rows = bodies.rows_of(made)
    rows["action"].zero_()
    assert made.losses(rows).total.isfinite()


@pytest.mark.parametrize(
    ("settings", "space", "message"),
    [
        (SACConfig(), spaces.Box(-np.inf, np.inf, (2,)), "sac takes Discrete, or a Box with bou"),
        (SACConfig(), spaces.MultiBinary(3), "sac takes Discrete"),
        (TD3Config(), spaces.Discrete(3), "td3 takes a Box with bounds"),
        (DDPGConfig(), spaces.Box(0.0, np.inf, (2,)), "ddpg takes a Box with bounds"),
    ],
)
def test_actions_that_they_cannot_take_are_refused(settings, space, message):
    with pytest.raises(EnvSpecError, match=message):
        algorithm_class(settings).make_network(settings, bodies.env_of(space), None)


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        ({"name": "sac", "optimizer": "all_reduce"}, "runs under replay"),
        ({"name": "ddpg", "temperature": 0.1}, "temperature"),
    ],
)
def test_what_they_cannot_be_told_is_said(algorithm, message):
    section = {"version": 1, "env": {"id": "Pendulum-v1"}, "algorithm": algorithm}
    with pytest.raises(ConfigError, match=message):
        load_config(section)


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        (
            {"name": "sac", "n_step": 20, "replay_capacity": 15, "replay_start": 1},
            "n_step=20 steps",
        ),
        ({"name": "td3", "replay_start": 500, "replay_capacity": 100}, "below replay_capacity"),
    ],
)
def test_what_could_never_be_is_a_fault(algorithm, message):
    section = {"version": 1, "env": {"id": "Pendulum-v1"}, "algorithm": algorithm}
    (fault,) = check(load_config(section), Topology.from_cores(range(2)))
    assert message in str(fault)


def test_a_network_of_a_roles_own_has_an_actor_and_critics():
    env = bodies.env_of(bodies.BOX)
    settings = SACConfig()
    SAC.check_network(SAC.make_network(settings, env, None), "mine", bodies.WIDTH, env, settings)
    with pytest.raises(Exception, match="no actor and no critics"):
        SAC.check_network(torch.nn.Linear(3, 2), "mine", bodies.WIDTH, env, settings)
