"""The policy of a run acts in other programs as it did in the run, and is evaluated there."""

import json
import re
import shutil
import subprocess
import sys
import tracemalloc
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
import yaml
from rich.console import Console

import gmi_drl
from gmi_drl import GmiDrlError
from gmi_drl.cli.main import main
from gmi_drl.launcher.folder.run_folder import RunFolderError
from gmi_drl.placement import ConfigError
from gmi_drl.roles import CheckpointError, RoleLoadError
from gmi_drl.roles.envs import EnvSpecError
from gmi_drl.roles.envs.flatten import unflattened_action
from gmi_drl.roles.evaluators import evaluate
from gmi_drl.trained import card, evaluation
from gmi_drl.trained.evaluation import print_evaluations
from gmi_drl.trained.policy import PolicyNotLoaded
from terminals import Terminal

SLOW_FAMILIES = [pytest.param(name, marks=pytest.mark.slow) for name in ("r2d2", "cem")]
FAMILIES = ["ppo", "lstm", "ant", "dqn", "sac", "images", "torch", "structure", "mixed", "async"]

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("task", [*FAMILIES, *SLOW_FAMILIES])
def test_an_evaluation_gives_what_that_of_the_run_gave(train, task):
    folder = train(task)
    run = json.loads((folder / "run.json").read_text())
    found = gmi_drl.evaluate(folder, episodes=6)
    assert found.mean == pytest.approx(run["eval_return"], rel=1e-6)
    assert found.std == pytest.approx(run["eval_std"], rel=1e-4, abs=1e-4)
    kept = json.loads((folder / "report" / "eval.json").read_text())
    assert kept["returns"] == list(found.returns)
    assert (kept["episodes"], kept["cut"], len(kept["lengths"])) == (6, 0, 6)


def test_an_evaluation_computes_with_the_threads_of_its_gmi(train, monkeypatch):
    """Their number decides the last bits, on some processors more than on others."""
    counts, playing = [], evaluation.play
    monkeypatch.setattr(
        evaluation, "play", lambda *its: counts.append(torch.get_num_threads()) or playing(*its)
    )
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        gmi_drl.evaluate(train("ppo"), episodes=2)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert set(counts) == {1}  # it is a small network


@pytest.mark.parametrize("task", FAMILIES)
def test_one_and_many_observations_are_acted_on_as_environments_do(train, task):
    policy = gmi_drl.load_policy(train(task))
    with closing(policy.make_env(5)) as env:
        rows, actor = env.reset(3), policy.actor(5)
        for began in (torch.ones(5, dtype=torch.bool), torch.zeros(5, dtype=torch.bool)):
            to_env = policy.module.to_env(actor.act(rows, began)).numpy().reshape(5, -1)
            wanted = unflattened_action(policy.action_space, to_env)
            shaped = _in_shape(policy, rows)
            many = policy.act(shaped)
            _assert_same(many, wanted)
    policy.reset()
    one = policy.act(_at(shaped, 0))
    assert one in policy.action_space


def _in_shape(policy, rows):
    """Observations as the environment gives them, of rows: by unflattening each."""
    space = policy.observation_space
    if isinstance(space, gymnasium.spaces.Box):
        return rows.numpy().reshape(-1, *space.shape)
    samples = [gymnasium.spaces.unflatten(space, row) for row in rows.numpy()]
    return gymnasium.vector.utils.concatenate(
        space, samples, gymnasium.vector.utils.create_empty_array(space, len(samples))
    )


def _at(structure, place):
    if isinstance(structure, dict):
        return {key: _at(part, place) for key, part in structure.items()}
    if isinstance(structure, tuple):
        return tuple(_at(part, place) for part in structure)
    return structure[place]


def _assert_same(one, other):
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            _assert_same(one[key], other[key])
    elif isinstance(one, tuple):
        for mine, its in zip(one, other, strict=True):
            _assert_same(mine, its)
    else:
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


def test_tensors_give_tensors(train):
    policy = gmi_drl.load_policy(train("sac"))
    action = policy.act(torch.zeros(4, 3))
    assert isinstance(action, torch.Tensor)
    assert action.shape == (4, 1)
    np.testing.assert_array_equal(action, policy.act(np.zeros((4, 3), np.float32)))


def test_a_policy_that_remembers_forgets_where_episodes_begin(train):
    policy = gmi_drl.load_policy(train("lstm"))
    states, start = [], np.array([0.1, 0.2, -0.1, 0.3], np.float32)
    for began in ([True, True], [False, True]):
        policy.act(np.stack([start, start]), np.array(began))
        states.append(policy._state.clone())
    assert torch.equal(states[0][0], states[0][1])
    assert torch.equal(states[1][1], states[0][1])  # begun anew
    assert not torch.equal(states[1][0], states[0][0])
    _, state = policy.predict(start)
    np.testing.assert_allclose(state[0][0], states[0][0], atol=1e-6)
    _, again = policy.predict(start, state, np.array([True]))
    np.testing.assert_array_equal(again[0], state[0])


def test_stable_baselines3_evaluates_it(train):
    evaluation = pytest.importorskip("stable_baselines3.common.evaluation")
    monitor = pytest.importorskip("stable_baselines3.common.monitor")
    policy = gmi_drl.load_policy(train("ppo"))
    with closing(monitor.Monitor(gymnasium.make("CartPole-v1"))) as env:
        mean, _ = evaluation.evaluate_policy(policy, env, n_eval_episodes=3)
    assert 1 <= mean <= 500
    with pytest.raises(ValueError, match="stochastic=True"):
        policy.predict(np.zeros(4), deterministic=False)


def test_a_program_of_its_own_loads_policies_and_starts_nothing(train):
    """It does without GMIs, their links, and what starts processes: no such module is to be had."""
    code = """
import os, sys, threading
gone = [f"gmi_drl.launcher.{part}" for part in ("plan", "start", "hosts", "watch")]
gone += [f"gmi_drl.runtime.{part}" for part in ("scheduler", "engines", "process.forkserver")]
gone += ["gmi_drl.comm", "gmi_drl.gmi"]
sys.modules.update(dict.fromkeys(gone))  # to import one of them raises ModuleNotFoundError
started = []
parts = "os.fork", "os.posix_spawn", "subprocess.Popen", "socket.bind", "socket.connect"
sys.addaudithook(lambda event, given: started.append(event) if event in parts else None)
import numpy as np
import gmi_drl
from gmi_drl import runtime
for folder in sys.argv[1:]:
    policy = gmi_drl.load_policy(folder)
    print(policy.act(np.zeros(policy.observation_space.shape, np.float32)))
    assert len(gmi_drl.evaluate(folder, episodes=2, num_env=2, seed=0).returns) == 2
assert all(sys.modules[name] is None for name in gone)
assert not started, started
assert not runtime.is_initialized()
children = open(f"/proc/self/task/{os.getpid()}/children").read().split()
assert not children, children
assert threading.active_count() == 1, threading.enumerate()
"""
    folders = [str(train(task)) for task in ("ppo", "async", "lstm", "sac")]
    done = subprocess.run(
        [sys.executable, "-c", code, *folders], capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr
    *choices, force = done.stdout.splitlines()
    assert {*choices} <= {"0", "1"}
    assert len(choices) == 3
    assert -2 <= float(force.strip("[]")) <= 2


def test_episodes_are_as_many_of_each_environment_whatever_their_length(train):
    told = []
    found = gmi_drl.evaluate(
        train("ppo"), episodes=7, num_env=3, seed=5, progress=lambda *numbers: told.append(numbers)
    )
    assert told[0][:2] == (0, 9)
    counts = [ended for ended, _, _ in told]
    assert counts == sorted(counts)
    assert 0 < counts[-1] <= 9
    assert {of for _, of, _ in told} == {9}
    assert min(found.returns) <= told[-1][2] <= max(found.returns)
    assert len(found.returns) == 9  # three of each of the three
    assert found.returns == tuple(float(length) for length in found.lengths)  # CartPole pays 1
    again = gmi_drl.evaluate(train("ppo"), episodes=7, num_env=3, seed=5)
    assert again.returns == found.returns
    other = gmi_drl.evaluate(train("ppo"), episodes=7, num_env=3, seed=6)
    assert other.returns != found.returns


@pytest.mark.parametrize("task", [
    "ppo", "lstm", "dqn", "sac", "images", "mixed",
    *(pytest.param(task, marks=pytest.mark.slow) for task in ("c51", "mbpo", "async")),
])  # fmt: skip
def test_stochastic_actions_are_drawn_by_the_seed(train, task):
    first, again, other = (
        gmi_drl.evaluate(train(task), episodes=3, seed=seed, stochastic=True) for seed in (1, 1, 2)
    )
    assert first.returns == again.returns
    if task not in ("images", "mixed"):  # which pay alike whatever is done, or nearly so
        assert first.returns != other.returns


def test_stochastic_actions_are_others_in_each_gmi_that_evaluates(train):
    pays = ["env.id=bodies_spaces:PaysActions-v0"]
    found = gmi_drl.evaluate(train("ppo"), episodes=8, stochastic=True, overrides=pays)
    assert len(set(found.returns)) == 8  # four of each of two GMIs


def test_environments_explore_as_those_of_training_do(train):
    changes = ["env.id=bodies_spaces:PaysActions-v0", "algorithm.epsilon=0.5"]
    changes += ["algorithm.epsilon_alpha=100", "algorithm.epsilon_steps=1"]
    folder = train("dqn")
    (greedy,) = gmi_drl.evaluate(folder, episodes=1, num_env=1, overrides=changes).returns
    for num_env in (None, 2):  # one of each of two GMIs, or two at once
        first, last = gmi_drl.evaluate(
            folder, episodes=2, num_env=num_env, stochastic=True, overrides=changes
        ).returns
        assert first != greedy
        assert last == greedy


@pytest.mark.parametrize("task", ["alphazero", "es"])
def test_a_policy_that_draws_nothing_is_not_evaluated_as_if_it_did(train, task):
    said = rf"{task} draws no actions .* Leave --stochastic out"
    with pytest.raises(PolicyNotLoaded, match=said):
        gmi_drl.evaluate(train(task), episodes=2, stochastic=True)
    assert not gmi_drl.evaluate(train(task), episodes=2).stochastic


def test_a_terminal_shows_the_episodes_that_have_ended_and_their_mean(train):
    terminal = Terminal(200, "evaluate", str(train("ppo")), "--episodes", "20", "--num-env", "2")
    try:
        terminal.until(None)
        assert terminal.process.wait(60) == 0
    finally:
        terminal.close()
    assert re.search(rb" [1-9]\d* of 20 episodes, mean [\d,.]+", terminal.written)


def test_an_episode_that_does_not_end_is_cut_and_told(train, monkeypatch):
    monkeypatch.setattr(evaluate, "_LONGEST", 3)  # those of this environment have five steps
    with pytest.warns(UserWarning, match="2 episodes had not ended after 3 steps each"):
        found = gmi_drl.evaluate(train("structure"), episodes=2, seed=0)
    assert (found.cut, found.lengths) == (2, (3, 3))


def test_several_runs_have_a_row_each_and_each_config_one_over_its_seeds(train, tmp_path, capsys):
    ppo, dqn = train("ppo"), train("dqn")
    seed = shutil.copytree(ppo, tmp_path / "ppo" / "seed")
    text = (seed / "config.yaml").read_text()
    (seed / "config.yaml").write_text(re.sub(r"(?m)^  seed: \d+$", "  seed: 77", text, count=1))
    folders = [str(ppo), str(seed), str(dqn)]
    assert main(["evaluate", *folders, "--episodes", "4"]) == 0
    runs, _, groups = capsys.readouterr().out.partition("Over seeds")
    assert all(path.name in runs for path in (ppo, seed, dqn))
    (_, of_ppo, of_dqn) = groups.strip().splitlines()
    assert re.fullmatch(r"ppo +2 +[\d.]+ +[\d.]+ \([\d.]+ to [\d.]+\)", of_ppo.strip())
    assert re.fullmatch(r"dqn +1 +[\d.]+ +[\d.]+", of_dqn.strip())  # of one there is no interval
    assert main(["evaluate", *folders, "--episodes", "4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [len(one["returns"]) for one in found] == [4, 4, 4]
    middle = np.mean(np.sort(found[0]["returns"])[1:3])
    assert found[0]["iqm"] == pytest.approx(middle)


def test_a_run_that_cannot_be_used_costs_the_others_nothing(train, tmp_path, capsys):
    words = ["evaluate", str(tmp_path), str(train("ppo")), "--episodes", "2"]
    assert main([*words, "--json"]) == 2
    said = capsys.readouterr()
    assert f"{tmp_path}: no run is there" in said.err
    assert [one["environment"] for one in json.loads(said.out)] == ["CartPole-v1"]


def test_checkpoints_of_one_run_are_not_taken_for_seeds(train, capsys):
    newest = gmi_drl.evaluate(train("ppo"), episodes=1)
    earlier = replace(newest, checkpoint=newest.checkpoint.with_name("iteration_000001"))
    print_evaluations(Console(width=200), [newest, earlier])
    _, _, groups = capsys.readouterr().out.partition("Over seeds")
    for one in (newest, earlier):
        assert re.search(rf"\(checkpoint={one.checkpoint.name}\) +1 ", groups), groups


def test_many_episodes_take_no_more_memory_than_their_returns(train):
    one = gmi_drl.evaluate(train("ppo"), episodes=1)
    many = replace(one, returns=tuple(map(float, range(10_000))))
    tracemalloc.start()
    try:
        assert many.iqm == 4999.5
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_names_of_folders_are_no_markup(train, capsys):
    one = gmi_drl.evaluate(train("ppo"), episodes=1)
    print_evaluations(Console(width=200), [replace(one, run=Path("[red]/[old] \x1b[7m"))])
    said = capsys.readouterr().out
    assert "[red]" in said
    assert r"[old] \x1b[7m" in said


def test_what_cannot_be_loaded_is_told(train, tmp_path, monkeypatch):
    folder = train("ppo")
    with pytest.raises(RunFolderError, match="no run is there"):
        gmi_drl.load_policy(tmp_path)
    with pytest.raises(PolicyNotLoaded, match=r"checkpoint 7: .* has no such one.*: \d+"):
        gmi_drl.load_policy(folder, checkpoint=7)
    with pytest.raises(ConfigError, match="no_such"):
        gmi_drl.load_policy(folder, overrides=["env.no_such=1"])
    with pytest.raises(PolicyNotLoaded, match="episodes=0; must be at least 1"):
        gmi_drl.evaluate(folder, episodes=0)
    with pytest.raises(PolicyNotLoaded, match="device='foo': no device of torch's"):
        gmi_drl.load_policy(folder, device="foo")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    with pytest.raises(PolicyNotLoaded, match="device='cuda:2': no such device can be used here"):
        gmi_drl.load_policy(folder, device="cuda:2")
    assert gmi_drl.load_policy(folder).act(np.zeros((0, 4))).shape == (0,)
    bare = shutil.copytree(folder, tmp_path / "bare")
    shutil.rmtree(bare / "checkpoints")
    with pytest.raises(CheckpointError, match=r"bare holds no checkpoint.*run\.checkpoint_every"):
        gmi_drl.load_policy(bare)
    kept = shutil.copytree(folder, tmp_path / "kept")
    (kept / "checkpoints" / "iteration_best").mkdir()
    with pytest.raises(PolicyNotLoaded, match=r"checkpoint 7: .* has no such one"):
        gmi_drl.load_policy(kept, checkpoint=7)
    damaged = shutil.copytree(folder, tmp_path / "damaged")
    (damaged / "layout.json").write_text("{")
    with pytest.raises(RunFolderError, match=r"layout\.json cannot .*, and the run cannot be used"):
        gmi_drl.load_policy(damaged)

    def changed(name, **sections):
        copy = shutil.copytree(folder, tmp_path / name)
        config = yaml.safe_load((copy / "config.yaml").read_text())
        for section, keys in sections.items():
            config[section] |= keys
        (copy / "config.yaml").write_text(yaml.safe_dump(config))
        return copy

    before = changed("before")
    text = (before / "config.yaml").read_text()
    (before / "config.yaml").write_text(text.replace("version: 1", "version: 0", 1))
    with pytest.raises(ConfigError, match=r"version=0; must be 1\. Write `version: 1`"):
        gmi_drl.load_policy(before)
    (manifest,) = changed("earlier").glob("checkpoints/iteration_*/manifest.json")
    content = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(content | {"version": 0}))
    with pytest.raises(CheckpointError, match="version 0"):
        gmi_drl.load_policy(tmp_path / "earlier")
    for name, env, told in (
        ("unknown", {"id": "NoSuch-v0"}, "'NoSuch-v0' is not a registered env.* Write module:Id"),
        ("absent", {"id": "Ant", "adapter": "isaacgym"}, "isaacgym, which is not installed. Inst"),
    ):
        with pytest.raises(EnvSpecError, match=told):
            gmi_drl.load_policy(changed(name, env=env))
    with pytest.raises(EnvSpecError, match="no_module_of_that_name"):
        gmi_drl.load_policy(changed("env", env={"id": "no_module_of_that_name:Some-v0"}))
    roles = {"trainer": {"class": "no_module_of_that_name:Mine", "params": {}}}
    with pytest.raises(RoleLoadError, match=r"no_module_of_that_name.*Put it there"):
        gmi_drl.load_policy(changed("role", roles=roles))
    with pytest.raises(
        GmiDrlError, match=r"no_module_of_that_name:Net.*beside the config file.*Put it there"
    ):
        gmi_drl.load_policy(changed("own", algorithm={"network": "no_module_of_that_name:Net"}))
    with pytest.raises(CheckpointError, match="another policy than this config makes"):
        gmi_drl.load_policy(changed("network", algorithm={"network": [8]}))


@pytest.mark.parametrize(
    ("task", "observation", "told"),
    [
        ("ppo", np.zeros(3), r"of shape \(3,\), float64; must be of Box.*make_env"),
        ("ppo", [[0.0, 1.0, 2.0, 3.0], [0.0]], r"\[\[0.0, 1.0, 2.0, 3.0\], \[0.0\]\]; must be"),
        ("ppo", "four", "'four'; must be"),
        ("ppo", np.array(["a", "b", "c", "d"]), "must be of Box"),
        ("ppo", None, "None; must be"),
        ("ppo", {"a": 1}, "must be of Box"),
        ("structure", np.zeros(4), "must be of Dict"),
        ("structure", {"a": 4}, "must be of Dict"),
        ("structure", {"a": [4, 5], "b": [[0, 0], [0, 0]]}, "must be of Dict"),  # two and one
        ("structure", {"a": 4.5, "b": [[0, 0], [4, 2]]}, "must be of Dict"),
        ("structure", {"a": 99, "b": [[0, 0], [4, 2]]}, "must be of Dict"),
    ],
)
def test_an_observation_that_does_not_fit_is_told(train, task, observation, told):
    policy = gmi_drl.load_policy(train(task))
    with pytest.raises(ValueError, match=told):
        policy.act(observation)


def test_beginnings_and_states_that_do_not_fit_are_told(train):
    policy, pair = gmi_drl.load_policy(train("lstm")), np.zeros((2, 4))
    for began in ([True], [True, False, True], [[True], [True, False]], "ab"):
        with pytest.raises(ValueError, match=r"began .*; must be true or false for each of the 2"):
            policy.act(pair, began)
    policy.act(pair, torch.tensor([True, False]))
    policy.act(pair[0], True)
    _, state = policy.predict(pair)
    for given in (state[0], (state[0][:1],), 5, ("no state",), ()):
        with pytest.raises(ValueError, match=r"state .*; must be what predict gave.*\(2, 32\)"):
            policy.predict(pair, given)
    with pytest.raises(ValueError, match="episode_start of shape"):
        policy.predict(pair, state, np.array([True]))


def test_a_checkpoint_and_a_number_of_another_are_refused(train):
    folder = train("ppo")
    newest = max((folder / "checkpoints").iterdir())
    iteration = int(newest.name.rpartition("_")[2])
    assert gmi_drl.load_policy(newest).origin.checkpoint == newest
    assert gmi_drl.load_policy(folder, checkpoint=iteration).origin.checkpoint == newest
    with pytest.raises(PolicyNotLoaded, match=f"{newest} with checkpoint 1: .*Give {folder} and"):
        gmi_drl.load_policy(newest, checkpoint=1)


def test_a_folder_that_takes_no_files_costs_the_file_and_not_the_numbers(
    train, tmp_path, capsys, monkeypatch
):
    folder = shutil.copytree(train("ppo"), tmp_path / "run")
    shutil.rmtree(folder / "report")
    (folder / "report").write_text("in the way, of root too")
    with pytest.warns(UserWarning, match=r"eval\.json was not written"):
        assert len(gmi_drl.evaluate(folder, episodes=1).returns) == 2  # one of each GMI that trains
    assert main(["video", str(folder)]) == 2
    assert "Give another: -o FILE" in capsys.readouterr().err
    monkeypatch.setattr(card, "record_video", lambda *_, **__: None)
    (tmp_path / "card").mkdir()
    file = tmp_path / "card" / "policy.pt2"
    with pytest.warns(UserWarning, match=r"eval\.json was not written"):
        assert main(["export", str(folder), "-o", str(file), "--card"]) == 0
    assert "mean" in json.loads((file.parent / "results.json").read_text())
