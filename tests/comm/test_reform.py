"""Groups whose processes are killed and replaced: the protocol in every order, and for real."""

import json
import os
import random
import threading
import time
from datetime import timedelta

import pytest

import bodies_comm
import bodies_recovery as bodies
from gmi_drl.comm import GroupClosed, GroupFinished, GroupReformed, PeerLeft, create_group
from gmi_drl.comm.group import barrier
from gmi_drl.comm.group.barrier import Barrier
from gmi_drl.comm.group.tags import EXCHANGE, make_tag
from gmi_drl.comm.shm import liveness
from ranks import Ranks, pipe

LONG = timedelta(seconds=50)


# Every access to shared memory in an order of our choosing -----------------------------------


class Killed(BaseException):
    """Ends a thread that plays a process: from here on it touches nothing."""


class Turns:
    """Lets one thread at a time make one access to shared memory; a seed says whose turn it is."""

    def __init__(self, seed):
        self.chance = random.Random(seed)
        self._changed = threading.Condition()
        self._waiting = {}  # name -> whether it may go on
        self._alive = 0
        self._killed = set()

    def start(self, name, body):
        self._alive += 1
        thread = threading.Thread(target=self._run, args=(name, body), name=name, daemon=True)
        thread.start()
        return thread

    def _run(self, name, body):
        try:
            body()
        except Killed:
            pass
        finally:
            with self._changed:
                self._alive -= 1
                self._changed.notify_all()

    def take(self):
        """Called before each access: waits for this thread's turn."""
        name = threading.current_thread().name
        with self._changed:
            if name in self._killed:
                raise Killed
            self._waiting[name] = False
            self._changed.notify_all()
            while not self._waiting[name]:
                self._changed.wait()
            del self._waiting[name]
            if name in self._killed:
                raise Killed

    def step(self):
        """Gives one thread its turn; False when all have ended."""
        with self._changed:
            while len(self._waiting) < self._alive:
                self._changed.wait()
            if not self._waiting:
                return False
            self._go_on(self.chance.choice(sorted(self._waiting)))
            return True

    def kill(self, name):
        """The thread makes no access any more, from the one on that it waits for."""
        with self._changed:
            while len(self._waiting) < self._alive:
                self._changed.wait()
            self._killed.add(name)
            if name in self._waiting:
                self._go_on(name)

    def _go_on(self, name):
        self._waiting[name] = True
        self._changed.notify_all()
        while self._waiting.get(name):
            self._changed.wait()


class Words:
    """The words of a header, each access of which is a turn."""

    def __init__(self, words, turns):
        self._words, self._turns = words, turns

    def __getitem__(self, index):
        self._turns.take()
        return self._words[index]

    def __setitem__(self, index, value):
        self._turns.take()
        self._words[index] = value


class Header(bytearray):
    """Memory that gives `Words`."""

    def __init__(self, size, turns):
        super().__init__(barrier.header_bytes(size))
        self.turns = turns

    def cast(self, _):
        return Words(memoryview(self).cast("Q"), self.turns)


@pytest.fixture
def in_threads(monkeypatch):
    """Processes are threads here: no sleeping in the kernel, and who was killed is gone."""

    class NoFutex:
        def __init__(self, memory, offset):
            pass

        def wait(self, value, timeout_s):
            pass

        def wake(self):
            pass

    monkeypatch.setattr(barrier, "Futex", NoFutex)
    monkeypatch.setattr(liveness, "is_alive", lambda pid, started: False)


def play(seed, size, meetings, kills):
    """`size` ranks exchange numbers that must rise in step; some are killed and come back."""
    turns = Turns(seed)
    memory = Header(size, turns)
    members = [f"gmi {rank}" for rank in range(size)]
    kept = [0] * size  # what each rank has on its disk
    wrong, outcomes = [], {}

    def run(rank):
        end = Barrier(memory, rank, members, LONG)
        generations = []
        while True:
            try:
                end.reform()
                generations.append(end.generation)
                end.meet(make_tag(EXCHANGE, count=0), kept[rank])
                number = max(end.values())
                while number < meetings:
                    if not end.meet(make_tag(EXCHANGE, count=number), 1000 * number + rank):
                        wrong.append((rank, number, end.tags()))
                    if end.values() != [1000 * number + r for r in range(size)]:
                        wrong.append((rank, number, end.values()))
                    number += 1
                    kept[rank] = number
                end.finish(json.dumps(number))
            except GroupReformed:
                continue
            except GroupFinished as done:
                number = json.loads(done.outcome)
            if generations != sorted(set(generations)):
                wrong.append(generations)
            outcomes[rank] = number
            return

    threads, lives = {}, dict.fromkeys(range(size), 0)
    for rank in range(size):
        threads[rank] = turns.start(f"{rank}.0", lambda rank=rank: run(rank))
    steps = 0
    while turns.step():
        steps += 1
        if kills and turns.chance.random() < 0.01:
            rank = turns.chance.randrange(size)
            name = f"{rank}.{lives[rank]}"
            if not threads[rank].is_alive():
                continue
            kills -= 1
            turns.kill(name)
            threads[rank].join(20)
            if rank in outcomes:
                continue
            lives[rank] += 1
            threads[rank] = turns.start(f"{rank}.{lives[rank]}", lambda rank=rank: run(rank))
        assert steps < 200_000, "the ranks do not come to an end"
    for thread in threads.values():
        thread.join(20)
    return wrong, outcomes, sum(lives.values())


def check_play(seed):
    chance = random.Random(seed)
    size, meetings = chance.choice([2, 2, 3]), chance.choice([3, 6])
    wrong, outcomes, _ = play(seed, size, meetings, kills=chance.randrange(5))
    assert not wrong, (seed, wrong)
    assert outcomes == dict.fromkeys(range(size), meetings), seed


@pytest.mark.parametrize("seed", range(8))
def test_in_any_order_of_accesses_ranks_that_are_killed_come_back_in_step(in_threads, seed):
    check_play(seed)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_in_hundreds_of_orders_of_accesses_ranks_that_are_killed_come_back_in_step(in_threads):
    for seed in range(1000, 1200):
        check_play(seed)


def test_the_orders_do_kill_and_replace_ranks(in_threads):
    assert sum(play(seed, 2, 6, kills=3)[2] for seed in range(4)) >= 4


# For real ------------------------------------------------------------------------------------


def check_counting(tmp_path, size, kills, seed, **group):
    """Real processes, killed at random moments and started again at once."""
    chance = random.Random(seed)
    with Ranks(bodies.count_together, size, str(tmp_path), directory=tmp_path, **group) as ranks:
        for _ in range(kills):
            time.sleep(chance.uniform(0.0, 0.1))  # at any moment: while it joins, reforms or counts
            rank = chance.randrange(size)
            ranks.kill(rank)
            ranks.restart(rank)
        until = kept(tmp_path)
        while kept(tmp_path) < until + 20:
            assert all(process.exitcode is None for process in ranks.processes)
            time.sleep(0.01)
        (tmp_path / "enough").touch()
        outcomes = ranks.outcomes()
    (number, wrong), *others = outcomes
    assert wrong == 0
    assert number >= until + 20
    assert others == [(number, 0)] * (size - 1)


def kept(folder):
    """The highest number that any rank has counted to."""
    files = [folder / str(rank) for rank in range(4)]
    return max(int(file.read_text()) if file.exists() else 0 for file in files)


def test_real_processes_killed_at_random_moments_come_back_in_step(tmp_path):
    check_counting(tmp_path, 2, kills=6, seed=1)


RINGS = [
    {"strategy": "mrr", "devices": (0, 0, 1, 1)},
    {"strategy": "mrr", "devices": (0, 1, 2, 3)},
    {"strategy": "har", "devices": (0, 0, 0, 1)},
    {"strategy": "har", "devices": (0, 0, 1, 2), "wire": "bf16"},
]


@pytest.mark.parametrize("group", [RINGS[0], RINGS[3]], ids=str)
def test_rings_whose_ranks_are_killed_at_random_moments_are_built_anew(tmp_path, group):
    check_counting(tmp_path, 4, kills=4, seed=3, **group)
    assert not list(tmp_path.glob("rings-*"))


@pytest.mark.slow
@pytest.mark.parametrize("group", RINGS, ids=str)
def test_rings_outlive_thirty_kills(tmp_path, group):
    check_counting(tmp_path, 4, kills=30, seed=5, **group)
    assert not list(tmp_path.glob("rings-*"))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_hundred_kills_of_real_processes(tmp_path):
    check_counting(tmp_path, 3, kills=100, seed=3)


def test_survivors_hear_at_once_that_a_rank_was_replaced(tmp_path):
    gate, opener = pipe()
    with Ranks(
        bodies_comm.meet_after_gate, 2, args_of=lambda rank: (gate if rank == 1 else None,)
    ) as ranks:
        ranks.until_joined(1)  # else the one that is started next would be the first
        ranks.until_asleep(0, waiting_for=1)
        ranks.kill(1)
        ranks.restart(1)  # it does not wait: joining alone tells the others
        first = ranks.outcome(0)
    assert isinstance(first, GroupReformed)
    assert first.generation == 1
    assert "Call group.reform()" in str(first)
    gate.close()
    opener.close()


def test_a_rank_that_left_for_good_is_not_waited_for_after_a_restart(in_threads):
    memory, members = Header(2, Turns(0)), ["gmi 0", "gmi 1"]
    memory.turns.take = lambda: None
    first = Barrier(memory, 0, members, LONG)
    Barrier(memory, 1, members, LONG)
    first.leave(GroupClosed("no more"))
    again = Barrier(memory, 1, members, LONG)
    assert again.joined == 1
    with pytest.raises(GroupReformed):
        again.meet(make_tag(EXCHANGE))
    with pytest.raises(PeerLeft, match="no more"):
        again.reform()


def test_a_rank_that_was_killed_after_it_finished_finds_the_outcome(in_threads):
    memory, members = Header(2, Turns(0)), ["gmi 0", "gmi 1"]
    memory.turns.take = lambda: None
    ends = [Barrier(memory, rank, members, LONG) for rank in range(2)]
    ends[0].finish('{"return": 7}')
    for rank in range(2):  # its own record, or the other's
        again = Barrier(memory, rank, members, LONG)
        with pytest.raises(GroupFinished, match="return") as error:
            again.reform()
        assert json.loads(error.value.outcome) == {"return": 7}
    with pytest.raises(ValueError, match="at most 568"):
        Barrier(Header(2, memory.turns), 0, members, LONG).finish("x" * 600)


def test_a_rank_that_gave_up_does_not_come_back(in_threads):
    memory, members = Header(2, Turns(0)), ["gmi 0", "gmi 1"]
    memory.turns.take = lambda: None
    Barrier(memory, 0, members, LONG).leave(GroupClosed("out of memory"))
    with pytest.raises(GroupClosed, match=r"had left the group before .*out of memory"):
        Barrier(memory, 0, members, LONG)


def test_a_bucket_of_an_older_generation_is_refused():
    spec = create_group(["gmi 0", "gmi 1"])
    with Ranks(bodies_comm.exchange_twice, 1, spec=spec, first=1) as ranks:
        group = spec.join(0)
        assert group.exchange(1) == [1, 1]
        bucket = group.bucket("gradient", 10)
        ranks.kill(0)
        ranks.restart(0)
        with pytest.raises(GroupReformed):
            bucket.reduce()
        group.reform()
        with pytest.raises(GroupReformed, match="a bucket of generation 0"):
            bucket.reduce()
        assert group.exchange(1) == [1, 1]
        assert group.bucket("gradient", 10).buffer.sum() == 0
    group.close()


def test_a_process_is_known_by_its_number_and_its_beginning():
    mine = liveness.start_ticks(os.getpid())
    assert liveness.is_alive(os.getpid(), mine)
    assert not liveness.is_alive(os.getpid(), mine + 1)  # a later process with the same number
    assert not liveness.is_alive(2**22 + 1, mine)
