"""What joins the GMIs of a layout."""

import re
from dataclasses import replace

import pytest

from gmi_drl.comm import create_group
from gmi_drl.comm.hosts import HostSpec
from gmi_drl.comm.shm.tally import create_tally
from gmi_drl.gmi.backends.direct import DirectBackend
from gmi_drl.gmi.process import grouped
from gmi_drl.launcher.plan.wiring import wires_fault, wires_of
from gmi_drl.placement import Device, MigSlice, Topology, decoupled, tcg_ex, tdg, tdg_ex
from gmi_drl.roles.role.host import COUNTERS
from gmi_drl.roles.role.job import Job
from gmi_drl.runtime import SerializationError
from gmi_drl.runtime.wire import packing


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


def carried(layout, wires, group):
    """Descriptors in the call that starts a process, the largest of all."""
    job = Job(
        layout=layout,
        config=None,
        group=group,
        sockets=None,
        folder=None,
        resume=None,
        classes={},
        role_folder=None,
        session="",
        tally=create_tally(len(layout.gmis), COUNTERS),
        wires=wires,
    )
    calls = [
        [(spec, replace(job, wires=wires.of(spec.gmi_id))) for spec in specs]
        for specs in grouped(layout, range(len(layout.gmis)))
    ]
    return max(len(packing.pack(call).memfds) for call in calls)


@pytest.mark.parametrize(
    ("template", "devices", "gmis", "backend"),
    [(tdg_ex, 1, 84, "cpu"), (tdg_ex, 2, 84, "cpu"), (decoupled, 2, 125, "cpu"),
     (tcg_ex, 2, 300, "cpu"), (tdg_ex, 1, 84, "green"), (tdg, 1, 126, "green")],
)  # fmt: skip
def test_links_are_refused_where_one_more_gmi_is_more_than_a_call_carries(
    template, devices, gmis, backend, tmp_path
):
    for more in (0, 2 if template is tdg else 1):
        gpu = [Device(i, "gpu", "A100", (i,), f"GPU-{i}") for i in range(devices)]
        cores = Topology.from_cores(range(devices * (gmis + more)), devices)
        topology = cores if backend == "cpu" else Topology(tuple(gpu))
        layout = template(topology, gmis + more, 64, backend)
        train = [(str(its.gmi_id), its.gpu_id) for its in layout.holding("trainer")]
        group = create_group(*zip(*train, strict=True)) if train else None
        fault = wires_fault(layout)
        try:
            number = carried(layout, wires_of(layout, tmp_path), group)
        except SerializationError as error:
            assert more
            number = int(re.search(r"holds (\d+) Memfds", str(error))[1])
            assert f"these are {number} descriptors, and a process is given at most 253" in str(
                fault
            )
        else:
            assert fault is None
            assert template is tcg_ex or (not more and number > 240)


@pytest.mark.parametrize("agents", [249, 250])
def test_one_trainer_of_a_host_among_several_has_a_group_to_be_carried_as_well(agents, tmp_path):
    layout = decoupled(Topology.from_cores(range(agents + 1), agents + 1), 1, 64, "cpu", 1)
    (trainer,) = layout.holding("trainer")
    hosts = HostSpec(0, (("own",), ("other",)), "127.0.0.1", tmp_path)
    group = create_group(["own"], [trainer.gpu_id], hosts=hosts)
    wires = wires_of(layout, tmp_path)
    fault = wires_fault(layout, of_several_hosts=True)
    if agents == 249:
        assert carried(layout, wires, group) == 253
        assert fault is None
        return
    with pytest.raises(SerializationError, match="holds 254 Memfds"):
        carried(layout, wires, group)
    assert "these are 254 descriptors, and a process is given at most 253" in str(fault)
    assert wires_fault(layout) is None  # of one host there is none


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
    monkeypatch.setattr(DirectBackend, "gmis_are_threads", True)
    assert kinds(split, tmp_path) == {"ring"}
