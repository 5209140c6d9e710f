"""The examples of docs/writing-a-role.md that are whole modules run as they are printed."""

import re
from pathlib import Path

import pytest

import gmi_drl
from gmi_drl import runtime
from gmi_drl.gmi import GmiDied
from gmi_drl.launcher.start.preload import PRELOAD
from gmi_drl.placement import load_config


@pytest.fixture(scope="module", autouse=True)
def warm():
    """One fork server for all launches of this module: importing torch takes seconds."""
    runtime.init(PRELOAD)
    yield
    runtime.shutdown()


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


@pytest.mark.parametrize("env_id", ["Pendulum-v1", "my_env:Flat-v0"])
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
