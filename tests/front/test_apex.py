"""Agents that send all the time to trainers with replays: the ratio is held, also after kills."""

import math
import os
from pathlib import Path

import pytest
import torch

import bodies_async
import faults
import gmi_drl
import small_jobs
from gmi_drl.gmi import GmiDied
from gmi_drl.launcher.start import jobs
from gmi_drl.placement import Device, Topology, check, decoupled, load_config
from run_files import metrics
from small_jobs import job_file

EXAMPLES = Path(__file__).parents[2] / "examples"
ITERATIONS, SAMPLES = 20, 8 * 8  # of a segment
START, RATIO = 150, 0.25
MORTAL = {"agent": bodies_async.MortalAsyncAgent, "trainer": bodies_async.MortalAsyncTrainer}


pytestmark = pytest.mark.usefixtures("warm")


def config(tmp_path, env="CartPole-v1", **algorithm):
    learns = {
        "name": "dqn", "network": [16], "horizon": 8, "replay_start": START, "batch_size": 32,
        "replay_capacity": 500, "updates_per_row": RATIO, **algorithm,
    }  # fmt: skip
    return job_file(
        tmp_path,
        mode="async",
        run={"total_steps": ITERATIONS * SAMPLES, "checkpoint_every": 4, "eval_episodes": 2},
        env={"id": env, "num_env": 8, "max_episode_steps": 30},
        algorithm={key: value for key, value in learns.items() if value is not None},
        hardware={"num_gpus": 2},
        experience={"channels": "mcc"},
        comm={"checksum_every": 1},
    )


def launch(tmp_path, *overrides, env="CartPole-v1", algorithm=None, **options):
    return small_jobs.launch(config(tmp_path, env, **(algorithm or {})), *overrides, **options)


def check_ratio(result, trainers=1):
    """All trainers count alike: as many updates as are due for the steps that each has had."""
    for line in metrics(result.folder):
        own = line["steps"] // trainers
        assert line["updates"] == math.ceil(max(own - START, 0) * RATIO)


def test_as_many_updates_are_taken_as_are_due_for_what_agents_sent(tmp_path):
    result = launch(tmp_path)
    assert (result.state, result.iteration) == ("finished", ITERATIONS)
    check_ratio(result)
    told = metrics(result.folder)
    assert [line["replay_rows"] for line in told[:3]] == [64, 128, 192]
    assert told[-1]["replay_rows"] == 496  # whole steps of all environments
    assert told[0]["q_loss"] is None
    assert told[-1]["q_loss"] > 0
    assert result.experience.trained == ITERATIONS
    assert result.experience.add_up


@pytest.mark.parametrize(
    ("env", "algorithm"),
    [
        ("CartPole-v1", {"sampler": "prioritized", "n_step": 3, "normalize_observation": True}),
        pytest.param("Pendulum-v1", {"name": "sac", "random_steps": 100}, marks=pytest.mark.slow),
        pytest.param("Pendulum-v1", {"name": "td3", "random_steps": 100}, marks=pytest.mark.slow),
    ],
)
def test_algorithms_under_a_replay_run_so_unchanged(tmp_path, env, algorithm):
    result = launch(tmp_path, env=env, algorithm=algorithm)
    assert result.state == "finished"
    check_ratio(result)


OWN = """
from gmi_drl.placement import ReplayConfig
from gmi_drl.roles.algorithms.dqn import DQN
class Greater(DQN):  # rewards are 100 more, once
    def postprocess(self, batch, moments):
        batch["reward"].add_(100.0)
    def losses(self, batch):
        assert float(batch["reward"].max()) < 102.0, float(batch["reward"].max())
        return super().losses(batch)
class Lacking(DQN):
    segment_fields = ("action", "reward")
class Filling(DQN):
    filled = ("weight",)
    segment_fields = (*DQN.segment_fields, "weight")
class Placed(DQN):  # says which of all environments are its own
    def explore_as(self, numbers, total):
        super().explore_as(numbers, total)
        open(f"{numbers.start}-{numbers.stop} of {total}", "w").close()
"""


@pytest.mark.parametrize("moment", [(1, "agreed", 9)])
def test_what_a_killed_trainer_finds_again_is_as_it_was_sent(tmp_path, monkeypatch, moment):
    (tmp_path / "own.py").write_text(OWN)
    faults.script(monkeypatch, tmp_path / "faults", moment)
    algorithm = {"name": None, "class": "own:Greater", "optimizer": "apex"}
    result = launch(tmp_path, algorithm=algorithm, roles=MORTAL)
    assert result.restarts == 1
    check_ratio(result)


def test_an_algorithm_that_does_not_have_sent_what_is_kept_is_told(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    algorithm = {"name": None, "class": "own:Lacking", "optimizer": "apex"}
    with pytest.raises(GmiDied, match="Add next_observation, done, terminated") as died:
        launch(tmp_path, algorithm=algorithm)
    assert "Lacking: segment_fields=('action', 'reward')" in str(died.value)


def test_an_algorithm_that_has_sent_what_is_filled_later_is_told(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    algorithm = {"name": None, "class": "own:Filling", "optimizer": "apex"}
    with pytest.raises(GmiDied, match="Filling: segment_fields has weight, which postprocess"):
        launch(tmp_path, algorithm=algorithm)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_each_environment_of_all_agents_explores_in_its_own_way(tmp_path, monkeypatch, mode):
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    algorithm = {"name": None, "class": "own:Placed", "epsilon_alpha": 7}
    if mode == "async":
        mine = sorted(os.sched_getaffinity(0))
        devices = tuple(Device(i, "cpu", f"share {i}", (mine[i % len(mine)],)) for i in range(3))
        layout = decoupled(Topology(devices), 1, 8, "cpu", 1)
        monkeypatch.setattr(jobs, "planned", lambda *_, **more: layout)
    algorithm["optimizer"] = "apex" if mode == "async" else "replay"
    result = launch(tmp_path, f"mode={mode}", algorithm=algorithm)
    assert result.state == "finished"
    assert {path.name for path in tmp_path.glob("* of *")} == {"0-8 of 16", "8-16 of 16"}


@pytest.mark.parametrize(
    ("env", "algorithm"),
    [
        ("CartPole-v1", {"n_step": 3}),
        pytest.param("Pendulum-v1", {"name": "sac"}, marks=pytest.mark.slow),
    ],
)
def test_agents_give_their_steps_the_priorities_that_a_replay_keeps(tmp_path, env, algorithm):
    """No update is taken: what is kept is what agents gave, or else one number."""
    kept = {}
    for sampler in ("prioritized", "uniform"):
        settings = {"sampler": sampler, "replay_start": 490, "updates_per_row": 1e-6, **algorithm}
        result = launch(tmp_path, "run.total_steps=512", env=env, algorithm=settings)
        newest = max((result.folder / "checkpoints").iterdir())
        kept[sampler] = torch.load(newest / "gmi1.pt", weights_only=True)["replay"]["sampler"]
    priorities = kept["prioritized"]["priorities"]
    assert len(priorities.unique()) > 400 > len(priorities) - 200
    assert kept["uniform"] == {}


@pytest.mark.slow
def test_nothing_is_too_old_for_a_replay(tmp_path):
    result = launch(tmp_path, "experience.max_policy_lag=0", "experience.capacity=8")
    assert result.experience.stale == 0
    assert result.experience.trained == ITERATIONS


def test_goals_are_set_in_hindsight_from_segments(tmp_path):
    result = gmi_drl.launch(
        EXAMPLES / "her" / "her_bitflip.yaml", view="none",
        overrides=[
            "mode=async", "hardware.backend=cpu", "hardware.num_gpus=2", f"run.folder={tmp_path}",
            "run.total_steps=2000", "run.eval_episodes=0",
        ],
    )  # fmt: skip
    assert result.state == "finished"


@pytest.mark.parametrize(
    ("change", "rows"),
    [
        ("replay_capacity=200", 200),
        pytest.param("replay_save=false", 64, marks=pytest.mark.slow),
        pytest.param("sampler=prioritized", 496, marks=pytest.mark.slow),
    ],
)
def test_how_a_replay_is_kept_may_change_on_resuming(tmp_path, change, rows):
    part = launch(tmp_path)
    more = [f"run.total_steps={(ITERATIONS + 2) * SAMPLES}", f"algorithm.{change}"]
    resumed = small_jobs.launch(None, *more, resume=part.folder)
    assert metrics(resumed.folder)[ITERATIONS]["replay_rows"] == rows


@pytest.mark.slow
def test_a_resumed_run_goes_on_with_its_replay(tmp_path):
    part = launch(tmp_path)
    total = f"run.total_steps={2 * ITERATIONS * SAMPLES}"
    resumed = small_jobs.launch(None, total, resume=part.folder)
    told = metrics(resumed.folder)
    assert [line["iteration"] for line in told] == [*range(1, 2 * ITERATIONS + 1)]
    assert told[ITERATIONS]["replay_rows"] == 496
    check_ratio(resumed)


@pytest.mark.parametrize(
    ("mode", "trainer"), [("sync", 0), pytest.param("async", 1, marks=pytest.mark.slow)]
)
def test_a_replay_keeps_frames_of_stacks_and_learns_as_if_it_kept_them_whole(
    tmp_path, mode, trainer
):
    """Bit for bit, where agents do not come and go as they like."""
    learned = []
    for wrappers, width in (("[frame_stack]", 4), ("[frame_stack, 'bodies_wrappers:Whole']", 16)):
        overrides = [f"mode={mode}", f"env.wrappers={wrappers}", "hardware.num_gpus=2"]
        result = launch(tmp_path, *overrides, algorithm={"n_step": 3})
        assert result.state == "finished"
        newest = max((result.folder / "checkpoints").iterdir())
        kept = torch.load(newest / f"gmi{trainer}.pt", weights_only=True)["replay"]["storage"]
        assert list(kept["columns"]["raw_observation"].shape[1:]) == [width]
        learned.append(torch.load(newest / "shared.pt", weights_only=True)["parameters"])
    if mode == "sync":
        assert torch.equal(*learned)


@pytest.mark.parametrize(
    "moment",
    [
        (0, "segment", 5),
        (1, "given back", 10),
        pytest.param((1, "update", 9), marks=pytest.mark.slow),
        pytest.param((1, "publish", 12), marks=pytest.mark.slow),
    ],
)
def test_a_killed_agent_and_a_killed_trainer_come_back(tmp_path, monkeypatch, moment):
    path = tmp_path / "faults"
    faults.script(monkeypatch, path, moment)
    result = launch(tmp_path, roles=MORTAL)
    assert faults.struck(path) == result.restarts == 1
    assert (result.state, result.iteration) == ("finished", ITERATIONS)
    assert result.experience.add_up
    check_ratio(result)


@pytest.mark.slow
@pytest.mark.parametrize("moment", [(2, "agreed", 9), (3, "give back", 9)])
def test_a_killed_trainer_begins_with_an_empty_replay_and_steps_as_its_peer(
    tmp_path, monkeypatch, moment
):
    mine = sorted(os.sched_getaffinity(0))
    devices = tuple(Device(i, "cpu", f"share {i}", (mine[i % len(mine)],)) for i in range(4))
    layout = decoupled(Topology(devices), 1, 8, "cpu", 2)
    monkeypatch.setattr(jobs, "planned", lambda *_, **more: layout)
    path = tmp_path / "faults"
    faults.script(monkeypatch, path, moment)
    more = (f"run.total_steps={2 * ITERATIONS * SAMPLES}", "comm.reduction=mpr",
            "experience.capacity=4", "run.checkpoint_every=0")  # fmt: skip
    result = launch(tmp_path, *more, roles=MORTAL)
    assert faults.struck(path) == result.restarts == 1
    assert result.iteration == ITERATIONS
    assert result.gmis[2]["eval_return"] == result.gmis[3]["eval_return"]
    check_ratio(result, trainers=2)


def test_a_replay_has_to_hold_the_environments_of_a_batch(tmp_path):
    words = ["experience.batch_segments=8", "experience.capacity=20"]
    read = load_config(config(tmp_path, replay_capacity=200, n_step=4), words)
    (fault,) = check(read, Topology.from_cores(range(2), 2))
    assert "must hold n_step=4 steps of 64 environments" in str(fault)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_cartpole_is_learned(tmp_path):
    algorithm = {
        "network": [64, 64], "activation": "relu", "learning_rate": 1e-3, "reward_scale": 0.1,
        "horizon": 16, "replay_start": 1_000, "batch_size": 64, "replay_capacity": 50_000,
        "updates_per_row": 0.5, "n_step": 3, "epsilon_steps": 10_000,
    }  # fmt: skip
    more = ("run.total_steps=100_000", "run.target_return=100", "env.max_episode_steps=500")
    result = launch(tmp_path, *more, algorithm=algorithm)
    assert result.return_mean >= 100
