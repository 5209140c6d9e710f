"""The benchmarks' own arithmetic and bookkeeping; one short job is run, and no time is measured."""

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from waits import until

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture(autouse=True)
def bench_folder(monkeypatch):
    """The benchmarks are scripts: they find each other in their own folder."""
    monkeypatch.syspath_prepend(str(BENCH))
    yield
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(BENCH)):
            del sys.modules[name]


def cell(seed, mean, system="ours", task="Ant-v5"):
    return {
        "task": task, "seed": seed, "system": system, "seconds": 10.0 + seed, "steps": 100,
        "evaluation": {"mean": mean}, "curve": [[50, 1.0], [100, mean / 2]],
        "cpu_seconds_per_1000_steps": None,
    }  # fmt: skip


def test_settings_come_back_from_their_own_command_line(monkeypatch):
    from peers._job import Settings, parse

    wanted = Settings(env="Humanoid-v5", n_envs=4, normalize_reward=False, vec="b", gamma=0.9)
    monkeypatch.setattr(sys, "argv", ["job", *wanted.arguments()])
    assert parse(("a", "b"), None) == wanted


def test_cpu_clock_of_the_tree_counts_a_busy_child():
    from peers._job import tree_cpu_s

    before = tree_cpu_s()
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    subprocess.run([sys.executable, "-c", burn], check=True)
    assert tree_cpu_s() - before >= 0.25


def test_our_job_is_the_peers_job(tmp_path):
    from jobs import our_config
    from peers._job import Settings

    config = our_config(Settings(), tmp_path, gmi_per_gpu=2)
    algorithm, layout = config["algorithm"], config["layout"]
    assert config["env"]["num_env"] * layout["gmi_per_gpu"] == 16
    assert 16 * algorithm["horizon"] / algorithm["minibatches"] == 512
    assert (algorithm["epochs"], algorithm["network"]) == (5, [256, 128, 64])
    with pytest.raises(ValueError, match="16 environments do not divide among 3"):
        our_config(Settings(), tmp_path, gmi_per_gpu=3)


def test_a_row_replaces_its_predecessor_and_the_others_keep_their_commits(tmp_path, monkeypatch):
    import report

    path = tmp_path / "start.json"
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    report.write_results(path, {"cells": [1]})
    for commit, name, ours in (("old", "a", [1.0]), ("old", "b", [2.0]), ("new", "a", [4.0, 5.0])):
        monkeypatch.setattr(report, "commit", lambda commit=commit: commit)
        report.emit_pairs("start", name, "s", ours, [8.0] * len(ours), smaller_is_better=True)
    document = report.read_results(path)
    assert (document["cells"], document["commit"]) == ([1], "new")
    assert ["commit" in row for row in document["rows"]] == [False, True]
    rows = report.rows_of(path)
    assert (rows["a"]["commit"], rows["b"]["commit"]) == ("new", "old")
    assert (rows["a"]["value"], rows["a"]["ratio"], rows["a"]["repeats"]) == (4.5, 1.8, 2)


def test_a_run_is_timed_from_the_end_of_its_warm_up(tmp_path):
    from jobs import _Meter
    from peers._job import Settings

    folder = tmp_path / "bench" / "now"
    folder.mkdir(parents=True)
    meter = _Meter(tmp_path, Settings(steps=4096, warmup=1, evaluate=20), None)
    with open(folder / "metrics.jsonl", "w") as file:
        for number, time_s in enumerate((5.0, 6.0, 7.0), start=1):
            line = {"iteration": number, "steps": 2048 * number, "time_s": time_s}
            text = json.dumps({**line, "simulate_s": 0.5, "return_mean": None}) + "\n"
            file.write(text[:10])  # a line that is being written is left for later
            file.flush()
            meter.look(os.getpid())
            assert 2048 * number not in dict(meter.samples)
            file.write(text[10:])
            file.flush()
            meter.look(os.getpid())
        assert [steps for steps, _ in meter.samples] == [2048, 3 * 2048]  # begin and end
    (folder / "run.json").write_text(json.dumps({"state": "finished", "eval_return": 3.0}))
    job = meter.result()
    assert (job.steps, job.seconds, job.steps_per_s) == (4096, 2.0, 2048.0)
    assert job.simulate_steps_per_s == 4096.0
    assert job.evaluation == {"episodes": 20, "mean": 3.0}


def test_iterations_that_a_resumed_run_makes_again_count_once(tmp_path):
    from jobs import _Meter
    from peers._job import Settings

    from gmi_drl.roles.telemetry.progress import MetricsLog

    folder = tmp_path / "bench" / "now"
    folder.mkdir(parents=True)

    def write(log, numbers, speed):
        for number in numbers:
            line = {"iteration": number, "steps": 2048 * number, "time_s": number / speed}
            log.write({**line, "return_mean": number / speed})

    before = MetricsLog(folder, 0, None, pytest.fail)
    write(before, range(1, 5), speed=1.0)
    before.close()
    meter = _Meter(tmp_path, Settings(steps=6 * 2048, warmup=0), None, folder)
    meter.look(os.getpid())
    assert [steps for steps, _ in meter.samples] == [4 * 2048]
    after = MetricsLog(folder, 2, None, pytest.fail)
    write(after, range(3, 7), speed=0.5)
    meter.look(os.getpid())
    after.close()
    (folder / "run.json").write_text(json.dumps({"state": "finished"}))
    job = meter.result()
    assert (job.steps, job.seconds) == (6 * 2048, 12.0)
    means = (1.0, 2.0, 6.0, 8.0, 10.0, 12.0)  # of the third and fourth the later ones
    assert job.curve == [(2048 * number, mean) for number, mean in enumerate(means, start=1)]


@pytest.fixture
def kept(tmp_path):
    """A folder with a kept run of two checkpoints, and an older one; and its job."""
    import jobs
    from peers._job import Settings

    job = jobs.our_config(Settings(), tmp_path / "elsewhere", cores=[1])
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(job))
    for name in ("12-00-00/checkpoints/iteration_000009", "12-00-05/checkpoints/iteration_000001",
                 "12-00-05/checkpoints/iteration_000002"):  # fmt: skip
        (tmp_path / "runs/bench" / name).mkdir(parents=True)
        (tmp_path / "runs/bench" / name / "manifest.json").write_text("{}")
    (tmp_path / "runs/bench/12-00-07/checkpoints").mkdir(parents=True)  # it has none yet
    return tmp_path, job


def test_the_newest_kept_run_with_a_checkpoint_goes_on_wherever_its_folder_and_cores_are(kept):
    from jobs import _kept_run

    folder, job = kept
    job["run"] |= {"folder": "here", "checkpoint_every": 400}
    job["hardware"]["cores"] = [0]
    assert _kept_run(folder, job) == folder / "runs/bench/12-00-05"
    assert _kept_run(folder / "runs", job) is None


def test_a_kept_run_of_other_settings_does_not_go_on(kept):
    from jobs import JobError, _kept_run

    folder, job = kept
    job["run"]["total_steps"] *= 2
    del job["algorithm"]["gamma"]
    with pytest.raises(JobError, match=r"differs in algorithm\.gamma, run\.total_steps\. Keep"):
        _kept_run(folder, job)


def _learning(folder, core):
    """Starts the program on a core, for one cell of sixty iterations, which it keeps."""
    from jobs import on_cores

    script = [sys.executable, str(BENCH / "learning.py"), "--tasks", "CartPole-v1", "--seeds=1"]
    folders = [f"--{name}={folder / name}" for name in ("keep", "results", "docs")]
    words = [*script, "--steps=61440", "--resume", *folders]
    return subprocess.Popen(on_cores([core], words))


@pytest.mark.slow
def test_a_kept_cell_that_was_stopped_goes_on_and_trains_nothing_twice(tmp_path):
    cores = sorted(os.sched_getaffinity(0))
    runs = tmp_path / "keep/CartPole-v1-0/runs/bench"
    program = _learning(tmp_path, cores[0])
    made = "*/checkpoints/*/manifest.json"
    until(lambda: [*runs.glob(made)] or program.poll() is not None, "a checkpoint", 120)
    program.terminate()
    assert program.wait(60) == 143
    assert not (tmp_path / "results").exists()
    (run,) = runs.iterdir()
    first = (run / "metrics.jsonl").read_bytes().splitlines()
    assert 1 <= len(first) < 60

    assert _learning(tmp_path, cores[-1]).wait(240) == 0  # another core, where there is one
    assert list(runs.iterdir()) == [run]
    written = (run / "metrics.jsonl").read_bytes()
    lines = [json.loads(line) for line in written.splitlines()]
    assert [line["iteration"] for line in lines] == list(range(1, 61))
    with closing(sqlite3.connect(run / "gcs.sqlite")) as store:
        branches = store.execute("SELECT version FROM branches ORDER BY number").fetchall()
        policies = store.execute("SELECT version FROM policies ORDER BY id").fetchall()
    assert branches == [(0,), (len(first),)]
    assert policies == [(number,) for number in range(1, 61)]  # each was made once
    (cell,) = json.loads((tmp_path / "results").read_text())["cells"]
    assert cell["steps"] == cell["curve"][-1][0] == 61_440
    assert cell["curve"] == [[x["steps"], round(x["return_mean"], 3)] for x in lines
                             if x["return_mean"] is not None]  # fmt: skip
    assert cell["seconds"] == round(lines[-1]["time_s"], 1)
    assert cell["cpu_seconds_per_1000_steps"] is None
    assert cell["evaluation"]["episodes"] == 20

    (tmp_path / "results").unlink()  # as if it had been stopped before it could record the cell
    assert _learning(tmp_path, cores[0]).wait(60) == 0
    assert (run / "metrics.jsonl").read_bytes() == written
    assert json.loads((tmp_path / "results").read_text())["cells"] == [cell]


def test_a_job_that_fails_says_how_its_log_ended(tmp_path):
    from datetime import timedelta

    from jobs import JobError, _run

    script = tmp_path / "late.py"
    script.write_text("import sys; sys.exit('out of cheese')")
    with pytest.raises(JobError, match=r"exit code 1: late.py\nout of cheese"):
        _run(
            [sys.executable, str(script)],
            tmp_path / "out",
            tmp_path / "log",
            timedelta(seconds=30),
            lambda pid: None,
        )


@pytest.mark.slow
def test_a_task_of_python_is_trained_by_its_optimizer_and_evaluated():
    from datetime import timedelta

    import jobs
    from learning_tasks import TASKS

    task = TASKS["CartPole-v1-rl-apex"]
    settings = replace(task.ours, steps=2_048, evaluate=2)
    job = jobs.run_rl(settings, task.rl, task.agents, timedelta(minutes=2), None, task.algorithm)
    assert job.steps == 2_048
    assert job.evaluation["episodes"] == 2
    assert job.evaluation["mean"] >= 8.0  # no episode of CartPole is shorter
    assert job.curve[-1][0] == 2_048


def test_cells_survive_a_new_start_and_the_newest_of_a_seed_counts(tmp_path):
    from cells import Cells, evaluations

    cells = Cells(tmp_path / "results" / "learning.json")
    for seed, mean in ((1, 7.0), (0, 5.0), (2, 8.0)):
        cells.add(cell(seed, mean))
    Cells(cells.path).add(cell(2, 9.0))
    assert evaluations(Cells(cells.path).of("Ant-v5", "ours")) == [5.0, 7.0, 9.0]


def test_ppo_with_an_lstm_is_compared_with_the_better_of_both_peers(monkeypatch):
    import recurrent

    rows = []
    monkeypatch.chdir(BENCH.parent)
    monkeypatch.setattr(sys, "argv", ["recurrent.py", "--rounds", "2"])
    monkeypatch.setattr(recurrent, "launched", lambda config: {"steps_per_s": 6.0})
    speeds = {1: 2.0, 2: 3.0}  # by threads
    monkeypatch.setattr(
        recurrent, "ask_peer", lambda script, **asked: {"steps_per_s": speeds[asked["threads"]]}
    )
    monkeypatch.setattr(recurrent, "emit_pairs", lambda *row: rows.append(row))
    recurrent.main()
    assert rows == [("recurrent", "lstm_cartpole/sb3", "steps/s", [6.0, 6.0], [3.0, 3.0])]


def test_a_long_curve_is_thinned_and_keeps_its_end():
    from cells import thinned

    curve = [(step, float(step)) for step in range(10_007)]
    assert thinned(curve)[:2] == [(0, 0.0), (20, 20.0)]
    assert thinned(curve)[-1] == curve[-1]
    assert 500 <= len(thinned(curve)) <= 510
    assert thinned(curve[:7]) == curve[:7]
    assert thinned([]) == []


def test_every_system_of_a_learning_task_takes_the_same_environment():
    from learning_tasks import TASKS

    for name, task in TASKS.items():
        systems = [settings for settings in (task.ours, task.sb3) if settings is not None]
        assert {settings.env for settings in systems} == {task.env}
        assert name.startswith(task.env.replace("/", "-").rpartition("-v")[0])  # names files
        assert {settings.evaluate for settings in systems} == {20}


def test_the_jobs_of_learning_tasks_are_valid_configs(tmp_path):
    from jobs import our_config
    from learning_tasks import TASKS

    from gmi_drl.placement import load_config

    for name, task in TASKS.items():
        path = tmp_path / f"{name}.yaml"
        settings = replace(task.ours, steps=task.steps)
        job = our_config(
            settings, tmp_path, task.agents, algorithm=task.algorithm, sections=task.sections
        )
        path.write_text(yaml.safe_dump(job))
        config = load_config(path)
        assert config.env.num_env * task.agents == task.ours.n_envs
        assert config.algorithm.resolved_optimizer == task.algorithm.get(
            "optimizer", config.algorithm.optimizers[0]
        )
        assert config.run.total_steps >= task.steps
        assert config.algorithm.name == task.algorithm.get("name", "ppo")
