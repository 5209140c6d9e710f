"""Several agents end to end: what is refused, kills, a resume, and policies that act afterwards."""

from pathlib import Path

import numpy as np
import pytest
import torch

import bodies_agents
import bodies_recovery
import faults
import gmi_drl
from gmi_drl.cli import main
from gmi_drl.launcher.plan import user_code
from gmi_drl.launcher.plan.planning import faults_of
from gmi_drl.placement import ConfigError, Topology, check, load_config
from gmi_drl.roles.envs import EnvSpecError
from gmi_drl.roles.state import checkpoint
from gmi_drl.trained import filming
from gmi_drl.trained.exporting import export_policy
from gmi_drl.trained.policy import PolicyNotLoaded
from run_files import metrics
from small_jobs import job_file, launch

ITERATIONS = 6


pytestmark = pytest.mark.usefixtures("warm")


def config(folder, gmis=1, iterations=ITERATIONS, **sections):
    return job_file(
        folder,
        sections,
        run={
            "checkpoint_every": 2, "total_steps": iterations * 2 * 12 * gmis, "eval_episodes": 4,
            "seed": 3,
        },
        env={"id": "bodies_agents:Meadow", "adapter": "pettingzoo", "num_env": 2},
        multi_agent={
            "policies": ["dogs", "sheep"], "mapping": {"wolf_*": "dogs", "sheep_*": "sheep"}
        },
        algorithm={"network": [8], "horizon": 12, "minibatches": 2, "epochs": 2},
        layout={"gmi_per_gpu": gmis},
        comm={"checksum_every": 1},
    )  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory, warm):
    """A run of two GMIs, of which one was killed."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patched:
        faults.script(patched, folder / "faults", (1, "simulate", 3))
        roles = {"trainer": bodies_recovery.Mortal}
        result = launch(config(folder, gmis=2), roles=roles)
        assert faults.struck(folder / "faults") == 1
    return result


def test_a_killed_gmi_comes_back_and_all_hold_the_same_policies(trained):
    assert (trained.state, trained.iteration, trained.restarts) == ("finished", ITERATIONS, 1)
    lines = metrics(trained.folder)
    assert [line["iteration"] for line in lines] == [*range(1, ITERATIONS + 1)]
    last = lines[-1]
    for name in ("return_mean", "kl", "entropy"):
        assert last[f"dogs/{name}"] != last[f"sheep/{name}"]
    assert last["return_mean"] is not None


@pytest.mark.slow
def test_its_policies_act_afterwards_each_in_its_own_space(trained, capsys, monkeypatch):
    assert main.main(["export", str(trained.folder)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    told = gmi_drl.evaluate(trained.folder, episodes=4)
    assert told.mean == pytest.approx(trained.eval_return)
    meadow = bodies_agents.Meadow()
    observations, _ = meadow.reset()
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))  # as the module lies there
    assert main.main(["video", str(trained.folder)]) == 2
    assert "films are of environments of one agent" in capsys.readouterr().err
    for name, agent in (("dogs", "wolf_0"), ("sheep", "sheep_1")):
        policy = gmi_drl.load_policy(trained.folder, policy_id=name)
        action = policy.act(observations[agent])
        assert meadow.action_space(agent).contains(action)
        many = policy.act(np.stack([observations[agent]] * 3))
        assert len(many) == 3
        with pytest.raises(EnvSpecError, match="films are of environments of one agent"):
            filming._drawable(policy)
        file = Path(trained.folder) / "export" / f"policy_{name}.pt2"
        assert f"policy: {file} (equal, bit for bit, on 1,000 observations" in said
        written = torch.export.load(file).module()(torch.as_tensor(np.stack([observations[agent]])))
        assert np.array_equal(written[0].detach().numpy(), action)
    assert main.main(["export", str(trained.folder), "--card"]) == 2
    assert "--card is for one policy" in capsys.readouterr().err
    for wrong in (None, "cows"):
        with pytest.raises(PolicyNotLoaded, match=r"it has dogs, sheep\. Give one of these"):
            gmi_drl.load_policy(trained.folder, policy_id=wrong)


@pytest.mark.slow
def test_a_resumed_run_goes_on_with_all_policies(trained, tmp_path):
    part = launch(config(tmp_path, iterations=2))
    before = checkpoint.find(part.folder).load("shared")
    assert before["optimizer"].keys() == {"dogs", "sheep"}
    resumed = launch(
        None, f"run.total_steps={4 * 2 * 12}", "run.eval_episodes=0", resume=part.folder
    )
    assert (resumed.state, resumed.iteration) == ("finished", 4)
    after = checkpoint.find(part.folder).load("shared")
    counts = [
        state["observation_normalizer"][name]["moments"][0].item()
        for state in (before, after)
        for name in ("dogs", "sheep")
    ]
    # 24 steps of the wolf in two iterations of two environments, each of all six steps; the sheep
    # are there for two and three of them.
    assert counts == [48, 40, 96, 80]


@pytest.mark.slow
def test_agents_who_share_a_policy_learn(tmp_path):
    path = config(
        tmp_path,
        run={"total_steps": 9_600, "seed": 1, "eval_episodes": 10},
        env={"id": "bodies_agents:Matching", "adapter": "pettingzoo", "num_env": 8},
        multi_agent=None,
        algorithm={"network": [16], "horizon": 40, "learning_rate": 5e-3, "schedule": "constant"},
    )  # fmt: skip
    result = launch(path)
    assert result.eval_return > 9.5  # of 10; 5 by guessing
    policy = gmi_drl.load_policy(result.folder, policy_id="shared")
    assert [policy.act(np.array([bit], np.float32)) for bit in (0.0, 1.0)] == [0, 1]


@pytest.mark.slow
def test_a_run_of_sixteen_policies_ends_with_the_return_of_each(tmp_path):
    names = [f"policy_of_agent_{i}" for i in range(16)]
    path = config(
        tmp_path,
        gmis=2,
        iterations=1,
        env={
            "id": "bodies_agents:Matching", "adapter": "pettingzoo", "num_env": 2,
            "options": {"count": 16},
        },
        multi_agent={
            "policies": names, "mapping": {f"agent_{i}": name for i, name in enumerate(names)},
        },
    )  # fmt: skip
    result = launch(path)
    assert result.state == "finished"
    for answer in result.gmis:
        returns = [answer[f"{name}/eval_return"] for name in names]
        assert sum(returns) / 16 == pytest.approx(result.eval_return)


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"multi_agent": {"policies": ["a"], "mapping": {"*": "b"}}},
         ["multi_agent.mapping", "maps * to b, and the policies are a"]),
        ({"multi_agent": {"policies": ["a", "b"], "mapping": {"sheep_*": "a"}}},
         ["agent wolf_0", "has no policy", "no agent is mapped to it"]),
        ({"multi_agent": None}, ["sheep_0 and wolf_0", "different spaces"]),
        ({"env": {"id": "CartPole-v1"}}, ["multi_agent='dogs, sheep'", "adapter auto has one"]),
        ({"algorithm": {"name": "es"}, "layout": {"template": "tdg_ex"}},
         ["algorithm.name='es'", "ddpg, vdn and qmix", "template='tdg_ex'", "Use tcg_ex"]),
        ({"algorithm": {"name": "mappo", "network": [8], "horizon": 12}},
         ["its agents have several policies", "Give them one"]),
        ({"env": {"id": "CartPole-v1"}, "multi_agent": None, "algorithm": {"name": "mappo"}},
         ["algorithm.name='mappo'", "adapter auto has one", "Use ppo"]),
        ({"multi_agent": {"policies": ["a", "b"], "mapping": {"*": "b"}, "self_play": {}}},
         ["self_play", "plays against itself", "Give one policy"]),
        ({"multi_agent": {"self_play": {"snapshots": 0}}}, ["snapshots=0", "must be 1 or more"]),
        ({"env": {"id": "bodies_agents:Matching", "adapter": "pettingzoo", "num_env": 3},
          "multi_agent": {"self_play": {"snapshots": 2}}},
         ["self_play.snapshots=2", "env.num_env=3 must be at least 4", "or fewer snapshots"]),
        ({"algorithm": {"horizon": 12, "recurrent": {"size": 8}}},
         ["algorithm.recurrent", "Leave it out"]),
        ({"algorithm": {"horizon": 12, "optimizer": "local"}},
         ["optimizer='local'", "in the GMI that acts for them", "optimizer: all_reduce"]),
    ],
    ids=[
        "unknown", "unmapped", "spaces", "one agent", "algorithm", "several policies",
        "several agents", "a league of two", "a league of none", "a league too large",
        "memory", "apart",
    ],
)  # fmt: skip
def test_check_names_what_does_not_fit(tmp_path, sections, words):
    path = config(tmp_path, **sections)
    try:
        read = load_config(path)
        its = user_code.try_here(read.model_dump(mode="json"), str(tmp_path))["faults"]
        said = "\n".join(map(str, faults_of(read, user_code.UserCodeReport(its))))
        assert user_code.names_user_code(read) or read.env.id == "CartPole-v1"
    except ConfigError as error:
        said = str(error)
    assert all(word in said for word in words), said


def test_a_league_is_checked_where_tuning_is_to_find_its_environments(tmp_path):
    env = {"id": "bodies_agents:Matching", "adapter": "pettingzoo", "num_env": "auto"}
    read = load_config(config(tmp_path, env=env, multi_agent={"self_play": {}}))
    its = user_code.try_here(read.model_dump(mode="json"), str(tmp_path))
    assert its["faults"] == []


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("algorithm", "paid"), [("qmix", 8.0), ("vdn", 7.0)])
def test_qmix_finds_the_eight_of_the_two_step_game_where_a_sum_finds_seven(
    tmp_path, algorithm, paid
):
    example = Path(__file__).resolve().parents[2] / "examples" / "two_step" / "qmix.yaml"
    words = [f"algorithm.name={algorithm}", f"run.folder={tmp_path}", "run.total_steps=12_000"]
    result = launch(example, *words)
    assert result.eval_return == paid
    policy = gmi_drl.load_policy(result.folder)  # of the team
    assert "bit for bit" in export_policy(policy, "pt2", tmp_path / "policy.pt2")


def test_agents_who_keep_their_steps_learn_and_must_stay_together(tmp_path):
    sections = {
        "run": {"total_steps": 640, "seed": 1},
        "env": {"id": "bodies_agents:Matching", "adapter": "pettingzoo", "num_env": 4},
        "multi_agent": None,
        "algorithm": {
            "name": "dqn", "network": [16], "horizon": 10, "replay_start": 100, "target_every": 20,
            "epsilon_steps": 300, "learning_rate": 1e-2, "gamma": 0.0,
        },
    }  # fmt: skip
    result = launch(config(tmp_path, **sections))
    assert result.eval_return > 9.5  # of 10; 5 by guessing
    sections["env"] = {"id": "bodies_agents:Countdown", "adapter": "pettingzoo", "num_env": 4}
    with pytest.raises(gmi_drl.GmiDrlError, match=r"they take turns.*ppo"):
        launch(config(tmp_path, **sections))


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["sac", "td3", "ddpg"])
def test_agents_who_choose_numbers_learn_from_kept_steps(tmp_path, algorithm):
    sections = {
        "run": {"total_steps": 480, "seed": 1},
        "env": {
            "id": "bodies_agents:Meadow", "adapter": "pettingzoo", "num_env": 4,
            "options": {"sheep": 0, "wolves": 2},
        },
        "multi_agent": None,
        "algorithm": {
            "name": algorithm, "network": [16], "horizon": 6, "replay_start": 48,
            "random_steps": 48, "learning_rate": 1e-2, "gamma": 0.0, "batch_size": 32,
        },
    }  # fmt: skip
    result = launch(config(tmp_path, **sections))
    assert result.eval_return > 25  # of 36, as each is paid the sum of what it chooses; 0 by chance
    policy = gmi_drl.load_policy(result.folder)
    assert policy.act(np.array([1, 0, 7], np.float32)).sum() > 2


@pytest.mark.parametrize(
    ("algorithm", "fitting"),
    [
        ({"name": "ppo", "optimizer": "local"}, "all_reduce"),
        ({"name": "a2c", "optimizer": "local"}, "all_reduce"),
        ({"name": "a2c", "optimizer": "async_gradients"}, "all_reduce"),
        ({"name": "a2c", "optimizer": "parameter_server"}, "all_reduce"),
        ({"name": "pg", "optimizer": "async_gradients"}, "all_reduce"),
        ({"name": "dqn", "optimizer": "apex"}, "replay"),
        ({"name": "sac", "optimizer": "apex"}, "replay"),
    ],
    ids=lambda one: "-".join(one.values()) if isinstance(one, dict) else "",
)  # fmt: skip
def test_optimizers_that_train_elsewhere_are_refused_and_the_remedy_is_one(
    tmp_path, algorithm, fitting
):
    sections = {"env": {"id": "bodies_agents:Matching", "adapter": "pettingzoo", "num_env": 2}}
    mode = "async" if algorithm["optimizer"] == "apex" else "sync"

    def faults_with(optimizer, mode):
        its = {**algorithm, "network": [8], "horizon": 12, "optimizer": optimizer}
        path = config(tmp_path, **sections, multi_agent=None, algorithm=its, layout={}, mode=mode)
        return check(load_config(path), Topology.from_cores(range(2), 1))

    told = [fault for fault in faults_with(algorithm["optimizer"], mode)
            if fault.where == "algorithm.optimizer"]  # fmt: skip
    assert [fault.value for fault in told] == [algorithm["optimizer"]]
    assert "in the GMI that acts for them" in str(told[0])
    assert f"Set algorithm.optimizer: {fitting}, and mode: sync." in str(told[0])
    assert not faults_with(fitting, "sync")


@pytest.mark.slow
def test_a_policy_that_plays_against_itself_finds_how_to_win(tmp_path):
    sections = {
        "run": {"total_steps": 30_000, "seed": 1},
        "env": {"id": "bodies_agents:Countdown", "adapter": "pettingzoo", "num_env": 32},
        "multi_agent": {"self_play": {"snapshots": 4, "every": 5}},
        "algorithm": {
            "network": [32], "horizon": 32, "learning_rate": 3e-3, "schedule": "constant",
            "entropy_coef": 0.01,
        },
    }  # fmt: skip
    result = launch(config(tmp_path, **sections))
    policy = gmi_drl.load_policy(result.folder)
    # Who leaves three wins: of five it takes two; and of two both.
    taken = [1 + int(policy.act(np.array([left], np.float32))) for left in (5, 2)]
    assert taken == [2, 2]
    assert metrics(result.folder)[-1]["rating"] > 0
    # Who begins wins, whoever it is: all play by the policy, none by the one that was begun with.
    told = gmi_drl.evaluate(result.folder, episodes=16, stochastic=True)
    assert np.mean(told.returns[:16]) > 0.5
