"""Policies that remember, end to end: learned, sent, resumed and served."""

import pytest
import torch

import bodies_memory
import bodies_tdg_ex
import faults
from gmi_drl.placement import Device, Topology, check, load_config
from gmi_drl.roles.state import checkpoint
from small_jobs import job_file, launch

BEST = bodies_memory.STEPS - bodies_memory.BEFORE


pytestmark = pytest.mark.usefixtures("warm")


def config(tmp_path, steps=60_000, template="tcg_ex", **algorithm):
    return job_file(
        tmp_path,
        run={"total_steps": steps, "seed": 1, "eval_episodes": 16, "checkpoint_every": 2},
        env={"id": "bodies_memory:Repeat-v0", "num_env": 32},
        algorithm={
            "network": [32], "horizon": 16, "learning_rate": 5e-3, "schedule": "constant",
            "minibatches": 2, "recurrent": {"cell": "gru", "size": 32}, "gamma": 0.5, **algorithm,
        },
        layout={"template": template, "gmi_per_gpu": 1 + (template == "tdg_ex")},
        hardware={"backend": "cpu", "num_gpus": 1},
    )  # fmt: skip


def policy_of(result):
    return checkpoint.find(result.folder).load("shared")["parameters"]


@pytest.mark.slow
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_ppo_learns_what_is_to_be_remembered_and_the_policy_is_served(tmp_path, cell):
    path = config(tmp_path, recurrent={"cell": cell, "size": 32})
    trained = launch(path, f"run.target_return={0.85 * BEST}")
    assert trained.eval_return >= 0.8 * BEST
    for template, gmis in (("tcg", 1), ("tdg", 2)):
        served = launch(
            path, "mode=serving", f"run.policy={trained.folder}", f"layout.template={template}",
            f"layout.gmi_per_gpu={gmis}", "run.total_steps=4096", "run.checkpoint_every=0",
            "env.num_env=8", "run.eval_episodes=0",
        )  # fmt: skip
        assert served.return_mean >= 0.8 * BEST
    without = launch(path, "algorithm.recurrent=null", f"run.total_steps={trained.iteration * 512}")
    assert without.eval_return <= BEST / 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["impala", "appo"])
def test_segments_carry_what_was_remembered(tmp_path, name):
    path = config(
        tmp_path, 400_000, "decoupled", name=name, minibatches=1, learning_rate=3e-3,
        normalize_value=True,
    )  # fmt: skip
    until = 0.6 * BEST
    words = ("mode=async", "layout.gmi_per_gpu=1", "hardware.num_gpus=2", "run.eval_episodes=0")
    found = launch(path, *words, f"run.target_return={until}")
    assert found.return_mean >= until


# Environments that can be saved, and few: the cores of a GMI do not change how it rounds.
SMALL = ("env.id=CartPole-v1", "env.num_env=8", "algorithm.recurrent={size: 8}")


@pytest.mark.slow
def test_agents_learn_what_one_gmi_learns(tmp_path):
    apart = launch(config(tmp_path, 1024, "tdg_ex"), *SMALL)
    together = launch(config(tmp_path, 1024), *SMALL)
    assert torch.equal(policy_of(apart), policy_of(together))


@pytest.mark.slow
@pytest.mark.parametrize("template", ["tcg_ex", "tdg_ex"])
def test_a_resumed_run_equals_one_that_was_never_stopped(tmp_path, template):
    path = config(tmp_path, 6 * 48, template, horizon=6, minibatches=4)
    whole = launch(path, *SMALL)
    half = launch(path, *SMALL, f"run.total_steps={2 * 48}")
    rest = launch(None, f"run.total_steps={6 * 48}", resume=half.folder)
    assert torch.equal(policy_of(rest), policy_of(whole))


@pytest.mark.slow
@pytest.mark.parametrize("moment", [(0, "ordered", 3), (0, "brought", 3), (1, "took", 3)])
def test_who_is_killed_comes_back_and_remembers_anew(tmp_path, monkeypatch, moment):
    script = tmp_path / "faults"
    faults.script(monkeypatch, script, moment)
    roles = {"agent": bodies_tdg_ex.MortalAgent, "trainer": bodies_tdg_ex.MortalTrainer}
    result = launch(config(tmp_path, 6 * 16 * 8, "tdg_ex"), *SMALL, roles=roles)
    assert faults.struck(script) == result.restarts == 1
    assert (result.state, result.iteration) == ("finished", 6)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["algorithm.horizon=1"], "must be 2 or more where algorithm.recurrent is given"),
        (["algorithm.minibatches=5"], "must divide the 32 environments of an update"),
    ],
)
def test_what_cannot_be_learned_so_is_refused(tmp_path, words, said):
    there = Topology((Device(0, "cpu", "group 0", (0,)),))
    (fault,) = check(load_config(config(tmp_path), words), there)
    assert said in fault.rule
