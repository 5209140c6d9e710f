"""What holds for the scheduler whatever happens in whatever order, with made-up workers."""

import itertools
from collections import deque

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

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
from gmi_drl.runtime.scheduler.scheduler import Scheduler
from scheduler_state import state

SETTINGS = settings(
    report_multiple_bugs=False,
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
    max_examples=120,
    stateful_step_count=60,
    suppress_health_check=list(HealthCheck),
)
DEVICES = (
    {0: {"CPU": 2.0}},
    {0: {"CPU": 1.0, "GPU": 1.0}, 1: {"CPU": 2.0, "special": 2.0}},
    {0: {"CPU": 0.5, "GPU": 1.0}, 1: {"CPU": 1.0}, 2: {"CPU": 3.0, "GPU": 2.0}},
)
DEMANDS = (
    {"CPU": 1.0},
    {"CPU": 1.0},
    {"CPU": 0.3},
    {},
    {"CPU": 2.0},
    {"GPU": 0.5},
    {"CPU": 1.0, "GPU": 1.0},
    {"CPU": 1.0, "special": 0.7},
)
FUNCTIONS = {b"short": 0.00002, b"medium": 0.0008, b"long": 0.1}


class Worker:
    def __init__(self, device):
        self.device = device
        self.tasks = deque()  # the first runs
        self.blocked = False
        self.went_on = False  # the running one, or one before it, was blocked
        self.recalled = 0


class FakeDriver:
    """Does what the scheduler says, and fails if that is not to be done."""

    def __init__(self, devices):
        self.devices = devices
        self.scheduler = Scheduler(devices)
        self.now_s = 0.0
        self.names = itertools.count()
        self.waiting = {}  # task: its event
        self.given = {}  # task: its event
        self.done = set()
        self.workers = {}
        self.starting = deque()  # device of each
        self.actors_waiting = {}
        self.actors = {}  # actor: (device, demand)
        self.blocked_actors = set()
        self.once_blocked_actors = set()
        self.refused = set()
        self.stand_ins = {}  # task: the CPU it has though an actor has it too

    def tell(self, event):
        for instruction in self.scheduler.handle(event, self.now_s):
            self.do(instruction)

    def do(self, instruction):
        match instruction:
            case Run(task, worker):
                event = self.given[task] = self.waiting.pop(task)
                at = self.workers[worker]
                assert not at.blocked
                assert event.pinned in (None, at.device)
                if at.tasks:
                    assert self.given[at.tasks[0]].demand == event.demand
                at.tasks.append(task)
                assert len(at.tasks) <= 65
                if len(at.tasks) == 1:
                    self.check_stand_in(task, at.device)
            case StartWorker(device):
                self.starting.append(device)
            case StopWorker(worker):
                if worker in self.workers:
                    assert not self.workers[worker].tasks
                    del self.workers[worker]
            case Recall(worker):
                self.workers[worker].recalled += 1
            case StartActor(actor, device):
                event = self.actors_waiting.pop(actor)
                assert event.pinned in (None, device)
                self.actors[actor] = (device, event.demand)
            case Infeasible(subject, reason):
                event = self.waiting.pop(subject, None) or self.actors_waiting.pop(subject)
                devices = self.devices if event.pinned is None else [event.pinned]
                assert not any(self.has(device, event.demand) for device in devices)
                assert "wants" in reason
                self.refused.add(subject)

    def has(self, device, demand):
        total = self.devices[device]
        return all(total.get(name, 0) >= amount for name, amount in demand.items())

    def submit(self, function, device, demand, pinned=None, task=None):
        task = next(self.names) if task is None else task
        event = self.waiting[task] = Submitted(task, function, device, demand, pinned)
        self.tell(event)
        return task

    def finish(self, name):
        worker = self.workers[name]
        task = worker.tasks.popleft()
        worker.blocked = False
        # What had been given ahead goes on with the share, were it over-committed.
        worker.went_on = worker.went_on and bool(worker.tasks)
        self.done.add(task)
        self.tell(Finished(task, name, FUNCTIONS[self.given.pop(task).function]))

    def block(self, name):
        self.workers[name].blocked = True
        self.tell(Blocked(name))

    def unblock(self, name):
        self.workers[name].blocked, self.workers[name].went_on = False, True
        self.tell(Unblocked(name))

    def give_back(self, name, begun=1):
        """Answers a recall; it has begun the first `begun` of its tasks."""
        worker = self.workers[name]
        worker.recalled -= 1
        returned = list(worker.tasks)[begun:]
        for task in returned:
            worker.tasks.remove(task)
            self.waiting[task] = self.given.pop(task)
        self.tell(Returned(name, tuple(returned)))

    def start_worker(self):
        name = f"w{next(self.names)}"
        device = self.starting.popleft()
        self.workers[name] = Worker(device)
        self.tell(WorkerStarted(name, device))

    def lose_worker(self, name):
        worker = self.workers.pop(name)
        self.tell(WorkerLost(name))
        for task in worker.tasks:
            event = self.given.pop(task)
            self.submit(event.function, event.device, event.demand, event.pinned, task)

    def end_actor(self, actor):
        self.actors.pop(actor, None)
        self.actors_waiting.pop(actor, None)
        self.blocked_actors.discard(actor)
        self.tell(ActorGone(actor))

    def tick(self, after_s):
        self.now_s += after_s
        self.tell(Ticked())

    def use_of(self, device):
        """What is used of each resource, and how much CPU may be used twice: it was lent."""
        used = dict.fromkeys((*self.devices[device], "CPU"), 0.0)
        lent = 0.0
        holders = [
            (self.given[worker.tasks[0]].demand, worker.blocked, worker.went_on)
            for worker in self.workers.values()
            if worker.device == device and worker.tasks
        ] + [
            (demand, actor in self.blocked_actors, actor in self.once_blocked_actors)
            for actor, (where, demand) in self.actors.items()
            if where == device
        ]
        for demand, blocked, went_on in holders:
            for name, amount in demand.items():
                if name != "CPU" or not blocked:
                    used[name] += amount
                if name == "CPU" and (blocked or went_on):
                    lent += amount
        return used, lent

    def check_resources(self):
        for device, total in self.devices.items():
            used, lent = self.use_of(device)
            lent += sum(
                amount for task, amount in self.stand_ins.items() if self.runs_on(task, device)
            )
            for name, amount in used.items():
                limit = total.get(name, 0.0) + (lent if name == "CPU" else 0.0)
                assert amount <= limit + 1e-9, (device, name, amount, limit)
            there = state(self.scheduler)[device]
            for name, amount in there["free"].items():
                assert abs(total[name] - used[name] - amount) < 1e-9, (device, name)

    def runs_on(self, task, device):
        return any(
            worker.device == device and worker.tasks and worker.tasks[0] == task
            for worker in self.workers.values()
        )

    def check_stand_in(self, task, device):
        """A task may have CPU that an actor has taken from one that is blocked; but only one."""
        demand = self.given[task].demand
        used, _ = self.use_of(device)
        if used["CPU"] <= self.devices[device].get("CPU", 0.0) + 1e-9 or "CPU" not in demand:
            return
        here = [w for w in self.workers.values() if w.device == device and w.tasks]
        going = [self.given[w.tasks[0]].demand for w in here if not w.blocked]
        assert sum("CPU" in demand for demand in going) == 1
        blocked = [self.given[w.tasks[0]].demand for w in here if w.blocked]
        blocked += [self.actors[a][1] for a in self.blocked_actors if self.actors[a][0] == device]
        assert sum(demand.get("CPU", 0.0) for demand in blocked) + 1e-9 >= demand["CPU"]
        assert any(where == device for where, _ in self.actors.values())
        self.stand_ins[task] = demand["CPU"]

    def settle(self):
        """Everything goes on, and actors end, until nothing changes any more."""
        for _ in range(10_000):
            before = len(self.done)
            for actor in list(self.actors):
                self.end_actor(actor)
            while self.starting:
                self.start_worker()
            for name in list(self.workers):
                if name in self.workers and self.workers[name].recalled:
                    self.give_back(name)
                if name in self.workers and self.workers[name].tasks:
                    if self.workers[name].blocked:
                        self.unblock(name)
                    self.finish(name)
            self.tick(0.01)
            self.check_resources()
            idle = len(self.done) == before and not self.starting and not self.actors
            if idle and not any(worker.tasks for worker in self.workers.values()):
                return
        raise AssertionError("it goes on for ever")


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(devices=st.sampled_from(DEVICES))
    def begin(self, devices):
        self.driver = FakeDriver(devices)
        self.submitted = set()
        self.cancelled = set()

    def pick(self, data, names):
        return data.draw(st.sampled_from(sorted(names, key=str)))

    def device(self, data):
        return data.draw(st.sampled_from(sorted(self.driver.devices)))

    def busy(self):
        return [name for name, worker in self.driver.workers.items() if worker.tasks]

    def going(self):
        return [name for name in self.busy() if not self.driver.workers[name].blocked]

    @rule(
        data=st.data(),
        function=st.sampled_from(sorted(FUNCTIONS)),
        demand=st.sampled_from(DEMANDS),
        number=st.integers(1, 4),
        pinned=st.sampled_from((False, False, False, True)),
    )
    def submit(self, data, function, demand, number, pinned):
        for _ in range(number):
            where = self.device(data) if pinned else None
            self.submitted.add(self.driver.submit(function, self.device(data), demand, where))

    @rule(data=st.data(), number=st.integers(1, 30))
    def submit_many(self, data, number):
        device = self.device(data)
        for _ in range(number):
            self.submitted.add(self.driver.submit(b"short", device, {"CPU": 1.0}))

    @precondition(lambda self: self.driver.starting)
    @rule()
    def worker_starts(self):
        self.driver.start_worker()

    @precondition(lambda self: self.going())
    @rule(data=st.data(), number=st.integers(1, 5))
    def finish(self, data, number):
        for _ in range(number):
            if self.going():
                self.driver.finish(self.pick(data, self.going()))

    @precondition(lambda self: self.going())
    @rule(data=st.data())
    def block(self, data):
        self.driver.block(self.pick(data, self.going()))

    @precondition(lambda self: len(self.busy()) > len(self.going()))
    @rule(data=st.data())
    def unblock(self, data):
        blocked = set(self.busy()) - set(self.going())
        self.driver.unblock(self.pick(data, blocked))

    @precondition(lambda self: any(w.recalled for w in self.driver.workers.values()))
    @rule(data=st.data(), begun=st.integers(0, 2))
    def answer_recall(self, data, begun):
        asked = [name for name, worker in self.driver.workers.items() if worker.recalled]
        name = self.pick(data, asked)
        # A task that is blocked, or goes on after it was, has begun.
        worker = self.driver.workers[name]
        least = 1 if worker.blocked or worker.went_on else 0
        self.driver.give_back(name, max(begun, least))

    @precondition(lambda self: self.driver.workers)
    @rule(data=st.data())
    def lose_worker(self, data):
        self.driver.lose_worker(self.pick(data, self.driver.workers))

    @precondition(lambda self: self.driver.waiting)
    @rule(data=st.data())
    def cancel(self, data):
        task = self.pick(data, self.driver.waiting)
        del self.driver.waiting[task]
        self.cancelled.add(task)
        self.driver.tell(Cancelled(task))

    @rule(after_s=st.sampled_from((0.0, 0.001, 0.006, 0.1, 2.0)))
    def tick(self, after_s):
        self.driver.tick(after_s)

    @rule(data=st.data(), demand=st.sampled_from(DEMANDS), pinned=st.booleans())
    def submit_actor(self, data, demand, pinned):
        actor = f"a{next(self.driver.names)}"
        where = self.device(data) if pinned else None
        event = ActorSubmitted(actor, self.device(data), demand, where)
        self.driver.actors_waiting[actor] = event
        self.driver.tell(event)

    @precondition(lambda self: self.driver.actors or self.driver.actors_waiting)
    @rule(data=st.data())
    def end_actor(self, data):
        driver = self.driver
        driver.end_actor(self.pick(data, [*driver.actors, *driver.actors_waiting]))

    @precondition(lambda self: self.driver.actors)
    @rule(data=st.data())
    def block_or_unblock_actor(self, data):
        driver = self.driver
        actor = self.pick(data, driver.actors)
        driver.once_blocked_actors.add(actor)
        if actor in driver.blocked_actors:
            driver.blocked_actors.remove(actor)
            driver.tell(Unblocked(actor))
        else:
            driver.blocked_actors.add(actor)
            driver.tell(Blocked(actor))

    @invariant()
    def resources_are_not_used_twice(self):
        if hasattr(self, "driver"):
            self.driver.check_resources()

    def teardown(self):
        if not hasattr(self, "driver"):
            return
        driver = self.driver
        driver.settle()
        assert driver.done == self.submitted - self.cancelled - driver.refused
        assert not driver.waiting
        assert not driver.given
        assert not driver.actors_waiting
        for device, there in state(driver.scheduler).items():
            assert there["free"] == driver.devices[device], "something was not given back"
            assert (there["queued"], there["running"], there["ahead"]) == (0, 0, 0)
        for local in driver.scheduler._locals.values():
            assert local.resources.lent_cpu == 0
            assert not any(local.resources.fixed.values())
        assert not driver.scheduler._tasks
        assert not driver.scheduler._actors
        assert set(driver.scheduler._workers) == set(driver.workers)


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = SETTINGS


@st.composite
def forests(draw):
    """Parents of tasks, as a list: tasks[i] is submitted by tasks[parents[i]], or by the driver."""
    deep = draw(st.booleans())
    number = draw(st.integers(1, 60))
    return [
        draw(st.integers(max(-1, i - 2), i - 1)) if deep else draw(st.integers(-1, i - 1))
        for i in range(number)
    ]


@SETTINGS
@given(
    parents=forests(),
    devices=st.sampled_from(
        ({0: {"CPU": 1.0}}, {0: {"CPU": 2.0}}, {0: {"CPU": 1.0}, 1: {"CPU": 1.0}})
    ),
    demands=st.lists(st.sampled_from(({"CPU": 1.0}, {"CPU": 1.0}, {}, {"CPU": 0.4})), min_size=1),
    actors=st.sets(st.integers(0, 60), max_size=3),
    draw=st.randoms(use_true_random=False),
)
def test_tasks_nested_deeper_than_there_are_workers_never_get_stuck(
    parents, devices, demands, actors, draw
):
    """A task submits its children one after the other, and waits for each, or all at once."""
    if actors:  # they may keep all there is: then only what a parent lends can run its children
        demands = [{"CPU": 1.0}]
    driver = FakeDriver(devices)
    children = {i: [] for i in range(-1, len(parents))}
    for child, parent in enumerate(parents):
        children[parent].append(child)
    node = {}  # task: its place in the forest
    rest = {}  # task: children it has not submitted
    awaited = {}  # task: children it waits for
    started = set()

    def submit(place, device):
        task = driver.submit(b"long", device, demands[place % len(demands)])
        node[task] = place
        return task

    for root in children[-1]:
        submit(root, 0)
    for step in range(10_000):
        if step in actors:
            actor = f"a{step}"
            event = driver.actors_waiting[actor] = ActorSubmitted(actor, 0, {"CPU": 1.0})
            driver.tell(event)
        moves = [(driver.start_worker, ())] if driver.starting else []
        for name, worker in driver.workers.items():
            if worker.recalled:
                moves.append((driver.give_back, (name,)))
            if worker.tasks:
                task = worker.tasks[0]
                if not worker.blocked or awaited[task] <= driver.done:
                    moves.append((None, (name,)))
        if not moves:
            before = len(driver.given), len(driver.starting)
            driver.tick(0.1)
            recalled = any(worker.recalled for worker in driver.workers.values())
            if (len(driver.given), len(driver.starting)) == before and not recalled:
                break
            continue
        move, arguments = draw.choice(moves)
        if move is not None:
            move(*arguments)
            continue
        (name,) = arguments
        worker = driver.workers[name]
        task = worker.tasks[0]
        started.add(task)
        if worker.blocked:
            driver.unblock(name)
        left = rest.setdefault(task, list(children[node[task]]))
        if left:
            now = left[:1] if draw.random() < 0.5 else left[:]
            del left[: len(now)]
            awaited[task] = {submit(child, worker.device) for child in now}
            driver.block(name)
        else:
            driver.finish(name)
        driver.check_resources()
    assert started <= driver.done, "a task waits for a child that is never run"
    if not driver.actors and not driver.actors_waiting:
        assert len(driver.done) == len(parents)
