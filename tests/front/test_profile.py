"""Profiled runs: a trace of each process, with the phases of three iterations in it."""

import gzip
import json
import os
import re
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
import torch

import bodies_profile
import bodies_recovery
import faults
import gmi_drl
import small_jobs
from gmi_drl.gmi.backends.cpu import CpuBackend
from gmi_drl.launcher.start import training_run
from gmi_drl.roles.state import checkpoint
from run_files import metrics
from small_jobs import job_file
from watches import Heard

DRAW = Path(__file__).parents[2] / "scripts" / "draw_phases.py"
T, EPOCHS, MINIBATCHES = 16, 2, 2
REDUCTIONS = 1 + EPOCHS * MINIBATCHES  # of an iteration: moments, and each minibatch's gradient


pytestmark = pytest.mark.usefixtures("warm")


def job(tmp_path, profile=True, iterations=8, layout=None, **sections):
    learns = {} if "mode" in sections else {"epochs": EPOCHS, "minibatches": MINIBATCHES}
    return job_file(
        tmp_path,
        sections,
        run={
            "total_steps": iterations * T * 8 * 2, "profile": profile, "seed": 3,
            "checkpoint_every": 0, "eval_episodes": 0,
        },
        algorithm={"network": [16], "horizon": T, **learns},
        layout=layout or {"gmi_per_gpu": 2},
        comm={"reduction": "mpr"},
    )  # fmt: skip


def launch(tmp_path, watch=None, roles=None, **options):
    watch = Heard() if watch is None else watch or None
    result = small_jobs.launch(job(tmp_path, **options), watch=watch, roles=roles)
    assert result.state == "finished"
    assert not list(result.folder.glob("profile/.*"))
    return result


def trace(path):
    with gzip.open(path) as file:
        return json.load(file)


def ranges(path):
    """How often each phase is in a trace; the iterations that the profiler has marked."""
    events = [e for e in trace(path)["traceEvents"] if e.get("cat") == "user_annotation"]
    named = Counter(event["name"] for event in events)
    steps = sorted(int(n.partition("#")[2]) for n in named if n.startswith("ProfilerStep#"))
    return {name: named[name] for name in bodies_profile.PHASES if named[name]}, steps


def learned(folder):
    return checkpoint.find(folder).load("shared")["parameters"], [
        (line["return_mean"], line["policy_loss"], line["value_loss"]) for line in metrics(folder)
    ]


TOGETHER = {
    "simulate": 3 * T,
    "infer": 3 * (T + 1),  # what is left between two steps, and before the first and after the last
    "train": 3 * (REDUCTIONS + 1),
    "reduce": 3 * REDUCTIONS,
}


@pytest.fixture(scope="module")
def profiled(tmp_path_factory, warm):
    """A profiled run of two GMIs."""
    return launch(tmp_path_factory.mktemp("profiled"))


@pytest.mark.slow
def test_a_profiled_run_traces_all_phases_and_learns_the_same_bit_for_bit(tmp_path, profiled):
    plain = launch(tmp_path, profile=False)
    assert plain.traces == ()
    assert not (plain.folder / "profile").exists()
    assert [path.name for path in profiled.traces] == [
        "gmi0.pt.trace.json.gz",
        "gmi1.pt.trace.json.gz",
    ]
    for path in profiled.traces:
        assert ranges(path) == (TOGETHER, [4, 5, 6])
    (mine, lines), (its, others) = learned(plain.folder), learned(profiled.folder)
    assert torch.equal(mine, its)
    assert lines == others


@pytest.mark.slow
def test_no_phase_lies_in_another_one(profiled):
    (path, *_) = profiled.traces
    events = [e for e in trace(path)["traceEvents"] if e.get("cat") == "user_annotation"]
    spans = sorted(
        (e["ts"], e["ts"] + e["dur"]) for e in events if e["name"] in bodies_profile.PHASES
    )
    assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
    steps = [(e["ts"], e["ts"] + e["dur"]) for e in events if e["name"].startswith("ProfilerStep")]
    assert min(steps)[0] <= spans[0][0]
    assert spans[-1][1] <= max(steps)[1]


CREW = {"template": "tdg_ex", "gmi_per_gpu": 2}
APART = {
    "simulate": 3 * T,
    "infer": 3 * (T + 1),
    "send": 3,
}


@pytest.mark.slow
def test_a_trainer_and_its_agent_have_each_their_own_phases(tmp_path):
    result = launch(tmp_path, layout=CREW, iterations=4)  # of one agent: half the environments
    (agent, steps), (trainer, its_steps) = map(ranges, result.traces)
    assert agent == APART | {"wait": 3}
    assert trainer == {"wait": 3, "train": TOGETHER["train"], "reduce": TOGETHER["reduce"]}
    assert steps == its_steps == [4, 5, 6]
    picture = tmp_path / "phases.svg"
    subprocess.run([sys.executable, DRAW, result.folder, picture], check=True, timeout=60)
    texts = re.findall("<!-- (.*) -->", picture.read_text())
    assert {"gmi 0", "gmi 1", *agent, *trainer} <= set(texts)


@pytest.mark.slow
def test_async_agents_send_and_trainers_wait(tmp_path):
    result = launch(
        tmp_path, mode="async", layout={"gmi_per_gpu": 1}, hardware={"num_gpus": 2},
        experience={"channels": "mcc"},
    )  # fmt: skip
    (agent, _), (trainer, _) = map(ranges, result.traces)
    assert agent == APART
    assert trainer["wait"] == 3
    assert trainer["train"] == trainer["reduce"] + 3


@pytest.mark.slow
@pytest.mark.parametrize("template", ["tcg", "tdg"])
def test_serving_counts_a_horizon_of_steps_as_an_iteration(tmp_path, template):
    layout = {"template": template, "gmi_per_gpu": 2}
    result = launch(tmp_path, mode="serving", layout=layout, iterations=10)
    (first, _), (second, _) = map(ranges, result.traces)
    if template == "tcg":
        assert first == second == {"simulate": 3 * T, "infer": 3 * T}
    else:  # environments in two halves
        assert first == {"simulate": 3 * T * 2, "wait": 3 * T * 2}
        assert second["infer"] == 3 * T * 2


@pytest.mark.slow
def test_of_gmis_that_are_threads_of_a_process_the_first_has_a_trace(tmp_path, monkeypatch):
    monkeypatch.setattr(CpuBackend, "gmis_are_threads", True)
    (path,) = launch(tmp_path).traces
    assert path.name == "gmi0.pt.trace.json.gz"
    assert ranges(path) == (TOGETHER, [4, 5, 6])


@pytest.mark.slow
def test_the_command_says_what_it_does_and_where_the_traces_are(tmp_path):
    path = job(tmp_path, profile=False)
    code = "import private_leases, gmi_drl.cli.main as c, sys; sys.exit(c.main(sys.argv[1:]))"
    words = ["launch", path, "--profile"]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *words],
        check=True, capture_output=True, text=True, timeout=60,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    assert done.stdout.startswith("profiled: iterations 4 to 6 ")
    (folder,) = tmp_path.glob("runs/t/*/profile")
    assert f"{folder}: 2 files, for https://ui.perfetto.dev" in done.stdout
    assert len(list(folder.iterdir())) == 2


@pytest.mark.slow
def test_a_profiled_run_is_not_held_against_what_tuning_promised(tmp_path, monkeypatch):
    monkeypatch.delattr(training_run, "PromiseWatch")
    assert launch(tmp_path, iterations=4, watch=False).steps == 4 * T * 8 * 2


# When it does not go well -------------------------------------------------------------------------


@pytest.mark.slow
def test_a_trace_that_cannot_be_written_is_told_and_training_goes_on(tmp_path):
    heard = Heard()
    result = launch(tmp_path, watch=heard, roles={"trainer": bodies_profile.Obstructs})
    assert [path.name for path in result.traces] == ["gmi1.pt.trace.json.gz"]
    (told,) = heard.warnings
    assert told.startswith("gmi 0: no trace is written: IsADirectoryError")


@pytest.mark.slow
def test_a_run_that_ends_too_early_says_what_to_do(tmp_path):
    heard = Heard()
    result = launch(tmp_path, watch=heard, iterations=3)
    assert result.traces == ()
    assert len(heard.warnings) == 2
    assert all("run.total_steps" in told for told in heard.warnings)
    shorter = launch(tmp_path, iterations=5)  # what there is
    assert ranges(shorter.traces[0])[1] == [4, 5]


@pytest.mark.slow
def test_a_gmi_that_is_killed_leaves_a_whole_trace_or_none(tmp_path, monkeypatch):
    faults.script(monkeypatch, tmp_path / "faults", (1, "simulate", 4))
    roles = {"trainer": bodies_recovery.Mortal}
    result = launch(tmp_path, iterations=14, roles=roles, watch=Heard())
    assert result.restarts == faults.struck(tmp_path / "faults") == 1
    assert len(result.traces) == 2
    assert all(ranges(path)[1] == [4, 5, 6] for path in result.traces)


@pytest.mark.slow
def test_a_resumed_run_replaces_its_traces(tmp_path):
    first = launch(tmp_path)
    before = [path.read_bytes() for path in first.traces]
    again = gmi_drl.launch(resume=first.folder, view="none", watch=Heard())
    assert again.traces == ()  # nothing was left to do
    assert [path.read_bytes() for path in first.traces] == before
    longer = [f"run.total_steps={16 * T * 8 * 2}"]
    again = gmi_drl.launch(resume=first.folder, overrides=longer, view="none", watch=Heard())
    assert again.traces == first.traces
    assert all(new != path.read_bytes() for new, path in zip(before, again.traces, strict=True))
