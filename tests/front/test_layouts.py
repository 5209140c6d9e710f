"""Layouts that were edited by hand: what `check` passes also launches."""

import json
import random
from collections import Counter
from pathlib import Path

import pytest
import yaml

import fake_cores
from gmi_drl import launch, runtime
from gmi_drl.cli import main
from gmi_drl.launcher.plan.planning import faults_of, find_devices, planned
from gmi_drl.launcher.start.preload import PRELOAD
from gmi_drl.placement import ConfigError, load_config
from gmi_drl.placement.layout_yaml import from_yaml
from gmi_drl.placement.templates import TEMPLATES, templates_of

EXAMPLE = Path(__file__).parents[2] / "examples" / "layout.yaml"


@pytest.fixture(scope="module", autouse=True)
def cores():
    """Five, as no two GMIs share one; and one runtime for all tests, whose processes find them."""
    with pytest.MonkeyPatch.context() as patch:
        found = fake_cores.install(5, patch.setattr)
        patch.setenv("FAKE_CORES", "5")
        runtime.init((*PRELOAD, "fake_cores"))
        runtime.preloaded(60)
        yield found
        runtime.shutdown()


def config_of(folder, mode, groups, layout, num_env=4):
    """A config beside its layout's file; minutes of work would be seconds here."""
    (folder / "edited.yaml").write_text(yaml.safe_dump(layout))
    path = folder / "config.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                "version": 1, "mode": mode, "layout": "edited.yaml",
                "run": {"folder": str(folder / "runs"), "total_steps": 64, "eval_episodes": 0},
                "env": {"id": "CartPole-v1", "num_env": num_env},
                "algorithm": {"network": [8], "horizon": 4, "minibatches": 1, "epochs": 1},
                "hardware": {"backend": "cpu", "num_gpus": groups},
            }
        )
    )  # fmt: skip
    return path


def a_layout(draw, cores):
    """(mode, groups of cores, layout, num_env) of any shape, right or wrong."""
    mode = draw.choice(["async", "serving", "sync"])
    template = draw.choice([template.name for template in templates_of(mode)])
    groups = draw.randint(1, 2)
    gmis = []
    for _ in range(draw.randint(1, len(cores))):
        roles = list(draw.choice(TEMPLATES[template].gmis))
        draw.shuffle(roles)
        gmis.append({"gpu": draw.randrange(groups), "roles": roles})
        if draw.random() < 0.2:
            gmis[-1]["cores"] = [draw.choice(cores)]
    layout = {"version": 1, "template": template, "gmis": gmis}
    return mode, groups, layout, draw.choice([1, 2, 3, 4, 7])


def shape_of(layout):
    """What is special about it, of what a template's layout on few cores does not have."""
    template, gmis = layout["template"], layout["gmis"]
    train = Counter(gmi["gpu"] for gmi in gmis if "trainer" in gmi["roles"])
    trainers, agents = sum(train.values()), len(gmis) - sum(train.values())
    if template == "tcg_ex" and len(set(train.values())) > 1:
        return "tcg_ex, uneven gang"
    if template == "tdg_ex" and agents > trainers:
        return "tdg_ex, crews of several"
    if template == "tdg_ex" and any(
        gmi["gpu"] not in train for gmi in gmis if "trainer" not in gmi["roles"]
    ):
        return "tdg_ex, an agent without a trainer at hand"
    if template == "decoupled" and agents > 1 and trainers > 1:
        return "decoupled, several of both"
    return f"{template}, {len(gmis)} GMIs"


SHAPES = [
    "tcg_ex, uneven gang", "tdg_ex, crews of several", "tdg_ex, an agent without a trainer at hand",
    "decoupled, several of both", "tcg_ex, 3 GMIs", "tcg_ex, 4 GMIs", "tdg_ex, 4 GMIs",
    "tcg, 3 GMIs", "tcg, 4 GMIs", "tdg, 4 GMIs", None, None, None,
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "shape"), list(enumerate(SHAPES)))
def test_every_edited_layout_that_passes_the_check_launches(tmp_path, cores, seed, shape):
    draw, ran, refused = random.Random(seed), 0, 0
    for _ in range(20_000):
        if ran == 3:
            break
        mode, groups, layout, num_env = a_layout(draw, cores)
        if shape not in (None, shape_of(layout)):
            continue
        path = config_of(tmp_path, mode, groups, layout, num_env)
        config = load_config(path)
        if faults_of(config):
            refused += 1
            continue
        result = launch(path, view="none")
        assert (result.state, result.steps >= 64) == ("finished", True), layout
        written = json.loads((result.folder / "layout.json").read_text())
        assert [gmi["gpu_id"] for gmi in written["gmis"]] == [g["gpu"] for g in layout["gmis"]]
        ran += 1
    assert ran == 3
    assert refused or shape


def test_plan_writes_a_layout_that_launches_and_resumes_without_its_file(tmp_path, cores, capsys):
    whole = {"version": 1, "template": "tcg_ex", "gmis": [
        {"gpu": 0, "roles": ["simulator", "agent", "trainer"]}]}  # fmt: skip
    path = config_of(tmp_path, "sync", 1, whole)
    written = tmp_path / "edited.yaml"
    assert main.main(["plan", str(path), "--no-measure", "--layout", str(written)]) == 0
    assert str(written) in capsys.readouterr().out
    config = load_config(path)
    assert from_yaml(written.read_text(), find_devices(config), 4).gmi(0).cores == cores
    first = launch(path, view="none")
    written.unlink()
    with pytest.raises(ConfigError, match=r"edited.yaml'; No such file"):
        launch(path, view="none")
    more = launch(resume=first.folder, overrides=["run.total_steps=128"], view="none")
    assert (more.state, more.steps) == ("finished", 128)
    moved = first.folder.rename(tmp_path / "moved")
    assert planned(load_config(moved / "config.yaml")).gmi(0).cores == cores  # it has a copy


def test_faults_of_a_layouts_file_are_listed_with_those_of_the_config(tmp_path, capsys):
    wrong = {"version": 1, "template": "tcg_ex", "gmis": [
        {"gpu": 7, "roles": ["simulator", "agent", "trainer"]}]}  # fmt: skip
    path = config_of(tmp_path, "sync", 1, wrong)
    assert main.main(["check", str(path), "--set", "algorithm.minibatches=5"]) == 1
    err = capsys.readouterr().err
    assert "GmiSpec 0: gpu=7; this machine has 1 device" in err
    assert "set hardware.num_gpus" in err
    assert "algorithm.minibatches=5" in err


def test_the_example_trains_on_one_device(tmp_path):
    wanted = f"run.folder={tmp_path}", "run.total_steps=640", "run.eval_episodes=0"
    result = launch(EXAMPLE, overrides=[*wanted, "hardware.backend=cpu"], view="none")
    assert result.state == "finished"
    written = json.loads((result.folder / "layout.json").read_text())
    assert [gmi["gpu_id"] for gmi in written["gmis"]] == [0, 0]
