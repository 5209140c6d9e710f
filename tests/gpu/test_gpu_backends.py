"""GMIs on one real GPU, by mps, direct and green: `pytest -m gpu`."""

import json
import os
from datetime import timedelta
from pathlib import Path

import pytest
import yaml

import bodies_recovery
import faults
import gmi_drl
from bodies_hardware import OnGpu
from gmi_drl.gmi import Gang, LayoutSlices, discover
from gmi_drl.placement import GmiSpec, Layout
from gmi_drl.placement.slicing import groups_of, num_groups
from gmi_drl.placement.topology import share

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]
LONG = timedelta(seconds=120)
ITERATIONS = 6


@pytest.fixture(params=["direct", "mps", "green"])
def backend(request):
    topology = discover()
    if topology.devices[0].kind != "gpu":
        pytest.skip("no GPU on this machine answers")
    if why := dict(topology.unusable).get(request.param):
        pytest.skip(f"backend {request.param}: {why}")
    return request.param


@pytest.fixture(autouse=True)
def _first_gpu_alone(monkeypatch):
    if uuid := discover().devices[0].uuid:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", uuid)


def layout(backend, count):
    topology = discover()
    device = topology.devices[0]
    gmis = tuple(
        GmiSpec(
            i, 0, ("simulator", "agent", "trainer"), backend,
            share(device.cores, count, i) or device.cores[:1], 1,
            None if backend == "direct" else 100 // count, device_uuid=device.uuid,
        )
        for i in range(count)
    )  # fmt: skip
    return Layout("tcg_ex", topology, gmis)


def launch(tmp_path, backend, gmis, **options):
    config = {
        "version": 1,
        "run": {
            "name": "gpu", "folder": str(tmp_path / "runs"), "checkpoint_every": 2,
            "total_steps": ITERATIONS * 32 * 64 * gmis, "eval_episodes": 8,
        },
        "env": {"id": "CartPole-v1", "adapter": "torch", "num_env": 64, "max_episode_steps": 200},
        "algorithm": {"network": [64, 64], "horizon": 32, "minibatches": 4, "epochs": 2},
        "hardware": {"backend": backend, "num_gpus": 1},
        "layout": {"gmi_per_gpu": gmis},
        "comm": {"checksum_every": 1, "timeout_s": 60},
    }  # fmt: skip
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    return gmi_drl.launch(path, view="none", **options)


def iterations(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["iteration"] for line in lines]


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_gmis_start_on_slices_that_are_verified_and_go(backend, count):
    one = layout(backend, count)
    device = one.topology.devices[0]
    with Gang(one, OnGpu) as running:
        seen = running.call("slice", timeout=LONG)
    pids, in_mps, sms, green = zip(*seen, strict=True)
    assert set(in_mps) == {backend == "mps"}
    assert len(set(pids)) == (1 if backend == "green" else count)
    whole = device.sm_count
    if backend == "mps":
        assert all(0 < each <= whole // count + 1 for each in sms)
    else:
        assert set(sms) == {whole}
    if backend == "green":
        least = groups_of(100 // count, num_groups(device))
        assert all(each >= least for each in green)
        assert sum(green) <= whole


@pytest.mark.parametrize("gmis", [1, 2, 4, 8])
def test_cartpole_is_trained_on_a_gpu_that_is_shared(tmp_path, backend, gmis):
    result = launch(tmp_path, backend, gmis)
    assert (result.state, result.iteration, len(result.gmis)) == ("finished", ITERATIONS, gmis)
    assert all(answer == result.gmis[0] for answer in result.gmis)
    assert result.eval_return > 0


@pytest.mark.parametrize(
    ("moment", "spares"),
    [
        ((1, "simulate", 3), ("direct", "mps")),
        ((0, "reduce", 3), ("direct", "mps")),
        ((1, "simulate", 3, "gpu fault"), ("direct",)),
    ],
)
def test_a_gmi_that_is_killed_or_faults_comes_back_and_the_run_is_whole(
    tmp_path, monkeypatch, backend, moment, spares
):
    """`spares`: under which backends the other GMI goes on."""
    faults.script(monkeypatch, tmp_path / "faults", moment)
    result = launch(tmp_path, backend, 2, roles={"trainer": bodies_recovery.Mortal})
    assert faults.struck(tmp_path / "faults") == 1
    assert (result.state, result.iteration) == ("finished", ITERATIONS)
    assert result.restarts == (1 if backend in spares else 2)
    assert iterations(result.folder) == list(range(1, ITERATIONS + 1))
    assert result.gmis[0] == result.gmis[1]


@pytest.mark.parametrize("backend", ["mps"], indirect=True)
def test_nothing_of_mps_is_left_when_the_slices_are_given_back(backend):
    with LayoutSlices(layout(backend, 2)) as slices:
        gmis = layout(backend, 2).gmis
        pipes = [slices.environment(spec)["CUDA_MPS_PIPE_DIRECTORY"] for spec in gmis]
        assert all(os.path.exists(f"{pipe}/control") for pipe in pipes)
    assert not any(Path(pipe).exists() for pipe in pipes)
