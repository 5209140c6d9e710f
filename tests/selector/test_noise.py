"""The noise scale of a run that a tune is to start from, and what else there may be."""

import json

import pytest

from gmi_drl.placement import load_config
from gmi_drl.placement.config.yaml_text import write_yaml
from gmi_drl.selector.errors import NoiseSourceError
from gmi_drl.selector.tune.noise import (
    TunedNoise,
    noise_level,
    noise_of_run,
)

CONFIG = load_config({"version": 1, "env": {"id": "CartPole-v1", "num_env": 16}})


def run_in(folder, *words, noises=(300.0, 412.4, None)):
    """The folder of a run of CONFIG with these words."""
    trained = load_config(CONFIG.model_dump(mode="json", exclude_unset=True), words)
    (folder / "config.yaml").write_text(write_yaml(trained.model_dump(mode="json")))
    (folder / "layout.json").write_text("{}")
    lines = [{"iteration": n, "steps": 100 * n, "noise_scale": x} for n, x in enumerate(noises, 1)]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return folder


def test_the_noise_scale_of_a_run_is_that_of_its_last_half(tmp_path):
    found = noise_of_run(run_in(tmp_path, noises=(3.0, 4.0, 500.0, 412.4, 5000.0, None)), CONFIG)
    assert found == TunedNoise(5000.0, f"{tmp_path}, of 600 steps")
    assert str(found) == f"gradient noise scale 5,000 samples ({tmp_path}, of 600 steps)"


def test_a_noise_scale_too_large_to_be_told_counts_as_the_largest():
    assert noise_level([1.0, 2.0, 10.0, 20.0, 30.0]) == 20.0
    assert noise_level([1.0, 10.0, None, None]) is None  # of the last half none is told
    assert noise_level([1.0, 1.0, 1.0, None, 9.0, 8.0]) == 9.0
    assert noise_level([]) is None


def test_a_run_that_says_nothing_of_this_config_is_refused(tmp_path):
    with pytest.raises(NoiseSourceError, match=r"no run can be read there \(no run, and no checkp"):
        noise_of_run(tmp_path / "none", CONFIG)
    with pytest.raises(NoiseSourceError, match=r"a run of Ant-v5, and CartPole-v1 is tuned"):
        noise_of_run(run_in(tmp_path, "env.id=Ant-v5"), CONFIG)
    with pytest.raises(NoiseSourceError, match="have no noise_scale"):
        noise_of_run(run_in(tmp_path, noises=(None,)), CONFIG)
    steps = CONFIG.model_copy(
        update={"tune": CONFIG.tune.model_copy(update={"objective": "steps"})}
    )
    with pytest.raises(NoiseSourceError, match=r"decides nothing where steps/s are asked for"):
        noise_of_run(run_in(tmp_path), steps)
    (tmp_path / "metrics.jsonl").unlink()
    with pytest.raises(NoiseSourceError, match=r"metrics.jsonl: No such file"):
        noise_of_run(tmp_path, CONFIG)
    (tmp_path / "config.yaml").write_text("version: 7")
    with pytest.raises(NoiseSourceError, match=r"its config.yaml is none of this version: "):
        noise_of_run(tmp_path, CONFIG)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("algorithm.network=[7]", r"algorithm.network \[7\] \(here \["),
        ("algorithm.name=a2c", r"algorithm.name a2c \(here ppo\)"),
        ("algorithm.share_layers=false", r"algorithm.share_layers False \(here True\)"),
        ("env.max_episode_steps=7", r"env.max_episode_steps 7 \(here None\)"),
        ("roles.trainer=mine:Own", r"roles.trainer .*mine:Own.* \(here the default\)"),
    ],
)
def test_gradients_of_another_network_algorithm_or_environment_are_refused(tmp_path, word, said):
    with pytest.raises(NoiseSourceError, match=f"it was trained with .*{said}"):
        noise_of_run(run_in(tmp_path, word), CONFIG)


def test_what_moves_the_noise_a_little_is_told_and_what_tuning_changes_is_not(tmp_path):
    own = [
        "env.num_env=4",
        "algorithm.network=[256,128,64]",
        "algorithm.horizon=99",
        "algorithm.learning_rate=0.1",
    ]
    assert noise_of_run(run_in(tmp_path, *own), CONFIG).source == f"{tmp_path}, of 300 steps"
    run = run_in(tmp_path, "algorithm.gamma=0.5")
    told = f"{tmp_path}, of 300 steps, with algorithm.gamma 0.5 (here 0.99)"
    assert noise_of_run(run, CONFIG).source == told


def test_a_checkpoint_is_as_good_as_its_run(tmp_path):
    checkpoint = tmp_path / "checkpoints" / "000300"
    checkpoint.mkdir(parents=True)
    run_in(tmp_path)
    assert noise_of_run(checkpoint, CONFIG).samples == 412.4
