"""Topologies, layouts and the template: properties over all shapes of machine."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gmi_drl.placement import (
    Device,
    GmiSpec,
    Layout,
    LayoutError,
    Topology,
    format_cores,
    tcg_ex,
)

CORES = st.sets(st.integers(0, 500), min_size=1, max_size=64)


@st.composite
def machines(draw):
    """(topology, gmi_per_gpu) of a machine without GPUs where every GMI can have a core."""
    cores = draw(CORES)
    num_gpus = draw(st.integers(1, len(cores)))
    return Topology.from_cores(sorted(cores), num_gpus), draw(
        st.integers(1, len(cores) // num_gpus)
    )


def gpu(index, cores):
    return Device(index, "gpu", "NVIDIA A100", tuple(cores), f"GPU-{index}", 108, 40 * 2**30)


@given(CORES, st.integers(1, 8))
def test_core_groups_hold_every_core_once_in_order_and_evenly(cores, num_gpus):
    topology = Topology.from_cores(list(cores), num_gpus)
    groups = [device.cores for device in topology.devices]
    assert [core for group in groups for core in group] == sorted(cores)
    assert max(map(len, groups)) - min(map(len, groups)) <= 1
    assert [device.index for device in topology.devices] == list(range(num_gpus))


@given(machines())
def test_tcg_ex_uses_every_core_exactly_once_and_gives_dense_ids(machine):
    topology, gmi_per_gpu = machine
    layout = tcg_ex(topology, gmi_per_gpu, 16, "cpu")
    assert [gmi.gmi_id for gmi in layout.gmis] == list(range(len(layout.gmis)))
    assert len(layout.gmis) == gmi_per_gpu * len(topology.devices)
    for device, ids in zip(topology.devices, layout.mpl, strict=True):
        assert len(ids) == gmi_per_gpu
        assert [c for i in ids for c in layout.gmi(i).cores] == list(device.cores)
        assert all(layout.gmi(i).cores and layout.gmi(i).gpu_id == device.index for i in ids)
    assert [i for ids in layout.mpl for i in ids] == [gmi.gmi_id for gmi in layout.gmis]


@given(machines())
def test_a_layout_survives_json(machine):
    topology, gmi_per_gpu = machine
    layout = tcg_ex(topology, gmi_per_gpu, 16, "cpu")
    assert Layout.from_json(layout.to_json()) == layout


def test_a_gmi_of_tcg_ex_has_the_roles_the_backend_and_the_device():
    layout = tcg_ex(Topology((gpu(0, [0, 1]), gpu(1, [2, 3]))), 2, 4096, "direct")
    assert layout.gmi(3) == GmiSpec(
        3, 1, ("simulator", "agent", "trainer"), "direct", (3,), 4096, device_uuid="GPU-1"
    )
    assert layout.mpl == [[0, 1], [2, 3]]
    assert Layout.from_json(layout.to_json()) == layout


def test_gmis_beside_a_gpu_share_cores_when_they_must():
    layout = tcg_ex(Topology((gpu(0, [4, 5]),)), 3, 1, "direct")
    assert [gmi.cores for gmi in layout.gmis] == [(4,), (4,), (5,)]


def test_more_gmis_than_cores_are_refused():
    with pytest.raises(LayoutError, match=r"device 0 .*: 3 GMIs; it has 2 cores.*gmi_per_gpu"):
        tcg_ex(Topology.from_cores([0, 1]), 3, 1, "cpu")


def test_an_unknown_gmi_is_refused_by_name():
    layout = tcg_ex(Topology.from_cores([0, 1]), 2, 1, "cpu")
    with pytest.raises(LayoutError, match=r"GMI 2; this layout has GMIs 0 to 1"):
        layout.gmi(2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gmi_id": 5}, r"GMI ids \[5\]"),
        ({"gpu_id": 1}, r"GmiSpec 0: gpu_id=1; the layout has 1 device,"),
    ],
)
def test_a_layout_that_contradicts_itself_is_refused(change, message):
    layout = tcg_ex(Topology.from_cores([0]), 1, 1, "cpu")
    with pytest.raises(LayoutError, match=message):
        dataclasses.replace(layout, gmis=(dataclasses.replace(layout.gmis[0], **change),))


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "null", '{"format": 1}', '{"format": 9}', '{"format": 1, "gmis": 3}']
)
def test_a_damaged_layout_is_refused(text):
    with pytest.raises(LayoutError, match=r"no layout|format 9"):
        Layout.from_json(text)


def test_cores_are_written_as_ranges():
    assert format_cores((5, 0, 1, 2)) == "0-2,5"
    assert format_cores(()) == "none"


def test_hosts_are_joined_also_where_one_has_no_links_or_could_not_tell_them():
    gpus = tuple(Device(index, "gpu", "A100", (index,), uuid=f"GPU-{index}") for index in (0, 1))
    linked = Topology(gpus, (("", "NVLink x12"), ("NVLink x12", "")), ((True, True), (True, True)))
    joined = Topology.joined([linked, Topology(gpus)])
    assert [len(row) for row in (*joined.links, *joined.peers)] == [4] * 8
    assert joined.of_host(0) == linked
    assert joined.of_host(1).links == (("", "unknown"), ("unknown", ""))
    assert joined.of_host(1).peers == ((True, False), (False, True))
    assert joined.links[0][2] == "network"
    cores = Topology.from_cores(range(4), 2)  # a host that only samples may have no GPU
    mixed = Topology.joined([linked, cores])
    assert (mixed.of_host(0), mixed.of_host(1)) == (linked, cores)
    assert Topology.joined([Topology(gpus), Topology(gpus)]).links == ()
