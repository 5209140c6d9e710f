"""What a run says before its first iteration."""

import dataclasses

from gmi_drl.comm.plan.plan import ReductionPlan
from gmi_drl.launcher.start.jobs import startup_notes
from gmi_drl.placement import Topology, load_config, tcg_ex

CONFIG = load_config({"version": 1, "env": {"id": "CartPole-v1"}})
MACHINE = Topology.from_cores([0, 1])


def lines(machine=MACHINE, plan=None):
    return list(startup_notes(CONFIG, tcg_ex(machine, 1, 8), plan))


def test_there_is_nothing_to_say_of_cores():
    assert lines() == []


def test_a_gpu_that_is_left_out_is_told():
    machine = dataclasses.replace(MACHINE, left_out=("GPU 3: GPU is lost",))
    assert lines(machine) == ["not used: GPU 3: GPU is lost"]


def test_what_was_measured_for_the_plan_is_told():
    plan = ReductionPlan("auto", "har", "it is fastest", "har", "", 1, "fp32", (), {})
    assert lines(plan=plan) == []
    measured = dataclasses.replace(plan, notes=("measured 2 links",))
    assert lines(plan=measured) == ["reduction: har, it is fastest", "measured 2 links"]
