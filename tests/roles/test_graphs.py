"""Captured work: what a replay does, what making it leaves behind, what becomes of failures."""

import logging

import pytest
import torch

from device_only import DeviceOnly, RecordedPool
from fake_graphs import FakeCuda, FakeStream
from gmi_drl.roles.clock import Clock, Leash
from gmi_drl.roles.graphs import Graph, Pool, graphs_on

CPU = torch.device("cpu")


class Work:
    """y = x + noise, counted."""

    def __init__(self, device=CPU):
        self.x, self.y, self.count = (torch.zeros(3, device=device) for _ in range(3))
        self.draws = torch.Generator(device).manual_seed(1)
        self.runs = 0

    def __call__(self):
        self.runs += 1
        self.y.copy_(self.x + torch.rand(3, generator=self.draws, device=self.x.device))
        self.count += 1


def expected(x, steps, device=CPU):
    draws = torch.Generator(device).manual_seed(1)
    return [x + torch.rand(3, generator=draws, device=device) for _ in range(steps)][-1]


def used(graph, work):
    for number in (5.0, 7.0):
        work.x.fill_(number)
        graph()
    assert torch.equal(work.y, expected(torch.full_like(work.x, 7.0), 2, work.x.device))
    assert work.count.tolist() == [2.0] * 3


def test_making_one_leaves_no_trace_and_a_replay_runs_no_python():
    work, pool = Work(), RecordedPool()
    graph = Graph(work, CPU, [work.draws], keep=[work.count], pool=pool)
    assert graph.captured
    assert work.runs == 3
    used(graph, work)
    assert work.runs == 3


def test_work_that_cannot_be_captured_is_done_without(caplog):
    work = Work()
    with caplog.at_level(logging.WARNING):
        pool = RecordedPool(refuses=0)
        graph = Graph(work, CPU, [work.draws], keep=[work.count], pool=pool, name="the work")
    assert not graph.captured
    assert "the work is not captured as a CUDA graph: operation not permitted when" in caplog.text
    assert "and more" not in caplog.text
    used(graph, work)
    graph.close()


def test_a_fault_of_the_work_itself_is_not_hidden():
    def fault():
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        Graph(fault, CPU, pool=RecordedPool())


def test_capturing_is_for_gpus_and_can_be_turned_off():
    assert graphs_on(torch.device("cuda"), True)
    assert not graphs_on(torch.device("cuda"), False)
    assert not graphs_on(CPU, True)


@pytest.mark.parametrize("waits", [
    lambda t: t.any().item(), lambda t: t[t > 0], lambda t: t.nonzero(), lambda t: t.unique(),
    lambda t: torch.equal(t, t), lambda t: bool(t.sum()), lambda t: t.tolist(),
    lambda t: t + torch.tensor(1.0),
])  # fmt: skip
def test_the_double_refuses_what_waits(waits):
    with pytest.raises(AssertionError), DeviceOnly():
        waits(torch.ones(3))


def test_a_clock_sums_phases_and_forgets():
    clock = Clock(CPU)
    for name in ("infer", "simulate", "infer"):
        clock.begin(name)
    clock.clear()
    clock.begin("simulate")
    clock.begin("infer")
    clock.begin("simulate")
    clock.stop()
    found = clock.read()
    assert list(found) == ["simulate", "infer"]
    assert min(found.values()) >= 0
    assert clock.read() == {}


@pytest.fixture
def cuda(monkeypatch):
    return FakeCuda(monkeypatch)


def test_captures_are_made_on_a_stream_of_their_own_and_hold_one_pool(cuda):
    pool = Pool(CPU)
    graphs = [Graph(Work(), CPU, pool=pool) for _ in range(2)]
    begun = [call for call in cuda.calls if call[0] == "begin"]
    assert len(set(begun)) == 1
    assert cuda.calls[0] == ("own", "waits for", "default")
    assert cuda.calls[-1] == ("default", "waits for", "own")
    assert cuda.current is cuda.default
    for graph in graphs:
        graph()
        graph.close()
    Graph(Work(), CPU, pool=pool)  # the handle of before went with the last graph
    assert cuda.calls[-2][1] != begun[0][1]


def test_a_stream_that_is_not_the_default_one_is_captured_itself(cuda):
    mine = FakeStream(cuda, "green")
    with cuda.stream(mine):
        assert Pool(CPU).stream is mine


def test_what_a_broken_capture_leaves_behind_is_cleaned_up(cuda, caplog):
    work = Work()

    def breaks():
        work()
        if work.runs == 3:
            cuda.invalid = True
            raise RuntimeError("operation not permitted when stream is capturing")

    pool = Pool(CPU)
    graph = Graph(breaks, CPU, [work.draws], keep=[work.count], pool=pool)
    assert "operation not permitted" in caplog.text  # the cause, not that it cannot be ended
    ((_, handle),) = {c for c in cuda.calls if c[0] == "begin" and c[1] is not None}
    assert cuda.calls.count(("end", handle)) == cuda.calls.count(("release", handle)) == 1
    assert ("end", None) in cuda.calls  # a small capture, by which generators draw again
    assert cuda.current is cuda.default
    used(graph, work)
    assert Graph(work, CPU, [work.draws], pool=pool).captured


def test_a_clock_reads_events_and_keeps_few(cuda):
    clock = Clock(torch.device("cuda"))
    for _ in range(1500):
        clock.begin("infer")
        clock.begin("simulate")
    clock.begin("infer")
    clock.stop()
    found = clock.read()
    assert found == pytest.approx({"infer": 1.501, "simulate": 1.5})
    assert clock.read() == {}
    assert len(clock._events) <= 1024


def test_a_leash_waits_for_the_round_that_is_so_many_back(cuda):
    leash = Leash(torch.device("cuda"), rounds=3)
    for _ in range(5):
        leash.end_round()
    assert cuda.calls == [("event", at) for at in (None, None, None, 1.0, 2.0)]


@pytest.mark.gpu
@pytest.mark.parametrize("own_stream", [False, True])
def test_a_captured_graph_does_what_its_work_does(own_stream):
    device = torch.device("cuda", torch.cuda.current_device())
    stream = torch.cuda.Stream() if own_stream else torch.cuda.current_stream()
    with torch.cuda.stream(stream):
        work, pool = Work(device), Pool(device)
        assert (pool.stream == stream) == own_stream
        graph = Graph(work, device, [work.draws], keep=[work.count], pool=pool)
        assert graph.captured
        used(graph, work)
        assert work.runs == 3
        graph.close()
        work.count.zero_()


@pytest.mark.gpu
def test_a_capture_that_fails_leaves_the_device_usable(caplog):
    device = torch.device("cuda", torch.cuda.current_device())
    work = Work(device)

    def waits():
        work()
        work.y.sum().item()

    here = torch.cuda.current_stream()
    assert not Graph(waits, device, [work.draws], keep=[work.count]).captured
    assert torch.cuda.current_stream() == here
    assert "is not captured" in caplog.text
    used(Graph(work, device, [work.draws], keep=[work.count]), work)
    torch.rand(3, device=device)


@pytest.mark.gpu
def test_a_clock_counts_the_devices_time():
    device = torch.device("cuda", torch.cuda.current_device())
    clock, big = Clock(device), torch.rand(4096, 4096, device=device)
    for _ in range(2):
        clock.begin("little")
        clock.begin("much")
        for _ in range(20):
            big @ big
        clock.stop()
        found = clock.read()
        assert found["much"] > found["little"] >= 0
