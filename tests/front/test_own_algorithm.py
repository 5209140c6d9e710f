"""Algorithms that are no actor-critic, and such as users write, are launched and learn."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from small_jobs import job_file, launch

EXAMPLES = Path(__file__).parents[2] / "examples"
OWN = EXAMPLES / "own_algorithm"
UNTIMED = ("steps", "return_mean", "episodes", "q_loss", "q_mean", "updates", "replay_rows")
LAYOUTS = {
    "one": {"gmi_per_gpu": 1},
    "two": {"gmi_per_gpu": 2},
    "apart": {"template": "tdg_ex", "gmi_per_gpu": 2},
}


pytestmark = pytest.mark.usefixtures("warm")


def written(tmp_path, layout="one", **algorithm):
    """A small job of DQN: 64 steps a round of each GMI that samples, updates from the third on."""
    return job_file(
        tmp_path,
        run={"total_steps": 512, "seed": 3, "checkpoint_every": 2, "eval_episodes": 2},
        env={"id": "CartPole-v1", "num_env": 8, "max_episode_steps": 30},
        algorithm={
            "name": "dqn", "network": [16], "horizon": 8, "replay_start": 150, "target_every": 7,
            "epsilon_steps": 200, "replay_capacity": 200, "updates_per_row": 0.25,
            "normalize_observation": True, **algorithm,
        },
        layout=LAYOUTS[layout],
        comm={"checksum_every": 1},
    )  # fmt: skip


def numbers(result):
    lines = (result.folder / "metrics.jsonl").read_text().splitlines()
    assert "NaN" not in "".join(lines)
    return [{key: yaml.safe_load(line)[key] for key in UNTIMED} for line in lines]


def learned(result):
    newest = max((result.folder / "checkpoints").iterdir())
    return torch.load(newest / "shared.pt", weights_only=True)


@pytest.mark.slow
def test_dqn_trains_in_two_gmis(tmp_path):
    result = launch(written(tmp_path, "two"))
    lines = numbers(result)
    assert result.state == "finished"
    assert [line["updates"] for line in lines] == [0, 0, 11, 27]
    assert lines[0]["q_loss"] is None
    assert lines[-1]["q_loss"] > 0
    assert lines[-1]["replay_rows"] == 200


@pytest.mark.slow
def test_dqn_learns_the_same_where_its_agent_is_apart(tmp_path):
    one = launch(written(tmp_path, "one"))
    apart = launch(written(tmp_path, "apart"))
    assert torch.equal(learned(one)["parameters"], learned(apart)["parameters"])
    assert numbers(one) == numbers(apart)


# Its noise is drawn anew in each step and each update.
RAINBOW = {
    "dueling": True, "noisy": True, "distributional": "c51", "atoms": 11, "value_range": [0, 30],
    "n_step": 3, "sampler": "prioritized",
}  # fmt: skip


@pytest.mark.parametrize(
    ("layout", "settings"),
    [
        ("one", {}),
        pytest.param("apart", {}, marks=pytest.mark.slow),
        pytest.param("two", RAINBOW, marks=pytest.mark.slow),
    ],
    ids=["one", "apart", "two-rainbow"],
)
def test_a_resumed_dqn_equals_one_that_was_never_stopped(tmp_path, layout, settings):
    whole = launch(written(tmp_path, layout, **settings))
    part = launch(written(tmp_path, layout, **settings), "run.total_steps=256")
    resumed = launch(None, "run.total_steps=512", resume=part.folder)
    assert numbers(whole) == numbers(resumed)
    for one, other in zip(
        learned(whole)["algorithm"]["target"].values(),
        learned(resumed)["algorithm"]["target"].values(),
        strict=True,
    ):
        assert torch.equal(one, other)
    assert torch.equal(learned(whole)["parameters"], learned(resumed)["parameters"])


@pytest.mark.slow
def test_a_replay_that_is_not_saved_begins_anew(tmp_path):
    part = launch(written(tmp_path, "one", replay_save=False), "run.total_steps=256")
    lines = numbers(launch(None, "run.total_steps=512", resume=part.folder))
    assert [line["replay_rows"] for line in lines] == [64, 128, 192, 200, 64, 128, 192, 200]
    updates = [line["updates"] for line in lines]
    assert updates[3] == updates[5] < updates[6]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_dqn_balances_the_pole(tmp_path):
    # The end of such runs is in docs/learning.md; chance gives 22.
    until = ("run.target_return=66", "run.eval_episodes=0")
    result = launch(EXAMPLES / "dqn_cartpole.yaml", f"run.folder={tmp_path}", *until)
    assert result.return_mean >= 66


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_dueling_network_of_quantiles_learns_to_balance_the_pole(tmp_path):
    # Three times what chance gives. Whole runs, and those of C51, are in docs/learning.md.
    until = ("run.target_return=66", "run.eval_episodes=0")
    parts = (
        "network=[64, 64]", "distributional=qr", "quantiles=8", "noisy=true", "dueling=true",
        "updates_per_row=0.25",
    )  # fmt: skip
    settings = (f"algorithm.{part}" for part in parts)
    result = launch(EXAMPLES / "dqn_cartpole.yaml", f"run.folder={tmp_path}", *until, *settings)
    assert result.return_mean >= 66


@pytest.mark.slow
@pytest.mark.parametrize("command", ["check", "plan"])
@pytest.mark.parametrize("example", ["dqn_cartpole.yaml", "own_algorithm/reinforce.yaml"])
def test_commands_know_them(command, example):
    ended = subprocess.run(
        [sys.executable, "-m", "gmi_drl", command, str(EXAMPLES / example)],
        capture_output=True, text=True, timeout=100,
        env=os.environ | {"COLUMNS": "200"},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stderr == ""


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", ["reinforce", "reinforce_async"])
def test_the_algorithm_of_the_page_learns_under_two_optimizers(tmp_path, name):
    until = ("run.target_return=100", "run.eval_episodes=0")
    result = launch(OWN / f"{name}.yaml", f"run.folder={tmp_path}", *until)
    assert result.return_mean >= 100  # by chance 22


def test_the_page_shows_the_example_as_it_is():
    page = (EXAMPLES.parent / "docs" / "writing-a-role.md").read_text()
    assert f"```python\n{(OWN / 'reinforce.py').read_text()}```" in page
