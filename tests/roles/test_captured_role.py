"""A whole run of a role that captures its work, against one that launches it anew."""

import json

import pytest
import yaml

import bodies_captured
import gmi_drl

MACHINE = {
    "time_s",
    "steps_per_s",
    "simulate_s",
    "infer_s",
    "train_s",
    "reduce_s",
    "mem_peak_bytes",
}
MACHINE |= {"gmi_seconds", "gmi_mem_peak_bytes"}


pytestmark = pytest.mark.usefixtures("warm")


def metrics(folder, gmis, role, **algorithm):
    run = {"name": role.__name__, "folder": str(folder), "eval_episodes": 0, "log_every": 1}
    config = {
        "version": 1, "mode": "sync", "run": run | {"total_steps": 4 * 8 * 16 * gmis},
        "env": {
            "id": "Pendulum-v1", "adapter": "torch", "num_env": 16, "max_episode_steps": 10,
        },
        "algorithm": {
            "network": [8], "horizon": 8, "minibatches": 2, "epochs": 2, **algorithm,
        },
        "hardware": {"backend": "cpu", "num_gpus": 1}, "layout": {"gmi_per_gpu": gmis},
    }  # fmt: skip
    path = folder / f"{role.__name__}.yaml"
    path.write_text(yaml.safe_dump(config))
    result = gmi_drl.launch(path, view="none", roles={"trainer": role})
    lines = (result.folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("recurrent", [None, {"size": 8}], ids=["", "lstm"])
@pytest.mark.parametrize("gmis", [1, 2])
@pytest.mark.slow
def test_a_run_that_is_captured_learns_what_one_that_is_not_does(tmp_path, gmis, recurrent):
    captured, launched = (
        metrics(tmp_path, gmis, role, recurrent=recurrent)
        for role in (bodies_captured.Captured, bodies_captured.Launched)
    )
    assert len(captured) == 4
    assert captured[-1]["episodes"] > 0
    assert all(isinstance(line["mean_value"], float) for line in captured)
    for mine, its in zip(captured, launched, strict=True):
        assert (mine["reduce_s"] > 0) == (gmis > 1)  # one alone has it in its graph
        assert its["reduce_s"] > 0
        for name in mine.keys() - MACHINE:
            assert mine[name] == its[name], name
