"""The ring against plain queues: any order of calls, and either end killed at any access."""

import collections

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from gmi_drl.comm.errors import LinkEnded
from gmi_drl.comm.shm import liveness
from gmi_drl.comm.transports import StreamSpec, create_link, ring_ends

STREAMS = [StreamSpec(40, 2), StreamSpec(8, 3)]


@pytest.fixture(autouse=True)
def anew(monkeypatch):
    """The process at an end is always taken to be gone."""
    monkeypatch.setattr(liveness, "is_alive", lambda pid, started: False)


class Queues(RuleBasedStateMachine):
    """Both ends of a ring in one process, beside what it must do."""

    def __init__(self):
        super().__init__()
        self.sent = [0, 0]
        self.queues = [collections.deque(), collections.deque()]  # (number, sequence, bytes)
        self.reserved = []
        self.held = []  # (packet, what it must be)
        self.incarnation = 0
        self.ended = False

    @initialize()
    def open(self):
        self.link = create_link("gmi 0", "gmi 1")
        self.sender = self.link.sender(b"model", STREAMS)
        self.receiver = self.link.receiver()

    def room(self, stream):
        taken = [packet for packet, _ in self.held if packet.header.stream == stream]
        mine = [slot for slot in self.reserved if slot.stream == stream]
        return STREAMS[stream].slots - len(self.queues[stream]) - len(taken) - len(mine)

    @precondition(lambda self: not self.ended)
    @rule(stream=st.integers(0, 1))
    def reserve(self, stream):
        room = self.room(stream)
        slot = self.sender.try_reserve(stream)
        assert (slot is not None) == (room > 0)
        if slot is not None:
            self.reserved.append(slot)

    @precondition(lambda self: self.reserved and not self.ended)
    @rule(which=st.integers(0, 9), data=st.binary(max_size=8), sequence=st.integers(0, 2**60))
    def send(self, which, data, sequence):
        slot = self.reserved.pop(which % len(self.reserved))
        for index, byte in enumerate(data):
            slot.memory[index] = byte
        self.sender.send(slot, len(data), sequence=sequence, step=-5, policy_version=3)
        stream = slot.stream
        what = (stream, self.incarnation, self.sent[stream], sequence, -5, 3, len(data))
        self.queues[stream].append((what, list(data)))
        self.sent[stream] += 1

    @rule()
    def poll(self):
        if self.ended and not any(self.queues):
            with pytest.raises(LinkEnded):
                self.receiver.poll()
            return
        assert self.receiver.ready() == any(self.queues)
        packet = self.receiver.poll()
        assert (packet is not None) == any(self.queues)
        if packet is not None:
            expected = self.queues[packet.header.stream].popleft()
            assert (packet.header, packet.memory.tolist()) == expected
            self.held.append((packet, expected))

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 9))
    def release(self, which):
        packet, expected = self.held.pop(which % len(self.held))
        assert packet.memory.tolist() == expected[1]  # nobody wrote there meanwhile
        self.receiver.release(packet)

    @precondition(lambda self: not self.ended)
    @rule(stream=st.integers(0, 1))
    def count(self, stream):
        taken = [packet for packet, _ in self.held if packet.header.stream == stream]
        assert self.sender.under_way(stream) == len(self.queues[stream]) + len(taken)

    @precondition(lambda self: not self.ended)
    @rule()
    def replace_the_sender(self):
        self.reserved.clear()
        self.sender = self.link.sender(b"model", STREAMS)
        self.incarnation += 1
        assert self.sender.incarnation == self.incarnation

    @rule()
    def replace_the_receiver(self):
        for packet, expected in self.held:
            self.queues[packet.header.stream].append(expected)
        self.held.clear()
        for stream in range(2):
            self.queues[stream] = collections.deque(
                sorted(self.queues[stream], key=lambda packet: packet[0][2])
            )
        self.receiver = self.link.receiver()
        assert self.receiver.schema == b"model"

    @precondition(lambda self: not self.ended)
    @rule(chance=st.integers(0, 9))
    def close(self, chance):
        if chance == 0:
            self.sender.close()
            self.ended = True


Queues.TestCase.settings = settings(max_examples=60, stateful_step_count=40)


class TestQueues(Queues.TestCase):
    def setUp(self):
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(liveness, "is_alive", lambda pid, started: False)

    def tearDown(self):
        self.patch.undo()


# Killed at every access ----------------------------------------------------------------------


class Killed(BaseException):
    """What a process sees that is not there any more."""


class Words:
    """Words whose user is killed instead of its `left`-th access; nothing it does counts then."""

    def __init__(self, words, life):
        self.words, self.life = words, life

    def __getitem__(self, index):
        self._step()
        return self.words[index]

    def __setitem__(self, index, value):
        self._step()
        self.words[index] = value

    def _step(self):
        self.life.left -= 1
        if self.life.left < 0:
            raise Killed


class Life:
    """How many accesses an end has left."""

    def __init__(self):
        self.left = 1 << 60


class Ends:
    """One ring, whose ends are opened again when they are killed."""

    def __init__(self, monkeypatch):
        self.link = create_link("gmi 0", "gmi 1")
        self.sending, self.receiving = Life(), Life()
        self.turns = self.sending  # of the end that opens its words
        monkeypatch.setattr(
            ring_ends, "words_of", lambda memory: Words(memory.cast("Q"), self.turns)
        )
        self.sender = self.receiver = None
        self.surely, self.maybe = [], []  # sequences of finished and of interrupted sends
        self.released, self.doubtful, self.held = [], [], []
        self.kills = 0

    def send(self, sequence):
        self.turns = self.sending
        if self.sender is None:
            self.sender = self.link.sender(b"killed", STREAMS)
        slot = self.sender.try_reserve(sequence % 2)
        if slot is None:
            return
        slot.memory[:8] = sequence
        self.maybe.append(sequence)
        self.sender.send(slot, 8, sequence=sequence, step=0, policy_version=0)
        self.surely.append(self.maybe.pop())

    def receive(self, turn):
        self.turns = self.receiving
        if self.receiver is None:
            self.receiver = self.link.receiver()
            self.held = []
        packet = self.receiver.poll()
        if packet is not None:
            assert packet.memory.tolist() == [packet.header.sequence] * 8
            self.held.append(packet)
        if len(self.held) > 1 or turn % 3 == 0:
            for packet in reversed(self.held):  # out of order
                self.doubtful.append(packet.header.sequence)
                self.receiver.release(packet)
                self.released.append(self.doubtful.pop())
            self.held = []

    def turn(self, number):
        try:
            self.send(number)
        except Killed:
            self.sender, self.sending.left = None, 1 << 60
            self.kills += 1
        try:
            self.receive(number)
        except Killed:
            self.receiver, self.receiving.left = None, 1 << 60
            self.kills += 1

    def check(self):
        """After all is received: each once, in order, nothing lost."""
        self.sending.left = self.receiving.left = 1 << 60
        self.sender = self.sender or self.link.sender(b"killed", STREAMS)
        for turn in range(0, 60, 3):
            self.receive(turn)
        assert len(set(self.released)) == len(self.released), "given again after its release"
        got = {*self.released, *self.doubtful}
        assert set(self.surely) <= got <= {*self.surely, *self.maybe}
        assert all(self.sender.under_way(stream) == 0 for stream in range(2))


@pytest.mark.parametrize("end", ["sending", "receiving"])
def test_killed_at_each_access_of_opening_sending_and_receiving_nothing_is_lost(monkeypatch, end):
    kills = after = 0
    while True:
        ends = Ends(monkeypatch)
        getattr(ends, end).left = after
        for number in range(1, 25):
            ends.turn(number)
        ends.check()
        if not ends.kills:
            break
        kills += ends.kills
        after += 1
    assert kills > 100  # so many accesses there are


def test_killed_at_two_accesses_one_of_each_end(monkeypatch):
    kills = 0
    for sending in range(20, 150, 3):
        for receiving in range(20, 150, 5):
            ends = Ends(monkeypatch)
            ends.sending.left, ends.receiving.left = sending, receiving
            for number in range(1, 12):
                ends.turn(number)
                if ends.kills == 1 and number == 5:
                    ends.sending.left = sending % 7  # again, while it takes over
            ends.check()
            kills += ends.kills
    assert kills > 1000
