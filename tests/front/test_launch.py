"""`launch`, end to end: real processes, real environments, short runs."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import gymnasium
import pytest
import torch

import bodies_front
import gmi_drl
from gmi_drl.gmi import GmiDied
from gmi_drl.launcher.folder.run_folder import RunFolderError, lock_of
from gmi_drl.launcher.watch import iteration_times
from gmi_drl.placement import ConfigError, load_config
from gmi_drl.report.run_state import read_state
from gmi_drl.roles.state import checkpoint
from gmi_drl.runtime import shared_lock
from run_files import metrics
from small_jobs import job_file, launch
from stops import stop
from waits import until

pytestmark = pytest.mark.usefixtures("warm")


EXAMPLES = Path(__file__).parents[2] / "examples"
UNTIMED = {"return_mean", "length_mean", "episodes", "steps", "kl", "policy_loss", "value_loss"}


OWN_TYPES = """
import gmi_drl

class Answer:
    pass

class Reporter(gmi_drl.DRL_role):
    def GMI_run(self):
        for record in ({"kind": "iteration"}, {"kind": "warning"}, {"kind": []}, 5, Answer()):
            self.mgr.report(record)
        return Answer()
"""


OWN_ENV = """
import gymnasium
import numpy as np

class Corridor(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 1.0, False, False, {}

gymnasium.register("Corridor-v0", entry_point=Corridor, max_episode_steps=8)
"""


def config(tmp_path, env="CartPole-v1", **changes):
    return job_file(
        tmp_path,
        changes,
        run={"total_steps": 2048, "seed": 3},
        env={"id": env, "num_env": 8},
        algorithm={"network": [32, 16], "horizon": 32, "minibatches": 2, "epochs": 2},
    )


def parameters(folder):
    newest = max((folder / "checkpoints").iterdir())
    return torch.load(newest / "shared.pt", weights_only=True)["parameters"]


def numbers(folder):
    """What a run computed, without what a clock measured."""
    return [{key: line[key] for key in UNTIMED} for line in metrics(folder)]


@pytest.mark.slow
def test_the_module_of_an_environment_is_found_beside_the_config(tmp_path, monkeypatch):
    (tmp_path / "corridor_of_mine.py").write_text(OWN_ENV)
    path = config(tmp_path, env="corridor_of_mine:Corridor-v0", run__total_steps=256)
    monkeypatch.setattr(sys, "path", list(sys.path))
    checked = subprocess.run(
        [sys.executable, "-m", "gmi_drl", "check", str(path)], capture_output=True, timeout=60,
        text=True, cwd=Path(__file__).parent,
    )  # fmt: skip
    assert (checked.returncode, checked.stderr) == (0, "")
    try:
        assert launch(path).return_mean == 8.0
    finally:
        sys.modules.pop("corridor_of_mine", None)
        gymnasium.registry.pop("Corridor-v0", None)
    assert str(tmp_path) not in sys.path


@pytest.mark.slow
def test_an_ordinary_launch_imports_nothing_of_the_selector(tmp_path):
    code = (
        "import sys, gmi_drl\n"
        "assert gmi_drl.launch(sys.argv[1], view='none').steps == 256\n"
        "modules = [name for name in sys.modules if name.startswith('gmi_drl.selector.')]\n"
        "assert not modules and 'torch' not in sys.modules, modules"
    )
    path = config(tmp_path, run__total_steps=256)
    subprocess.run(
        [sys.executable, "-c", code, str(path)], check=True, timeout=60,
        env=os.environ | {"XDG_CACHE_HOME": str(tmp_path)},
    )  # fmt: skip


def test_the_memory_that_each_gmi_held_is_in_the_metrics_and_in_the_result(tmp_path):
    result = launch(config(tmp_path, layout__gmi_per_gpu=2, hardware__num_gpus=1))
    known = json.loads((result.folder / "run.json").read_text())
    assert known["mem_peak_bytes"] == list(result.mem_peak_bytes)
    assert known["mem_process_bytes"] == known["sm_count"] == [0, 0]  # of a GPU
    assert len(result.mem_peak_bytes) == 2
    assert min(result.mem_peak_bytes) > 20 << 20  # a process that runs torch
    lines = [line["mem_peak_bytes"] for line in metrics(result.folder)]
    assert lines == sorted(lines)
    assert 20 << 20 < lines[-1] <= max(result.mem_peak_bytes)


def test_two_gmis_train_and_leave_a_whole_folder(tmp_path, learning_curve):
    result = launch(config(tmp_path, layout__gmi_per_gpu=2, comm__checksum_every=1))
    assert result.state == "finished"
    assert (result.iteration, result.steps) == (4, 2048)
    assert [m["steps"] for m in metrics(result.folder)] == [512, 1024, 1536, 2048]
    assert result.gmis[0] == result.gmis[1]
    assert result.eval_return > 0
    there = {path.name for path in result.folder.iterdir()}
    assert there >= {
        "config.yaml",
        "layout.json",
        "plan.json",
        "run.json",
        "checkpoints",
        "tb",
        "logs",
        "report",
    }
    assert result.curve.stat().st_size > 10_000
    state = json.loads((result.folder / "run.json").read_text())
    assert (state["state"], state["steps"]) == ("finished", 2048)


def test_two_core_groups_are_two_devices(tmp_path):
    result = launch(config(tmp_path, hardware__num_gpus=2))
    layout = json.loads((result.folder / "layout.json").read_text())
    assert [gmi["gpu_id"] for gmi in layout["gmis"]] == [0, 1]


@pytest.mark.parametrize("env", ["CartPole-v1", "Hopper-v5"])
def test_a_seeded_run_repeats_bit_for_bit(tmp_path, env):
    path = config(tmp_path, env)
    first, second = launch(path), launch(path)
    assert torch.equal(parameters(first.folder), parameters(second.folder))
    assert numbers(first.folder) == numbers(second.folder)
    other = launch(path, "run.seed=4")
    assert not torch.equal(parameters(first.folder), parameters(other.folder))


@pytest.mark.parametrize("env", ["CartPole-v1", "Hopper-v5"])
def test_a_resumed_run_equals_one_that_was_never_stopped(tmp_path, env):
    path = config(tmp_path, env)
    whole = launch(path)
    part = launch(path, "run.total_steps=1024")
    resumed = launch(None, "run.total_steps=2048", resume=part.folder)
    assert resumed.folder == part.folder
    assert torch.equal(parameters(whole.folder), parameters(resumed.folder))
    assert numbers(whole.folder) == numbers(resumed.folder)
    assert resumed.eval_return == whole.eval_return


@pytest.mark.slow
def test_what_was_written_after_the_checkpoint_is_made_again_once(tmp_path):
    path = config(tmp_path, run__checkpoint_every=2, run__total_steps=1536)
    run = launch(path)
    for file in sorted((run.folder / "checkpoints").iterdir())[1:]:
        for part in file.iterdir():
            part.unlink()
        file.rmdir()
    resumed = launch(None, resume=run.folder)
    assert [m["iteration"] for m in metrics(resumed.folder)] == [1, 2, 3, 4, 5, 6]


def test_the_state_of_a_run_that_failed_has_the_first_line_of_the_error(tmp_path):
    text = "import gmi_drl\nclass Fails(gmi_drl.Holistic):\n    def GMI_run(self):\n"
    (tmp_path / "fails.py").write_text(f"{text}        raise ValueError('on purpose\\nmore')\n")
    path = config(tmp_path, roles__trainer="fails:Fails", layout__gmi_per_gpu=1)
    with pytest.raises(GmiDied, match="on purpose"):
        launch(path, keep_gcs=True)
    (store,) = tmp_path.glob("runs/t/*/gcs.sqlite")
    told = "ended: stopped because of gmi 0: it raised ValueError: on purpose"
    until(lambda: told in {its["reason"] for its in read_state(store).actors}, "it is written")


@pytest.mark.slow
@pytest.mark.parametrize("target", [None, 1e9])
def test_resuming_a_run_that_is_done_says_so_and_what_gives_it_more(tmp_path, capfd, target):
    run = launch(config(tmp_path, run__target_return=target))
    capfd.readouterr()
    steps = load_config(run.folder / "config.yaml").run.total_steps
    again = gmi_drl.launch(resume=run.folder, view="plain")
    assert (again.state, again.steps) == ("finished", run.steps)
    told = f"nothing was left to do: this run has reached run.total_steps={steps}"
    (line,) = [line for line in capfd.readouterr().out.splitlines() if told in line]
    resume, *changes = line.partition(": gmi-drl launch --resume ")[2].split(" --set ")
    further = gmi_drl.launch(resume=resume, overrides=changes, view="plain")
    assert (further.state, further.steps >= 2 * steps) == ("finished", True)
    assert "nothing was left" not in capfd.readouterr().out


def test_a_torn_checkpoint_stops_the_resume_and_names_the_good_one(tmp_path):
    run = launch(config(tmp_path, run__checkpoint_every=2))
    *_, good, newest = sorted((run.folder / "checkpoints").iterdir())
    (newest / "shared.pt").write_bytes(b"torn")
    with pytest.raises(GmiDied, match=f"--resume {good}"):
        launch(None, "run.total_steps=4096", resume=run.folder)


def test_following_the_advice_mends_a_run_with_a_torn_checkpoint(tmp_path):
    run = launch(config(tmp_path, run__checkpoint_every=3))
    _, good, newest = sorted((run.folder / "checkpoints").iterdir())
    (newest / "shared.pt").write_bytes(b"torn")
    whole = numbers(run.folder)
    launch(None, resume=good)
    assert numbers(run.folder) == whole
    assert launch(None, "run.total_steps=2304", resume=run.folder).iteration == 9


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("env.num_env=4", "env.num_env=4"),
        ("algorithm.minibatches=4", "algorithm.minibatches=4"),
        ("layout.gmi_per_gpu=2", "layout.gmi_per_gpu=2"),
        ("env.id=Acrobot-v1", "env.id='Acrobot-v1'"),
    ],
)
def test_a_resumed_run_keeps_its_settings(tmp_path, override, named):
    run = launch(config(tmp_path))
    with pytest.raises(ConfigError, match=r"only run\.\*, comm\.\* and cluster\.\* can") as refused:
        launch(None, override, resume=run.folder)
    assert [str(fault).partition(";")[0] for fault in refused.value.faults] == [named]


def test_a_resumed_run_stays_where_it_is_with_the_weights_that_it_began_with(tmp_path):
    run = launch(config(tmp_path))
    text = (run.folder / "config.yaml").read_text()
    others = ("run.name=other", "run.seed=7", "run.folder=/elsewhere", "run.policy=/nowhere")
    with pytest.raises(ConfigError, match="is what the run began with") as refused:
        launch(None, *others, "run.total_steps=4096", resume=run.folder)
    keys = [str(fault).partition("=")[0] for fault in refused.value.faults]
    assert keys == ["run.name", "run.seed", "run.folder", "run.policy"]
    assert (run.folder / "config.yaml").read_text() == text


def test_a_layout_that_is_not_the_configs_is_refused_on_resume(tmp_path):
    run = launch(config(tmp_path))
    layout = json.loads((run.folder / "layout.json").read_text())
    layout["gmis"][0]["num_env"] = 4
    (run.folder / "layout.json").write_text(json.dumps(layout))
    with pytest.raises(ConfigError, match=r"(?s)layout\.json: .*GmiSpec 0: num_env=4"):
        launch(None, "run.total_steps=4096", resume=run.folder)


def test_a_target_return_ends_the_run(tmp_path):
    result = launch(config(tmp_path, run__target_return=1.0, run__total_steps=10**6))
    assert result.state == "finished"
    assert result.steps < 10**5
    ended = [line["episodes"] for line in metrics(result.folder)]
    assert sum(ended) >= 100 > sum(ended[:-1])  # the first to end are short ones


@pytest.mark.slow
def test_resuming_a_run_that_has_reached_its_return_trains_no_more(tmp_path, capfd):
    run = launch(config(tmp_path, run__target_return=1.0, run__total_steps=10**6))
    capfd.readouterr()
    again = gmi_drl.launch(resume=run.folder, view="plain")
    assert (again.state, again.iteration, again.steps) == ("finished", run.iteration, run.steps)
    assert again.eval_return == run.eval_return
    told = "nothing was left to do: this run has reached run.target_return=1."
    (line,) = [line for line in capfd.readouterr().out.splitlines() if told in line]
    resume, *changes = line.partition(": gmi-drl launch --resume ")[2].split(" --set ")
    changes.append(f"run.total_steps={2 * run.steps}")  # of the 10**6 that the run would go on to
    assert gmi_drl.launch(resume=resume, overrides=changes).steps == 2 * run.steps


@pytest.mark.slow
def test_a_resumed_run_goes_on_to_a_higher_return(tmp_path):
    run = launch(config(tmp_path, run__target_return=1.0, run__total_steps=20_480))
    further = launch(None, "run.target_return=1e9", resume=run.folder)
    assert further.steps == load_config(run.folder / "config.yaml").run.total_steps > run.steps


# Roles of the user's own --------------------------------------------------------------------


def test_the_example_of_a_custom_role_runs_from_its_config(tmp_path):
    result = launch(EXAMPLES / "custom_role.yaml", f"run.folder={tmp_path}", "run.total_steps=4096")
    assert result.state == "finished"
    assert result.steps == 4096


def test_a_bare_role_talks_to_its_peers(tmp_path):
    roles = {"trainer": bodies_front.Pinger}
    result = launch(config(tmp_path, layout__gmi_per_gpu=2), roles=roles)
    assert result.gmis == [{"from_left": 1.0, "mean_id": 0.5}, {"from_left": 0.0, "mean_id": 0.5}]


def test_a_role_that_raises_is_named_with_its_traceback(tmp_path):
    path = config(tmp_path, layout__gmi_per_gpu=2)
    with pytest.raises(GmiDied, match="on purpose") as error:
        launch(path, roles={"trainer": bodies_front.Raises})
    assert error.value.gmi_id == 1
    (folder,) = (tmp_path / "runs" / "t").iterdir()
    assert "on purpose" in json.loads((folder / "run.json").read_text())["error"]


def test_an_error_of_fifty_megabytes_is_cut_and_ps_shows_which_gmi_a_process_is(tmp_path):
    path = config(tmp_path)
    with pytest.raises(GmiDied) as caught:
        launch(path, roles={"trainer": bodies_front.SaysMuch})
    (state,) = [json.loads(file.read_text()) for file in tmp_path.glob("runs/*/*/run.json")]
    for text in (str(caught.value), state["error"]):
        assert len(text) < 200_000
        assert "characters are left out here" in text
        assert re.search(r"ValueError: gmi-drl: gmi \d SaysMuch; xxx", text)


def test_a_role_module_that_does_not_import_is_named(tmp_path):
    path = config(tmp_path, roles__trainer="no_such_module:Trainer")
    with pytest.raises(ConfigError, match="importing no_such_module failed"):
        launch(path)


def test_roles_may_report_and_return_anything_of_their_own(tmp_path):
    path = config(tmp_path, roles__trainer="own_types:Reporter")
    (tmp_path / "own_types.py").write_text(OWN_TYPES)
    result = gmi_drl.launch(path, view="plain")
    assert result.state == "finished"
    assert type(result.gmis[0]).__name__ == "Answer"


def test_divergence_stops_the_run(tmp_path):
    with pytest.raises(GmiDied, match=r"training diverged: .*nan"):
        launch(config(tmp_path), "algorithm.value_coef=1e39")


def test_nan_rewards_stop_the_run_and_keep_the_last_checkpoint(tmp_path):
    path = config(tmp_path, run__checkpoint_every=1)
    said = r"reward of environment 5 \(seed \d+\) is not finite at step 7"
    with pytest.raises(GmiDied, match=said):
        launch(path, roles={"trainer": bodies_front.PaysNan})
    (folder,) = (tmp_path / "runs" / "t").iterdir()
    assert max((folder / "checkpoints").iterdir()).name == "iteration_000002"


def test_parameters_that_differ_stop_the_run_with_who_and_where(tmp_path):
    path = config(tmp_path, layout__gmi_per_gpu=2, comm__checksum_every=1)
    with pytest.raises(GmiDied, match=r"head\.bias"):
        launch(path, roles={"trainer": bodies_front.Drifts})


# Bad input ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("env.num_env=0", "env.num_env=0"),
        ("layout.gmi_per_gpu=4096", "layout.gmi_per_gpu=4096"),
        ("env.id=Ant-v999", "Ant-v"),
        ("version=2", "future"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(tmp_path, override, message):
    with pytest.raises(ConfigError, match=message):
        launch(config(tmp_path), override)
    assert not (tmp_path / "runs").exists()


def test_a_run_folder_that_cannot_be_made_says_so(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match=r"run\.folder=.*cannot be written"):
        launch(config(tmp_path), f"run.folder={tmp_path}/file/runs")


def test_resuming_what_is_no_run_says_so(tmp_path):
    with pytest.raises(RunFolderError, match="no run is there"):
        launch(None, resume=tmp_path)
    (tmp_path / "config.yaml").write_text("version: 1\nenv: {id: CartPole-v1}\n")
    (tmp_path / "layout.json").write_text("{")
    with pytest.raises(RunFolderError, match=r"layout\.json: no run is there"):
        launch(None, resume=tmp_path / "layout.json")
    with pytest.raises(RunFolderError, match=r"layout\.json cannot be read \(this text"):
        launch(None, resume=tmp_path)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "gmi-drl-test", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system needs root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.filterwarnings("ignore:.*No space left on device:UserWarning")  # pictures
def test_a_full_disk_costs_older_checkpoints_and_not_the_policy(tmp_path, small_disk):
    path = config(tmp_path, run__checkpoint_every=1, algorithm__network=[128])
    result = launch(path, f"run.folder={small_disk}", roles={"trainer": bodies_front.FillsTheDisk})
    assert result.state == "finished"
    assert json.loads((result.folder / "run.json").read_text())["state"] == "finished"
    whole = checkpoint.find(result.folder)
    assert whole.manifest["iteration"] == result.iteration
    kept = sorted(p.name for p in (result.folder / "checkpoints").iterdir())
    assert all(name.startswith("iteration_") for name in kept)


# Signals ------------------------------------------------------------------------------------


def start(path, *arguments):
    """A launcher of its own, once it trains; and the folder of its run."""
    command = [sys.executable, "-m", "gmi_drl", "launch", str(path), "--plain", *arguments]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        # Where the tests run under nohup it would not hear of a hang-up.
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    )  # fmt: skip
    base = path.parent / "runs" / "t"
    until(lambda: [*base.glob("*/metrics.jsonl")] or process.poll() is not None, "metrics", 100)
    assert process.poll() is None, process.stdout.read().decode()
    return process, next(base.iterdir())


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        *(pytest.param(n, marks=pytest.mark.slow) for n in (signal.SIGINT, signal.SIGHUP)),
    ],
)
def test_asked_to_end_a_run_writes_a_checkpoint_first(tmp_path, number):
    process, folder = start(config(tmp_path, run__total_steps=10**8, layout__gmi_per_gpu=2))
    process.send_signal(number)
    output, _ = process.communicate(timeout=90)
    assert process.returncode == 130, output.decode()
    assert json.loads((folder / "run.json").read_text())["state"] == "stopped"
    assert list((folder / "checkpoints").iterdir())
    actors = read_state(folder / "gcs.sqlite").actors  # the command keeps who ran what
    assert {actor["name"] for actor in actors} >= {"gmi0", "gmi1"}


@pytest.mark.slow
def test_a_role_that_does_not_listen_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(iteration_times, "_GRACE_S", 1.0)

    def interrupt():
        until(lambda: [*tmp_path.glob("runs/t/*/metrics.jsonl")], "its work", 100)
        os.kill(os.getpid(), signal.SIGINT)

    other = threading.Thread(target=interrupt)
    other.start()
    with pytest.raises(KeyboardInterrupt):
        launch(config(tmp_path), roles={"trainer": bodies_front.Deaf})
    other.join()
    (state,) = tmp_path.glob("runs/t/*/run.json")
    assert json.loads(state.read_text())["state"] == "stopped"


def test_a_parameter_that_no_role_takes_is_named(tmp_path):
    path = config(tmp_path, roles__trainer={"class": "gmi_drl:Holistic", "params": {"cots": 1}})
    with pytest.raises(GmiDied, match="takes no parameter cots"):
        launch(path)


def test_killing_the_launcher_leaves_no_process_whoever_is_stopped_and_a_run_that_resumes(tmp_path):
    path = config(tmp_path, run__total_steps=10**8, run__checkpoint_every=1, layout__gmi_per_gpu=2)
    process, folder = start(path)
    until(lambda: [*folder.glob("checkpoints/iteration_*")], "a checkpoint", 100)
    before = (folder / "config.yaml").read_text()
    with pytest.raises(RunFolderError, match=f"is being trained by process {process.pid}\\. Wait"):
        launch(None, "run.total_steps=1", resume=folder)
    assert (folder / "config.yaml").read_text() == before  # nothing was changed under its hands
    gmis = [pid for pid in shared_lock.holders(lock_of(folder)) if pid != process.pid]
    assert len(gmis) == 2
    server = int(Path(f"/proc/{gmis[0]}/stat").read_text().rpartition(")")[2].split()[1])
    for pid in (server, gmis[0]):
        stop(pid)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=90)
    steps = metrics(folder)[-1]["steps"] + 512
    resumed = launch(None, f"run.total_steps={steps}", resume=folder)
    assert resumed.steps >= steps
