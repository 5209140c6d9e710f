"""What agents hand over, the orders that they follow, and what trainers agree on about it."""

import itertools
import threading
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import pytest
import torch
from gymnasium import spaces

from batches import algorithm_of, batch_for, collector_of
from gmi_drl.comm import solo_group
from gmi_drl.comm.errors import LinkClosed, LinkTimeout
from gmi_drl.comm.shm import liveness
from gmi_drl.comm.transports import create_link
from gmi_drl.placement import Device, PPOConfig, Topology, tdg_ex
from gmi_drl.roles.evaluators.orders import Order
from gmi_drl.roles.evaluators.rollout_coordinator import RolloutCoordinator
from gmi_drl.roles.evaluators.rollout_worker import RolloutWorker, first_order
from gmi_drl.roles.policies.actor_critic import ActorCritic
from gmi_drl.roles.policies.distributions import Normal
from gmi_drl.roles.policies.normalize import Normalizers, RunningNormalizer
from gmi_drl.roles.role.readiness import HeartbeatDeadline
from gmi_drl.roles.samples.codec import BatchCodec, complete, sent_columns
from gmi_drl.roles.samples.episodes import Seen
from gmi_drl.roles.samples.frames import Observed
from gmi_drl.roles.telemetry.progress import Progress
from toy_env import ToyEnv

HORIZON, OBS, STATS = 5, 2, (3.0, 12.5, 30.0, 0.1, 0.2, 0.3, 0.4)
TIMEOUT = timedelta(seconds=5)
SETTINGS = PPOConfig(network=[8])


def policy():
    return ActorCritic(OBS, Normal(1), [8], "elu", -0.3, torch.Generator().manual_seed(0))


def collected(num_env, normalizer=None, dtype=np.float32):
    """The batch of an agent."""
    env = ToyEnv(num_env, 4)
    env.observation_space = spaces.Box(0, 100, (OBS,), dtype)
    collector = collector_of(
        env, policy(), SETTINGS, Normalizers(normalizer, None), horizon=HORIZON,
        reward_scale=0.5, generator=torch.Generator().manual_seed(num_env),
    )  # fmt: skip
    collector.collect(0)
    return collector.batch


def codec_of(num_env, observed=OBS):
    batch = batch_for(policy(), SETTINGS, HORIZON, 1, observed)
    sent = sent_columns(algorithm_of(policy(), SETTINGS).policy, ())
    return BatchCodec(batch, num_env, sent, len(STATS))


@pytest.mark.parametrize("of_bytes", [False, True])
def test_batches_arrive_side_by_side_with_every_bit(of_bytes):
    """The observations here are small integers, so that bytes hold them."""
    observed, dtype = Observed(OBS, of_bytes), np.uint8 if of_bytes else np.float32
    normalizer = RunningNormalizer(OBS, clip=10.0)
    normalizer.update(torch.tensor([4.0, 1.0, 2.0, 3.0, 5.0], dtype=torch.float64))
    mine = {size: collected(size, normalizer, dtype) for size in (3, 4)}
    joined, first = batch_for(policy(), SETTINGS, HORIZON, 7, observed), 0
    for size, batch in mine.items():
        codec = codec_of(size, observed)
        memory = torch.zeros(codec.nbytes, dtype=torch.uint8)
        codec.pack(memory, batch, STATS)
        assert codec.unpack(memory, joined, first) == list(STATS)
        first += size
    complete(joined, algorithm_of(policy(), SETTINGS).policy, normalizer)
    for name in (
        "observation", "action", "parameters", "value", "log_prob", "reward", "done",
        "raw_observation",
    ):  # fmt: skip
        whole = torch.cat([batch[name] for batch in mine.values()], dim=1)
        assert torch.equal(joined[name], whole), name
    for name, last in joined.bootstrap.items():
        assert torch.equal(last, torch.cat([batch.bootstrap[name] for batch in mine.values()])), (
            name
        )
    assert torch.equal(joined.row_constants["log_std"], mine[3].row_constants["log_std"])


@dataclass
class Pair:
    """A trainer and its agents, all in this process."""

    coordinator: RolloutCoordinator
    workers: dict[int, RolloutWorker]
    reopen: object  # the agent's end again, as its next process would
    again: object  # the trainer's

    @classmethod
    def make(cls, agents=1, timeout=TIMEOUT, heartbeats=lambda gmi_id: 0, still=lambda: None):
        out = {i: create_link("gmi 9", f"gmi {i}", kind="ring") for i in range(agents)}
        back = {i: create_link(f"gmi {i}", "gmi 9", kind="ring") for i in range(agents)}
        codecs = {i: codec_of(2) for i in range(agents)}

        def again():
            return RolloutCoordinator(out, back, 3, codecs, timeout, heartbeats, still)

        def reopen(i):
            return RolloutWorker(out[i], back[i], codecs[i], timeout, 9, heartbeats)

        return cls(again(), {i: reopen(i) for i in range(agents)}, reopen, again)

    def collect(self, iteration=0, drop_slowest=0):
        """In a thread: what was taken of each agent, and whether all were there."""
        found = {}

        def take(gmi_id, memory):
            found[gmi_id] = int(memory[0])

        def run():
            found["there"] = self.coordinator.collect(
                iteration, lambda vector: vector.fill_(iteration), take, drop_slowest
            )

        thread = threading.Thread(target=run)
        thread.start()
        return thread, found


def next_order(worker):
    """The next order of the worker's trainer, which it waits for."""
    return first_order([worker], [worker])[1]


def bring(worker, value):
    """Answer the newest order; the order's iteration, and the policy that came with it."""
    order = next_order(worker)
    assert order.header.step == Order.COLLECT
    policy = order.memory.view(torch.float32).tolist()
    worker.bring(lambda memory: memory.fill_(value), 100)
    return order.header.policy_version, policy


def test_each_agent_is_given_the_policy_and_taken_once():
    pair = Pair.make(agents=2)
    for iteration in range(7):
        thread, found = pair.collect(iteration)
        for gmi_id, worker in pair.workers.items():
            assert bring(worker, 10 * iteration + gmi_id) == (iteration, [float(iteration)] * 3)
        thread.join()
        assert found == {0: 10 * iteration, 1: 10 * iteration + 1, "there": True}


@pytest.fixture
def replaced(monkeypatch):
    """An end may be opened again: whoever had opened it counts as dead."""
    monkeypatch.setattr(liveness, "is_alive", lambda pid, started: False)


def test_who_takes_an_agents_place_is_given_its_last_order_and_nothing_is_taken_twice(replaced):
    pair = Pair.make()
    thread, found = pair.collect(0)
    bring(pair.workers[0], 1)
    thread.join()
    again = pair.reopen(0)
    assert bring(again, 2)[0] == 0
    thread, found = pair.collect(1)
    assert bring(again, 3)[0] == 1
    thread.join()
    assert found == {0: 3, "there": True}


def test_who_is_late_is_dropped_once_in_whichever_life_and_asked_again(replaced):
    pair = Pair.make(agents=2)
    late, quick = pair.workers[0], pair.workers[1]
    for iteration in range(2):
        thread, found = pair.collect(iteration, drop_slowest=1)
        bring(quick, iteration)
        thread.join()
        assert (found, pair.coordinator.dropped) == ({1: iteration, "there": True}, 0)
    bring(late, 7)
    late = pair.reopen(0)
    assert bring(late, 8)[0] == 0  # that of the first round again
    thread, found = pair.collect(2, drop_slowest=1)
    assert bring(late, 9) == (2, [2.0] * 3)
    thread.join()
    assert (found, pair.coordinator.dropped) == ({0: 9, "there": True}, 1)
    assert bring(quick, 5)[0] == 2  # too late, as a checkpoint shows
    thread = threading.Thread(target=lambda: found.update(save=pair.coordinator.save(3)))
    thread.start()
    for worker in (late, quick):
        assert next_order(worker).header.step == Order.SAVE
        worker.tell("")
    thread.join()
    assert (found["save"], pair.coordinator.dropped) == ("", 2)


def test_an_order_that_was_given_up_is_not_followed_and_its_answer_not_taken():
    pair = Pair.make(timeout=timedelta(seconds=0.3))
    for _ in range(2):  # a trainer that must go back: it orders, and does not wait
        with pytest.raises(LinkTimeout, match="gmi 0 has not brought"):
            pair.coordinator.collect(4, lambda vector: vector.fill_(4), lambda *_: None)
    worker = pair.workers[0]
    assert bring(worker, 1)[0] == 4  # to the second
    thread, found = pair.collect(5)
    assert bring(worker, 2)[0] == 5
    thread.join()
    assert found == {0: 2, "there": True}


def test_parts_that_are_not_written_are_told_in_words():
    pair, found = Pair.make(agents=2), []
    thread = threading.Thread(target=lambda: found.append(pair.coordinator.save(6)))
    thread.start()
    for gmi_id, failure in ((0, ""), (1, "OSError: full " + "x" * 600)):
        order = next_order(pair.workers[gmi_id])
        assert (order.header.step, order.header.policy_version) == (Order.SAVE, 6)
        pair.workers[gmi_id].tell(failure)
    thread.join()
    assert found[0].startswith("gmi 1: OSError: full xxx")
    assert len(found[0]) <= 510


def test_agents_that_have_left_are_not_waited_for(replaced):
    pair = Pair.make()
    pair.coordinator.dismiss()
    assert next_order(pair.workers[0]).header.step == Order.LEAVE
    pair.workers[0].leave()
    assert pair.coordinator.save(6) is None
    assert not pair.coordinator.collect(6, lambda vector: vector.zero_(), lambda *_: None)
    pair.coordinator.dismiss()  # by a trainer that was killed behind the end
    with pytest.raises(LinkClosed):
        pair.reopen(0)


def test_who_is_told_to_leave_leaves_whatever_a_new_trainer_orders(replaced):
    pair = Pair.make(timeout=timedelta(seconds=0.3))
    pair.coordinator.dismiss()
    with pytest.raises(LinkTimeout):  # one that knows nothing of the end
        pair.again().collect(6, lambda vector: vector.zero_(), lambda *_: None)
    assert next_order(pair.workers[0]).header.step == Order.LEAVE
    assert next_order(pair.reopen(0)).header.step == Order.LEAVE


def test_what_agents_have_seen_is_summed_alike_whoever_comes_first():
    told = {gmi_id: (1.0, 0.1 * (gmi_id + 1), 5.0) for gmi_id in range(3)}
    assert Seen.by(told) == Seen.by(dict(reversed(told.items()))) == Seen(3.0, 0.1 + 0.2 + 0.3, 15)


def test_an_agent_that_hears_nothing_names_its_trainer():
    pair = Pair.make(timeout=timedelta(seconds=0.3))
    with pytest.raises(LinkTimeout, match=r"0\.6 s: gmi 9 has given no order.*comm\.timeout_s"):
        next_order(pair.workers[0])


@pytest.mark.parametrize("alive", [True, False])
def test_who_shows_signs_of_life_is_waited_for(alive):
    """Far beyond the deadline, which the others are told of meanwhile."""
    shown, told = itertools.count(), []

    def still():
        told.append(True)
        if len(told) == 6:  # three deadlines later
            bring(pair.workers[0], 1)

    pair = Pair.make(
        timeout=timedelta(seconds=0.3), heartbeats=lambda _: alive and next(shown), still=still
    )
    with nullcontext() if alive else pytest.raises(LinkTimeout, match="gmi 0 has not brought"):
        assert pair.coordinator.collect(0, lambda vector: vector.zero_(), lambda *_: None)
    assert len(told) == 6 if alive else len(told) < 6


@pytest.mark.parametrize("alive", [True, False])
def test_an_agent_waits_for_a_trainer_that_shows_signs_of_life(alive):
    looks = itertools.count()

    def heartbeats(gmi_id):
        assert gmi_id == 9
        look = next(looks)
        if look == 6:  # each took 0.2 s, as long as it would wait
            pair.coordinator.dismiss()
        return look if alive else 0

    pair = Pair.make(timeout=timedelta(seconds=0.1), heartbeats=heartbeats)
    if not alive:
        with pytest.raises(LinkTimeout, match="gmi 9 has given no order"):
            next_order(pair.workers[0])
    else:
        assert next_order(pair.workers[0]).header.step == Order.LEAVE


def test_what_hangs_is_named_and_not_one_that_came_back():
    heartbeats = {0: 0, 1: 0}
    deadline = HeartbeatDeadline(timedelta(seconds=5), heartbeats.__getitem__)
    assert deadline.first([0, 1])[0] == 0
    heartbeats[0] += 1
    assert deadline.first([0, 1])[0] == 1


def test_progress_has_the_seconds_of_agents_and_trainers_apart():
    devices = (Device(0, "cpu", "cores", (0, 1, 2)),)
    progress = Progress(tdg_ex(Topology(devices), 3, 4))
    progress.connect(solo_group())
    agents = {0: (3.0, 2.0, 1.0, 4.0), 1: (5.0, 2.0, 1.0, 2.0)}
    agreed = progress.agree(Seen(2, 30.0, 12.0), (1.0, 7.0, 2.0), False, agents)
    assert agreed.gmi_seconds == [
        {"simulate": 3.0, "infer": 2.0, "send": 1.0, "wait": 4.0},
        {"simulate": 5.0, "infer": 2.0, "send": 1.0, "wait": 2.0},
        {"wait": 1.0, "train": 7.0, "reduce": 2.0},
    ]
    assert (agreed.metrics["simulate_s"], agreed.metrics["wait_s"]) == (4.0, 1.0)
    assert (progress.return_mean, agreed.metrics["length_mean"], agreed.stop) == (15.0, 6.0, False)


def test_episodes_are_enough_when_each_environment_can_have_ended_one():
    layout = tdg_ex(Topology((Device(0, "cpu", "cores", (0, 1, 2)),)), 3, 60)
    progress = Progress(layout)
    progress.connect(solo_group())
    enough = []
    for _ in range(3):
        progress.agree(Seen(50, 1.0, 1.0), (0.0, 0.0, 0.0), False)
        enough.append(progress.has_seen_enough)
        saved, progress = progress.state_dict(), Progress(layout)
        progress.connect(solo_group())
        progress.load_state_dict(saved)
    assert enough == [False, False, True]  # of 120 environments
    progress.load_state_dict([[20.0, 40.0, 1.0]])  # as checkpoints had it
    assert (progress.return_mean, progress.has_seen_enough) == (2.0, False)
