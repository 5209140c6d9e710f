"""Captured work: what a replay does, what making it leaves behind, what becomes of failures."""

import os
import pickle
import subprocess
import sys

import pytest
import torch

from device_only import DeviceOnly, RecordedPool
from fake_graphs import FakeCuda, FakeStream
from gmi_drl.roles.errors import CaptureError
from gmi_drl.roles.graphs import Graph, Pool, graphs_on
from gmi_drl.roles.telemetry.clock import Clock, Leash

CPU = torch.device("cpu")
FAILS = """
import torch
from gmi_drl.roles.graphs import Graph
x = torch.ones(3, device="cuda")
Graph(lambda: x.sum().item(), x.device, name="the work")
"""


class Work:
    """y = x + the number of calls before, counted."""

    def __init__(self, device=CPU):
        self.x, self.y, self.count = (torch.zeros(3, device=device) for _ in range(3))
        self.runs = 0

    def __call__(self):
        self.runs += 1
        self.y.copy_(self.x + self.count)
        self.count += 1


def used(graph, work):
    for number in (5.0, 7.0):
        work.x.fill_(number)
        graph()
    assert work.y.tolist() == [8.0] * 3
    assert work.count.tolist() == [2.0] * 3


def test_making_one_leaves_no_trace_and_a_replay_runs_no_python():
    work, pool = Work(), RecordedPool()
    graph = Graph(work, CPU, keep=[work.count], pool=pool)
    assert work.runs == 3
    used(graph, work)
    assert work.runs == 3


def test_work_that_cannot_be_captured_is_named_with_the_cause_and_a_remedy():
    with pytest.raises(CaptureError) as raised:
        Graph(Work(), CPU, pool=RecordedPool(refuses=0), name="the work")
    error = pickle.loads(pickle.dumps(raised.value))
    assert (error.work, str(error)) == ("the work", str(raised.value))
    for part in ("the work cannot be", "operation not permitted when", "run.capture: false"):
        assert part in str(error)
    assert "and more" not in str(error)


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


def test_in_the_double_recording_leaves_no_trace():
    work, pool = Work(), RecordedPool()
    graph = pool.record(work)
    assert not work.y.any()
    assert not work.count.any()
    graph.replay()
    assert work.count.tolist() == [1.0] * 3


@pytest.mark.parametrize("other", [False, True])
def test_in_the_double_what_a_graph_allocated_goes_with_the_next_replay_of_its_pool(other):
    x, made, pool = torch.ones(3), [], RecordedPool()

    def work():
        made.append(x + 1)
        x.add_(made[-1].sum())

    graph = Graph(work, CPU, keep=[x], pool=pool)
    its_own = made[-1]
    assert its_own.isnan().all()  # captured is not computed
    graph()
    assert its_own.tolist() == [2.0] * 3
    assert x.tolist() == [7.0] * 3
    if other:
        Graph(lambda: x.mul_(2), CPU, keep=[x], pool=pool)()
        assert its_own.isnan().all()
    else:
        graph()
        assert its_own.tolist() == [8.0] * 3
    Graph(lambda: x.mul_(2), CPU, keep=[x], pool=RecordedPool())()
    assert its_own.isnan().all() == other


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


def test_in_the_double_events_are_not_over_before_somebody_waits(cuda):
    first, second, third = (torch.cuda.Event(enable_timing=True) for _ in range(3))
    with pytest.raises(ValueError, match="must be recorded"):
        first.elapsed_time(second)
    assert first.query()
    done = []
    first.record()
    cuda.put(lambda: done.append(True))
    second.record()
    third.record()
    assert not second.query()
    with pytest.raises(RuntimeError, match="must be completed"):
        first.elapsed_time(second)
    second.synchronize()
    assert done == [True]
    assert first.elapsed_time(second) == 1.0
    assert not third.query()
    with pytest.raises(ValueError, match="enable_timing=True"):
        first.elapsed_time(torch.cuda.Event())


def test_in_the_double_only_what_an_event_orders_has_an_order(cuda):
    done, other = [], FakeStream(cuda, "other")
    cuda.put(lambda: done.append("first"))
    event = torch.cuda.Event()
    event.record()
    cuda.put(lambda: done.append("too much"))
    other.put(lambda: done.append("free"))
    other.wait_event(event)
    other.put(lambda: done.append("ordered"))
    other.synchronize()
    assert done == ["free", "first", "ordered"]


def test_in_the_double_a_captured_stream_is_not_waited_for(cuda):
    pool = Pool(CPU)
    with pytest.raises(CaptureError, match="not permitted when stream is capturing"):
        Graph(pool.wait, CPU, warm_up=0, pool=pool)


def test_captured_work_is_released_when_the_device_is_done_with_it(cuda):
    x, pool = torch.ones(3), Pool(CPU)
    graphs = [Graph(lambda: x.add_(1), CPU, keep=[x], pool=pool) for _ in range(2)]
    for graph in graphs:
        graph()
        cuda.put(lambda: None)  # the device is at it
    for graph in graphs:
        graph.close()
        graph.close()
    assert x.tolist() == [3.0] * 3


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


def test_work_in_a_pool_comes_behind_what_was_queued_and_before_what_follows(cuda):
    done, pool = [], Pool(CPU)
    cuda.put(lambda: done.append("before"))
    with pool.at_work():
        assert cuda.current is pool.stream
        cuda.put(lambda: done.append("within"))
    cuda.put(lambda: done.append("after"))
    pool.wait()
    assert done == ["before", "within", "after"]


def test_a_stream_that_is_not_the_default_one_is_captured_itself(cuda):
    mine = FakeStream(cuda, "green")
    with cuda.stream(mine):
        assert Pool(CPU).stream is mine


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (RuntimeError("operation not permitted when stream is capturing"), CaptureError),
        (torch.OutOfMemoryError("CUDA out of memory."), torch.OutOfMemoryError),
    ],
)
def test_of_a_broken_capture_the_cause_is_told_and_not_that_it_cannot_be_ended(cuda, error, told):
    work = Work()

    def breaks():
        work()
        if work.runs == 3:
            cuda.invalid = True
            raise error

    with pytest.raises(told, match=str(error)):
        Graph(breaks, CPU, keep=[work.count])
    assert cuda.calls[-1] == ("default", "waits for", "own")
    assert cuda.current is cuda.default


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
        graph = Graph(work, device, keep=[work.count], pool=pool)
        used(graph, work)
        assert work.runs == 3
        graph.close()
        work.count.zero_()


@pytest.mark.gpu
def test_a_capture_that_fails_on_a_gpu_is_named_with_the_cause():
    done = subprocess.run(  # what it leaves behind goes with its process
        [sys.executable, "-c", FAILS], capture_output=True, text=True, timeout=50, check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    assert done.returncode == 1
    assert "CaptureError: the work cannot be captured as a CUDA graph: " in done.stderr


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
