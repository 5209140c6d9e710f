"""The noise scale of a run that a tune is to start from, and what else there may be."""

import json

import pytest

from gmi_drl.placement import load_config
from gmi_drl.selector.errors import NoiseSourceError
from gmi_drl.selector.tune.candidate import Candidate, DeviceSplit, Space
from gmi_drl.selector.tune.noise import TunedNoise, is_needed, noise_from, noise_of_run, plainest

CONFIG = load_config({"version": 1, "env": {"id": "CartPole-v1", "num_env": 16}})


def run_in(folder, env="CartPole-v1", noises=(300.0, 412.4, None)):
    (folder / "run.json").write_text(json.dumps({"env": env}))
    lines = [{"iteration": n, "steps": 100 * n, "noise_scale": x} for n, x in enumerate(noises, 1)]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return folder


def test_the_last_noise_scale_of_a_run_is_taken(tmp_path):
    found = noise_of_run(run_in(tmp_path), CONFIG)
    assert found == TunedNoise(412.4, f"{tmp_path} after 200 steps")
    assert str(found) == f"gradient noise scale 412 samples ({tmp_path} after 200 steps)"
    assert noise_from({"samples": 412.4, "source": found.source}) == found


def test_a_run_that_says_nothing_of_this_config_is_refused(tmp_path):
    with pytest.raises(NoiseSourceError, match=r"no run can be read there \(No such file"):
        noise_of_run(tmp_path / "none", CONFIG)
    with pytest.raises(NoiseSourceError, match=r"a run of Ant-v5, and CartPole-v1 is tuned"):
        noise_of_run(run_in(tmp_path, env="Ant-v5"), CONFIG)
    with pytest.raises(NoiseSourceError, match="have no noise_scale"):
        noise_of_run(run_in(tmp_path, noises=(None,)), CONFIG)
    (tmp_path / "run.json").write_text("[")
    with pytest.raises(NoiseSourceError, match="it is damaged"):
        noise_of_run(tmp_path, CONFIG)


def test_it_is_needed_where_updates_differ():
    def space(*samples):
        split = DeviceSplit(1, "cpu")
        return Space((tuple(Candidate(split, 16 * n, 8, s) for n, s in enumerate(samples, 1)),))

    assert not is_needed(space(2048, 2016, 2064))
    assert is_needed(space(2048, 3264))
    assert plainest(space(1, 1, 1, 1), 50).num_env == 48
    assert str(TunedNoise(None, "one GMI")) == "no noise scale: one GMI"
