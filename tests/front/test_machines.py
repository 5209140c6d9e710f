"""What a config leads to on machines as their drivers describe them."""

import re
import sys

import pynvml
import pytest

import boxes
import fake_nvml
from gmi_drl.gmi import discover
from gmi_drl.gmi.backends.backend import System
from gmi_drl.launcher.plan.planning import backend_reason, faults_of, find_devices
from gmi_drl.placement import MigSlice, layout_of, load_config
from gmi_drl.report.layout_picture import device_text

KINDS = (boxes.dgx_a100, boxes.dgx_h100, boxes.h200, boxes.b200, boxes.v100, boxes.a30)


@pytest.fixture(autouse=True)
def _all_is_installed(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(sys.modules[discover.__module__], "this_system", System)


def planned(monkeypatch, box, mode="sync", gmi_per_gpu=4, **hardware):
    """(config, faults, layout) on a machine; no layout where there are faults."""
    fake_nvml.install(monkeypatch, *box)
    config = load_config(
        {
            "version": 1, "mode": mode, "env": {"id": "CartPole-v1"}, "hardware": hardware,
            "layout": {"gmi_per_gpu": gmi_per_gpu},
        }
    )  # fmt: skip
    faults = [str(fault) for fault in faults_of(config)]
    return config, faults, None if faults else layout_of(config, find_devices(config))


@pytest.mark.parametrize("box", KINDS)
@pytest.mark.parametrize("backend", ["mps", "direct", "green", "mig"])
def test_four_gmis_on_each_gpu_can_be_had_by_every_backend(monkeypatch, box, backend):
    _, faults, layout = planned(monkeypatch, box(), backend=backend, allow_create=True)
    if (box, backend) == (boxes.v100, "mig"):
        assert "no MIG" in faults[0]
        return
    assert faults == []
    assert {len(ids) for ids in layout.mpl} == {4}
    assert {gmi.backend for gmi in layout.gmis} == {backend}


@pytest.mark.parametrize(
    ("box", "backend"),
    [
        (boxes.h200(), "auto"),
        (boxes.dgx_h100(), "auto"),
        (boxes.dgx_h100(), "mps"),
        (boxes.a30(("2g.12gb", 0), ("2g.12gb", 2)), "auto"),
    ],
)
@pytest.mark.parametrize("gmi_per_gpu", [1, 2])
def test_gpus_without_cuda_bindings_are_told_and_not_left_aside(
    monkeypatch, box, gmi_per_gpu, backend
):
    monkeypatch.setattr(
        sys.modules[discover.__module__], "this_system", lambda cuda: System(cuda, bindings=False)
    )
    _, faults, _ = planned(monkeypatch, box, gmi_per_gpu=gmi_per_gpu, backend=backend)
    told = " ".join(faults)
    assert re.search(r"cannot be used here: cuda-bindings is not.*pip install -e '.\[cuda\]'", told)
    assert "No other can be used either: mend that, or set hardware.backend: cpu." in told


def test_auto_says_why(monkeypatch):
    instances = ("1g.6gb", 0), ("1g.6gb", 1), ("2g.12gb", 2)
    config, _, layout = planned(monkeypatch, boxes.a30(*instances), "serving", 3)
    assert backend_reason(config, layout).startswith("backend mig: serving wants GMIs isolated")
    assert [gmi.mig for gmi in layout.gmis[:3]] == [MigSlice(*place) for place in instances]
    config, _, layout = planned(monkeypatch, boxes.v100(), "serving")
    assert backend_reason(config, layout).endswith("capability 7.0 of GPU 0 has no MIG")
    config, _, layout = planned(monkeypatch, boxes.dgx_h100())
    assert backend_reason(config, layout).startswith("backend mps: 4 GMIs on each GPU")


def test_instances_that_are_not_there_are_told_with_the_commands(monkeypatch):
    _, (fault,), _ = planned(monkeypatch, boxes.a30(("2g.12gb", 0)), "serving", 3)
    assert "allow_create" in fault
    assert "sudo nvidia-smi mig" in fault


def test_a_gpu_that_fell_off_the_bus_has_no_gmis(monkeypatch):
    _, faults, layout = planned(monkeypatch, boxes.falling(after=3))
    assert faults == []
    assert len(layout.topology.devices) == 7


def test_what_others_hold_of_a_gpu_is_no_gmis_and_plan_says_so(monkeypatch):
    _, _, layout = planned(monkeypatch, boxes.in_use(), gmi_per_gpu=2, backend="mps")
    free = [80 - 1 - 30, 80 - 1 - 2]  # GiB
    assert [gmi.mem_bytes >> 30 for gmi in layout.gmis[::2]] == [gib // 2 for gib in free]
    assert "80 GiB, 30.0 held by others" in device_text(layout.topology.devices[0])


@pytest.mark.parametrize("backend", ["auto", "direct", "mps", "green"])
def test_a_gpu_that_is_anothers_alone_is_refused(monkeypatch, backend):
    box = boxes.in_use()
    for gpu in box:
        gpu.compute_mode = pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS
    _, faults, _ = planned(monkeypatch, box, gmi_per_gpu=1, backend=backend)
    assert [fault.partition(", and")[0] for fault in faults] == [
        "GPU 0: compute mode='exclusive'; process 4242 holds it",
        "GPU 1: compute mode='exclusive'; process 5151 holds it",
    ]
    for gpu in box:
        gpu.processes = [its for its in gpu.processes if its.kind == "graphics"]
    assert planned(monkeypatch, box, gmi_per_gpu=1, backend=backend)[1] == []
