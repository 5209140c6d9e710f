"""The examples of docs/writing-a-role.md that are whole modules run as they are printed."""

import json
import re
from pathlib import Path

import pytest

import gmi_drl
from gmi_drl.gmi import GmiDied
from gmi_drl.placement import ConfigError, load_config

pytestmark = pytest.mark.usefixtures("warm")


PAGE = Path(__file__).parents[2] / "docs" / "writing-a-role.md"
CONFIG = {
    "version": 1,
    "env": {"id": "CartPole-v1", "num_env": 2},
    "algorithm": {"horizon": 8, "minibatches": 1},
    "run": {"total_steps": 64, "eval_episodes": 2},
    "roles": {"trainer": "my_policy:MyTrainer"},
    "layout": {"gmi_per_gpu": 2},
}


def printed(module):
    """The text of a module on the page."""
    (text,) = re.findall(rf"```python\n# {module}\.py.*?\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return text


def launched(tmp_path, **changes):
    config = {**CONFIG, **changes, "run": {**CONFIG["run"], "folder": str(tmp_path / "runs")}}
    return gmi_drl.launch(load_config(config), view="none", import_path=tmp_path)


@pytest.mark.parametrize(
    "env_id", [pytest.param("Pendulum-v1", marks=pytest.mark.slow), "my_env:Many-v0"]
)
def test_the_policy_and_the_environment_of_the_page_train(tmp_path, env_id):
    (tmp_path / "my_policy.py").write_text(printed("my_policy"))
    (tmp_path / "my_env.py").write_text(printed("my_env"))
    result = launched(tmp_path, env={"id": env_id, "num_env": 2})
    assert (result.state, result.steps) == ("finished", 64)


def test_the_algorithm_of_rows_of_the_page_trains(tmp_path):
    (tmp_path / "my_rows.py").write_text(printed("my_rows"))
    algorithm = {"class": "my_rows:RewardToGo", "horizon": 8}
    result = launched(tmp_path, algorithm=algorithm, roles={})
    assert (result.state, result.steps) == ("finished", 64)


def test_the_algorithm_of_the_page_that_is_derived_from_ppo_trains(tmp_path):
    (tmp_path / "calm_ppo.py").write_text(printed("calm_ppo"))
    own = {"class": "calm_ppo:CalmPPO", "horizon": 8, "minibatches": 2, "calm_coef": 0.5}
    result = launched(tmp_path, algorithm=own, roles={})
    first = json.loads((result.folder / "metrics.jsonl").read_text().splitlines()[0])
    assert result.state == "finished"
    assert first["calm"] > 0


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (
            {"calm_coeff": 0.1},
            r"algorithm\.calm_coeff.* Did you mean algorithm.calm_coef\?",
        ),
        ({"minibatches": 3}, "algorithm.minibatches=3; must divide the 16 samples"),
        ({"class": "calm_ppo:CalmPP"}, "calm_ppo has no CalmPP; its classes: CalmPPO. Did"),
    ],
)
def test_what_is_wrong_with_an_algorithm_of_ones_own_is_told_before_a_run(tmp_path, keys, said):
    (tmp_path / "calm_ppo.py").write_text(printed("calm_ppo"))
    own = {"class": "calm_ppo:CalmPPO", "horizon": 8, **keys}
    with pytest.raises(ConfigError, match=said):
        launched(tmp_path, algorithm=own, roles={})
    assert not (tmp_path / "runs").exists()


ROLES = """
import gmi_drl
class MyTrainer(gmi_drl.Holistic):
    def GMI_run(self, hidden=3, **params):
        return super().GMI_run(**params)
class Forgot(gmi_drl.Holistic):
    def loss(self, policy, rows, row_layout, settings): pass
"""


@pytest.mark.parametrize(
    ("role", "said"),
    [
        (
            {"class": "own:MyTrainer", "params": {"hiden": 3}},
            r"roles.trainer.params.hiden: MyTrainer.GMI_run takes no parameter hiden, but hidden. "
            r"Did you mean hidden\?",
        ),
        (
            "own:Forgot",
            r"Forgot.loss: too many positional arguments. PPO gives it 5; write it as loss\(self",
        ),
    ],
)
def test_a_role_that_takes_other_arguments_is_told_alone(tmp_path, role, said):
    (tmp_path / "own.py").write_text(ROLES)
    with pytest.raises(GmiDied, match=said) as it:
        launched(tmp_path, roles={"trainer": role})
    assert "Traceback" not in str(it.value)


def test_a_policy_that_is_none_is_told_what_it_lacks(tmp_path):
    (tmp_path / "my_policy.py").write_text(
        "import gmi_drl, torch\nclass MyTrainer(gmi_drl.Holistic):\n"
        "    def make_policy(self, env, generator): return torch.nn.Linear(4, 3)\n"
    )
    with pytest.raises(
        GmiDied, match=r"PolicyError: MyTrainer\.make_policy returned a Linear"
    ) as it:
        launched(tmp_path)
    assert "Traceback" not in str(it.value)
    assert "it has no log_std" in str(it.value)
