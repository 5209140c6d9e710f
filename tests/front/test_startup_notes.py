"""What a run says before its first iteration."""

import dataclasses
from pathlib import Path

from gmi_drl.gmi.lease import LeaseNotes, SweptLease
from gmi_drl.launcher.view.startup_notes import startup_notes
from gmi_drl.placement import Topology, load_config, tcg_ex

CONFIG = load_config({"version": 1, "env": {"id": "CartPole-v1"}})
MACHINE = Topology.from_cores([0, 1])


def lines(folder, machine=MACHINE, swept=(), notes=()):
    return list(startup_notes(CONFIG, tcg_ex(machine, 1, 8), folder, swept, notes))


def test_there_is_nothing_to_say_of_cores(tmp_path):
    assert lines(tmp_path) == []


def test_a_gpu_that_is_left_out_is_told(tmp_path):
    machine = dataclasses.replace(MACHINE, left_out=("GPU 3: GPU is lost",))
    assert lines(tmp_path, machine) == ["not used: GPU 3: GPU is lost"]


def test_what_was_undone_of_killed_runs_is_told_once_it_is(tmp_path):
    left = LeaseNotes("mps", Path("lease"), ({"gpu": "GPU-1"},), True)
    swept = [SweptLease(left, undone=True), SweptLease(left), SweptLease(left, "it hangs")]
    assert lines(tmp_path, swept=swept) == [
        "undone: what a launcher that was killed had left of backend mps"
    ]


def test_what_was_measured_for_the_plan_is_told(tmp_path):
    plan = '{"strategy": "har", "why": "it is fastest", "notes": ["measured 2 links"]}'
    (tmp_path / "plan.json").write_text(plan)
    assert lines(tmp_path) == ["reduction: har, it is fastest", "measured 2 links"]


def test_what_auto_has_become_is_told(tmp_path):
    assert lines(tmp_path, notes=["num_env 96: tuned today"]) == ["num_env 96: tuned today"]
