"""No segment is trained on twice or lost silently, whoever is killed and whenever."""

import random
import time

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

import bodies_experience as bodies
from bodies_experience import STEPS, last_of, numbers_in, step_of
from ends import Ends
from gmi_drl.comm.experience import Batcher
from gmi_drl.comm.shm import liveness
from gmi_drl.comm.transports import create_doorbell, create_link
from gmi_drl.runtime import Memfd
from waits import until

AGENTS = 2
LAG = 3


@pytest.fixture(autouse=True)
def anew(request, monkeypatch):
    """Simulated: the process at an end is always taken to be gone."""
    if "simulated" in request.node.nodeid:
        monkeypatch.setattr(liveness, "is_alive", lambda pid, started: False)


class Killed(BaseException):
    """The process ends here."""


class Mortal:
    """An end of a link whose process is killed instead of the n-th call of a method."""

    def __init__(self, end, method):
        self._end, self._method, self.left = end, method, None
        self.calls = 0

    def __getattr__(self, name):
        if name == self._method:
            if self.left == self.calls:
                raise Killed
            self.calls += 1
        return getattr(self._end, name)


class Simulated(RuleBasedStateMachine):
    """Agents and a trainer that are killed between any two packets, beside what must hold."""

    @initialize(grouping=st.sampled_from([*bodies.GROUPINGS]), segments=st.integers(1, 3))
    def open(self, grouping, segments):
        self.plan = bodies.schema(grouping, capacity=3)
        doorbell = create_doorbell()
        self.links = [create_link(f"gmi {i}", "gmi 9", doorbell=doorbell) for i in range(AGENTS)]
        self.segments = segments
        self.version = 0
        self.number = [0] * AGENTS
        self.step = [None] * AGENTS  # to be put; None between segments
        self.begun = [set() for _ in range(AGENTS)]  # of which something was sent
        self.whole = [{} for _ in range(AGENTS)]  # and the version of each
        self.agents, self.senders = [None] * AGENTS, [None] * AGENTS
        for which in range(AGENTS):
            self.start_agent(which)
        self.snapshot = ([], {})
        self.forgotten = [0] * AGENTS  # not trained on, and only a killed trainer had counted it
        self.start_trainer()

    def start_agent(self, which):
        spec, plan = self.links[which], self.plan
        sender = self.senders[which] = Mortal(spec.sender(plan.to_bytes(), plan.streams()), "send")
        self.agents[which] = bodies.dispatcher_on(sender, plan)
        self.step[which] = None

    def start_trainer(self):
        self.trained, marks = [list(self.snapshot[0]), self.snapshot[1]]
        self.receivers = [Mortal(link.receiver(), "release") for link in self.links]
        self.batcher = Batcher(dict(enumerate(self.receivers)), self.segments, LAG)
        self.batcher.resume(marks)

    @rule(which=st.integers(0, AGENTS - 1), steps=st.integers(1, 2 * STEPS), give_up=st.booleans())
    def collect(self, which, steps, give_up):
        if give_up and self.step[which] is not None:
            self.step[which] = None
            self.agents[which].begin(self.version)
        for _ in range(steps):
            self.advance(which)

    def advance(self, which):
        agent, sender = self.agents[which], self.senders[which]
        if self.step[which] is None:
            full = [spec.slots for spec in self.plan.streams()]
            segments = [sender.under_way(s) for s in range(len(full))]
            if any(n + full[s] // 3 > full[s] for s, n in enumerate(segments)):
                return  # it would wait for room
            self.number[which] += 1
            agent.begin(self.version)
            self.step[which] = 0
        number, t, calls = self.number[which], self.step[which], sender.calls
        try:
            if t < STEPS:
                agent.put(t, step_of(number, t))
                self.step[which] = t + 1
            else:
                segment = agent.end(last_of(number))
                self.whole[which][number] = segment.policy_version
                self.step[which] = None
        finally:
            if sender.calls > calls:
                self.begun[which].add(number)

    @rule(which=st.integers(0, AGENTS - 1), packets=st.integers(0, 5))
    def kill_agent(self, which, packets):
        """After some more packets of it, at most those of a segment."""
        self.senders[which].left = self.senders[which].calls + packets
        try:
            for _ in range(2 * STEPS):
                self.advance(which)
        except Killed:
            pass
        self.start_agent(which)

    @rule()
    def publish(self):
        self.version += 1

    def train(self):
        batch = self.batcher.next(self.version, stop=lambda: True)
        if batch is None:
            return None
        for segment, number in zip(batch.segments, numbers_in(batch), strict=True):
            assert self.version - segment.policy_version <= LAG
            self.trained.append((segment.gmi_id, number))
        return batch

    @rule()
    def train_and_keep(self):
        batch = self.train()
        if batch is not None:
            self.snapshot = (list(self.trained), self.batcher.trained(batch))
            self.batcher.done(batch)

    @rule(kept=st.booleans(), releases=st.integers(0, 5))
    def kill_trainer(self, kept, releases):
        """Before or after it has kept what it trained, or while it releases slots."""
        batch = self.train()
        if batch is not None and kept:
            self.snapshot = (list(self.trained), self.batcher.trained(batch))
            for receiver in self.receivers:
                receiver.left = receiver.calls + releases
            try:
                self.batcher.done(batch)
                self.snapshot = (self.snapshot[0], self.batcher.trained())
            except Killed:
                pass
        for which in range(AGENTS):
            counts = self.batcher.counts(which)
            kept = self.snapshot[1].get(which, (0,) * 6)
            self.forgotten[which] += counts.stale + counts.incomplete - kept[3] - kept[4]
        self.start_trainer()

    def teardown(self):
        if not hasattr(self, "batcher"):
            return
        for _ in range(3):  # and one more segment each, which shows what is missing before it
            for _ in range(6):
                self.train_and_keep()
            stuck = 0
            for which in range(AGENTS):
                last = self.number[which] + 1
                while self.step[which] is not None or self.number[which] < last:
                    before = self.number[which], self.step[which]
                    self.advance(which)
                    if (self.number[which], self.step[which]) == before:
                        stuck += 1  # no room
                        break
            assert stuck < AGENTS, "nobody can send, and there is no batch"
        for _ in range(6):
            self.train_and_keep()
        trained = self.trained
        assert len(set(trained)) == len(trained), "trained on twice"
        for which in range(AGENTS):
            whole, counts = self.whole[which], self.batcher.counts(which)
            mine = [number for agent, number in trained if agent == which]
            assert mine == sorted(mine)
            assert counts.trained == len(mine)
            # What was not trained on was too old, or is still here.
            young = [n for n, version in whole.items() if self.version - version <= LAG]
            assert len(set(young) - set(mine)) <= counts.under_way
            settled = counts.trained + counts.stale + counts.incomplete + counts.missing
            unseen = len(self.begun[which]) - settled - counts.under_way
            assert 0 <= unseen <= self.forgotten[which]


def test_simulated_ends_lose_nothing_and_train_on_nothing_twice():
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        Simulated,
        settings=settings(max_examples=150, stateful_step_count=25, database=None),
    )


def killed_at_random(kills, seed, grouping, victims=(*range(AGENTS), "trainer"), **where):
    chance = random.Random(seed)
    doorbell = create_doorbell()
    links = [
        create_link(f"gmi {i}", "gmi 9, GPU 1", doorbell=doorbell, **where) for i in range(AGENTS)
    ]
    ledger = Memfd.create("ledger", (bodies.ENDED + AGENTS * 100_000) * 8)
    words = ledger.map().cast("Q")
    state = Memfd.create("state", (8 + 2 * 200_000) * 8)
    kept = state.map().cast("q")
    half = (len(kept) - 8) // 2
    killed = dict.fromkeys([*range(AGENTS), "trainer"], 0)
    with Ends() as ends:

        def start(name):
            if name == "trainer":
                ends.start(name, bodies.trainer, links, state)
            else:
                ends.start(name, bodies.agent, links[name], grouping, ledger, name)

        for name in killed:
            start(name)
        for _ in range(kills):
            before = kept[8 + kept[0] * half]
            until(lambda before=before: kept[8 + kept[0] * half] > before, "another batch")
            name = chance.choice(victims)
            time.sleep(chance.random() * 0.02)  # killed at any moment
            ends.kill(name)
            killed[name] += 1
            start(name)
        before = [words[bodies.BEGUN + which] for which in range(AGENTS)]
        until(
            lambda: all(words[bodies.BEGUN + w] > before[w] + 2 for w in range(AGENTS)),
            "segments of the agents that came last",
        )
        words[bodies.STOP] = 1
        for name in killed:
            ends.join(name)
    start = 8 + kept[0] * half
    trained = [kept[start + 1 + i] for i in range(kept[start])]
    assert len(set(trained)) == len(trained), "trained on twice"
    for which in range(AGENTS):
        mine = [number - which * 100_000 for number in trained if number // 100_000 == which]
        begun = words[bodies.BEGUN + which]
        base = bodies.ENDED + which * 100_000
        whole = {number for number in range(1, begun + 1) if words[base + number]}
        at = start + half - 6 * (AGENTS - which)
        _, _, counted, stale, incomplete, missing = (kept[at + i] for i in range(6))
        under_way = kept[1 + which]
        assert mine == sorted(mine)
        assert (len(mine), stale, missing) == (counted, 0, 0)
        # Whole ones were trained on, up to those left over when all had closed.
        assert len(whole - set(mine)) <= under_way < 2
        # What was begun by an agent that was killed, and nothing else, may be missing.
        lost = begun - len(mine) - under_way
        assert 0 <= incomplete <= lost <= killed[which]
    return len(trained)


@pytest.mark.parametrize("grouping", ["mcc", "ucc"])
def test_real_processes_killed_at_random_moments_lose_nothing_and_train_on_nothing_twice(grouping):
    assert killed_at_random(6, 1, grouping) > 6


def test_over_sockets_a_trainer_killed_at_random_moments_loses_nothing_either(tmp_path):
    tmp_path.chmod(0o700)
    where = {"kind": "tcp", "directory": tmp_path}
    assert killed_at_random(2, 1, "mcc", victims=("trainer",), **where) > 2


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_many_kills_of_real_processes(seed):
    assert killed_at_random(40, seed, random.Random(seed).choice([*bodies.GROUPINGS])) > 40
