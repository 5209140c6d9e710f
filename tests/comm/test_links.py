"""Links as alpha + beta * bytes, and the record that keeps them."""

import dataclasses
import json
import math
import multiprocessing
import random
from datetime import timedelta

import pytest

import bodies_record
from gmi_drl.comm.links.link_record import load, record_path, store
from gmi_drl.comm.links.links import Link, LinkKey, fit
from gmi_drl.runtime.cache_files import locked

HERE = {"processor": "i", "torch": "2.13"}
HOST, RING = LinkKey("host", 4, 1, 2, 4), LinkKey("ring", 2, 2, 2, 4, "bf16")
LINKS = {HOST: Link(1e-5, 2e-10, 0.1, ((1000, 1.2e-5),)), RING: Link(1e-3, 0.0, 0.0, ())}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "gmi-drl" / "links.json"


@pytest.mark.parametrize(("alpha", "beta"), [(2e-5, 3e-10), (0.0, 1e-9), (1e-3, 0.0)])
def test_a_fit_gives_the_parameters_back_past_disturbed_repetitions(alpha, beta):
    rng = random.Random(7)
    times = []
    for nbytes in (16_384, 131_072, 524_288, 2_097_152):
        true = alpha + beta * nbytes
        near = [true * rng.uniform(0.99, 1.01) for _ in range(40)]
        times.append((nbytes, [*near, *[true * 50] * 15]))  # another program took the cores
    link = fit(times)
    assert link.residual < 0.03
    for nbytes in (50_000, 3_000_000):
        assert link.seconds(nbytes) == pytest.approx(alpha + beta * nbytes, rel=0.05)


@pytest.mark.parametrize("seconds", [(5e-3, 1e-3), (1e-6, 1e-2)])
def test_neither_parameter_is_ever_below_zero(seconds):
    link = fit([(1000, [seconds[0]]), (2000, [seconds[1]])])
    assert link.alpha_s >= 0
    assert link.beta_s_per_byte >= 0
    assert link.bandwidth > 0


@pytest.mark.parametrize("times", [[], [(1000, [1e-3])], [(1000, [0.0]), (2000, [1e-3])]])
def test_a_line_needs_two_sizes_and_times(times):
    with pytest.raises(ValueError, match="Measure anew"):
        fit(times)


def test_a_link_without_bytes_is_infinitely_fast():
    assert LINKS[RING].bandwidth == math.inf


def test_the_record_is_in_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert record_path() == tmp_path / "gmi-drl" / "links.json"
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert record_path() == tmp_path / ".cache" / "gmi-drl" / "links.json"


def test_what_is_stored_is_loaded(path):
    assert load(path, HERE) == ({}, "")
    assert store(path, HERE, {HOST: LINKS[HOST]}) == ""
    assert store(path, HERE, {RING: LINKS[RING]}) == ""  # beside the first
    assert load(path, HERE) == (LINKS, "")
    assert [entry.name for entry in path.parent.iterdir()] == ["links.json"]


def test_machines_share_a_file_and_are_told_apart(path):
    store(path, HERE, LINKS)
    there = HERE | {"torch": "2.14"}
    links, note = load(path, there)
    assert links == {}
    assert "measured with torch 2.13, and here it is 2.14; links are measured anew" in note
    store(path, there, {HOST: LINKS[RING]})
    assert load(path, HERE) == (LINKS, "")
    assert load(path, there) == ({HOST: LINKS[RING]}, "")


def test_links_of_one_backend_say_nothing_of_another(path):
    """Clients of MPS run at once, processes outside it in turns."""
    by_mps = dataclasses.replace(HOST, backend="mps")
    store(path, HERE, {HOST: LINKS[HOST], by_mps: LINKS[RING]})
    assert load(path, HERE)[0] == {HOST: LINKS[HOST], by_mps: LINKS[RING]}


def damaged():
    good = {"kind": "host", "ranks": 2, "at_once": 1, "devices": 1, "cores": 2, "wire": "fp32"}
    good |= {"backend": "cpu", "alpha_s": 1e-3, "beta_s_per_byte": 0, "residual": 0, "samples": []}
    wrong = [{"ranks": "2"}, {"kind": "x"}, {"alpha_s": -1}, {"residual": None}, {"samples": 3}]
    wrong += [{"alpha_s": 0}]  # as nothing takes no time
    yield from ("", "{", "[]", "null", "3", '{"format": 9}', '{"format": 1}', "\udcff")
    for change in wrong:
        links = [good | change]
        machine = {"fingerprint": HERE, "measured": 0, "links": links}
        yield json.dumps({"format": 1, "machines": [machine]})
    yield json.dumps({"format": 1, "machines": [{"fingerprint": [], "measured": 0, "links": []}]})


@pytest.mark.parametrize("text", list(damaged()), ids=range(15))
def test_a_damaged_record_is_told_and_replaced(path, text):
    path.parent.mkdir()
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    links, note = load(path, HERE)
    assert links == {}
    assert f"{path} is damaged (" in note
    assert store(path, HERE, LINKS) == ""
    assert load(path, HERE) == (LINKS, "")


def test_a_cache_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "gmi-drl").write_text("a file")
    path = tmp_path / "gmi-drl" / "links.json"
    assert "links will be measured again" in store(path, HERE, LINKS)
    with locked(path, timedelta(seconds=5)) as lock:
        assert not lock.held


def test_one_measures_at_a_time_and_nobody_waits_for_ever(path):
    wait = timedelta(milliseconds=10)
    with locked(path, wait) as first, locked(path, wait) as second:
        assert (first.held, second.held) == (True, False)
    with locked(path, timedelta(0)) as third:
        assert third.held


def test_processes_that_store_at_once_lose_nothing_that_is_locked(path):
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=bodies_record.store_many, args=(path, n)) for n in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(30)
        assert writer.exitcode == 0
    links, note = load(path, bodies_record.HERE)
    assert (len(links), note) == (2 * bodies_record.COUNT, "")
