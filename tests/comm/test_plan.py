"""The plan: projections on links whose best is known, what is measured when, and what is said."""

import dataclasses
import itertools
import json

import pytest

from gmi_drl.comm.errors import CommError
from gmi_drl.comm.links.link_record import record_path
from gmi_drl.comm.links.links import Link
from gmi_drl.comm.plan import plan as plans
from gmi_drl.comm.plan.capability import LinkFacts
from gmi_drl.comm.plan.plan import plan_reduction
from gmi_drl.comm.plan.project import (
    decide,
    duration_text,
    key_of,
    project_all,
    stages_of,
)
from gmi_drl.placement import GmiSpec, Layout, Topology, reducing
from gmi_drl.placement.reduction import shape_fault

CORES = LinkFacts("cpu")
NUMEL = 56_000


def layout_of(sizes):
    """A layout with so many GMIs on each group of cores, each with a core of its own."""
    cores = itertools.count()
    topology = Topology.from_cores(range(sum(sizes)), len(sizes))
    devices = [device for device, size in enumerate(sizes) for _ in range(size)]
    roles = ("simulator", "agent", "trainer")
    gmis = [GmiSpec(i, d, roles, "cpu", (next(cores),), 1) for i, d in enumerate(devices)]
    return Layout("tcg_ex", topology, tuple(gmis))


def test_a_link_is_of_the_backends_of_its_gmis():
    layout = layout_of([2])
    cut = [
        dataclasses.replace(gmi, backend=b)
        for gmi, b in zip(layout.gmis, ("mps", "direct"), strict=True)
    ]
    (stage,) = stages_of("mpr", [[0, 1]])
    assert key_of(stage, layout).backend == "cpu"
    assert key_of(stage, dataclasses.replace(layout, gmis=tuple(cut))).backend == "direct+mps"


def links_of(layout, host, ring, bcast=None, facts=CORES):
    """The links of all strategies, alike within a kind: (alpha_s, beta_s_per_byte) of each."""
    rates = {"host": host, "ipc": host, "ring": ring, "ring_bcast": bcast or ring}
    mpl = reducing(layout)
    keys = {
        key_of(stage, layout)
        for strategy in ("mpr", "mrr", "har")
        if shape_fault(strategy, mpl) is None
        for stage in stages_of(strategy, mpl, facts.inside)
    }
    return {key: Link(*rates[key.kind], 0.0, ()) for key in keys}


def best(sizes, host, ring, nbytes=4 * NUMEL, bcast=None):
    layout = layout_of(sizes)
    mpl = reducing(layout)
    rows = project_all(layout, mpl, CORES, links_of(layout, host, ring, bcast), nbytes)
    return decide("auto", mpl, rows)[0]


FAST, SLOW = (1e-6, 1e-11), (1e-3, 1e-8)


@pytest.mark.parametrize(
    ("sizes", "host", "ring", "strategy"),
    [
        ((2, 2), SLOW, FAST, "mrr"),
        ((2, 2), FAST, SLOW, "mpr"),
        ((1, 1), SLOW, FAST, "mrr"),  # one ring, which har would be too: the simpler one
        ((2, 1), SLOW, FAST, "mpr"),  # har would use the slow one as well
        ((4,), SLOW, FAST, "mpr"),
    ],
)
def test_the_cheapest_is_chosen(sizes, host, ring, strategy):
    assert best(sizes, host, ring) == strategy


def test_har_is_chosen_where_a_wide_host_link_is_slow_and_one_inside_a_device_is_not():
    layout = layout_of((3, 3))
    links = links_of(layout, FAST, FAST)
    wide = max(key for key in links if key.kind == "host" and key.ranks == 6)
    links[wide] = Link(*SLOW, 0.0, ())
    mpl = reducing(layout)
    assert decide("auto", mpl, project_all(layout, mpl, CORES, links, 4 * NUMEL))[0] == "har"


def test_the_size_of_a_gradient_turns_the_choice():
    host, ring = (1e-5, 1e-9), (1e-3, 1e-11)  # near and slow, far and fast
    assert best((2, 2), host, ring, 200_000) == "mpr"
    assert best((2, 2), host, ring, 20_000_000) == "mrr"


def test_projections_are_sums_of_stages_and_grow_with_bytes():
    layout = layout_of((2, 2))
    mpl = reducing(layout)
    links = links_of(layout, (1e-5, 1e-9), (1e-4, 2e-9), (5e-5, 1e-9))
    last = {}
    for nbytes in (0, 1, 1000, 1_000_000, 100_000_000):
        rows = {r.strategy: r for r in project_all(layout, mpl, CORES, links, nbytes)}
        now = {s: rows[s].measured_s for s in ("mpr", "mrr", "har")}
        assert all(now[s] >= last.get(s, 0) for s in now)
        last = now
        assert now["mrr"] == pytest.approx(2.5e-4 + 5e-9 * nbytes)  # two rings and a broadcast
        assert now["har"] == pytest.approx(1.1e-4 + 3e-9 * nbytes)
    assert rows["local"].why_not
    assert rows["ipc"].why_not


def test_table_2_has_its_bandwidths_from_the_links():
    layout = layout_of((2, 2))
    links = links_of(layout, (1.0, 1.5e-9), (1.0, 1e-9))
    # B1 = B2 = 1e9 bytes/s: of 2 (4 - 1) / 4 of the bytes each takes 1.5e-9 s.
    rows = {r.strategy: r for r in project_all(layout, reducing(layout), CORES, links, 1e6)}
    assert rows["mpr"].paper_s == pytest.approx(1.5e-3)  # no alpha
    assert rows["mrr"].paper_s == pytest.approx(2e-3)


def test_on_gpus_har_reduces_in_their_memory():
    facts = LinkFacts("gpu", (2, 28, 9), (False, False), True)
    layout = layout_of((2, 2))
    rows = project_all(layout, reducing(layout), facts, {}, 1)
    (har,) = [row for row in rows if row.strategy == "har"]
    assert [key.kind for key in har.links] == ["ipc", "ring"]


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """Counts what is measured, and answers that rings are fast."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    calls = []

    def measure(stages, layout):
        calls.append(set(stages))
        if measure.error is not None:
            raise measure.error
        return {key: Link(*(SLOW if key.kind == "host" else FAST), 0.0, ()) for key in stages}

    monkeypatch.setattr(plans, "measure", measure)
    measure.calls, measure.error = calls, None
    return measure


def test_links_are_measured_once_and_kept(measured):
    first = plan_reduction("auto", layout_of((2, 2)), NUMEL)
    assert (first.strategy, first.paper, first.fastest) == ("mrr", "mrr", "mrr")
    assert f"kept in {record_path()}" in first.notes[0]
    again = plan_reduction("auto", layout_of((2, 2)), NUMEL)
    assert (again.strategy, again.notes, len(measured.calls)) == ("mrr", (), 1)
    wider = plan_reduction("auto", layout_of((2, 2, 2)), NUMEL)
    assert wider.links.keys() >= measured.calls[1]
    plan_reduction("auto", layout_of((2, 2)), NUMEL, measure="anew")
    assert measured.calls[2] == measured.calls[0]
    plan_reduction("auto", layout_of((2, 2)), NUMEL, wire="bf16")  # another link altogether
    assert {key.wire for key in measured.calls[3]} == {"bf16"}


@pytest.mark.parametrize(
    ("wanted", "sizes", "strategy", "why"),
    [
        ("auto", (1,), "local", "there is one GMI"),
        ("mrr", (1,), "local", "there is one GMI"),
        ("auto", (3,), "mpr", "no other strategy can run here"),
        ("har", (2, 2), "har", "the config asks for it"),
    ],
)
def test_nothing_is_measured_where_times_decide_nothing(measured, wanted, sizes, strategy, why):
    plan = plan_reduction(wanted, layout_of(sizes), NUMEL)
    assert (plan.strategy, measured.calls) == (strategy, [])
    assert why in plan.why


def test_without_times_the_choice_is_the_papers(measured):
    for options in ({"measure": "no"}, {"repeatable": True}):
        plan = plan_reduction("auto", layout_of((2, 2)), NUMEL, **options)
        assert (plan.strategy, measured.calls) == ("mrr", [])
        assert plan.why.startswith("Algorithm 1, since ")
    plan_reduction("auto", layout_of((2, 2)), NUMEL)
    again = plan_reduction("auto", layout_of((2, 2)), NUMEL, repeatable=True)
    assert "run.deterministic" in again.why


def test_when_measuring_fails_the_run_goes_on_and_says_so(measured):
    measured.error = CommError("links could not be measured: link0.run raised\nValueError: x")
    plan = plan_reduction("auto", layout_of((2, 3)), NUMEL)
    assert (plan.strategy, plan.paper, plan.fastest) == ("har", "har", None)
    assert plan.notes == ("links could not be measured: link0.run raised (ValueError: x)",)


def test_what_cannot_run_is_refused_with_the_remedy():
    with pytest.raises(CommError, match=r"comm.reduction='mrr'.*use har"):
        plan_reduction("mrr", layout_of((2, 1)), NUMEL)


def test_a_record_of_another_machine_is_measured_anew_and_told(measured, monkeypatch):
    plan_reduction("auto", layout_of((1, 1)), NUMEL)
    monkeypatch.setattr(plans, "fingerprint", lambda *_: {"processor": "another"})
    told = plan_reduction("auto", layout_of((1, 1)), NUMEL)
    assert "links are measured anew" in told.notes[0]
    assert len(measured.calls) == 2


def test_a_plan_is_json(measured):
    plan = plan_reduction("auto", layout_of((2, 2)), NUMEL)
    data = json.loads(json.dumps(plan.as_json()))
    assert data["strategy"] == data["algorithm_1"]["strategy"] == "mrr"
    assert data["gradient"] == {"numel": NUMEL, "wire": "fp32", "bytes": 4 * NUMEL}
    assert {link["kind"] for link in data["links"]} == {"host", "ring", "ring_bcast"}


def test_times_are_written_as_people_do():
    assert [duration_text(s) for s in (7.12e-5, 1.5e-3, 2.0)] == ["71.2 us", "1.5 ms", "2 s"]
