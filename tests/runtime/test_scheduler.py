"""Where the scheduler sends tasks and actors, and when."""

import pytest

from gmi_drl.runtime.scheduler.events import (
    ActorGone,
    ActorSubmitted,
    Blocked,
    Cancelled,
    Finished,
    Infeasible,
    Recall,
    Returned,
    Run,
    StartActor,
    StartWorker,
    StopWorker,
    Submitted,
    Ticked,
    Unblocked,
    WorkerLost,
    WorkerStarted,
)
from gmi_drl.runtime.scheduler.global_scheduler import THRESHOLD
from gmi_drl.runtime.scheduler.resources import UNITS, Demand
from gmi_drl.runtime.scheduler.scheduler import Scheduler
from scheduler_state import state

CPU = {"CPU": 1.0}


class Bench:
    """A scheduler with workers that start when they are asked for, and a clock set by hand."""

    def __init__(self, devices):
        self.scheduler = Scheduler(devices)
        self.now_s = 0.0
        self.workers = 0
        self.tasks = 0
        self.ran_on = {}  # task: worker
        self.device_of = {}  # worker: device
        self.told = []  # every instruction so far

    def tell(self, event):
        """The instructions, also those that follow from workers that start."""
        out = self.scheduler.handle(event, self.now_s)
        self.told += out
        for instruction in list(out):
            match instruction:
                case Run(task, worker):
                    self.ran_on[task] = worker
                case StartWorker(device):
                    self.workers += 1
                    worker = f"w{self.workers}"
                    self.device_of[worker] = device
                    out += self.tell(WorkerStarted(worker, device))
        return out

    def submit(self, function=b"f", device=0, demand=CPU, **options):
        """The name of a new task."""
        self.tasks += 1
        task = f"t{self.tasks}"
        self.tell(Submitted(task, function, device, demand, **options))
        return task

    def finish(self, task, run_s=1.0):
        return self.tell(Finished(task, self.ran_on[task], run_s))

    def tick(self, after_s):
        self.now_s += after_s
        return self.tell(Ticked())

    def runs_on(self, task):
        return self.device_of[self.ran_on[task]] if task in self.ran_on else None

    def measure(self, run_s, function=b"f", device=0, demand=CPU):
        """One run of the function on the device."""
        self.finish(self.submit(function, device, demand, pinned=device), run_s)

    def wait_s(self, device):
        """How long the scheduler expects a task to wait there."""
        scheduler = self.scheduler
        demand = Demand({"CPU": UNITS}, actor=False)
        return scheduler._global.wait_s(scheduler._locals[device], b"f", demand)

    def of(self, device):
        return state(self.scheduler)[device]


def test_a_task_stays_where_it_was_submitted_as_long_as_it_can_start_there():
    bench = Bench({0: {"CPU": 2}, 1: {"CPU": 2}})
    tasks = [bench.submit(device=1) for _ in range(2)]
    assert [bench.runs_on(task) for task in tasks] == [1, 1]


def test_an_overloaded_device_passes_tasks_on():
    bench = Bench({0: {"CPU": 2}, 1: {"CPU": 2}})
    bench.measure(1.0)
    tasks = [bench.submit() for _ in range(4)]
    assert [bench.runs_on(task) for task in tasks] == [0, 0, 1, 1]


def test_short_tasks_are_not_passed_on_before_the_queue_is_longer_than_the_threshold():
    bench = Bench({0: {"CPU": 1}, 1: {"CPU": 1}})
    bench.measure(0.0001, b"short")
    bench.submit(b"short", demand={"CPU": 0.5})  # holds up the others, which want it all
    tasks = [bench.submit(b"short") for _ in range(THRESHOLD + 3)]
    assert bench.of(0)["queued"] == THRESHOLD + 1
    assert [bench.runs_on(task) for task in tasks[THRESHOLD + 1 :]] == [1, 1]


def test_a_task_goes_to_the_device_that_has_what_it_wants():
    bench = Bench({0: {"CPU": 2}, 1: {"CPU": 2, "special": 3}})
    assert bench.runs_on(bench.submit(device=0, demand={"CPU": 1, "special": 1})) == 1


def test_the_estimated_wait_is_queued_work_by_cpus():
    bench = Bench({0: {"CPU": 2}, 1: {"CPU": 1}})
    bench.measure(0.5)
    bench.measure(0.25, b"g")
    for _ in range(2):
        bench.submit(pinned=0)  # both run
    assert bench.wait_s(0) == pytest.approx((0.5 + 0.5) / 2)
    for function in (b"f", b"g", b"g"):
        bench.submit(function, pinned=0)
    assert bench.wait_s(0) == pytest.approx((3 * 0.5 + 2 * 0.25) / 2)
    assert bench.wait_s(1) == 0.0


def test_the_lowest_wait_wins():
    bench = Bench({0: {"CPU": 1}, 1: {"CPU": 1}, 2: {"CPU": 1}})
    for device, run_s in enumerate((1.0, 0.3, 0.2)):
        bench.measure(run_s, device=device)
        bench.submit(pinned=device)
    queued = lambda: [bench.of(device)["queued"] for device in (0, 1, 2)]  # noqa: E731
    # Waits are 1.0, 0.3 and 0.2.
    bench.submit()
    assert queued() == [0, 0, 1]  # now 1.0, 0.3, 0.4
    bench.submit()
    assert queued() == [0, 1, 1]  # now 1.0, 0.6, 0.4
    bench.submit()
    assert queued() == [0, 1, 2]


def test_means_are_exponential_averages_for_each_function_and_device():
    bench = Bench({0: {"CPU": 1}, 1: {"CPU": 1}})
    for run_s in (1.0, 2.0):
        bench.measure(run_s)
    bench.measure(8.0, device=1)
    bench.submit(pinned=0)
    bench.submit(device=1, pinned=1)
    assert bench.wait_s(0) == pytest.approx(1.0 + 0.2 * (2.0 - 1.0))
    assert bench.wait_s(1) == pytest.approx(8.0)


def test_a_pinned_task_waits_for_its_device():
    bench = Bench({0: {"CPU": 1}, 1: {"CPU": 1}})
    bench.measure(1.0)
    tasks = [bench.submit(pinned=0) for _ in range(3)]
    assert [bench.runs_on(task) for task in tasks] == [0, None, None]
    assert bench.tick(1.0) == []
    bench.finish(tasks[0])
    assert [bench.runs_on(task) for task in tasks] == [0, 0, None]


def test_what_waits_is_taken_over_by_a_device_that_has_become_free():
    bench = Bench({0: {"CPU": 1}, 1: {"CPU": 1}})
    for device in (0, 1):
        bench.measure(1.0, device=device)
    tasks = [bench.submit() for _ in range(6)]
    assert [bench.of(device)["queued"] for device in (0, 1)] == [2, 2]
    for task in (tasks[1], tasks[3]):
        bench.finish(task, 1.0)
    assert bench.scheduler.wants_tick
    bench.finish(tasks[5], 1.0)
    assert [bench.of(device)["running"] for device in (0, 1)] == [1, 0]
    (taken,) = bench.tick(0.001)
    assert bench.device_of[taken.worker] == 1
    assert taken.task == tasks[4]  # the youngest


def test_a_task_no_device_can_run_is_refused_with_the_reason():
    bench = Bench({0: {"CPU": 2, "GPU": 1}, 1: {"CPU": 8}})

    def reason(**options):
        (refused,) = bench.tell(Submitted("t", b"f", 0, **options))
        assert isinstance(refused, Infeasible)
        return refused.reason

    assert reason(demand={"GPU": 2}) == (
        "the task wants {'GPU': 2}; no device has more than {'GPU': 1}. "
        "Lower num_gpus, or give init() more."
    )
    assert reason(demand={"CPU": 1, "arm": 1.5}) == (
        "the task wants {'CPU': 1, 'arm': 1.5}; no device has more than {'arm': 0}. "
        "Lower resources['arm'], or give init() more."
    )
    assert "device 0, to which it is pinned, has not more than {'CPU': 2}" in reason(
        demand={"CPU": 8}, pinned=0
    )
    assert "no one device has all of it" in reason(demand={"CPU": 8, "GPU": 1})
    assert "there is none" in reason(demand=CPU, pinned=7)
    assert bench.runs_on(bench.submit(demand={"CPU": 8})) == 1


@pytest.mark.parametrize("amount", [-1, float("nan"), float("inf")])
def test_an_amount_that_is_none_is_an_error(amount):
    with pytest.raises(ValueError, match=r"resource GPU: .*; an amount is a number"):
        Scheduler({0: {"GPU": amount}})


def test_fractions_add_up_exactly():
    bench = Bench({0: {"GPU": 1, "CPU": 1}})
    tasks = [bench.submit(demand={"GPU": 0.1}, function=bytes([i])) for i in range(11)]
    running = [task for task in tasks if bench.runs_on(task) == 0]
    assert len(running) <= 10
    for task in tasks:
        bench.finish(task)
    assert bench.of(0)["free"] == {"GPU": 1.0, "CPU": 1.0}


def test_no_more_workers_than_cpus_are_started():
    bench = Bench({0: {"CPU": 1.5}})
    for _ in range(10):
        bench.submit(demand={"CPU": 1})
    assert bench.of(0)["workers"] == 1
    bench = Bench({0: {"CPU": 3}})
    for _ in range(10):
        bench.submit()
    assert bench.of(0)["workers"] == 3


def test_workers_under_way_are_counted():
    scheduler = Scheduler({0: {"CPU": 2}})
    told = [scheduler.handle(Submitted(i, b"f", 0, CPU), 0.0) for i in range(5)]
    assert told == [[StartWorker(0)], [StartWorker(0)], [], [], []]


def test_small_tasks_get_workers_up_to_four_for_a_cpu():
    bench = Bench({0: {"CPU": 2}})
    bench.measure(1.0, demand={})
    for _ in range(20):
        bench.submit(demand={})
    assert bench.of(0)["workers"] == bench.of(0)["running"] == 8
    task = bench.submit()  # a CPU is free, so there is a worker for it
    assert bench.runs_on(task) == 0


def test_an_unknown_function_is_given_ahead_once_a_long_one_never_short_ones_in_numbers():
    bench = Bench({0: {"CPU": 1}})
    unknown = [bench.submit(b"unknown") for _ in range(3)]
    assert [bench.runs_on(task) for task in unknown] == [0, 0, None]
    for task in unknown:
        bench.finish(task, 0.00002)
    tasks = [bench.submit(b"unknown") for _ in range(100)]
    assert sum(task in bench.ran_on for task in tasks) == 65
    for task in tasks:
        bench.finish(task, 0.00002)
    bench.measure(0.5, b"long")
    tasks = [bench.submit(b"long") for _ in range(3)]
    assert [bench.runs_on(task) for task in tasks] == [0, None, None]


def test_what_is_given_ahead_is_two_milliseconds_of_work():
    bench = Bench({0: {"CPU": 1}})
    bench.measure(0.0004)
    tasks = [bench.submit() for _ in range(20)]
    assert sum(task in bench.ran_on for task in tasks) == 5


def test_what_is_stuck_behind_a_long_task_is_recalled_and_run_elsewhere():
    bench = Bench({0: {"CPU": 2}})
    first, second, ahead = (bench.submit() for _ in range(3))
    assert bench.ran_on[ahead] == bench.ran_on[first]
    bench.finish(second, 0.00001)
    assert bench.scheduler.wants_tick
    assert bench.tick(0.004) == []
    worker = bench.ran_on[first]
    assert bench.tick(0.002) == [Recall(worker)]
    assert bench.tick(0.002) == []  # once is enough
    assert not bench.scheduler.wants_tick
    assert bench.tell(Returned(worker, (ahead,))) == [Run(ahead, bench.ran_on[second])]
    bench.finish(ahead)
    bench.finish(first)
    assert bench.of(0)["free"] == {"CPU": 2.0}


def test_a_recalled_worker_gets_nothing_ahead_before_it_has_answered():
    bench = Bench({0: {"CPU": 2}})
    for _ in range(2):
        bench.measure(0.00001)
    tasks = [bench.submit() for _ in range(6)]
    worker = bench.ran_on[tasks[0]]
    ahead = tuple(task for task in tasks[1:] if bench.ran_on[task] == worker)
    others = [task for task in tasks[1:] if task not in ahead]
    for task in others:
        bench.finish(task, 0.00001)
    assert bench.tick(0.006) == [Recall(worker)]
    bench.finish(tasks[0], 0.00001)
    more = [bench.submit() for _ in range(4)]
    assert worker not in {bench.ran_on[task] for task in more}
    bench.tell(Returned(worker, ahead[1:]))  # it had begun the first
    more += [bench.submit() for _ in range(4)]
    assert worker in {bench.ran_on[task] for task in more}


def test_a_returned_task_that_was_next_in_turn_frees_its_worker():
    bench = Bench({0: {"CPU": 2}})
    first, second, ahead = (bench.submit() for _ in range(3))
    bench.finish(second, 0.00001)
    bench.tick(0.006)
    bench.finish(first)  # it had given `ahead` back before it could begin it
    bench.tell(Returned(bench.ran_on[first], (ahead,)))
    assert bench.of(0)["running"] == 1
    bench.finish(ahead)
    assert bench.of(0)["free"] == {"CPU": 2.0}


def test_a_blocked_task_gives_its_cpu_back_and_keeps_the_rest():
    bench = Bench({0: {"CPU": 1, "GPU": 1}})
    parent = bench.submit(demand={"CPU": 1, "GPU": 1})
    child, other = bench.submit(b"g"), bench.submit(b"g", demand={"GPU": 1})
    assert bench.runs_on(child) is None
    bench.tell(Blocked(bench.ran_on[parent]))
    assert (bench.runs_on(child), bench.runs_on(other)) == (0, None)
    bench.finish(child)
    bench.tell(Unblocked(bench.ran_on[parent]))
    bench.finish(parent)
    assert bench.runs_on(other) == 0


def test_a_task_that_goes_on_does_not_wait_for_a_cpu():
    bench = Bench({0: {"CPU": 1}})
    bench.measure(1.0)
    parent, child, third = (bench.submit() for _ in range(3))
    bench.tell(Blocked(bench.ran_on[parent]))
    assert bench.tell(Unblocked(bench.ran_on[parent])) == []
    assert bench.of(0)["free"] == {"CPU": -1.0}
    bench.finish(child)
    assert bench.runs_on(third) is None  # the parent has the CPU again
    bench.finish(parent)
    assert bench.runs_on(third) == 0


def test_a_blocked_worker_gets_nothing_ahead():
    bench = Bench({0: {"CPU": 1}})
    bench.measure(0.00001)
    parent = bench.submit()
    bench.tell(Blocked(bench.ran_on[parent]))
    children = [bench.submit() for _ in range(5)]
    assert bench.ran_on[parent] not in {bench.ran_on[task] for task in children}


def test_a_blocked_task_may_end_without_going_on_first():
    bench = Bench({0: {"CPU": 1}})
    task = bench.submit()
    bench.tell(Blocked(bench.ran_on[task]))
    bench.finish(task)
    assert bench.of(0)["free"] == {"CPU": 1.0}
    assert bench.of(0)["blocked"] == 0
    bench.tell(Unblocked(bench.ran_on[task]))
    assert bench.of(0)["free"] == {"CPU": 1.0}


def test_tasks_on_their_way_to_a_worker_that_blocks_are_recalled():
    bench = Bench({0: {"CPU": 1}})
    parent, ahead = bench.submit(), bench.submit()
    worker = bench.ran_on[parent]
    assert bench.tell(Blocked(worker)) == [Recall(worker)]
    bench.tell(Returned(worker, (ahead,)))
    assert bench.ran_on[ahead] != worker


def test_surplus_workers_are_stopped_once_they_have_idled():
    bench = Bench({0: {"CPU": 1}})
    bench.measure(1.0)
    parent, child = bench.submit(), bench.submit()
    bench.tell(Blocked(bench.ran_on[parent]))
    assert bench.of(0)["workers"] == 2
    bench.finish(child)
    bench.tell(Unblocked(bench.ran_on[parent]))
    bench.finish(parent)
    assert bench.scheduler.wants_tick
    assert bench.tick(0.5) == []
    assert bench.tick(0.5) == [StopWorker(bench.ran_on[child])]
    assert bench.of(0)["workers"] == 1
    assert not bench.scheduler.wants_tick


def test_an_actor_has_its_resources_for_life():
    bench = Bench({0: {"CPU": 2, "GPU": 1}})
    assert bench.tell(ActorSubmitted("a", 0, {"CPU": 1, "GPU": 1})) == [StartActor("a", 0)]
    assert bench.tell(ActorSubmitted("b", 0, {"GPU": 0.5})) == []
    assert bench.tell(ActorGone("a")) == [StartActor("b", 0)]
    assert bench.of(0)["free"] == {"CPU": 2.0, "GPU": 0.5}


def test_an_actor_goes_where_there_is_room():
    bench = Bench({0: {"CPU": 2, "GPU": 1}, 1: {"CPU": 2, "GPU": 1}})
    told = [bench.tell(ActorSubmitted(i, 0, {"GPU": 0.5})) for i in range(5)]
    assert sorted(instruction.device for (instruction,) in told[:4]) == [0, 0, 1, 1]
    assert told[4] == []
    (refused,) = bench.tell(ActorSubmitted(9, 0, {"GPU": 2}))
    assert "the actor wants {'GPU': 2}" in refused.reason


def test_an_actor_does_not_take_lent_cpu_from_tasks_that_wait():
    bench = Bench({0: {"CPU": 1}})
    bench.measure(1.0)
    parent = bench.submit()
    bench.tell(ActorSubmitted("a", 0, CPU))
    child = bench.submit()
    told = bench.tell(Blocked(bench.ran_on[parent]))
    assert StartActor("a", 0) not in told
    assert bench.runs_on(child) == 0
    assert StartActor("a", 0) in bench.finish(child)  # for the parent may wait for the actor


def test_a_child_stands_in_for_its_blocked_parent_when_an_actor_took_the_cpu():
    bench = Bench({0: {"CPU": 1}})
    bench.measure(1.0)
    parent = bench.submit()
    bench.tell(Blocked(bench.ran_on[parent]))
    assert StartActor("a", 0) in bench.tell(ActorSubmitted("a", 0, CPU))
    child, second = bench.submit(), bench.submit()
    assert (bench.runs_on(child), bench.runs_on(second)) == (0, None)  # one at a time
    bench.finish(child)
    assert bench.runs_on(second) == 0


def test_a_child_sent_to_a_device_that_actors_fill_comes_home():
    bench = Bench({0: {"CPU": 1}, 1: {"CPU": 1}})
    for device, run_s in enumerate((1.0, 0.5)):
        bench.measure(run_s, device=device)
    parent, other = bench.submit(pinned=0), bench.submit(pinned=1)
    bench.tell(ActorSubmitted("a", 1, CPU, pinned=1))
    child = bench.submit()
    bench.tell(Blocked(bench.ran_on[parent]))
    bench.tell(ActorSubmitted("b", 0, CPU, pinned=0))
    assert StartActor("a", 1) in bench.finish(other)
    assert bench.of(1)["queued"] == 1
    assert bench.scheduler.wants_tick
    bench.tick(0.001)
    assert bench.runs_on(child) == 0


def test_an_actor_that_waits_lends_its_cpu():
    bench = Bench({0: {"CPU": 1}})
    bench.tell(ActorSubmitted("a", 0, CPU))
    task = bench.submit()
    assert bench.runs_on(task) is None
    bench.tell(Blocked("a"))
    assert bench.runs_on(task) == 0
    bench.tell(Unblocked("a"))
    bench.finish(task)
    bench.tell(ActorGone("a"))
    assert bench.of(0)["free"] == {"CPU": 1.0}


def test_a_big_demand_is_not_overtaken_for_ever():
    bench = Bench({0: {"CPU": 2}})
    bench.measure(1.0)
    small = [bench.submit() for _ in range(2)]
    big = bench.submit(demand={"CPU": 2})
    small += [bench.submit() for _ in range(100)]
    finished = 0
    while bench.runs_on(big) is None:
        bench.finish(small[finished])
        finished += 1
    assert 2 < finished < 40
    assert bench.of(0)["running"] == 1  # it has both CPUs


def test_what_a_cancelled_task_had_kept_waiting_goes_on():
    bench = Bench({0: {"CPU": 2}})
    bench.measure(1.0)
    running = [bench.submit() for _ in range(2)]
    big = bench.submit(demand={"CPU": 2})
    small = [bench.submit() for _ in range(100)]
    for task in small:
        if bench.of(0)["running"] == 1:
            break
        bench.finish(running.pop(0))
        running += [task] if task in bench.ran_on else []
    assert bench.runs_on(big) is None
    (started,) = bench.tell(Cancelled(big))
    assert started.task in small


def test_nothing_is_held_for_what_must_wait_for_an_actor():
    bench = Bench({0: {"CPU": 1, "GPU": 1}})
    bench.measure(1.0)
    bench.tell(ActorSubmitted("a", 0, {"GPU": 1}))
    late = bench.submit(demand={"CPU": 1, "GPU": 1})
    for _ in range(100):
        bench.finish(bench.submit())
    bench.tell(ActorGone("a"))
    assert bench.runs_on(late) == 0


def test_a_cancelled_task_is_never_run():
    bench = Bench({0: {"CPU": 1}})
    bench.measure(1.0)
    tasks = [bench.submit() for _ in range(5)]
    for task in (tasks[1], tasks[3], tasks[4]):
        assert bench.tell(Cancelled(task)) == []
    assert bench.finish(tasks[0]) == [Run(tasks[2], bench.ran_on[tasks[0]])]
    assert bench.finish(tasks[2]) == []
    assert bench.tell(Cancelled("unknown")) == []


def test_tasks_around_a_cancelled_one_keep_their_order():
    bench = Bench({0: {"CPU": 1}})
    bench.measure(1.0)
    tasks = [bench.submit() for _ in range(5)]
    bench.tell(Cancelled(tasks[2]))
    for task, following in ((0, 1), (1, 3), (3, 4)):
        (run,) = bench.finish(tasks[task])
        assert run.task == tasks[following]


def test_a_lost_worker_leaves_nothing_behind():
    bench = Bench({0: {"CPU": 1, "GPU": 1}})
    task = bench.submit(demand={"CPU": 1, "GPU": 1})
    lost = bench.ran_on[task]
    bench.tell(Blocked(lost))
    bench.tell(WorkerLost(lost))
    assert bench.of(0)["free"] == {"CPU": 1.0, "GPU": 1.0}
    assert bench.of(0)["workers"] == 0
    assert bench.tell(Finished(task, lost, 1.0)) == []
    bench.tell(Submitted(task, b"f", 0, CPU))  # the driver wants it run again
    assert bench.ran_on[task] != lost
    assert bench.tell(Finished(task, lost, 1.0)) == []  # not by the one that was lost
    bench.finish(task)
    assert bench.of(0)["free"] == {"CPU": 1.0, "GPU": 1.0}


def test_who_waits_for_actors_is_told_from_who_waits_for_tasks_that_wait():
    bench = Bench({0: {"CPU": 2, "GPU": 1}})
    on_gpu = bench.submit(demand={"CPU": 1.0, "GPU": 1.0})
    bench.tell(Blocked(bench.ran_on[on_gpu]))  # it keeps its GPU, and takes its CPU back
    behind = bench.submit(demand={"CPU": 1.0, "GPU": 1.0})
    bench.tell(ActorSubmitted("both CPUs", 0, {"CPU": 2.0}))
    assert bench.of(0)["queued"] == 2
    assert bench.scheduler.wait_for_actors() == {}
    bench.tell(Unblocked(bench.ran_on[on_gpu]))
    bench.finish(on_gpu)
    bench.finish(behind)
    bench.tell(ActorSubmitted("GPU", 0, {"CPU": 0.0, "GPU": 1.0}))
    task = bench.submit(demand={"CPU": 0.0, "GPU": 1.0})
    heads = bench.scheduler.wait_for_actors().values()
    assert [getattr(head, "task", "actor") for head in heads] == [task]
