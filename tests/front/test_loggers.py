"""Loggers write what metrics.jsonl has: TensorBoard, W&B offline, MLflow in a file."""

from __future__ import annotations

import json
import math
import os
import struct
import subprocess
import sys
from importlib.util import find_spec

import pytest

from gmi_drl.launcher.callbacks.callback import EndedRun
from gmi_drl.launcher.callbacks.tensorboard_log import TensorBoardLog
from gmi_drl.placement.config.yaml_text import write_yaml

# In a process of its own, as loggers keep processes and threads until theirs ends.
RUN = """
import json, sys
import gmi_drl

config, *overrides = sys.argv[1:]
result = gmi_drl.launch(config, overrides=overrides, view="plain")
print("FOLDER", result.folder)
resumed = gmi_drl.launch(
    resume=result.folder, overrides=["run.total_steps=1536"], view="plain"
)
assert resumed.iteration == 6
"""


PACKAGES = {"tensorboard": ["tensorboard"], "wandb": ["wandb"],
            "mlflow": ["mlflow", "sqlalchemy", "alembic"]}  # fmt: skip


def needs(logger):
    for package in PACKAGES[logger]:
        pytest.importorskip(package)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder and the metrics of a run that all loggers followed, which was gone on with."""
    tmp_path = tmp_path_factory.mktemp("logged")
    there = [name for name, packages in PACKAGES.items() if all(map(find_spec, packages))]
    config = tmp_path / "pole.yaml"
    settings = {
        "version": 1,
        "run": {"name": "pole", "folder": str(tmp_path / "runs"), "total_steps": 1024, "seed": 3,
                "eval_episodes": 2, "log": there, "callback_errors": "fail"},
        "env": {"id": "CartPole-v1", "num_env": 8},
        "algorithm": {"horizon": 32, "network": [16], "minibatches": 2, "epochs": 1},
    }  # fmt: skip
    config.write_text(write_yaml(settings))
    variables = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "HOME": str(tmp_path)}
    variables |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    variables["MLFLOW_TRACKING_URI"] = f"sqlite:///{tmp_path / 'mlflow.db'}"
    ended = subprocess.run(
        [sys.executable, "-c", RUN, str(config)], capture_output=True, text=True, timeout=110,
        cwd=tmp_path, env=os.environ | variables,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (folder,) = (tmp_path / "runs" / "pole").glob("20*")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["iteration"] for line in lines] == [1, 2, 3, 4, 5, 6]
    return folder, lines


def board(folder):
    """What TensorBoard shows of a folder: by tag, the steps and their values."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    loaded = EventAccumulator(str(folder / "tb"))
    loaded.Reload()
    return {
        tag: [(event.step, event.value) for event in loaded.Scalars(tag)]
        for tag in loaded.Tags()["scalars"]
    }


@pytest.mark.slow
def test_tensorboard_has_every_number_of_the_metrics(trained):
    folder, lines = trained
    shown = board(folder)
    numbers = {
        f"train/{key}"
        for line in lines
        for key, value in line.items()
        if isinstance(value, (int, float)) and key != "iteration"
    }
    assert numbers <= shown.keys()
    steps = [(line["iteration"], float(line["steps"])) for line in lines]
    assert shown["train/steps"] == steps
    returns = [value for _, value in shown["train/return_mean"]]
    assert returns == pytest.approx([line["return_mean"] for line in lines], rel=1e-6)


def written(log, *iterations):
    for iteration in iterations:
        log.on_iteration(iteration, {"iteration": iteration, "x": float(iteration), "y": None})


def test_iterations_that_come_again_replace_those_before(tmp_path):
    log = TensorBoardLog()
    log._folder = tmp_path / "tb"
    written(log, 1, 2, 3, 4)
    log.on_iteration(3, {"x": 30.0})  # a GMI died, and training went back
    log.on_end(EndedRun("finished"))
    assert board(tmp_path) == {"train/x": [(1, 1.0), (2, 2.0), (3, 30.0)]}


def test_a_launch_that_goes_on_leaves_out_what_was_beyond_its_checkpoint(tmp_path):
    TensorBoardLog.write(tmp_path, [{"iteration": i, "x": float(i)} for i in range(1, 6)])
    TensorBoardLog.write(tmp_path, [{"iteration": i, "x": 10.0 * i} for i in range(4, 7)])
    expected = [(1, 1.0), (2, 2.0), (3, 3.0), (4, 40.0), (5, 50.0), (6, 60.0)]
    assert board(tmp_path) == {"train/x": expected}


def offline_records(path):
    """Reads a file of W&B's, which is a log of LevelDB's format with a header of its own."""
    from wandb.proto import wandb_internal_pb2

    data, at, whole = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        size, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        if left < 7 or not kind:
            at += left
            continue
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or its last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            yield record
            whole = b""


@pytest.mark.slow
def test_wandb_gets_config_and_metrics_offline_and_goes_on_as_the_same_run(trained):
    needs("wandb")
    folder, lines = trained
    files = sorted(folder.glob("wandb/offline-run-*/run-*.wandb"))
    assert len(files) == 2  # the second is of the launch that went on
    history, runs = [], []
    for file in files:
        for record in offline_records(file):
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                history.append({i.key or i.nested_key[0]: json.loads(i.value_json) for i in items})
            elif record.WhichOneof("record_type") == "run":
                runs.append(record.run)
    assert [row["iteration"] for row in history] == [1, 2, 3, 4, 5, 6]
    assert [row["return_mean"] for row in history] == [line["return_mean"] for line in lines]
    assert {run.run_id for run in runs} == {
        json.loads((folder / "run.json").read_text())["wandb_id"]
    }
    assert (runs[0].run_group, runs[0].display_name) == ("pole", "pole-3")
    config = {item.key: json.loads(item.value_json) for item in runs[0].config.update}
    assert config["env"]["id"] == "CartPole-v1"


@pytest.mark.slow
def test_mlflow_gets_config_and_metrics_and_goes_on_as_the_same_run(trained):
    needs("mlflow")
    folder, lines = trained
    uri = f"sqlite:///{folder.parents[2] / 'mlflow.db'}"
    code = (
        "import json, sys, mlflow\n"
        "client = mlflow.MlflowClient(sys.argv[1])\n"
        "run = client.get_run(sys.argv[2])\n"
        "history = client.get_metric_history(sys.argv[2], 'return_mean')\n"
        "name = client.get_experiment(run.info.experiment_id).name\n"
        "print(json.dumps([run.info.status, run.data.params, name,\n"
        "                  [[m.step, m.value] for m in history], run.data.metrics]))"
    )
    run_id = json.loads((folder / "run.json").read_text())["mlflow_id"]
    told = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, uri, run_id], capture_output=True, text=True,
        timeout=60, check=True, env=os.environ | {"HOME": str(folder)},
    )  # fmt: skip
    status, params, name, history, metrics = json.loads(told.stdout.splitlines()[-1])
    assert (status, name) == ("FINISHED", "pole")
    assert params["env.id"] == "CartPole-v1"
    assert params["algorithm.horizon"] == "32"
    assert sorted(history) == [[line["iteration"], line["return_mean"]] for line in lines]
    assert math.isfinite(metrics["eval_return"])
