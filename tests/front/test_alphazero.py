"""AlphaZero end to end: two GMIs, kills, a resume, and what was learned at play afterwards."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import bodies_games
import faults
import gmi_drl
from gmi_drl.gmi import GmiDied
from gmi_drl.report.policy_lineage import PolicyReader
from gmi_drl.report.run_state import opened
from gmi_drl.roles.envs import EnvSpecError
from gmi_drl.roles.state import checkpoint
from gmi_drl.trained import filming
from gmi_drl.trained.exporting import export_policy
from gmi_drl.trained.policy import PolicyNotLoaded
from run_files import metrics
from small_jobs import job_file, launch

ROUNDS = 4
GAMES = 6


pytestmark = pytest.mark.usefixtures("warm")


def config(tmp_path, steps=1_000_000):
    return job_file(
        tmp_path,
        run={"checkpoint_every": 2, "total_steps": steps, "eval_episodes": 4, "seed": 3},
        env={"id": "TicTacToe-v0", "num_env": 2},
        algorithm={
            "name": "alphazero", "network": [8], "blocks": 0, "games": GAMES, "simulations": 6,
            "play_simulations": 6, "batch_size": 8, "updates_per_row": 0.1, "gate_every": 2,
            "gate_games": 4, "gate_share": 0.3, "replay_capacity": 100,
        },
        layout={"gmi_per_gpu": 2},
        comm={"checksum_every": 1},
    )  # fmt: skip


def learned(result):
    state = checkpoint.find(result.folder).load("shared")
    replay = state["replay"]
    return [
        *(state[name].numpy().tobytes() for name in ("parameters", "candidate")),
        *(replay[name].numpy().tobytes() for name in ("states", "policy", "value", "version")),
        replay["next"], replay["due"], state["match"], state["promoted"], state["updates"],
        state["best_version"],
    ]  # fmt: skip


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, warm):
    """A run of two GMIs that nothing happened to, and the steps after which it ends."""
    path = config(tmp_path_factory.mktemp("undisturbed"), steps=GAMES * 9 * (ROUNDS - 1))
    return launch(path, keep_gcs=True)


def test_two_gmis_play_and_learn(undisturbed):
    lines = metrics(undisturbed.folder)
    assert undisturbed.state == "finished"
    assert all(len(line["gmi_seconds"]) == 2 for line in lines)
    assert all(line["episodes"] == 4 for line in lines)  # of the curve: one in each environment
    assert lines[-1]["updates"] == int(0.1 * lines[-1]["steps"])
    assert lines[-1]["replay_rows"] == 100
    assert sum(lines[1][f"match_{what}"] for what in ("wins", "draws", "losses")) == 4
    assert all(line["leaves_per_s"] > 0 for line in lines)
    assert undisturbed.gmis[0]["eval_episodes"] == 4


def test_lineage_names_the_best_network_that_played_and_what_the_replay_held(undisturbed):
    lines = metrics(undisturbed.folder)
    best, before = 0, {"steps": 0, "updates": 0, "promoted": 0}
    put_in = []  # by which version each position was
    with opened(undisturbed.folder / "gcs.sqlite") as store:
        reader = PolicyReader(store)
        assert len(list(reader.chain())) == len(lines)
        for number, line in enumerate(lines, 1):
            policy = reader.policy(reader.find(f"policy@{number}"))
            assert [sample.gmi_id for sample in policy.samples] == [0, 1]
            assert {sample.sampled_with.number for sample in policy.samples} == {best}
            assert sum(sample.parts for sample in policy.samples) == GAMES
            steps = line["steps"] - before["steps"]
            assert sum(sample.steps for sample in policy.samples) == steps
            put_in = (put_in + [number] * steps)[-100:]
            for replay in policy.replays:
                assert (replay.rows, replay.oldest) == (len(put_in), put_in[0])
                assert replay.minibatches == line["updates"] - before["updates"]
            assert len(policy.replays) == 2
            best = number if line["promoted"] > before["promoted"] else best
            before = line
    assert best > 0  # a candidate has become the best network


@pytest.mark.parametrize(
    "moments",
    [
        [(1, "play", 2)],
        [(0, "simulate", 1), (1, "checkpoint", 2)],
        [(0, "committed", 2), (1, "evaluate", ROUNDS)],
    ],
    ids=lambda moments: " and ".join(f"{g} at {p} {i}" for g, p, i in moments),
)
def test_kills_change_nothing_of_what_is_learned(tmp_path, monkeypatch, undisturbed, moments):
    path, rounds = tmp_path / "faults", undisturbed.iteration
    moments = [(g, p, rounds if p == "evaluate" else i) for g, p, i in moments]
    faults.script(monkeypatch, path, *moments)
    roles = {"trainer": bodies_games.Mortal}
    asked = config(tmp_path, steps=GAMES * 9 * (ROUNDS - 1))
    result = launch(asked, roles=roles)
    assert faults.struck(path) == result.restarts == len(moments)
    assert (result.state, result.iteration) == ("finished", rounds)
    assert [line["iteration"] for line in metrics(result.folder)] == list(range(1, rounds + 1))
    assert learned(result) == learned(undisturbed)


def test_a_resumed_run_is_one_that_was_never_stopped(tmp_path, undisturbed):
    second = metrics(undisturbed.folder)[1]["steps"]
    part = launch(config(tmp_path, steps=second))
    assert part.iteration == 2
    resumed = launch(None, f"run.total_steps={GAMES * 9 * (ROUNDS - 1)}", resume=part.folder)
    assert resumed.iteration == undisturbed.iteration
    assert learned(resumed) == learned(undisturbed)


def test_a_checkpoint_that_lacks_an_entry_is_refused_by_name(tmp_path, undisturbed):
    run = tmp_path / "run"
    shutil.copytree(undisturbed.folder, run)
    saved = checkpoint.find(run)
    iteration = saved.manifest["iteration"]
    checkpoint.begin(run / "checkpoints", iteration)
    for part in ("shared", "gmi0", "gmi1"):
        state = saved.load(part)
        if part == "shared":
            del state["replay"]["version"]
        checkpoint.write_part(run / "checkpoints", iteration, part, state)
    checkpoint.commit(run / "checkpoints", iteration, saved.manifest)
    said = r"CheckpointError: .* has no 'version', .*Resume with the release that wrote it"
    with pytest.raises(GmiDied, match=said):
        launch(None, "run.total_steps=1000", resume=run)


def test_what_was_learned_plays_afterwards_by_the_best_network(undisturbed, tmp_path):
    told = gmi_drl.evaluate(undisturbed.folder, episodes=4)
    assert told.mean == pytest.approx(undisturbed.eval_return)
    policy = gmi_drl.load_policy(undisturbed.folder)
    state = checkpoint.find(undisturbed.folder).load("shared")
    mine = torch.cat([p.flatten() for _, p in sorted(policy.module.network.named_parameters())])
    assert torch.equal(mine, state["parameters"])
    board = np.array([1, 1, 0, -1, -1, 0, 0, 0, 0], np.float32)
    assert policy.act(board) == 2
    with pytest.raises(PolicyNotLoaded, match="searches games, which is no function of tensors"):
        export_policy(policy, "pt2", tmp_path / "policy.pt2")
    assert "bit for bit" in export_policy(policy, "safetensors", tmp_path / "policy.safetensors")
    with pytest.raises(EnvSpecError, match="films are of Gymnasium's environments"):
        filming._drawable(policy)


@pytest.mark.slow
def test_the_example_of_ones_own_game_learns_to_play_it_perfectly(tmp_path):
    example = Path(__file__).resolve().parents[2] / "examples" / "nim" / "alphazero.yaml"
    result = launch(example, f"run.folder={tmp_path}")
    policy = gmi_drl.load_policy(result.folder)
    # Who leaves a multiple of four wins.
    for sticks in (n for n in range(1, 22) if n % 4):
        assert policy.act(np.array([sticks], np.float32)) == sticks % 4 - 1, sticks
