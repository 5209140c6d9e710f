"""Mode serving, end to end: simulate and infer, in one GMI or in two; nothing is lost by a kill."""

import json

import pytest

import bodies_async
import faults
from gmi_drl.gmi import GmiDied
from gmi_drl.placement import ConfigError
from small_jobs import job_file, launch

pytestmark = pytest.mark.usefixtures("warm")


STEPS = 3200


def config(tmp_path, template="tcg", **changes):
    return job_file(
        tmp_path,
        changes,
        mode="serving",
        run={"total_steps": STEPS},
        env={"id": "CartPole-v1", "num_env": 8},
        algorithm={"network": [16]},
        layout={"template": template, "gmi_per_gpu": 2},
    )


@pytest.mark.slow
def test_two_gmis_share_the_steps(tmp_path, learning_curve):
    result = launch(config(tmp_path))
    assert (result.state, result.steps) == ("finished", STEPS)
    assert [answer["steps"] for answer in result.gmis] == [STEPS // 2] * 2
    assert 5 < result.return_mean < 60  # CartPole with a policy that has learned nothing
    assert result.curve.stat().st_size > 10_000
    last = (result.folder / "metrics.jsonl").read_text().splitlines()[-1]
    assert json.loads(last)["steps"] == STEPS
    assert {"simulate_s", "infer_s"} < json.loads(last).keys()


@pytest.mark.parametrize("num_env", [8, pytest.param(3, marks=pytest.mark.slow)])
def test_a_pair_shares_the_work_of_each_step(tmp_path, num_env):
    result = launch(config(tmp_path, "tdg", env__num_env=num_env, run__total_steps=300 * num_env))
    simulated, acted = (answer["steps"] for answer in result.gmis)
    assert simulated == result.steps == 300 * num_env
    assert simulated <= acted <= simulated + num_env  # nobody waits for the last answers
    assert 5 < result.return_mean < 60


def test_a_serving_run_is_not_resumed(tmp_path):
    result = launch(config(tmp_path, "tcg"))
    with pytest.raises(ConfigError, match="mode='serving'; has nothing to go on with"):
        launch(None, resume=result.folder)


@pytest.mark.slow
def test_the_policy_of_a_run_is_served(tmp_path):
    trained = {
        "version": 1,
        "run": {"name": "s", "folder": str(tmp_path / "runs"), "total_steps": 60_000,
                "eval_episodes": 0, "target_return": 150.0},
        "env": {"id": "CartPole-v1", "num_env": 16},
        "algorithm": {"network": [16], "horizon": 64, "minibatches": 4, "learning_rate": 1e-3},
    }  # fmt: skip
    run = launch(trained)
    for template in ("tcg", "tdg"):
        path = config(tmp_path, template, run__policy=str(run.folder), run__total_steps=16 * 600)
        assert launch(path).return_mean > 100


def test_a_policy_that_is_not_there_is_refused_before_anything_is_started(tmp_path):
    with pytest.raises(ConfigError, match=r"run\.policy='nowhere'; there is no such folder"):
        launch(config(tmp_path, run__policy="nowhere"))


def test_a_policy_of_another_size_is_refused(tmp_path):
    run = launch(
        {
            "version": 1,
            "env": {"id": "CartPole-v1"},
            "run": {
                "name": "s", "folder": str(tmp_path / "runs"), "total_steps": 64, "eval_episodes": 0
            },
        }
    )  # fmt: skip
    with pytest.raises(GmiDied, match=r"network: checkpoint \[256, 128, 64\]; config \[16\]"):
        launch(config(tmp_path, run__policy=str(run.folder)))


MORE = [
    ("tcg", (0, "step", 0)),
    ("tdg", (0, "step", 0)),
    ("tdg", (1, "infer", 0)),
    ("tdg", (1, "infer", 33)),
    ("tcg", (0, "left", 0)),
    ("tdg", (0, "left", 0)),
    ("tdg", (1, "left", 0)),
]


@pytest.mark.parametrize(
    ("template", "moment"),
    [
        ("tcg", (1, "step", 77)),
        ("tdg", (0, "step", 77)),
        ("tdg", (1, "sent", 55)),
        *(pytest.param(*more, marks=pytest.mark.slow) for more in MORE),
    ],
)
def test_a_killed_gmi_goes_on_where_it_was(tmp_path, monkeypatch, template, moment):
    path = tmp_path / "faults"
    faults.script(monkeypatch, path, moment)
    mine = {"agent": bodies_async.MortalServing}
    if template == "tdg":
        mine = {"simulator": bodies_async.MortalSimulator, "agent": bodies_async.MortalAgent}
    result = launch(config(tmp_path, template), roles=mine)
    assert faults.struck(path) == result.restarts == 1
    assert result.state == "finished"
    assert STEPS <= result.steps < STEPS + 8  # the halves of a pair may be apart
