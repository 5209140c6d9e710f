"""What joins the GMIs of a layout."""

from dataclasses import replace

import pytest

from gmi_drl.gmi import direct
from gmi_drl.placement import Device, MigSlice, Topology, decoupled, tdg_ex
from gmi_drl.runtime import packing
from gmi_drl.wiring import wires_of


def test_a_gmi_of_a_large_machine_is_given_no_more_than_a_call_carries(tmp_path):
    gpus = tuple(Device(i, "gpu", "A100", (i,), f"GPU-{i}") for i in range(8))
    layout = decoupled(Topology(gpus), 4, 64, "direct", 4)
    wires = wires_of(layout, tmp_path)
    assert len(wires.links) == 16 * 16
    for gmi in layout.gmis:
        mine = wires.of(gmi.gmi_id)
        assert mine.out_of(gmi.gmi_id) == wires.out_of(gmi.gmi_id)
        assert mine.into(gmi.gmi_id) == wires.into(gmi.gmi_id)
        packing.pack(mine)


@pytest.fixture
def split():
    """Two GPUs, each with two agents and a trainer."""
    gpus = tuple(Device(i, "gpu", "A100", (i,), f"GPU-{i}") for i in range(2))
    return tdg_ex(Topology(gpus), 3, 64, "direct")


def kinds(layout, tmp_path):
    return {link.kind for _, _, link in wires_of(layout, tmp_path).links}


def test_a_trainer_and_its_agents_take_turns_in_the_memory_of_their_gpu(split, tmp_path):
    wires = wires_of(split, tmp_path)
    assert wires.board is None  # a policy comes with an order
    assert {gmi: set(wires.out_of(gmi)) for gmi in range(6)} == {
        0: {2}, 1: {2}, 2: {0, 1}, 3: {5}, 4: {5}, 5: {3, 4}
    }  # fmt: skip
    assert kinds(split, tmp_path) == {"cuda"}


def test_instances_and_threads_have_no_memory_that_the_other_end_could_map(
    split, tmp_path, monkeypatch
):
    apart = tuple(replace(gmi, mig=MigSlice("2g.10gb", gmi.gmi_id)) for gmi in split.gmis)
    assert kinds(replace(split, gmis=apart), tmp_path) == {"ring"}
    monkeypatch.setattr(direct, "THREADS", True)
    assert kinds(split, tmp_path) == {"ring"}
