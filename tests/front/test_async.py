"""Mode async, end to end: it learns with a lag, and kills cost no segment silently."""

import json
import os
import shutil
import signal
import threading
import time
from pathlib import Path

import pytest
import torch

import bodies_async
import faults
import gmi_drl
import killers
from gmi_drl.gmi import GmiDied
from gmi_drl.launcher.plan.experience import sizes_of
from gmi_drl.launcher.start import jobs
from gmi_drl.placement import Device, Layout, Topology, decoupled, load_config
from run_files import metrics, segment_bytes
from small_jobs import job_file, launch
from stops import stop

EXAMPLES = Path(__file__).parents[2] / "examples"


pytestmark = pytest.mark.usefixtures("warm")


ITERATIONS, SAMPLES = 20, 8 * 8  # of a segment


def config(tmp_path, **changes):
    return job_file(
        tmp_path,
        changes,
        mode="async",
        run={"total_steps": ITERATIONS * SAMPLES, "checkpoint_every": 4, "eval_episodes": 4},
        algorithm={"network": [16], "horizon": 8},
        hardware={"num_gpus": 2},
        experience={"channels": "mcc"},
        comm={"checksum_every": 1},
    )


def slow(*cases):
    return [
        pytest.param(*case, marks=pytest.mark.slow)
        if isinstance(case[1], tuple)
        else pytest.param(case, marks=pytest.mark.slow)
        for case in cases
    ]


MORTAL = {"agent": bodies_async.MortalAsyncAgent, "trainer": bodies_async.MortalAsyncTrainer}


def projected_bytes(folder):
    """Returns the bytes of a segment as `gmi-drl plan` has them."""
    layout = Layout.from_json((folder / "layout.json").read_text())
    agent_class = "gmi_drl.roles:Agent"
    return sizes_of(load_config(folder / "config.yaml"), layout, agent_class)[0]


@pytest.mark.parametrize("channels", ["auto", pytest.param("ucc", marks=pytest.mark.slow)])
def test_one_device_collects_and_the_other_one_trains(tmp_path, channels, learning_curve):
    result = launch(config(tmp_path, experience__channels=channels))
    assert (result.state, result.iteration) == ("finished", ITERATIONS)
    lines = metrics(result.folder)
    assert [line["iteration"] for line in lines] == list(range(1, ITERATIONS + 1))
    assert lines[-1]["steps"] == ITERATIONS * SAMPLES
    assert all(0 <= line["policy_lag_mean"] <= line["policy_lag_max"] <= 16 for line in lines)
    assert max(line["policy_lag_max"] for line in lines) > 0
    assert lines[-1]["predictions_per_s"] > 0
    assert {"simulate_s", "infer_s", "send_s", "wait_s", "train_s"} < lines[-1].keys()
    assert result.eval_return > 0
    assert result.curve.stat().st_size > 10_000
    accounts = result.experience
    assert accounts.add_up
    assert accounts.unheard == 0
    assert accounts.trained == ITERATIONS
    assert accounts.sent + accounts.lost + accounts.unsent == accounts.begun
    kept = json.loads((result.folder / "run.json").read_text())["experience"]
    assert kept == accounts.as_json()
    if channels == "auto":
        assert segment_bytes(result.folder) == projected_bytes(result.folder)


@pytest.mark.slow
def test_segments_that_are_too_old_are_not_trained_on(tmp_path):
    result = launch(config(tmp_path, experience__max_policy_lag=0))
    assert result.iteration == ITERATIONS
    assert all(line["policy_lag_max"] == 0 for line in metrics(result.folder))
    assert result.experience.stale > 0
    assert result.experience.add_up


BYTES = """
import gymnasium
import numpy as np

class Bytes(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 255, (64,), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    episode = 0

    def reset(self, *, seed=None, options=None):
        self.episode, self.at = (self.episode + 1) % 256, 0
        return self._picture(), {}

    def step(self, action):
        self.at += 1
        return self._picture(), 1.0, False, False, {}

    def _picture(self):
        return np.repeat([self.episode, self.at], 32).astype(np.uint8)

gymnasium.register("Bytes-v0", Bytes, max_episode_steps=5)
"""


class StackTrainer(gmi_drl.roles.Trainer):
    """Looks at the stacks of three frames that it trains on: each is of one episode, in order."""

    def build(self, env):
        super().build(env)
        losses = self.algorithm.losses

        def looked_at(batch):
            frames = batch["observations"].unflatten(-1, (3, 64))
            episodes, steps = frames[..., 0], frames[..., -1]
            assert (episodes == episodes[..., :1]).all()
            ages = torch.tensor([2, 1, 0])
            assert torch.equal(steps, (steps[..., -1:] - ages).clamp(min=0))
            assert len(episodes.unique()) > 1
            return losses(batch)

        self.algorithm.losses = looked_at


@pytest.mark.slow
@pytest.mark.parametrize(("normalize", "stack"), [(True, 1), (False, 1), (False, 3)])
def test_observations_of_bytes_travel_as_bytes_and_may_be_compressed(
    tmp_path, monkeypatch, normalize, stack
):
    (tmp_path / "bytes_env.py").write_text(BYTES)
    monkeypatch.syspath_prepend(str(tmp_path))
    env = {"env__id": "bytes_env:Bytes-v0", "env__max_episode_steps": None}
    env["algorithm__normalize_observation"] = normalize
    env["env__wrappers"] = [{"frame_stack": {"count": stack}}] if stack > 1 else []
    path = config(tmp_path, **env, experience__lz4=["observation"], experience__channels="auto")
    result = launch(path, roles={"trainer": StackTrainer} if stack == 3 else None)
    assert result.eval_return == 5
    assert result.iteration == ITERATIONS
    record = json.loads((result.folder / "report" / "channels_gmi0.json").read_text())
    channels = {one["name"]: one for one in json.loads(record["schema"])["channels"]}
    assert (channels["observation"]["dtype"], channels["reward"]["dtype"]) == ("uint8", "float32")
    assert channels["observation"]["shape"] == [64]  # of a stack the newest frame
    assert ("older_frames" in channels) == (stack > 1)
    assert segment_bytes(result.folder) == projected_bytes(result.folder)


@pytest.mark.slow
def test_appo_and_batches_of_several_segments(tmp_path):
    settings = {"algorithm__name": "appo", "algorithm__minibatches": 4}
    batches = {"experience__batch_segments": 3, "experience__capacity": 4}
    total = {"run__total_steps": 6 * 3 * SAMPLES}
    result = launch(config(tmp_path, **settings, **batches, **total))
    assert (result.iteration, result.experience.trained) == (6, 18)


def test_a_resumed_run_goes_on_with_its_policy_and_its_counts(tmp_path):
    part = launch(config(tmp_path))
    resumed = launch(None, f"run.total_steps={2 * ITERATIONS * SAMPLES}", resume=part.folder)
    assert [line["iteration"] for line in metrics(resumed.folder)] == [*range(1, 41)]
    assert resumed.experience.trained == ITERATIONS  # of this launch
    assert resumed.experience.add_up


def test_a_resumed_run_sees_other_episodes_and_always_the_same_ones(tmp_path):
    roles = {"agent": bodies_async.TellingAgent}
    first = launch(config(tmp_path), roles=roles).folder
    copy = first.with_name("copy")
    shutil.copytree(first, copy)
    seen = []
    for folder in (first, copy):
        launch(None, f"run.total_steps={2 * ITERATIONS * SAMPLES}", resume=folder, roles=roles)
        seen.append((folder / "first0").read_text().splitlines())
    assert len({part for line in seen[0] for part in line.split("] ")}) == 4
    assert seen[0] == seen[1]


# Deaths -------------------------------------------------------------------------------------------


def check_whole(result, path, moments, lost=0, iterations=ITERATIONS):
    """`lost`: segments that a trainer without peers may lose since its last checkpoint."""
    faults.check_restarts(result, path, moments)
    assert (result.state, result.iteration) == ("finished", iterations)
    assert [line["iteration"] for line in metrics(result.folder)] == list(range(1, iterations + 1))
    accounts = result.experience
    assert accounts.add_up, accounts
    assert accounts.missing <= lost
    assert accounts.undone <= lost
    trainers = len([answer for answer in result.gmis if "experience" in answer])
    assert accounts.trained == iterations * trainers
    assert result.eval_return > 0


@pytest.mark.parametrize(
    ("channels", "moment"),
    [
        ("ucc", (0, "segment", 5)),
        *slow(("mcc", (0, "segment", 5)), ("auto", (0, "step", 27)), ("auto", (0, "step", 0))),
        *slow(("mcc", (0, "sent", 5)), ("ucc", (0, "sent", 5)), ("mcc", (0, "left", 0))),
    ],
)
def test_a_killed_agent_comes_back(tmp_path, monkeypatch, moment, channels):
    path = tmp_path / "faults"
    faults.script(monkeypatch, path, moment)
    result = launch(config(tmp_path, experience__channels=channels), roles=MORTAL)
    check_whole(result, path, [moment])
    if moment[1] == "segment":
        parts = {"mcc": 0, "ucc": 1}  # mcc: no packet was full
        assert result.experience.incomplete - result.experience.lost in (parts[channels], 0)


@pytest.mark.parametrize(
    "moment",
    [
        (1, "given back", 10),
        *slow((1, "begin", 0), (1, "publish", 0), (1, "update", 2), (1, "update", 9)),
        *slow((1, "agreed", 9), (1, "give back", 10), (1, "publish", 12)),
        *slow((1, "after", 20), (1, "finished", 20), (1, "left", 0)),
    ],
)
def test_the_only_trainer_goes_on_from_its_last_checkpoint(tmp_path, monkeypatch, moment):
    path = tmp_path / "faults"
    faults.script(monkeypatch, path, moment)
    check_whole(launch(config(tmp_path), roles=MORTAL), path, [moment], lost=4)


@pytest.mark.slow
def test_a_killed_trainer_and_a_killed_agent(tmp_path, monkeypatch):
    path, moments = tmp_path / "faults", [(0, "segment", 3), (1, "update", 9), (0, "step", 100)]
    faults.script(monkeypatch, path, *moments)
    check_whole(launch(config(tmp_path), roles=MORTAL), path, moments, lost=4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "moments",
    [
        [(0, "segment", 5)],
        [(1, "update", 9)],
        [(0, "step", 27, "pause"), (1, "update", 9, "SIGSTOP")],
    ],
    ids=str,
)
def test_appo_goes_on_when_one_is_killed_or_stopped(tmp_path, monkeypatch, moments):
    path = tmp_path / "faults"
    faults.script(monkeypatch, path, *moments)
    settings = {"algorithm__name": "appo", "algorithm__minibatches": 2, "algorithm__epochs": 2}
    job = config(tmp_path, **settings, run__hang_timeout_s=6.0)
    check_whole(launch(job, roles=MORTAL), path, moments, lost=4)


# Several trainers ---------------------------------------------------------------------------------


@pytest.fixture
def crowd(monkeypatch):
    """A layout of two agents and two trainers, or others, whatever the cores are."""

    def planned(agents, trainers):
        mine = sorted(os.sched_getaffinity(0))
        devices = tuple(
            Device(i, "cpu", f"share {i}", (mine[i % len(mine)],)) for i in range(agents + trainers)
        )
        layout = decoupled(Topology(devices), 1, 8, "cpu", trainers)
        monkeypatch.setattr(jobs, "planned", lambda *_, **more: layout)

    return planned


def several(tmp_path, trainers, **changes):
    total = ITERATIONS * SAMPLES * trainers
    both = {"run__total_steps": total, "comm__reduction": "mpr", "experience__capacity": 4}
    return config(tmp_path, **both | changes)


@pytest.mark.slow
def test_two_agents_feed_two_trainers(tmp_path, crowd):
    crowd(2, 2)
    result = launch(several(tmp_path, 2, experience__batch_segments=2, algorithm__minibatches=2))
    assert result.iteration == ITERATIONS // 2
    assert result.experience.trained == 2 * ITERATIONS
    assert result.experience.add_up
    assert result.gmis[2]["eval_return"] == result.gmis[3]["eval_return"]


@pytest.mark.parametrize(
    ("trainer", "moment"),
    [
        (2, ("agreed", 9)),
        *slow((3, ("agreed", 9)), (2, ("update", 9)), (3, ("update", 9)), (2, ("after", 20))),
        *slow((2, ("give back", 9)), (3, ("give back", 9)), (3, ("after", 20))),
        *slow((2, ("finished", 20)), (3, ("finished", 20)), (2, ("left", 0)), (3, ("left", 0))),
    ],
)
def test_a_killed_trainer_takes_over_from_its_peer_and_nothing_is_lost(
    tmp_path, monkeypatch, crowd, trainer, moment
):
    crowd(2, 2)
    path, moments = tmp_path / "faults", [(trainer, *moment)]
    faults.script(monkeypatch, path, *moments)
    result = launch(several(tmp_path, 2, run__checkpoint_every=0), roles=MORTAL)
    check_whole(result, path, moments)
    assert result.experience.missing == result.experience.incomplete == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "moments",
    [
        [(1, "agreed", 7), (2, "agreed", 7)],
        [(1, "agreed", 7), (2, "update", 8), (3, "give back", 12)],
        [(0, "segment", 4), (1, "update", 6), (3, "publish", 9)],
    ],
)
def test_deaths_of_several_of_three_trainers(tmp_path, monkeypatch, crowd, moments):
    crowd(1, 3)
    path = tmp_path / "faults"
    faults.script(monkeypatch, path, *moments)
    result = launch(several(tmp_path, 3, run__checkpoint_every=0), roles=MORTAL)
    check_whole(result, path, moments)
    assert result.experience.missing == 0


def killed_often(folder):
    """Kills a GMI now and then while metrics come; more seldom than they restart."""

    def lines():
        return sum(len(p.read_text().splitlines()) for p in folder.glob("t/*/metrics.jsonl"))

    return killers.Killer(7, 0.4, targets=killers.started, progress=lines)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_kills_at_random_moments_lose_no_segment_silently(tmp_path, crowd):
    trainers, iterations = 2, 300
    crowd(2, trainers)
    path = several(
        tmp_path, trainers, run__total_steps=iterations * SAMPLES * trainers,
        run__checkpoint_every=50, run__max_restarts=1000, comm__checksum_every=10,
    )  # fmt: skip
    with killed_often(tmp_path / "runs") as killer:
        result = launch(path)
    assert killer.killed >= 4
    assert (result.state, result.iteration) == ("finished", iterations)
    assert [line["iteration"] for line in metrics(result.folder)] == list(range(1, iterations + 1))
    assert result.experience.add_up, result.experience
    assert result.experience.trained == iterations * trainers


# Stalls -------------------------------------------------------------------------------------------


MANY = 300  # iterations: more than are over before a busy machine lets the pauser look


class Pauser(threading.Thread):
    """Stops the trainer once it has begun a few iterations, and wakes it when told to."""

    def __init__(self, path, wake=True):
        super().__init__(name="pauser")
        self._path, self._wake = path, wake
        self.begun = []  # segments of the agent, looked at while the trainer is stopped
        self.iterations = 0

    def run(self):
        while len(trained := self._lines("begun1")) < 5:
            time.sleep(0.01)  # until the run has got that far
        trainer = int(trained[-1].split()[1])
        stop(trainer)
        self.iterations = len(self._lines("begun1"))
        while len(self.begun) < 2 or self.begun[-1] != self.begun[-2]:
            self.begun.append(len(self._lines("segments0")))
            time.sleep(0.5)  # an agent that does not stall makes dozens of segments in this time
        if self._wake:
            os.kill(trainer, signal.SIGCONT)

    def _lines(self, name):
        file = self._path / name
        return file.read_text().splitlines() if file.exists() else []


@pytest.mark.slow
def test_a_stalled_trainer_stalls_agents_and_both_go_on(tmp_path, monkeypatch):
    path = tmp_path / "faults"
    faults.script(monkeypatch, path)
    pauser = Pauser(path)
    pauser.start()
    result = launch(config(tmp_path, run__total_steps=MANY * SAMPLES), roles=MORTAL)
    pauser.join()
    # Two are under way, as experience.capacity says, and one is ready to be sent.
    assert pauser.begun[-1] <= pauser.iterations + 3
    check_whole(result, path, [], iterations=MANY)


@pytest.mark.slow
def test_a_trainer_that_stalls_for_too_long_is_named(tmp_path, monkeypatch):
    path = tmp_path / "faults"
    faults.script(monkeypatch, path)
    pauser = Pauser(path, wake=False)
    pauser.start()
    with pytest.raises(GmiDied, match=r"no room for experience within 2 s: gmi 1, device 1"):
        launch(config(tmp_path, run__total_steps=MANY * SAMPLES, comm__timeout_s=2.0), roles=MORTAL)
    pauser.join()


@pytest.mark.slow
def test_an_agent_that_stalls_for_too_long_is_named(tmp_path):
    class Sleeper(gmi_drl.roles.Agent):
        def make_sampler(self, env):
            sender = super().make_sampler(env)
            load_newest = sender._load_newest_policy

            def sleep():
                load_newest()
                if sender._version >= 3:
                    os.kill(os.getpid(), signal.SIGSTOP)

            sender._load_newest_policy = sleep
            return sender

    with pytest.raises(GmiDied, match=r"nothing whole came from gmi 0, device 0"):
        launch(config(tmp_path, comm__timeout_s=2.0), roles={"agent": Sleeper})


# Learning -----------------------------------------------------------------------------------------


def learned(example, tmp_path, *overrides):
    settings = (f"run.folder={tmp_path}", *overrides)
    result = launch(EXAMPLES / example, *settings)
    assert result.experience.add_up
    assert max(line["policy_lag_mean"] for line in metrics(result.folder)) > 0
    return result


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_cartpole_is_learned_from_experience_that_is_old(tmp_path):
    quick = ("run.target_return=150", "run.eval_episodes=0")
    assert learned("async_cartpole.yaml", tmp_path, *quick).return_mean >= 150


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_half_cheetah_runs(tmp_path):
    # A policy that acts at random: -280.
    short = ("run.target_return=100", "run.eval_episodes=0", "run.checkpoint_every=0")
    assert learned("async_halfcheetah.yaml", tmp_path, *short).return_mean >= 100
