"""GMIs on one real GPU that train and serve, with environments there: `pytest -m gpu`."""

import importlib.util
import json

import pytest
import torch
import yaml

import gmi_drl
from bodies_hardware import Greedy
from gmi_drl.gmi import DeviceMemoryError, GmiDied, discover, lease
from gmi_drl.launcher.folder.run_folder import RunFolder
from gmi_drl.placement.slicing import memory_share
from gmi_drl.selector.tune.profile.candidate_run import classify

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]  # kernels of warp may have to be compiled
NUM_ENV, HORIZON, ITERATIONS = 256, 8, 2
WARP = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("warp", "mujoco_warp")),
    reason="mujoco-warp is not installed",
)
ENVS = [
    pytest.param("BallBalance-v0", "torch", id="torch"),
    pytest.param("Ant-v5", "warp", id="warp", marks=WARP),
]


@pytest.fixture(params=["direct", "mps", "green"])
def backend(request, monkeypatch):
    topology = discover()
    if topology.devices[0].kind != "gpu":
        pytest.skip("no GPU on this machine answers")
    if why := dict(topology.unusable).get(request.param):
        pytest.skip(f"backend {request.param}: {why}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", topology.devices[0].uuid)
    yield request.param
    assert not list(lease._BASE.glob(f"{lease._PREFIX}*"))  # no daemon, and no note of one


def launch(tmp_path, backend, gmis, env, adapter, **options):
    mode = options.pop("mode", "sync")
    template = options.pop("template", None)
    algorithm = options.pop("algorithm", {"network": [64, 64], "minibatches": 2, "epochs": 2})
    config = {
        "version": 1,
        "mode": mode,
        "run": {
            "name": "gpu", "folder": str(tmp_path / "runs"),
            "total_steps": ITERATIONS * HORIZON * NUM_ENV * gmis,
            "capture": options.pop("capture", True),
        },
        "env": {"id": env, "adapter": adapter, "num_env": NUM_ENV},
        "algorithm": {"horizon": HORIZON, **algorithm},
        "hardware": {"backend": backend, "num_gpus": 1},
        "layout": {"gmi_per_gpu": gmis} | ({"template": template} if template else {}),
        "comm": {"checksum_every": 1 if mode == "sync" else 50, "timeout_s": 60},
    }  # fmt: skip
    tmp_path.mkdir(exist_ok=True)
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    return gmi_drl.launch(path, view="none", **options)


def check_memory(result, gmis):
    """Every GMI has told how much it held, and has kept to its share."""
    layout = RunFolder(result.folder).layout()
    assert len(result.mem_peak_bytes) == gmis
    for gmi_id, peak in enumerate(result.mem_peak_bytes):
        fellows = layout.gmis if layout.gmi(gmi_id).backend == "green" else [layout.gmi(gmi_id)]
        assert 0 < peak <= sum(memory_share(layout, its.gmi_id).nbytes for its in fellows)


@pytest.mark.parametrize("gmis", [1, 2])
@pytest.mark.parametrize(("env", "adapter"), ENVS)
def test_gmis_train_with_environments_on_the_gpu(tmp_path, backend, gmis, env, adapter):
    result = launch(tmp_path, backend, gmis, env, adapter)
    assert (result.state, result.iteration) == ("finished", ITERATIONS)
    check_memory(result, gmis)
    lines = (result.folder / "metrics.jsonl").read_text().splitlines()
    assert all(json.loads(line)["mem_peak_bytes"] > 0 for line in lines)


@pytest.mark.parametrize("gmis", [1, 2])
@pytest.mark.parametrize(("env", "adapter"), ENVS)
def test_gmis_serve_with_environments_on_the_gpu(tmp_path, backend, gmis, env, adapter):
    result = launch(tmp_path, backend, gmis, env, adapter, mode="serving")
    assert (result.state, result.steps) == ("finished", ITERATIONS * HORIZON * NUM_ENV * gmis)
    check_memory(result, gmis)


@pytest.mark.parametrize(("mode", "template"), [("sync", "tdg_ex"), ("serving", "tdg")])
def test_roles_apart_hand_over_what_is_on_the_gpu(tmp_path, backend, mode, template):
    result = launch(tmp_path, backend, 2, "BallBalance-v0", "torch", mode=mode, template=template)
    assert result.state == "finished"
    assert result.steps > 0


@pytest.mark.parametrize(
    ("name", "sampler"),
    [("sac", "uniform"), ("td3", "uniform"), ("dqn", "uniform"), ("dqn", "prioritized")],
)
def test_updates_from_a_replay_that_are_captured_learn_the_same(tmp_path, name, sampler):
    env = "CartPole-v1" if name == "dqn" else "Pendulum-v1"
    # Both ways draw the same numbers and launch the same work. A hundred updates or so: what little
    # a product may be rounded otherwise in a graph is then far below what a step more would do.
    algorithm = {
        "name": name, "network": [64, 64], "batch_size": 64, "replay_start": 256,
        "updates_per_row": 2.0**-5, "sampler": sampler,
    }  # fmt: skip
    parameters = []
    for capture in (True, False):
        result = launch(
            tmp_path / str(capture), "direct", 1, env, "torch", algorithm=algorithm, capture=capture
        )
        assert result.state == "finished"
        network = gmi_drl.load_policy(result.folder).module.network
        parameters.append(torch.nn.utils.parameters_to_vector(network.parameters()).detach())
    torch.testing.assert_close(*parameters, rtol=1e-3, atol=1e-4)


def test_a_gmi_that_wants_more_than_its_share_is_told_so(tmp_path, backend):
    with pytest.raises(GmiDied) as died:
        launch(tmp_path, backend, 2, "BallBalance-v0", "torch", roles={"trainer": Greedy})
    assert isinstance(died.value.__cause__.cause, DeviceMemoryError)
    assert classify(died.value).reason == "memory"
    assert f"backend {backend}" in died.value.__cause__.cause.text
