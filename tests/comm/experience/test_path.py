"""Dispatcher to batcher over the ring: what is put is what is trained on, and nobody runs ahead."""

import threading
from datetime import timedelta

import pytest
import torch

import bodies_experience as bodies
from bodies_experience import CHANNELS, ENVS, GROUPINGS, STEPS, numbers_in, send
from gmi_drl.comm.errors import (
    CorruptPacket,
    ExperienceError,
    LinkEnded,
    LinkTimeout,
    SchemaError,
    WaitStopped,
)
from gmi_drl.comm.experience import (
    Batcher,
    Channel,
    Compressor,
    Dispatcher,
    LinkCost,
    Migrator,
    Route,
    Schema,
    choose_grouping,
)
from gmi_drl.comm.transports import create_doorbell, create_link
from waits import until

SHORT = timedelta(milliseconds=60)


class Path:
    """Agents 0, 1, ... and one trainer, gmi 9, in this process."""

    def __init__(self, plans, batch_segments=1, max_policy_lag=None, **options):
        doorbell = create_doorbell()
        self.links = [
            create_link(f"gmi {i}", "gmi 9, GPU 1", doorbell=doorbell) for i in range(len(plans))
        ]
        self.senders = [
            link.sender(plan.to_bytes(), plan.streams(), SHORT)
            for link, plan in zip(self.links, plans, strict=True)
        ]
        self.agents = [
            bodies.dispatcher_on(sender, plan, timeout=SHORT, **options)
            for sender, plan in zip(self.senders, plans, strict=True)
        ]
        self.receivers = [link.receiver(SHORT) for link in self.links]
        receivers = dict(enumerate(self.receivers))
        self.batcher = Batcher(receivers, batch_segments, max_policy_lag, SHORT)


@pytest.mark.parametrize("segments", [1, 3])
@pytest.mark.parametrize("lz4", [(), ("image",)])
@pytest.mark.parametrize("grouping", [*GROUPINGS, "chosen"])
def test_what_is_put_is_what_is_trained_on(grouping, lz4, segments):
    if grouping == "chosen":
        dear = LinkCost(((100, 1e-5), (200, 2e-5), (210, 1.0)))  # several streams, of some rows
        plan = Schema(
            CHANNELS, choose_grouping(CHANNELS, STEPS, ENVS, dear), STEPS, ENVS, lz4=frozenset(lz4)
        )
        assert len(plan.streams()) > 1
    else:
        plan = bodies.schema(grouping, lz4=lz4)
    path = Path([plan], segments)
    number = 0
    for _ in range(4):
        numbers = range(number, number + segments)
        for number in numbers:
            send(path.agents[0], number, version=number)
        batch = path.batcher.next(0)
        assert numbers_in(batch) == list(numbers) == list(batch.versions)
        assert batch.columns["observation"].shape == (STEPS, segments * ENVS, 5)
        assert batch.per_segment["last"].shape == (segments, ENVS, 5)
        path.batcher.done(batch)
        number += 1
    sent, got = path.agents[0].counts(), path.batcher.counts()
    assert sent.sent == got.received == got.trained == 4 * segments
    assert (sent.packets, sent.nbytes) == (got.packets, got.nbytes)
    assert got.under_way == 0


@pytest.mark.parametrize("lz4", [(), ("image",)])
def test_the_graph_of_what_is_put_is_not_kept(lz4):
    path = Path([bodies.schema("joined", lz4=lz4)])
    agent, weight = path.agents[0], torch.ones(1, requires_grad=True)
    agent.begin(0)
    for t in range(STEPS):
        step = bodies.step_of(1, t)
        agent.put(t, step | {"reward": step["reward"] * weight})
    agent.end({"last": bodies.last_of(1)["last"] * weight})
    assert numbers_in(path.batcher.next(0)) == [1]
    assert not path.senders[0].reserve(0).memory.requires_grad


def test_one_segment_is_a_batch_without_a_copy_and_buffers_are_used_again():
    path = Path([bodies.schema("joined")])
    send(path.agents[0], 1)
    batch = path.batcher.next(0)
    slot = batch._parts[0].packets[0].memory
    assert batch.columns["observation"].data_ptr() == slot.data_ptr()
    path.batcher.done(batch)
    with pytest.raises(ExperienceError, match="done before"):
        path.batcher.done(batch)
    path = Path([bodies.schema("mcc")], 2)
    places = set()
    for number in range(3):
        send(path.agents[0], number)
        send(path.agents[0], number)
        batch = path.batcher.next(0)
        places.add(batch.columns["observation"].data_ptr())
        path.batcher.done(batch)
    assert len(places) == 1


def test_slices_are_all_environments_once_in_order():
    path = Path([bodies.schema()], 3)
    for number in range(3):
        send(path.agents[0], number)
    batch = path.batcher.next(0)
    for n in (1, 2, 9):
        slices = list(batch.slices(n))
        assert len(slices) == n
        assert {part.stop - part.start for part in slices} <= {9 // n, 9 // n + 1}
        for name, column in batch.columns.items():
            assert torch.equal(torch.cat([part.columns[name] for part in slices], 1), column)
    with pytest.raises(ValueError, match="10 slices of a batch of 9 environments"):
        next(batch.slices(10))


def test_agents_may_have_different_numbers_of_environments():
    channels = CHANNELS[:3]
    plans = [Schema(channels, bodies.mcc(channels, STEPS), STEPS, n) for n in (2, 5)]
    path = Path(plans, 2)
    for agent, plan in zip(path.agents, plans, strict=True):
        n = plan.num_env
        agent.begin(0)
        for t in range(STEPS):
            step = {"observation": torch.full((n, 5), float(n)), "reward": torch.zeros(n)}
            agent.put(t, step | {"image": torch.zeros(n, 2, 2, dtype=torch.uint8)})
        agent.end()
    batch = path.batcher.next(0)
    assert batch.num_env == (2, 5)
    assert batch.columns["observation"][0, :, 0].tolist() == [2.0] * 2 + [5.0] * 5


def test_a_stalled_trainer_stalls_its_agent_which_names_it_and_goes_on_when_there_is_room():
    path = Path([bodies.schema(capacity=3)])
    for number in range(3):
        send(path.agents[0], number)
    with pytest.raises(LinkTimeout, match=r"no room .* within 0.06 s: gmi 9, GPU 1 released"):
        send(path.agents[0], 3)
    for number in range(3):
        batch = path.batcher.next(0)
        assert numbers_in(batch) == [number]
        path.batcher.done(batch)
    send(path.agents[0], 4)
    assert numbers_in(path.batcher.next(0)) == [4]
    counts = path.agents[0].counts()
    assert (counts.sent, counts.lost, counts.unsent) == (4, 0, 1)
    assert counts.waited_s > 0


def test_a_wait_for_room_ends_when_told_to_stop_and_when_the_trainer_has_closed():
    path = Path([bodies.schema(capacity=2)])
    stop = threading.Event()
    agent = bodies.dispatcher_on(path.senders[0], bodies.schema(capacity=2), stop=stop.is_set)
    for number in range(2):
        send(agent, number)
    stop.set()
    with pytest.raises(WaitStopped, match="gmi 9, GPU 1: stopped"):
        send(agent, 2)
    path.receivers[0].close()
    with pytest.raises(LinkEnded):
        send(agent, 3)
    with pytest.raises(LinkEnded, match="all trainers have closed their links: gmi 9, GPU 1"):
        send(agent, 3)


def test_a_segment_that_is_given_up_is_counted_at_both_ends():
    path = Path([bodies.schema("ucc")])
    agent = path.agents[0]
    agent.begin(0)
    agent.begin(0)  # nothing of it was sent
    agent.put(0, bodies.step_of(5, 0))
    send(agent, 6)  # of 5, one packet was sent
    assert numbers_in(path.batcher.next(0)) == [6]
    counts = agent.counts()
    assert (counts.sent, counts.lost, counts.unsent) == (1, 1, 1)
    got = path.batcher.counts()
    assert (got.received, got.incomplete, got.under_way) == (1, 1, 1)


def test_what_is_too_old_is_released_counted_and_reported():
    path = Path([bodies.schema(capacity=4)], max_policy_lag=2)
    for version in (0, 3, 4):
        send(path.agents[0], version, version)
    batch = path.batcher.next(5)
    assert numbers_in(batch) == [3]
    assert [segment.policy_version for segment in batch.stale] == [0]
    path.batcher.done(batch)
    assert path.batcher.next(7, stop=lambda: True) is None  # 4 has become too old as well
    counts = path.batcher.counts()
    assert (counts.received, counts.trained, counts.stale, counts.under_way) == (3, 1, 2, 0)


def test_a_batch_that_does_not_come_names_who_is_late_and_ends_when_all_have_closed():
    path = Path([bodies.schema(), bodies.schema()], 2)
    send(path.agents[0], 1)
    with pytest.raises(LinkTimeout, match=r"1 of 2 segments within 0.06 s: nothing whole .* gmi 1"):
        path.batcher.next(0)
    for sender in path.senders:
        sender.close()
    assert path.batcher.next(0) is None
    assert path.batcher.counts().under_way == 1


def test_a_batch_must_fit_into_the_links():
    path = Path([bodies.schema(capacity=3)], 3)
    with pytest.raises(SchemaError, match=r"3 segments a batch, but the 1 links .* hold 2"):
        path.batcher.next(0)


def test_agents_that_do_not_send_the_same_are_both_named():
    path = Path([bodies.schema(), Schema(CHANNELS[:3], bodies.mcc(CHANNELS[:3], 4), 4, 3)])
    with pytest.raises(
        SchemaError, match=r"channel 'last' is .* from gmi 0 and missing from gmi 1"
    ):
        path.batcher.next(0)


def test_a_damaged_packet_is_refused_by_its_sender_s_name_and_the_next_call_goes_on():
    path = Path([bodies.schema("joined")])
    for number in range(2):
        send(path.agents[0], number)
    path.senders[0]._streams[0].headers[0][20] ^= 1
    with pytest.raises(CorruptPacket, match="from gmi 0 to"):
        path.batcher.next(0)
    assert numbers_in(path.batcher.next(0)) == [1]


def test_images_shrink_by_lz4_and_a_damaged_block_is_refused():
    channels = (Channel("image", (64, 64), "uint8"),)
    plan = Schema(channels, bodies.joined(channels, 2), 2, 3, lz4=frozenset({"image"}))
    path = Path([plan])
    agent = path.agents[0]
    for number in range(2):
        agent.begin(0)
        for t in range(2):
            agent.put(t, {"image": torch.full((3, 64, 64), number, dtype=torch.uint8)})
        agent.end()
    assert agent.counts().nbytes * 50 < 2 * 2 * 3 * 64 * 64
    for slot in path.senders[0]._streams[0].busy[:1]:
        slot.memory[8:20] = 255
    with pytest.raises(CorruptPacket, match="gmi 0: a packet was refused, its header's payload"):
        path.batcher.next(0)
    assert path.batcher.next(0).columns["image"].unique().tolist() == [1]
    counts = path.batcher.counts()
    assert (counts.incomplete, counts.under_way) == (1, 1)


@pytest.mark.parametrize(
    ("t", "change", "message"),
    [
        (1, {}, "put of step 1: step 0 is next"),
        (0, {"reward": torch.zeros(1)}, r"'reward': torch.float32 \[1\] was put"),
        (0, {"reward": torch.zeros(3).double()}, r"torch.float64 \[3\] was put"),
        (0, {"value": torch.zeros(3)}, "those that have a tensor a step are observation, image"),
    ],
)
def test_what_does_not_fit_the_schema_is_refused(t, change, message):
    path = Path([bodies.schema()])
    with pytest.raises(ExperienceError, match="begin"):
        path.agents[0].put(0, bodies.step_of(0, 0))
    path.agents[0].begin(0)
    with pytest.raises(ExperienceError, match=message):
        path.agents[0].put(t, bodies.step_of(0, t) | change)


class Trainers:
    """One agent and trainers 9, 10, ..., those in `near` on its device."""

    def __init__(self, count, near=(), grouping="mcc"):
        plan = bodies.schema(grouping, capacity=2)
        links = [create_link("gmi 0", f"gmi {9 + i}") for i in range(count)]
        routes = [
            Route(link.sender(plan.to_bytes(), plan.streams(), SHORT), 9 + i, 9 + i in near)
            for i, link in enumerate(links)
        ]
        compressor = Compressor(plan, Migrator(routes, timeout=SHORT))
        self.agent = Dispatcher(plan, compressor)
        self.receivers = [link.receiver() for link in links]
        self.batchers = [Batcher({0: r}, 1, None, SHORT) for r in self.receivers]

    def send(self, number):
        return send(self.agent, number).gmi_id

    def train(self, which):
        batch = self.batchers[which].next(0)
        self.batchers[which].done(batch)


def test_segments_go_whole_to_the_least_loaded_trainer():
    some = Trainers(3)
    assert [some.send(n) for n in range(3)] == [9, 10, 11]
    some.train(1)
    assert some.send(3) == 10  # has the least under way
    some.receivers[0].close()
    assert {some.send(n) for n in (4, 5)} == {10, 11}  # the first one has left
    with pytest.raises(LinkTimeout, match="gmi 10, gmi 11 released nothing"):
        some.send(6)
    some.train(2)
    assert some.send(7) == 11


def test_a_slot_of_a_segment_that_was_given_up_is_used_when_the_other_trainer_has_left():
    some = Trainers(2, grouping="ucc")
    migrator = some.agent._compressor.migrator
    migrator.send(migrator.reserve(0), 1, 0, 0)
    kept = migrator.reserve(0)
    assert migrator.abandon()
    some.receivers[1].close()  # of the trainer with less under way
    assert migrator.reserve(0) is kept


def test_trainers_of_the_same_device_are_preferred():
    some = Trainers(3, near={10, 11})
    assert [some.send(n) for n in range(4)] == [10, 11, 10, 11]


def test_an_agent_that_waits_is_woken_by_a_release():
    path = Path([bodies.schema(capacity=2)])
    agent = bodies.dispatcher_on(path.senders[0], bodies.schema(capacity=2), timeout=bodies.LONG)
    for number in range(2):
        send(agent, number)
    thread = threading.Thread(target=send, args=(agent, 2), daemon=True)
    thread.start()
    try:
        path.batcher.done(path.batcher.next(0))
    finally:
        thread.join(30)
    until(lambda: agent.counts().sent == 3, "the third segment")
