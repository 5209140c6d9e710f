"""Layouts that were edited by hand: what `check` passes also launches."""

import json
import os
import random
from pathlib import Path

import pytest
import yaml

from gmi_drl import cli, launch, runtime
from gmi_drl.placement import ConfigError, load_config
from gmi_drl.placement.layout_yaml import from_yaml
from gmi_drl.placement.templates import GMIS, OF_MODE
from gmi_drl.planning import faults_of, find_devices
from gmi_drl.preload import PRELOAD

EXAMPLE = Path(__file__).parents[2] / "examples" / "layout.yaml"
CORES = sorted(os.sched_getaffinity(0))[:4]


@pytest.fixture(scope="module", autouse=True)
def _one_runtime_for_all():
    runtime.init(PRELOAD)
    runtime.preloaded(60)
    yield
    runtime.shutdown()


def config_of(folder, mode, groups, layout):
    """A config beside its layout's file; minutes of work would be seconds here."""
    (folder / "edited.yaml").write_text(yaml.safe_dump(layout))
    path = folder / "config.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                "version": 1, "mode": mode, "layout": "edited.yaml",
                "run": {"folder": str(folder / "runs"), "total_steps": 64, "eval_episodes": 0},
                "env": {"id": "CartPole-v1", "num_env": 4},
                "algorithm": {"network": [8], "horizon": 4, "minibatches": 1, "epochs": 1},
                "hardware": {"backend": "cpu", "num_gpus": groups, "cores": CORES},
            }
        )
    )  # fmt: skip
    return path


def a_layout(draw):
    """(mode, groups of cores, layout) of any shape, right or wrong."""
    mode = draw.choice(sorted(OF_MODE))
    template = draw.choice(OF_MODE[mode])
    groups = draw.randint(1, min(2, len(CORES)))
    gmis = []
    for _ in range(draw.randint(1, len(CORES))):
        roles = list(draw.choice(GMIS[template]))
        draw.shuffle(roles)
        gmis.append({"gpu": draw.randrange(groups), "roles": roles})
        if draw.random() < 0.5:
            gmis[-1]["cores"] = [draw.choice(CORES)]
    return mode, groups, {"version": 1, "template": template, "gmis": gmis}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_every_edited_layout_that_passes_the_check_launches(tmp_path, seed):
    draw, ran, refused = random.Random(seed), 0, 0
    while ran < 4:
        mode, groups, layout = a_layout(draw)
        path = config_of(tmp_path, mode, groups, layout)
        config = load_config(path)
        if faults_of(config):
            refused += 1
            continue
        result = launch(path, view="none")
        assert (result.state, result.steps >= 64) == ("finished", True), layout
        written = json.loads((result.folder / "layout.json").read_text())
        assert [gmi["gpu_id"] for gmi in written["gmis"]] == [g["gpu"] for g in layout["gmis"]]
        ran += 1
    assert refused


def test_plan_writes_a_layout_that_launches_and_resumes_without_its_file(tmp_path, capsys):
    whole = {"version": 1, "template": "tcg_ex", "gmis": [
        {"gpu": 0, "roles": ["simulator", "agent", "trainer"]}]}  # fmt: skip
    path = config_of(tmp_path, "sync", 1, whole)
    written = tmp_path / "edited.yaml"
    assert cli.main(["plan", str(path), "--no-measure", "--layout", str(written)]) == 0
    assert str(written) in capsys.readouterr().out
    config = load_config(path)
    assert from_yaml(written.read_text(), find_devices(config), 4).gmi(0).cores == tuple(CORES)
    first = launch(path, view="none")
    written.unlink()
    with pytest.raises(ConfigError, match=r"edited.yaml'; No such file"):
        launch(path, view="none")
    more = launch(resume=first.folder, overrides=["run.total_steps=128"], view="none")
    assert (more.state, more.steps) == ("finished", 128)


def test_faults_of_a_layouts_file_are_listed_with_those_of_the_config(tmp_path, capsys):
    wrong = {"version": 1, "template": "tcg_ex", "gmis": [
        {"gpu": 7, "roles": ["simulator", "agent", "trainer"]}]}  # fmt: skip
    path = config_of(tmp_path, "sync", 1, wrong)
    assert cli.main(["check", str(path), "--set", "algorithm.minibatches=5"]) == 1
    err = capsys.readouterr().err
    assert "GmiSpec 0: gpu=7; this machine has 1 device" in err
    assert "set hardware.num_gpus" in err
    assert "algorithm.minibatches=5" in err


@pytest.mark.skipif(len(CORES) < 2, reason="two GMIs need two cores")
def test_the_example_trains_on_one_device(tmp_path):
    wanted = f"run.folder={tmp_path}", "run.total_steps=640", "run.eval_episodes=0"
    result = launch(EXAMPLE, overrides=[*wanted, "hardware.backend=cpu"], view="none")
    assert result.state == "finished"
    written = json.loads((result.folder / "layout.json").read_text())
    assert [gmi["gpu_id"] for gmi in written["gmis"]] == [0, 0]
