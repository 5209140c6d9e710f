"""Full disks, and what a run left that was damaged or edited before it is resumed or served."""

import errno
import json
import math
import shutil

import pytest
import torch
import yaml

import bodies_front
import gmi_drl
from gmi_drl.gmi import GmiDied
from gmi_drl.launcher.folder import run_folder
from gmi_drl.launcher.folder.run_folder import RunFolder
from gmi_drl.placement import ConfigError
from gmi_drl.report.run_state import read_state
from gmi_drl.roles.state import checkpoint
from small_jobs import job_file
from watches import Heard

pytestmark = pytest.mark.usefixtures("warm")


def config(tmp_path, **changes):
    return job_file(
        tmp_path,
        changes,
        run={"total_steps": 512, "seed": 3, "eval_episodes": 0},
        env={"id": "CartPole-v1", "num_env": 8},
        algorithm={"network": [32, 16], "horizon": 32, "minibatches": 2, "epochs": 1},
    )


def launch(given=None, *overrides, **options):
    heard = Heard()
    return gmi_drl.launch(given, overrides=overrides, view="none", watch=heard, **options), heard


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of 2 iterations; `run` gives a copy of it."""
    result, _ = launch(config(tmp_path_factory.mktemp("trained"), run__checkpoint_every=1))
    return result.folder


@pytest.fixture
def run(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "run")


# Full disks -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_disk_that_fills_before_the_first_checkpoint_costs_no_policy(tmp_path):
    roomy = config(tmp_path, algorithm__network=[128, 128])
    result, heard = launch(roomy, roles={"trainer": bodies_front.LittleRoom})
    assert result.state == "finished"
    (told,) = heard.warnings
    assert "checkpoint at iteration 2 was not written: OSError: [Errno 27] File too large" in told
    assert "The policy alone (parameters and normalisers) was saved in" in told
    assert "lder checkpoints" not in told
    (saved,) = (result.folder / "checkpoints").iterdir()
    assert sorted(path.name for path in saved.iterdir()) == ["manifest.json", "shared.pt"]
    policy = checkpoint.find(result.folder).load("shared")

    again, heard = launch(None, "run.total_steps=768", resume=result.folder)
    assert any("holds the policy alone" in told for told in heard.warnings)
    assert again.iteration == 3
    resumed = checkpoint.find(result.folder)
    assert not resumed.policy_only
    assert policy["optimizer"]["state"] == {}
    assert resumed.load("shared")["optimizer"]["state"][0]["step"] == 2  # of one iteration
    assert not torch.equal(resumed.load("shared")["parameters"], policy["parameters"])

    served, _ = launch(saved.with_name("iteration_000003"), "mode=serving", "run.total_steps=64")
    assert served.state == "finished"


@pytest.mark.parametrize(
    ("role", "changes"),
    [
        (bodies_front.LittleRoom, {"layout": {"gmi_per_gpu": 2}}),
        (bodies_front.LittleRoomOfTrainer, {"layout": {"template": "tdg_ex", "gmi_per_gpu": 2}}),
        pytest.param(
            bodies_front.LittleRoomOfTrainer,
            {
                "mode": "async", "hardware__num_gpus": 2, "algorithm__name": "impala",
                "algorithm__minibatches": 1,
            },
            marks=pytest.mark.slow,
        ),
    ],
)  # fmt: skip
def test_every_kind_of_trainer_saves_the_policy_alone_and_goes_on_from_it(tmp_path, role, changes):
    wide = config(tmp_path, algorithm__network=[128, 128], **changes)
    run, heard = launch(wide, roles={"trainer": role})
    assert any("The policy alone (parameters and norm" in told for told in heard.warnings)
    assert checkpoint.find(run.folder).policy_only
    resumed, heard = launch(None, f"run.total_steps={run.steps + 512}", resume=run.folder)
    assert sum("holds the policy alone" in told for told in heard.warnings) == 1
    assert resumed.steps > run.steps
    assert not checkpoint.find(run.folder).policy_only


def test_a_policy_saved_alone_is_gone_on_with_where_its_parts_are_stepped_apart(tmp_path):
    learns = {
        "name": "sac", "network": [64, 64], "horizon": 8, "batch_size": 32, "replay_start": 128,
        "updates_per_row": 0.125, "random_steps": 128,
    }  # fmt: skip
    given = config(tmp_path, env__id="Pendulum-v1", algorithm=learns)
    run, heard = launch(given, roles={"trainer": bodies_front.LittleRoomInTime})
    assert any("The policy alone (parameters and norm" in told for told in heard.warnings)
    alone = checkpoint.find(run.folder)
    assert alone.policy_only
    steps = {name: its["state"] for name, its in alone.load("shared")["optimizer"].items()}
    assert steps == {"actor": {}, "critics": {}, "log_temperature": {}}
    resumed, heard = launch(None, "run.total_steps=1024", resume=run.folder)
    assert sum("holds the policy alone" in told for told in heard.warnings) == 1
    assert resumed.steps == 1024
    assert not checkpoint.find(run.folder).policy_only


def test_a_disk_without_any_room_says_that_no_checkpoint_is_there(tmp_path):
    with pytest.raises(GmiDied, match=r"There is no checkpoint in .*: a policy that ends"):
        launch(config(tmp_path), roles={"trainer": bodies_front.NoRoom})
    (folder,) = (tmp_path / "runs" / "t").iterdir()
    assert list((folder / "checkpoints").iterdir()) == []


def test_a_run_json_that_cannot_be_written_does_not_fail_a_trained_run(tmp_path, monkeypatch):
    update = RunFolder.update

    def full(folder, **changes):
        if "finished" in changes:
            raise OSError(errno.ENOSPC, "No space left on device")
        update(folder, **changes)

    monkeypatch.setattr(RunFolder, "update", full)
    with pytest.warns(UserWarning, match=r"run\.json does not say how the run ended .*No space"):
        result, _ = launch(config(tmp_path))
    assert (result.state, result.steps) == ("finished", 512)


def test_run_json_is_written_over_where_the_disk_is_full(tmp_path, monkeypatch):
    def full(path, content):
        raise OSError(errno.ENOSPC, "No space left on device")

    folder = RunFolder(tmp_path)
    (tmp_path / "run.json").write_text('{"state": "running", "error": "longer than the next"}')
    monkeypatch.setattr(run_folder, "replace_file", full)
    folder.update(state="finished", error="")
    assert folder.state() == {"state": "finished", "error": ""}
    with pytest.raises(OSError, match="No space left"):
        folder.update(error="x" * (tmp_path / "run.json").stat().st_blocks * 512)
    assert folder.state() == {"state": "finished", "error": ""}


# Damaged files --------------------------------------------------------------------------------


def test_metrics_that_are_no_text_cost_their_line_alone(run):
    path = run / "metrics.jsonl"
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + b'{"iteration": \xff\xfe}\n' + second)
    result, heard = launch(None, "run.total_steps=768", resume=run)
    assert any("1 damaged line removed" in told for told in heard.warnings)
    lines = [json.loads(line)["iteration"] for line in path.read_text().splitlines()]
    assert lines == [1, 2, 3]
    assert result.iteration == 3


def test_a_curve_is_drawn_of_metrics_that_are_no_text(run):
    from gmi_drl.launcher.folder.run_folder import metrics_in

    with open(run / "metrics.jsonl", "ab") as file:
        file.write(b"\xff\xfe\n" + b"[" * 100_000)
    assert [line["iteration"] for line in metrics_in((run / "metrics.jsonl").read_bytes())] == [
        1,
        2,
    ]


def first_page(path):
    path.write_bytes(b"x" * 4096)


def a_folder(path):
    path.mkdir()


@pytest.mark.parametrize("damage", [first_page, a_folder])
def test_a_damaged_control_store_is_kept_aside_when_a_run_is_resumed(run, damage):
    path = run / "gcs.sqlite"
    damage(path)
    with pytest.warns(UserWarning, match=r"It is kept as gcs\.sqlite\.damaged-1"):
        result, _ = launch(None, "run.total_steps=768", resume=run, keep_gcs=True)
    assert result.iteration == 3
    assert (run / "gcs.sqlite.damaged-1").exists()
    assert "gmi0" in {actor["name"] for actor in read_state(path).actors}


def test_figures_of_run_json_that_are_none_do_not_stop_a_resume(run):
    state = json.loads((run / "run.json").read_text())
    state |= {"time_s": "long", "steps": [], "iteration": 1e300, "return_mean": {}}
    (run / "run.json").write_text(json.dumps(state))
    result, _ = launch(None, resume=run)
    assert (result.steps, result.seconds, result.iteration) == (0, 0.0, 0)
    assert result.return_mean is None


@pytest.mark.parametrize("mean", [-math.inf, 1e19, math.nan])
def test_the_return_of_a_policy_that_has_diverged_is_told_as_it_is(run, mean):
    state = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(state | {"return_mean": mean}))
    result, _ = launch(None, resume=run)
    assert result.return_mean == pytest.approx(mean, nan_ok=True)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"roles": ["trainer", "cook"]}, "template tcg_ex has simulator, agent, trainer"),
        ({"roles": []}, "template tcg_ex has simulator, agent, trainer"),
        ({"backend": "cloud"}, "there is no such backend"),
        ({"cores": [-1]}, "and not -1"),
        ({"num_env": 10**30}, "env.num_env is 8"),
    ],
)
def test_a_damaged_layout_is_refused_before_a_gmi_is_started(run, change, said):
    layout = json.loads((run / "layout.json").read_text())
    layout["gmis"][0] |= change
    (run / "layout.json").write_text(json.dumps(layout))
    with pytest.raises(ConfigError, match=rf"(?s)layout\.json: \d fault.*{said}"):
        launch(None, resume=run)


# What a policy is -----------------------------------------------------------------------------


def test_a_run_whose_config_was_edited_to_another_network_names_the_difference(run):
    settings = yaml.safe_load((run / "config.yaml").read_text())
    settings["algorithm"] |= {"network": [32, 8], "activation": "relu"}
    (run / "config.yaml").write_text(yaml.safe_dump(settings))
    with pytest.raises(GmiDied) as error:
        launch(None, "run.total_steps=768", resume=run)
    for said in (
        "network: checkpoint [32, 16]; config [32, 8]",
        "activation: checkpoint elu; config relu",
        "parameter trunk.2.weight: checkpoint [16, 32]; config [8, 32]",
        "Undo what was changed in the run's config.yaml",
    ):
        assert said in str(error.value)


def test_a_policy_is_not_served_with_another_activation(tmp_path, run):
    other = config(tmp_path, mode="serving", run__policy=str(run), algorithm__activation="tanh")
    with pytest.raises(GmiDied, match="activation: checkpoint elu; config tanh") as error:
        launch(other)
    assert f"gmi-drl launch {run} --set mode=serving" in str(error.value)


def test_the_folder_of_a_run_is_served_with_its_own_settings(tmp_path, monkeypatch, run):
    monkeypatch.chdir(tmp_path)
    result, heard = launch(run, "mode=serving", "run.total_steps=64", "env.num_env=4")
    assert result.steps == 64
    assert heard.warnings == []
    settings = yaml.safe_load((result.folder / "config.yaml").read_text())
    assert settings["run"]["policy"] == str(run)
    assert settings["algorithm"]["network"] == [32, 16]
    assert settings["env"]["num_env"] == 4
    older = run / "checkpoints" / "iteration_000001"
    assert launch(older, "mode=serving", "run.total_steps=64")[0].steps == 64
    again = launch(result.folder, "run.total_steps=64")[0].folder  # of the policy that it served
    assert yaml.safe_load((again / "config.yaml").read_text())["run"]["policy"] == str(run)


def test_the_folder_of_a_run_alone_is_no_config(run):
    with pytest.raises(ConfigError, match=rf"mode=serving, or go on with it: --resume {run}"):
        launch(run)


def test_a_policy_of_ones_own_may_say_more_of_itself(tmp_path):
    first, _ = launch(config(tmp_path), roles={"trainer": bodies_front.Wider})
    with pytest.raises(GmiDied, match=r"slope: checkpoint 0\.1; config 0\.2"):
        launch(
            None, "run.total_steps=768", resume=first.folder,
            roles={"trainer": bodies_front.Steeper},
        )  # fmt: skip
