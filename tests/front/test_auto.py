"""`auto` in a config, end to end: tuned at the first launch, on record for the next, watched."""

import json

import pytest
import yaml

import gmi_drl
from gmi_drl.cli import main
from gmi_drl.launcher.colocated_runs import records_folder
from gmi_drl.launcher.watch import watch as promises
from gmi_drl.placement import ConfigError, load_config
from gmi_drl.selector.record.record import read

pytestmark = pytest.mark.usefixtures("warm")


@pytest.fixture
def config(tmp_path, monkeypatch):
    """A job of which there is one candidate, so that tuning it takes a second."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "config.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                "version": 1,
                "run": {"folder": str(tmp_path / "runs"), "total_steps": 1024, "eval_episodes": 0},
                "env": {"id": "CartPole-v1", "num_env": "auto"},
                "algorithm": {"network": [8], "horizon": 8, "epochs": 1},
                "hardware": {"cores": [0]},
                "layout": {"gmi_per_gpu": "auto"},
                "tune": {
                    "objective": "steps",
                    "keep": "none",
                    "min_num_env": 16,
                    "max_num_env": 16,
                    "budget_s": 20,
                },
            }
        )
    )
    return path


def launch(path, *overrides, **options):
    return gmi_drl.launch(path, overrides=overrides, view="plain", **options)


@pytest.mark.slow
def test_the_first_launch_tunes_and_later_ones_take_what_is_on_record(config, capsys):
    result = launch(config)
    assert result.state == "finished"
    resolved = load_config(result.folder / "config.yaml")
    assert (resolved.env.num_env, resolved.layout.gmi_per_gpu) == (16, 1)
    first = capsys.readouterr().out
    assert "1 candidate" in first
    assert "num_env 16, 1 GMI on each device: tuned" in first
    assert [path.name for path in config.parent.glob("*")].count("runs") == 1
    assert len(list((config.parent / "runs").glob("*/*"))) == 1  # what was measured left none

    launch(config, "run.seed=5")
    later = capsys.readouterr().out
    assert "candidate" not in later
    assert "num_env 16, 1 GMI on each device: tuned" in later
    assert main.main(["plan", str(config), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tuned"][0].startswith("num_env 16, 1 GMI")


@pytest.mark.slow
def test_a_run_that_is_slower_than_promised_says_so_and_the_next_tunes_anew(
    config, monkeypatch, capsys
):
    launch(config)
    (path,) = records_folder().glob("*.jsonl")
    *lines, chosen = path.read_text().splitlines()
    promise = json.loads(chosen)
    promise["steps_per_s"] *= 1000  # by a machine that is not this one
    path.write_text("\n".join([*lines, json.dumps(promise)]) + "\n")
    monkeypatch.setattr(promises, "_PERIOD_S", 0.01)
    capsys.readouterr()
    launch(config, "run.total_steps=4096")
    assert "less than the" in capsys.readouterr().out
    assert not read(path).fresh
    monkeypatch.setattr(promises, "_PERIOD_S", 1e9)
    launch(config)
    assert "1 candidate" in capsys.readouterr().out
    assert read(path).fresh


def test_auto_cannot_be_tuned_for_roles_that_the_config_does_not_name(config):
    with pytest.raises(ConfigError, match="Name them in the config, or give a number"):
        launch(config, roles={"trainer": object})
