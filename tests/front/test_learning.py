"""Seeded runs learn: they end at a return, which their greedy policy has too.

How whole runs end is in docs/learning.md.
"""

from pathlib import Path

import pytest

import gmi_drl

EXAMPLES = Path(__file__).parents[2] / "examples"


pytestmark = [pytest.mark.usefixtures("warm"), pytest.mark.slow]


def check_learned(example, tmp_path, until, evaluated, *overrides):
    """`until`: the mean return of a hundred episodes while training; `evaluated`: of 20 afterwards.

    The policy is that of a moment on the way, and so may be somewhat worse.
    """
    settings = (f"run.folder={tmp_path}", f"run.target_return={until}", *overrides)
    result = gmi_drl.launch(EXAMPLES / example, overrides=settings, view="none")
    assert result.return_mean >= until
    assert result.eval_return >= evaluated


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("example", "words"),
    [
        ("cartpole.yaml", ("run.total_steps=200_000",)),
        ("cartpole.yaml", ("layout.gmi_per_gpu=2", "env.num_env=8", "run.seed=2")),
        ("cartpole.yaml", ("algorithm.precision=bf16", "run.seed=2")),
        ("a2c_cartpole.yaml", ()),
        ("a2c_cartpole.yaml", ("layout.gmi_per_gpu=2", "env.num_env=4")),
        ("a2c_cartpole.yaml", ("algorithm.name=pg", "algorithm.horizon=16")),
        ("async_cartpole.yaml", ("algorithm.name=appo",)),
    ],
    ids=["ppo", "ppo by two GMIs", "bf16", "a2c", "a2c by two GMIs", "pg", "appo"],
)
def test_the_pole_is_balanced(example, words, tmp_path):
    check_learned(example, tmp_path, 200, 130, *words)  # of 500; by chance 22


@pytest.mark.timeout(600)
def test_pendulum_swings_up(tmp_path):
    check_learned("pendulum.yaml", tmp_path, -500, -600)  # doing nothing has some -1,200


@pytest.mark.timeout(600)
def test_half_cheetah_runs(tmp_path):
    check_learned("halfcheetah.yaml", tmp_path, 200, 100)  # by chance -280
