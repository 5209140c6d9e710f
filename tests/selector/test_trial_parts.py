"""Trials of a search that share a GPU: each has its part, and all are clients of one MPS daemon."""

import os

import pytest

import boxes
import fake_gpus
import fake_nvml
from gmi_drl.gmi import LayoutSlices
from gmi_drl.placement import layout_of, load_config
from gmi_drl.selector.search.faults import (
    gpus_of_servers,
    placed,
    placement_faults,
    trial_topologies,
)
from gmi_drl.selector.search.searching import _sharing


@pytest.fixture
def two_gpus(monkeypatch, tmp_path):
    """Two H100s, by the doubles of NVML, of the CUDA driver and of MPS."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    gpus = boxes.dgx_h100()[:2]
    fake_nvml.install(monkeypatch, *gpus)
    fake_gpus.install(monkeypatch, tmp_path, fake_gpus.topology(2))
    return gpus


def config_of(hardware=None, **search):
    ranges = {"algorithm.learning_rate": {"log_uniform": [1e-4, 1e-2]}}
    return load_config(
        {
            "version": 1,
            "env": {"id": "CartPole-v1", "num_env": 8},
            "hardware": hardware or {},
            "search": {"ranges": ranges, "trials_per_device": 4, **search},
        }
    )


def test_trials_have_parts_of_gpus_that_fill_evenly(two_gpus):
    config = config_of()
    assert placement_faults(config) == []
    topologies = trial_topologies(config)
    uuids = [gpu.uuid for gpu in two_gpus]
    assert [one.devices[0].uuid for one in topologies] == uuids * 4
    assert len(trial_topologies(config_of(trials_at_once=3))) == 3
    assert gpus_of_servers(topologies, config) == sorted(uuids)
    assert gpus_of_servers(topologies, config_of(trials_per_device=1)) == []
    (gmi,) = layout_of(placed(topologies[5], config, 4), topologies[5]).gmis
    usable = (topologies[5].devices[0].mem_bytes - 2**30) // 4
    assert (gmi.backend, gmi.sm_percent, gmi.device_uuid) == ("mps", 50, uuids[1])
    assert gmi.mem_bytes == usable // 2**20 * 2**20


@pytest.mark.usefixtures("two_gpus")
def test_trials_that_share_a_gpu_are_clients_of_its_one_daemon():
    config = config_of()
    topologies = trial_topologies(config)
    layouts = [layout_of(placed(one, config, 4), one) for one in topologies]
    before = dict(os.environ)
    with _sharing(gpus_of_servers(topologies, config)):
        pipes = set()
        for layout in layouts:
            with LayoutSlices(layout) as slices:
                pipes.add(slices.environment(layout.gmis[0])["CUDA_MPS_PIPE_DIRECTORY"])
        assert len(pipes) == len(fake_gpus.mps_pids()) == 2  # one for each GPU
    assert fake_gpus.mps_pids() == []
    assert dict(os.environ) == before


@pytest.mark.parametrize("backend", ["auto", "mig"])
def test_a_trial_of_a_gpu_in_mig_mode_has_an_instance_as_a_launch_has(monkeypatch, backend):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("gmi_drl.gmi.backends.backend.has_bindings", lambda: True)
    fake_nvml.install(monkeypatch, *boxes.a30(("2g.12gb", 0)))
    config = config_of({"backend": backend}, trials_per_device=1)
    assert placement_faults(config) == []
    for topology in trial_topologies(config):
        (gmi,) = layout_of(placed(topology, config, 1), topology).gmis
        assert (gmi.backend, gmi.mig.profile) == ("mig", "2g.12gb")


def test_a_trial_that_has_a_gpu_to_itself_has_no_daemon(two_gpus):
    config = config_of(trials_per_device=1)
    for topology in trial_topologies(config):
        (gmi,) = layout_of(placed(topology, config, 1), topology).gmis
        assert gmi.backend == "direct"


@pytest.mark.usefixtures("two_gpus")
def test_without_mps_trials_take_turns(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    config = config_of()
    assert placement_faults(config) == []
    topologies = trial_topologies(config)
    (gmi,) = layout_of(placed(topologies[0], config, 4), topologies[0]).gmis
    assert gmi.backend == "direct"
    assert gpus_of_servers(topologies, config) == []


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("config", "said"),
    [
        (config_of(devices=2), "a trial of 2 devices has them to itself"),
        (config_of({"backend": "green"}), "by backend mps or direct, not green"),
        (config_of({"backend": "cpu"}), "search.cores shares out cores"),
        (config_of(trials_at_once=9), "there are 8 parts of GPUs"),
    ],
)
def test_what_cannot_share_a_device_is_refused_with_the_reason(config, said):
    assert said in "\n".join(map(str, placement_faults(config)))
