"""Links as they are measured: by real processes, on the slices of a layout's GMIs."""

import math
import os
from datetime import timedelta

import pytest

from gmi_drl import runtime
from gmi_drl.comm.errors import CommError
from gmi_drl.comm.plan import measure as measuring
from gmi_drl.comm.plan.measure import latencies, measure
from gmi_drl.comm.plan.project import key_of, stages_of
from gmi_drl.gmi import LayoutSlices, SliceError
from gmi_drl.gmi.backends.cpu import CpuBackend
from gmi_drl.placement import GmiSpec, Layout, Topology, reducing

STRATEGIES = ("mpr", "mrr", "har")


def layout_of(per_device):
    """Two devices that share all cores, so that any machine has enough of them."""
    topology = Topology.from_cores([0], 2)
    roles = ("simulator", "agent", "trainer")
    count = 2 * per_device
    gmis = tuple(GmiSpec(i, i // per_device, roles, "cpu", (), 1) for i in range(count))
    return Layout("tcg_ex", topology, gmis)


def stages(layout):
    mpl = reducing(layout)
    return {key_of(s, layout): s for strategy in STRATEGIES for s in stages_of(strategy, mpl)}


@pytest.mark.slow
@pytest.mark.parametrize("per_device", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_every_link_of_a_layout_is_measured_and_nothing_stays_behind(per_device):
    layout = layout_of(per_device)
    wanted = stages(layout)
    links = measure(wanted, layout)
    assert links.keys() == wanted.keys()
    for link in links.values():
        assert 0 < link.seconds(4096) < 10
        assert math.isfinite(link.residual)
        assert [nbytes for nbytes, _ in link.samples] == list(measuring.SIZES)
    assert not runtime.is_initialized()


@pytest.mark.slow
def test_links_are_measured_among_threads_where_gmis_are_threads(monkeypatch):
    monkeypatch.setattr(CpuBackend, "gmis_are_threads", True)
    layout = layout_of(2)
    wanted = {key_of(s, layout): s for s in stages_of("har", reducing(layout))}
    links = measure(wanted, layout)
    assert all(0 < links[key].seconds(4096) < 10 for key in wanted)


def test_a_process_that_cannot_take_its_slice_is_an_error_of_measuring():
    layout = layout_of(1)
    broken = GmiSpec(1, 1, ("trainer",), "direct", (), 1, device_uuid="GPU-none")
    with pytest.raises(CommError, match=r"(?s)links could not be measured.*GPU-none"):
        measure(stages(layout), Layout("tcg_ex", layout.topology, (layout.gmis[0], broken)))
    assert not runtime.is_initialized()


def test_slices_that_cannot_be_made_are_an_error_of_measuring(monkeypatch):
    def prepare(self, gmis, topology):
        raise SliceError("GMI 0: its instance is in use")

    monkeypatch.setattr(CpuBackend, "prepare", prepare)
    layout = layout_of(1)
    with pytest.raises(CommError, match="links could not be measured: GMI 0: its instance"):
        measure(stages(layout), layout)
    assert not runtime.is_initialized()


def test_a_measurement_that_takes_too_long_is_given_up_and_says_who_is_late():
    layout = layout_of(1)
    with pytest.raises(CommError, match=r"within 0.001 s: gmi 0 and gmi 1 did not answer. Measure"):
        measure(stages(layout), layout, timedelta(milliseconds=1))
    assert not runtime.is_initialized()


def test_a_latency_is_from_the_last_begin_to_the_last_end():
    assert latencies([[(0.0, 3.0), (5.0, 6.0)], [(1.0, 2.0), (5.5, 8.5)]]) == [2.0, 3.0]


def test_ranks_are_detached_from_their_slices_before_they_are_killed(monkeypatch):
    detached = []

    def fence_all(slices, living):
        for spec, pid in living:
            detached.append((spec.gmi_id, os.path.exists(f"/proc/{pid}")))

    monkeypatch.setattr(LayoutSlices, "fence_all", fence_all)
    layout = layout_of(1)
    stage = stages_of("mpr", reducing(layout))[0]
    assert measure({key_of(stage, layout): stage}, layout)
    assert sorted(detached) == [(0, True), (1, True)]
