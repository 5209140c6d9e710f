"""A run on green contexts from its config to its end, with doubles of NVML and of CUDA."""

import json
from pathlib import Path

import pytest
import yaml

import boxes
import fake_nvml
import gmi_drl
from bodies_green import Greedy, Placed
from gmi_drl import runtime
from gmi_drl.gmi import GmiDied
from gmi_drl.launcher.start.preload import PRELOAD
from gmi_drl.placement import ConfigError
from gmi_drl.selector.tune.profile.candidate_run import classify


@pytest.fixture(scope="module", autouse=True)
def warm():
    """The fork server, too, must find the fake driver: torch looks for cuda.bindings there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[1] / "fake_cuda"))
        runtime.init(PRELOAD)
        yield
        runtime.shutdown()


@pytest.fixture(autouse=True)
def _h200(tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    box = boxes.h200()
    fake_nvml.install(monkeypatch, *box)
    gpu = {"uuid": box[0].uuid, "sm_count": 132, "mem_bytes": 141 << 30, "capability": [9, 0]}
    (tmp_path / "gpus.json").write_text(json.dumps([gpu]))
    monkeypatch.setenv("FAKE_CUDA", str(tmp_path / "gpus.json"))
    monkeypatch.setenv("FAKE_CUDA_TORCH", "1")


def launch(tmp_path, gmis, role=Placed):
    config = {
        "version": 1,
        "run": {"name": "green", "folder": str(tmp_path), "total_steps": 64},
        "env": {"id": "CartPole-v1", "adapter": "torch", "num_env": 8},
        "algorithm": {"network": [16], "horizon": 8, "minibatches": 1},
        "hardware": {"backend": "green"},
        "layout": {"gmi_per_gpu": gmis},
        "comm": {"reduction": "mpr"},
    }
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    return gmi_drl.launch(path, view="none", roles={"trainer": role})


def test_gmis_of_a_run_meet_in_one_process_each_on_sms_of_its_own(tmp_path):
    result = launch(tmp_path, 3)
    pids, sms, sums, told = zip(*result.gmis, strict=True)
    assert len(set(pids)) == 1
    assert [len(its) for its in sms] == [40, 40, 40]  # 5 of 16 groups each
    assert json.loads((result.folder / "run.json").read_text())["sm_count"] == [40, 40, 40]
    assert len(set().union(*sms)) == 120
    assert set(sums) == {0.0 + 1.0 + 2.0}
    assert set().union(*told) == {sum(3 * [140 * 2**30 // 3]) / (141 << 30)}  # one process


def test_more_gmis_than_groups_are_refused_before_anything_is_started(tmp_path):
    with pytest.raises(ConfigError, match="16 groups"):
        launch(tmp_path, 17)


def test_memory_that_runs_out_is_one_error_with_share_and_remedy_and_known_to_the_tuner(tmp_path):
    with pytest.raises(GmiDied) as died:
        launch(tmp_path, 2, Greedy)
    failed = classify(died.value)
    assert failed.reason == "memory"
    for part in (
        "gmi 0 (GPU 0, backend green)", "70.00 GiB, an equal part of GPU 0 for 2 GMIs",
        "all GMIs of its process have 140.00 GiB", "Lower env.num_env, or layout.gmi_per_gpu",
    ):  # fmt: skip
        assert part in failed.text
    assert "OutOfMemoryError: CUDA out of memory" in str(died.value)
