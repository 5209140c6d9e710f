"""Mode async, end to end: it learns with a lag, and kills cost no segment silently."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
import yaml

import bodies_async
import faults
import gmi_drl
from gmi_drl import runtime
from gmi_drl.gmi import GmiDied
from gmi_drl.preload import PRELOAD

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module", autouse=True)
def warm():
    """One fork server for all launches of this module: importing torch takes seconds."""
    runtime.init(PRELOAD)
    yield
    runtime.shutdown()


ITERATIONS, SAMPLES = 20, 8 * 8  # of a segment


def config(tmp_path, **changes):
    base = {
        "version": 1,
        "mode": "async",
        "run": {
            "name": "t",
            "folder": str(tmp_path / "runs"),
            "total_steps": ITERATIONS * SAMPLES,
            "checkpoint_every": 4,
            "eval_episodes": 4,
        },
        "env": {"id": "CartPole-v1", "num_env": 8, "max_episode_steps": 50},
        "algorithm": {"network": [16], "horizon": 8},
        "hardware": {"num_gpus": 2},
        "experience": {"channels": "mcc"},
        "comm": {"checksum_every": 1},
    }
    for key, value in changes.items():
        section, name = key.split("__")
        base.setdefault(section, {})[name] = value
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(base))
    return path


def launch(path=None, **options):
    return gmi_drl.launch(path, view="none", **options)


def metrics(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


MORTAL = {"agent": bodies_async.MortalAsyncAgent, "trainer": bodies_async.MortalAsyncTrainer}


@pytest.mark.parametrize("channels", ["auto", "ucc"])
def test_one_device_collects_and_the_other_one_trains(tmp_path, channels):
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


def test_segments_that_are_too_old_are_not_trained_on(tmp_path):
    result = launch(config(tmp_path, experience__max_policy_lag=0))
    assert result.iteration == ITERATIONS
    assert all(line["policy_lag_max"] == 0 for line in metrics(result.folder))
    assert result.experience.stale > 0
    assert result.experience.add_up


def test_a3c_and_batches_of_several_segments(tmp_path):
    settings = {"algorithm__name": "a3c", "algorithm__minibatches": 4}
    batches = {"experience__batch_segments": 3, "experience__capacity": 4}
    total = {"run__total_steps": 6 * 3 * SAMPLES}
    result = launch(config(tmp_path, **settings, **batches, **total))
    assert (result.iteration, result.experience.trained) == (6, 18)


def test_a_resumed_run_goes_on_with_its_policy_and_its_counts(tmp_path):
    part = launch(config(tmp_path))
    resumed = launch(resume=part.folder, overrides=[f"run.total_steps={2 * ITERATIONS * SAMPLES}"])
    assert [line["iteration"] for line in metrics(resumed.folder)] == [*range(1, 41)]
    assert resumed.experience.trained == ITERATIONS  # of this launch
    assert resumed.experience.add_up


# Deaths -------------------------------------------------------------------------------------------


def check_whole(result, path, moments, lost=0):
    """`lost`: segments that a trainer without peers may lose since its last checkpoint."""
    assert faults.struck(path) == result.restarts == len(moments)
    assert (result.state, result.iteration) == ("finished", ITERATIONS)
    assert [line["iteration"] for line in metrics(result.folder)] == list(range(1, ITERATIONS + 1))
    accounts = result.experience
    assert accounts.add_up, accounts
    assert accounts.missing <= lost
    trainers = len([answer for answer in result.gmis if "experience" in answer])
    assert accounts.trained == ITERATIONS * trainers
    assert result.eval_return > 0


@pytest.mark.parametrize(
    "moment", [(0, "step", 0), (0, "step", 27), (0, "segment", 5), (0, "sent", 5)]
)
@pytest.mark.parametrize("channels", ["mcc", "ucc"])
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
    [(1, "begin", 0), (1, "publish", 0), (1, "update", 2), (1, "update", 9), (1, "agreed", 9),
     (1, "give back", 10), (1, "given back", 10), (1, "publish", 12), (1, "after", 20),
     (1, "finished", 20)],
)  # fmt: skip
def test_the_only_trainer_goes_on_from_its_last_checkpoint(tmp_path, monkeypatch, moment):
    path = tmp_path / "faults"
    faults.script(monkeypatch, path, moment)
    check_whole(launch(config(tmp_path), roles=MORTAL), path, [moment], lost=4)


def test_a_killed_trainer_and_a_killed_agent(tmp_path, monkeypatch):
    path, moments = tmp_path / "faults", [(0, "segment", 3), (1, "update", 9), (0, "step", 100)]
    faults.script(monkeypatch, path, *moments)
    check_whole(launch(config(tmp_path), roles=MORTAL), path, moments, lost=4)
