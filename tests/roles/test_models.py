"""Models: their loss by NumPy, LQR's matrices, roll-outs beside real steps, planning, refusals."""

import math
import re
from collections import deque

import gymnasium
import numpy as np
import pytest
import torch

import bodies_models
import bodies_recovery
import faults
import gmi_drl
from gmi_drl import rl
from gmi_drl.placement import CEMConfig, ConfigError, MBPOConfig, Topology, check, load_config
from gmi_drl.roles.algorithms.cem import CEM
from gmi_drl.roles.algorithms.mbpo import MBPO
from gmi_drl.roles.envs import EnvSpecError
from gmi_drl.roles.errors import RoleError, RoleLoadError
from gmi_drl.roles.models.ensemble import EnsembleModel
from gmi_drl.roles.models.fitting import ModelFit
from gmi_drl.roles.models.known import pendulum
from gmi_drl.roles.models.terminations import TERMINATIONS, termination_of
from gmi_drl.roles.optimizers.descent import one_thread
from gmi_drl.roles.policies.normalize import Normalizers
from gmi_drl.roles.policies.planning import PlanningPolicy
from gmi_drl.roles.samples.batch import Batch
from gmi_drl.trained.exporting import export_policy
from run_files import metrics

SMALL = {
    "network": [16], "horizon": 8, "batch_size": 40, "replay_start": 40, "random_steps": 40,
    "replay_capacity": 500, "updates_per_row": 0.5,
}  # fmt: skip
MBPO_KEYS = {
    **SMALL, "ensemble": 3, "elites": 2, "model_network": [8], "model_epochs": 2, "rollouts": 30,
    "rollout_length": 3, "rollouts_kept": 2, "model_every": 50, "real_share": 0.25,
}  # fmt: skip


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def run(parts):
    deque(parts, maxlen=0)


# The model ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_the_loss_is_the_weighted_likelihood_of_the_paper(beta):
    """With 0 it is mbrl-lib's GaussianMLP._nll_loss; written out in NumPy, row by row."""
    model = EnsembleModel(2, 1, 3, [5], generator())
    inputs, targets = (
        torch.randn(4, 3, generator=generator(1)),
        torch.randn(4, 3, generator=generator(2)),
    )
    model.scale_by(inputs, targets)
    found = float(model.loss(inputs.unsqueeze(0), targets, beta).detach())

    def softplus(x):
        return np.log1p(np.exp(x))

    x, y = inputs.double().numpy(), targets.double().numpy()
    x, y = (x - x.mean(0)) / x.std(0), (y - y.mean(0)) / y.std(0)
    weights = [its.detach().double().numpy() for its in model.weights]
    biases = [its.detach().double().numpy() for its in model.biases]
    low, high = np.full(3, -10.0), np.full(3, 0.5)
    total = 0.0
    for m in range(3):
        loss = 0.0
        for row in range(4):
            seen = x[row] @ weights[0][m] + biases[0][m, 0]
            out = (seen / (1 + np.exp(-seen))) @ weights[1][m] + biases[1][m, 0]
            log_variance = high - softplus(high - out[3:])
            log_variance = low + softplus(log_variance - low)
            variance = np.exp(log_variance)
            loss += ((((out[:3] - y[row]) ** 2) / variance + log_variance) * variance**beta).mean()
        total += loss / 4
    assert found == pytest.approx(total + 0.01 * (high - low).sum(), rel=1e-5)


def test_a_linear_model_finds_the_matrices_of_lqr():
    rng = np.random.default_rng(0)
    a = np.eye(3) + 0.1 * rng.standard_normal((3, 3))
    b = rng.standard_normal((3, 2))
    x, u = rng.standard_normal((600, 3)), rng.uniform(-1, 1, (600, 2))
    following, reward = x @ a.T + u @ b.T, x @ np.ones(3)
    inputs = torch.tensor(np.hstack([x, u])).float()
    targets = torch.tensor(np.hstack([following - x, reward[:, None]])).float()
    settings = MBPOConfig(
        ensemble=3, elites=2, model_network=[], model_batch_size=32, model_epochs=60,
        model_learning_rate=1e-2, model_weight_decay=0.0,
    )  # fmt: skip
    draws = generator()
    fit = ModelFit(EnsembleModel(3, 2, 3, [], draws), settings, draws)
    with one_thread():
        run(fit.fit(inputs, targets))
    model, zero = fit.model, torch.zeros(3, 1, 3)
    for best in fit.elites.tolist():
        origin = model.predict(zero, torch.zeros(1, 2))[0][best, 0]
        states = model.predict(torch.eye(3).expand(3, -1, -1), torch.zeros(3, 2))[0][best]
        actions = model.predict(torch.zeros(3, 2, 3), torch.eye(2))[0][best]
        np.testing.assert_allclose((states - origin).T.detach(), a, atol=0.02)
        np.testing.assert_allclose((actions - origin).T.detach(), b, atol=0.02)
    assert fit.error < 1e-3


def test_a_model_goes_on_by_the_settings_of_its_own_run():
    """As where a member of a population goes on from another's checkpoint."""
    saved, resumed = (
        ModelFit(
            EnsembleModel(3, 2, 3, [], generator()),
            MBPOConfig(
                ensemble=3, elites=2, model_network=[], model_epochs=2, model_learning_rate=rate,
                model_weight_decay=decay,
            ),
            generator(),
        )
        for rate, decay in ((1e-3, 1e-4), (1e-2, 0.0))
    )  # fmt: skip
    run(saved.fit(torch.rand(40, 5), torch.rand(40, 4)))
    resumed.load_state_dict(saved.state_dict())
    (group,) = resumed._optimizer.param_groups
    assert (group["lr"], group["weight_decay"]) == (1e-2, 0.0)
    assert len(resumed._optimizer.state) == len(group["params"])  # and with the moments


def test_the_known_pendulum_is_gymnasiums():
    env = gymnasium.make("Pendulum-v1")
    seen, _ = env.reset(seed=1)
    rng = np.random.default_rng(1)
    for _ in range(100):
        action = rng.uniform(-2.5, 2.5, 1).astype(np.float32)
        following, reward, *_ = env.step(action)
        rows = torch.tensor(seen)[None], torch.tensor(action)[None]
        expected, worth = pendulum(*rows)
        np.testing.assert_allclose(expected[0], following, atol=2e-5)
        assert float(worth[0]) == pytest.approx(reward, abs=1e-4)
        seen = following


@pytest.mark.parametrize(
    ("name", "env_id"), [("hopper", "Hopper-v5"), ("inverted_pendulum", "InvertedPendulum-v5")]
)
def test_terminations_are_gymnasiums(name, env_id):
    pytest.importorskip("mujoco")
    env = gymnasium.make(env_id)
    env.action_space.seed(0)
    seen, _ = env.reset(seed=0)
    ended = 0
    for _ in range(300):
        action = env.action_space.sample()
        following, _, over, cut, _ = env.step(action)
        rows = (torch.tensor(its)[None].double() for its in (seen, action, following))
        assert bool(TERMINATIONS[name](*rows)) == over
        ended += over
        seen = env.reset()[0] if over or cut else following
    assert ended


# Roll-outs beside real steps ----------------------------------------------------------------------


def learner_of(env="Pendulum-v1", algorithm=MBPO, keys=MBPO_KEYS, num_env=2, **more):
    its = rl.Evaluator(env=env, algorithm=algorithm, num_env=num_env, settings={**keys, **more})
    return rl.Replay(algorithm, [its])


def test_minibatches_have_their_share_of_real_steps_and_rollouts_end_with_episodes():
    optimizer = learner_of("bodies_models:GmiWalk-v0", termination="bodies_models:halfway")
    for _ in range(20):
        told = optimizer.step()
    source = optimizer._replay._replay
    drawn, keys = source.next()
    real = source._storage.gather(keys)
    assert (len(keys), len(drawn["reward"])) == (10, 40)
    for name, column in real.columns.items():
        torch.testing.assert_close(drawn[name][:10], column)
    made = source._imagined
    over = bodies_models.halfway(None, None, made["next_observation"])
    assert 0 < int(over.sum()) < len(over)
    torch.testing.assert_close(made["discount"], torch.where(over, 0.0, 0.99))
    last = source._made[-1]["raw_observation"]
    assert len(last) < 90  # of 30 roll-outs of 3 steps
    assert told["model_rows"] == len(made["reward"])
    assert np.isfinite(told["model_error"])
    optimizer.close()


@pytest.mark.parametrize("horizon", [1, 4])
def test_beside_others_a_new_model_waits_for_as_many_steps_as_at_the_start(horizon):
    """A GMI that is restarted: the others take updates meanwhile, and so does it."""
    others, restarted = (learner_of(num_env=1, horizon=horizon) for _ in range(2))
    for _ in range(80 // horizon):
        others.step()
    restarted._replay.load_state_dict(others._replay.state_dict())
    source, start = restarted._replay._replay, MBPO_KEYS["replay_start"]
    while len(source) < start:
        assert source._imagined == {}
        told = restarted.step()
        assert told["critic_loss"] is None or math.isfinite(told["critic_loss"])
    assert told["updates"] > 0
    for _ in range(2):  # one of which takes an update
        told = restarted.step()
    assert math.isfinite(told["model_error"])
    assert told["model_rows"] == len(source._imagined["reward"]) > 0
    for optimizer in (others, restarted):
        optimizer.close()


@pytest.mark.parametrize("count", [0, 1])
def test_no_model_is_fitted_to_fewer_than_two_steps_with_numbers(count):
    optimizer = learner_of()
    while not optimizer._replay._replay._imagined:
        optimizer.step()
    source = optimizer._replay._replay
    before, error = source._imagined, source._model.error
    finals = source._storage.gather(torch.arange(len(source)))
    finals["next_observation"][count:] = math.nan
    source._storage.gather = lambda *its: finals
    source._since = MBPO_KEYS["model_every"]
    run(source.fit_model())
    assert source._imagined is before
    assert source._model.error == error
    optimizer.close()


class Peer:
    """A group with one other rank, which brings `answers` to the meetings."""

    def __init__(self, *answers):
        self.answers, self.brought = deque(answers), []

    def exchange(self, value):
        self.brought.append(value)
        return [value, self.answers.popleft()]


def trained_learner():
    optimizer = learner_of()
    while not optimizer._replay._replay._imagined:
        optimizer.step()
    return optimizer


def test_a_model_is_trained_when_that_of_another_gmi_is():
    optimizer = trained_learner()
    source, error = optimizer._replay._replay, optimizer._replay._replay._model.error
    assert not source.model_is_due()
    optimizer._replay._group = group = Peer(1, *[0] * 100)
    optimizer.step()
    assert group.brought[0] == 0
    assert source._model.error != error
    assert source._since == 0
    optimizer.close()


def test_gmis_meet_until_the_models_of_all_are_trained():
    """However long it takes: each part is waited for by itself."""
    optimizer = trained_learner()
    optimizer._replay._group = group = Peer(1, *[1] * 500, 0)
    optimizer.step()
    assert not group.answers
    assert sum(group.brought) < 500  # the other's took longer
    assert group.brought[-1] == 0
    optimizer.close()


def test_steps_that_are_taken_back_count_no_more():
    optimizer = trained_learner()
    source = optimizer._replay._replay
    state, since = optimizer._replay.state_dict(), source._since
    optimizer.step()
    assert source._since == since + 16
    optimizer._replay.load_state_dict(state)
    assert source._since == since
    optimizer.close()


def test_a_planner_learns_beside_a_final_observation_that_is_infinite():
    env = gymnasium.make("Pendulum-v1")
    settings = CEMConfig(normalize_observation=False)
    network = CEM.make_network(settings, env, generator())
    algorithm = CEM(settings, CEM.make_policy(network, settings), Normalizers(None, None))
    columns = {"observation": 3, "next_observation": 3, "action": 1}
    batch = Batch({name: torch.rand(4, width) for name, width in columns.items()})
    batch.columns["reward"] = torch.rand(4)
    batch["next_observation"][0] = math.inf
    batch["next_observation"][1] = math.nan
    assert algorithm.losses(batch).total.isfinite()


def test_an_episode_that_ends_where_none_should_is_told():
    optimizer = learner_of("bodies_models:GmiWalk-v0")
    with pytest.raises(RoleError, match=r"algorithm\.termination=never.*module:function"):
        run(iter(optimizer.step, None))  # until one does
    optimizer.close()


def launch(folder, total, algorithm, gmis=1, **options):
    config = {
        "version": 1, "env": {"id": "Pendulum-v1", "num_env": 2},
        "run": {"folder": str(folder), "total_steps": total, "eval_episodes": 2},
        "algorithm": algorithm, "comm": {"checksum_every": 1},
        "hardware": {"num_gpus": 1}, "layout": {"template": "tcg_ex", "gmi_per_gpu": gmis},
    }  # fmt: skip
    return gmi_drl.launch(config, view="none", **options)


@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_a_resumed_run_learns_bit_for_bit_what_one_does_that_was_not_stopped(tmp_path):
    settings = {**MBPO_KEYS, "name": "mbpo"}
    whole, part = launch(tmp_path, 160, settings), launch(tmp_path, 80, settings)
    more = ["run.total_steps=160"]
    resumed = gmi_drl.launch(resume=part.folder, overrides=more, view="none")
    learned = []
    for result in (whole, resumed):
        newest = max((result.folder / "checkpoints").iterdir())
        learned.append(torch.load(newest / "shared.pt", weights_only=True)["parameters"])
    assert torch.equal(*learned)


@pytest.mark.slow
@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("name", ["mbpo", "cem"])
def test_a_gmi_that_is_killed_beside_another_begins_with_a_new_model(tmp_path, monkeypatch, name):
    plans = {"candidates": 8, "plan_elites": 2, "plan_length": 3, "plan_iterations": 2}
    keys = {
        "mbpo": MBPO_KEYS, "cem": {**SMALL, **plans, "ensemble": 2, "batch_size": 20},
    }[name]  # fmt: skip
    path, per_round = tmp_path / "faults", 2 * 2 * SMALL["horizon"]
    faults.script(monkeypatch, path, (0, "simulate", 6))
    roles = {"trainer": bodies_recovery.MortalWithoutLoss}
    settings = {**keys, "name": name}
    result = launch(tmp_path, 14 * per_round, settings, gmis=2, roles=roles)
    assert faults.struck(path) == result.restarts == 1
    assert (result.state, result.iteration) == ("finished", 14)
    lines = metrics(result.folder)
    assert [line["iteration"] for line in lines] == list(range(1, 15))
    rows = [line["replay_rows"] for line in lines]
    assert rows[6] < rows[5] < rows[-1]  # what the killed one kept is gone, and more is kept
    assert lines[-1]["updates"] > lines[6]["updates"]
    if name == "mbpo":
        assert all(np.isfinite(line["model_error"]) for line in lines[-3:])


@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_a_policy_that_plans_is_loaded_and_exported(tmp_path):
    settings = {
        **SMALL, "name": "cem", "ensemble": 2, "candidates": 8, "plan_elites": 2,
        "plan_length": 2, "plan_iterations": 1,
    }  # fmt: skip
    result = launch(tmp_path, 80, settings)
    assert result.state == "finished"
    policy = gmi_drl.load_policy(result.folder)
    assert policy.act(policy.observation_space.sample()).shape == (1,)
    assert "bit for bit" in export_policy(policy, "pt2", tmp_path / "policy.pt2")


# Planning -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("planner", ["cem", "mppi"])
@pytest.mark.parametrize("worth", [-math.inf, math.nan, math.inf])
def test_a_plan_is_made_where_no_plan_is_worth_a_number(planner, worth):
    settings = CEMConfig(planner=planner, candidates=20, plan_elites=5, plan_temperature=0.1)
    model = EnsembleModel(3, 1, 1, (4,), None)
    model.predict = lambda seen, action: (seen, torch.full(seen.shape[:2], worth))
    assert PlanningPolicy(model, 1, settings).mode(torch.zeros(2, 3)).isfinite().all()


@pytest.mark.parametrize("planner", ["cem", "mppi"])
def test_a_plan_that_a_model_has_no_number_for_is_not_the_best(planner):
    settings = CEMConfig(planner=planner, candidates=50, plan_elites=5, plan_length=1)
    model = EnsembleModel(3, 1, 1, (4,), None)

    def predict(seen, action):
        reward = torch.where(action[:, 0] > 0.0, math.inf, action[:, 0])
        return seen, reward.expand(seen.shape[:2])

    model.predict = predict
    assert (PlanningPolicy(model, 1, settings).mode(torch.zeros(2, 3)) <= 0.0).all()


@pytest.mark.parametrize("planner", ["cem", "mppi"])
def test_plans_on_the_known_pendulum_bring_it_up(planner):
    settings = CEMConfig(
        model="pendulum",
        candidates=100,
        plan_elites=10,
        plan_iterations=3,
        plan_length=15,
        planner=planner,
    )
    env = gymnasium.make("Pendulum-v1")
    network = CEM.make_network(settings, env, None)
    policy = CEM.make_policy(network, settings)
    assert isinstance(policy, PlanningPolicy)
    seen = torch.tensor([[-1.0, 0.0, 0.0], [-0.8, 0.6, 1.0]])  # hanging
    rewards = []
    with one_thread():
        for _ in range(80):
            seen, reward = pendulum(seen, 2.0 * policy.mode(seen))
            rewards.append(reward)
    assert float(torch.stack(rewards[-10:]).mean(0).min()) > -0.2
    torch.testing.assert_close(policy.mode(seen), policy.mode(seen))


# What is refused ----------------------------------------------------------------------------------


def told(name, *overrides):
    config = load_config(
        {"version": 1, "env": {"id": "Pendulum-v1", "num_env": 2}, "run": {"total_steps": 100},
         "algorithm": {"name": name}},
        [f"algorithm.{each}" for each in overrides],
    )  # fmt: skip
    return [str(fault) for fault in check(config, Topology.from_cores(range(2), 1))]


@pytest.mark.parametrize(
    ("name", "key", "value", "words"),
    [
        ("mbpo", "elites", 9, "algorithm.elites=9; must be at most ensemble=7"),
        ("mbpo", "n_step", 3, "algorithm.n_step=3; the model is of single steps"),
        ("mbpo", "sampler", "prioritized", "the model is of single steps that are drawn alike"),
        ("mbpo", "replay_start", 1, "one that is held out"),
        ("mbpo", "replay_start", 1_000_000, "must be below replay_capacity=1000000"),
        ("mbpo", "model_network", [0], "sizes must be 1 or more"),
        ("cem", "n_step", 3, "algorithm.n_step=3; the model is of single steps"),
        ("cem", "layer_norm", True, "algorithm.layer_norm=True; the model is of single steps"),
        ("cem", "plan_elites", 300, "must be at most candidates=200"),
        ("cem", "network", "nature", "Use [200, 200]"),
    ],
)
def test_bad_settings_are_told(name, key, value, words):
    """By `check`, and from Python."""
    assert any(words in fault for fault in told(name, f"{key}={value}"))
    with pytest.raises(RoleError, match=re.escape(words)):
        learner_of(algorithm={"mbpo": MBPO, "cem": CEM}[name], keys={key: value})


def test_a_known_model_that_is_to_be_trained_is_told():
    faults = told("cem", "model=pendulum")
    for said in ("Set mode: serving, which acts by it, or", "take observations as they are"):
        assert any(said in fault for fault in faults)


def test_from_python_a_known_model_is_refused_where_it_would_be_trained():
    known = {"model": "pendulum", "normalize_observation": False}
    with pytest.raises(RoleError, match=r"KnownModel has no parameters .* use model: learned"):
        learner_of(algorithm=CEM, keys=known)


@pytest.mark.parametrize("override", ["rollout_length=0", "real_share=1.5", "holdout=0"])
def test_numbers_out_of_range_are_told(override):
    with pytest.raises(ConfigError, match=override.split("=")[0]):
        told("mbpo", override)


@pytest.mark.parametrize("algorithm", [MBPO, CEM])
@pytest.mark.parametrize("env", ["CartPole-v1", "bodies_models:GmiBytes-v0"])
def test_images_and_choices_are_told(algorithm, env):
    with pytest.raises(EnvSpecError, match=r"env\.id: (action|observation) space .* Use algorithm"):
        learner_of(env, algorithm, SMALL)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("bodies_models:fifth", "raised IndexError for observations [2, 2] and actions [2, 1]: "),
        ("bodies_models:height", "gave float32 [2] for observations [2, 2] and actions [2, 1]; "),
        ("bodies_models:anywhere", "gave bool [] for observations"),
        ("bodies_models:nothing", "gave a NoneType for observations"),
    ],
)
def test_a_termination_that_does_not_tell_of_each_row_is_told_before_training(name, said):
    with pytest.raises(RoleError) as raised:
        learner_of("bodies_models:GmiWalk-v0", termination=name)
    assert f"algorithm.termination={name!r} {said}" in str(raised.value)
    assert "Give the rule of this environment, as a function of (observation" in str(raised.value)


def test_functions_that_are_not_there_are_told():
    with pytest.raises(RoleLoadError, match="Did you mean hopper"):
        termination_of("hoper")
    settings = CEMConfig(model="pendulm")
    with pytest.raises(RoleLoadError, match="Did you mean pendulum"):
        CEM.make_network(settings, gymnasium.make("Pendulum-v1"), None)
    env = gymnasium.make("MountainCarContinuous-v0")
    with pytest.raises(RoleError, match="Give the equations of this environment"):
        CEM.make_network(CEMConfig(model="pendulum"), env, None)
