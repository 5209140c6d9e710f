"""Phases as ranges: what is seen of them, by whom, and that nobody pays for what nobody sees."""

import gzip
import json
import types

import pytest
import torch

from gmi_drl.roles.telemetry import phases
from gmi_drl.roles.telemetry.phases import Trace, phase, show_to_tools

TOOL = "NVTX_INJECTION64_PATH"


@pytest.fixture
def nvtx(monkeypatch):
    """What a tool would see, in the place of torch.cuda.nvtx on a machine with a GPU."""
    seen = []
    double = types.SimpleNamespace(
        range_push=seen.append, range_pop=lambda: seen.append("/"), is_available=lambda: True
    )
    monkeypatch.setattr(torch.cuda, "nvtx", double)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for name in (TOOL, "NSYS_PROFILING_SESSION_ID"):
        monkeypatch.delenv(name, raising=False)
    yield seen
    monkeypatch.undo()
    show_to_tools()


def test_off_all_phases_are_the_same_nothing():
    assert phase("simulate") is phase("train")
    with phase("simulate"), phase("train"):
        pass


@pytest.mark.parametrize("name", [TOOL, "NSYS_PROFILING_SESSION_ID"])
def test_a_tool_sees_a_phase_interrupted_by_the_one_inside_it(nvtx, monkeypatch, name):
    show_to_tools()
    with phase("train"):
        pass
    assert nvtx == []  # nobody has asked
    monkeypatch.setenv(name, "1")
    show_to_tools()
    reducing = phase("reduce")
    with phase("train"):
        for _ in range(2):
            with reducing:
                pass
    assert " ".join(nvtx) == "train / reduce / train / reduce / train /"


def test_an_error_closes_all_phases(nvtx, monkeypatch):
    monkeypatch.setenv(TOOL, "tool.so")
    show_to_tools()
    with pytest.raises(KeyError), phase("train"), phase("reduce"):
        raise KeyError
    assert nvtx.count("/") == len(nvtx) / 2
    with phase("wait"):
        pass
    assert nvtx[-2:] == ["wait", "/"]


def iterations(trace, number):
    for _ in range(number):
        trace.begin_iteration()
        with phase("train"):
            torch.ones(1)
    trace.close()


def test_it_records_iterations_four_to_six(tmp_path):
    path, warnings = phases.trace_path(tmp_path, 7), []
    iterations(Trace(path, 7, False, warnings.append), 9)
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    assert [event["name"] for event in events].count("train") == 3
    assert warnings == []
    assert [one.name for one in path.parent.iterdir()] == [path.name]
    assert phase("train") is phase("wait")  # it is over


def test_a_role_that_profiles_by_itself_keeps_its_own(tmp_path):
    path, warnings = phases.trace_path(tmp_path, 0), []
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True
    ) as own:
        iterations(Trace(path, 0, False, warnings.append), 9)
    assert not path.exists()
    assert "RuntimeError" in warnings[0]
    assert any(event.key == "aten::ones" for event in own.key_averages())


def test_a_trace_that_was_cut_short_is_told(tmp_path, monkeypatch):
    def full_disk(self, path):
        with open(path, "w") as file:
            file.write('{"traceEvents": [{}, {}')

    monkeypatch.setattr(torch.profiler.profile, "export_chrome_trace", full_disk)
    path, warnings = phases.trace_path(tmp_path, 0), []
    iterations(Trace(path, 0, False, warnings.append), 9)
    assert len(warnings) == 1
    assert "is not whole" in warnings[0]
    assert list(path.parent.iterdir()) == []


@pytest.mark.gpu
def test_a_gpu_trace_has_kernels_and_phases(tmp_path):
    path, warnings = phases.trace_path(tmp_path, 0), []
    trace = Trace(path, 0, True, warnings.append)
    for _ in range(7):
        trace.begin_iteration()
        with phase("train"):
            torch.ones(1000, device="cuda").sum().item()
    trace.close()
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    assert warnings == []
    assert any(event.get("cat") == "kernel" for event in events)
    named = [e["name"] for e in events if e.get("cat") == "user_annotation"]
    assert named.count("train") == 3
