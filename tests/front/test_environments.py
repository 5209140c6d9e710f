"""Environments that other packages bring, trained on as they are."""

import math

import pytest

import gmi_drl

pytestmark = pytest.mark.usefixtures("warm")


@pytest.mark.parametrize(
    ("env_id", "words"),
    [
        pytest.param(
            "MinAtar/Breakout-v1",
            ["algorithm.network=impala", "env.wrappers=[clip_reward]"],
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "MinAtar/Breakout-v1",
            ["algorithm.normalize_observation=false", "algorithm.recurrent={size: 8}"],
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "MinAtar/Breakout-v1",
            ["layout.template=tdg_ex", "layout.gmi_per_gpu=2"],
            marks=pytest.mark.slow,
        ),
        ("popgym-RepeatPreviousEasy-v0", ["algorithm.recurrent={size: 8}"]),
        ("LunarLander-v3", []),
    ],
)
def test_an_id_is_enough_to_train(tmp_path, env_id, words):
    result = gmi_drl.launch(
        config={
            "version": 1,
            "run": {"folder": str(tmp_path), "total_steps": 512, "checkpoint_every": 0},
            "env": {"id": env_id, "num_env": 8},
            "algorithm": {"network": [32], "horizon": 32, "epochs": 1},
            "hardware": {"backend": "cpu", "num_gpus": 1},
            "layout": {"template": "tcg_ex", "gmi_per_gpu": 1},
        },
        overrides=words,
        view="none",
    )
    assert result.steps == 512
    assert math.isfinite(result.return_mean)
