"""`gmi-drl doctor`: what it says, how it exits, and that `plan` finds what it has measured."""

import json
import os
import re
from importlib.metadata import PackageNotFoundError

import pytest
from rich.console import Console

import boxes
import fake_gpus
import fake_nvml
from gmi_drl.cli import doctor, main
from gmi_drl.cli.doctor import diagnose, measured, print_diagnosis, simulator_findings
from gmi_drl.comm.errors import CommError
from gmi_drl.comm.plan import plan as planning
from gmi_drl.comm.plan.torch_facts import TorchFacts
from gmi_drl.gmi import discover
from gmi_drl.gmi.backends import backend
from gmi_drl.gmi.backends.backend import GPU_BACKENDS
from gmi_drl.gmi.health import HealthFinding
from gmi_drl.placement import Topology

CORES = sorted(os.sched_getaffinity(0))
TORCH = TorchFacts("2.11.0+cu126", "12.6", (2, 28, 9), 2)


@pytest.fixture(autouse=True)
def _own_record(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine of these GPUs, whose torch says that it sees them.

    Its driver is too old for green contexts, whose trial imports torch.
    """

    def make(*gpus, torch=TORCH, mps=""):
        fake_nvml.install(monkeypatch, *gpus, cuda=12080)
        fake_gpus.install(monkeypatch, tmp_path, discover(), mps)
        monkeypatch.setattr(doctor, "ask_torch", lambda compute: torch)

    return make


def run(capsys, *words):
    code = main.main(["doctor", *words])
    return code, capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.skipif(len(CORES) < 2, reason="two GMIs on cores need two cores")
def test_on_cores_links_are_measured_and_plan_finds_them(monkeypatch, capsys, tmp_path):
    fake_nvml.install(monkeypatch)
    code, out = run(capsys)
    assert code == 0
    assert out.splitlines()[-1] == "This machine works on CPU cores."
    assert re.search(r"B1, shared memory +ok +2 GMIs: [\d.]+ [um]s", out)
    assert re.search(r"backend mps +not here +there is no GPU", out)
    assert re.search(r"adapter mujoco +ok +mujoco \d", out)

    path = tmp_path / "pole.yaml"
    path.write_text(
        "version: 1\nenv: {id: CartPole-v1, num_env: 2}\nlayout: {gmi_per_gpu: 2}\n"
        "algorithm: {network: [8, 8], horizon: 16, minibatches: 1, epochs: 1}\n"
    )
    assert main.main(["plan", str(path), "--no-measure", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["reduction"]
    assert [link["kind"] for link in found["links"]] == ["host"]


def test_a_simulator_that_is_not_installed_is_no_fault(monkeypatch):
    monkeypatch.setattr("gmi_drl.cli.doctor.version", missing("mujoco-mjx"))
    found = {finding.name: finding for finding in simulator_findings()}
    assert [finding.state for finding in found.values()] == ["ok", "ok", "not here"]
    assert found["adapter mjx"].remedy == "pip install -e '.[mjx]' in the clone"


def missing(name):
    def version(package):
        if package == name:
            raise PackageNotFoundError(package)
        return "1.0"

    return version


@pytest.mark.slow
def test_gpus_that_are_well(machine, capsys):
    machine(*boxes.a30())
    code, out = run(capsys, "--json", "--no-measure")
    found = json.loads(out)
    assert (code, found["works"]) == (0, True)
    assert found["verdict"] == "This machine works with backends cpu, direct, mps."
    states = {finding["name"]: finding["state"] for finding in found["findings"]}
    assert states["backend mps"] == states["torch"] == states["NCCL"] == "ok"
    assert states["backend green"] == states["backend mig"] == states["links"] == "not here"
    assert [device["sm_count"] for device in found["topology"]["devices"]] == [56, 56]


def test_gpus_without_cuda_bindings_are_of_no_use(machine, monkeypatch, capsys):
    machine(*boxes.h200())
    monkeypatch.setattr(backend, "has_bindings", lambda: False)
    code, out = run(capsys, "--json")
    found = {finding["name"]: finding for finding in json.loads(out)["findings"]}
    assert code == 1
    assert {found[f"backend {name}"]["state"] for name in GPU_BACKENDS} == {"not here"}
    assert found["GPU backends"]["state"] == "broken"
    assert found["GPU backends"]["remedy"].startswith("pip install -e '.[cuda]' in the clone")
    assert found["links"]["why"].startswith("cuda-bindings is not installed")


def test_mig_instances_that_others_use_are_no_fault(machine, capsys):
    gpus = boxes.a30(("2g.12gb", 0), ("2g.12gb", 2))
    for gpu in gpus:
        for instance in gpu.gpu_instances:
            instance.compute_instances[0].in_use_by = [4242]
    machine(*gpus)
    code, out = run(capsys, "--json")
    found = {finding["name"]: finding for finding in json.loads(out)["findings"]}
    assert code == 0, out
    assert found["backend mig"]["value"] == "all instances are in use, not tried"
    links = found["links"]
    assert (links["state"], "fewer than 2 on each GPU are idle" in links["why"]) == (
        "not here",
        True,
    )


def test_something_broken_is_exit_code_1(machine, capsys):
    machine(*boxes.h200(), mps="refuse")
    code, out = run(capsys, "--no-measure")
    assert code == 1
    assert out.splitlines()[-1] == (
        "This machine works with backends cpu, direct; broken: backend mps."
    )
    assert re.search("backend mps +broken +MPS daemon of GPU", out)


def test_bad_arguments_are_exit_code_2(capsys):
    assert main.main(["doctor", "--everything"]) == 2


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("gpus", [boxes.dgx_h100, boxes.in_use, lambda: boxes.falling(60)])
def test_the_tables_fit_the_width_there_is(machine, monkeypatch, width, terminal, gpus):
    machine(*gpus())
    monkeypatch.setattr(doctor, "try_backend", lambda *_: "2 GMIs on each of 8 GPUs started")
    found = diagnose("no")
    console = Console(force_terminal=terminal, width=width, no_color=True)
    with console.capture() as captured:
        print_diagnosis(console, found)
    text = re.sub("\x1b[^m]*m", "", captured.get())
    assert max(map(len, text.splitlines())) <= width
    for piece in ("NV", "driver", "580.159.03", "This machine works with"):
        assert piece in text
    assert found.works == ("lost" not in text)


@pytest.mark.parametrize(
    ("torch", "expected"),
    [
        (TorchFacts("2.13.0+cpu", None, None, 0), {"torch": "broken", "NCCL": "not here"}),
        (TORCH._replace(num_gpus=0), {"torch": "broken", "NCCL": "ok"}),
        (TORCH._replace(error="no kernel image"), {"torch": "broken", "NCCL": "ok"}),
        (TORCH, {"torch": "ok", "NCCL": "ok"}),
    ],
)
def test_torch_is_asked_where_there_are_gpus(machine, monkeypatch, torch, expected):
    machine(*boxes.h200(), torch=torch)
    monkeypatch.setattr(doctor, "try_backend", lambda *_: "fine")
    states = {finding.name: finding.state for finding in diagnose("no").findings}
    assert states | expected == states


def test_links_that_cannot_be_measured_are_broken(monkeypatch):
    def fails(*_):
        raise CommError("gmi 1 did not answer")

    monkeypatch.setattr(planning, "measure", fails)
    links, (found,) = measured(Topology.from_cores([0, 1]), "missing")
    assert links == {}
    assert (found.name, found.state) == ("links", "broken")
    assert "gmi 1 did not answer" in found.why


def test_one_core_has_no_links():
    links, (found,) = measured(Topology.from_cores([0]), "missing")
    assert (links, found.state) == ({}, "not here")
    assert "2 GMIs; it has 1 core," in found.why


def test_a_finding_is_broken_or_all_is_well():
    fine, bad = HealthFinding("a", "ok", "1"), HealthFinding("b", "broken", "-")
    cores = Topology.from_cores([0])
    assert doctor.Diagnosis(cores, (fine,), {}).works
    assert doctor.Diagnosis(cores, (fine, bad), {}).verdict == (
        "This machine works on CPU cores; broken: b."
    )
