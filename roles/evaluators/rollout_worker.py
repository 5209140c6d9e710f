"""The agents of template tdg_ex, which sample in turn with the trainer of their device.

Two links join a trainer with each of its agents. On one the trainer gives orders: to collect a
horizon with the policy that the order carries, to write a part of a checkpoint, to leave. On the
other the agent answers each order but the last with a rollout or a word. An answer names its order:
its number, and the trainer's process. So what is learned is what co-located GMIs would learn.

Either may be killed at any moment. The agent keeps an order's packet until the next one is there,
so that whoever takes its place is given the order again, and answers it. A new trainer, or one that
must go back an iteration, gives a new order: the agent follows the newest it finds. Answers that
nobody waits for are given back unread, so that nothing that was collected with another policy, or
twice, is trained on. In the memory of a GPU packets go with the process that sent them: the new one
gives its order, or its answer, anew.

Agents close their links when they are told to leave, and only then: a trainer that finds them
closed knows that all training was done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, Protocol

import torch
from torch import Tensor

from gmi_drl.comm.errors import LinkClosed, LinkEnded, LinkTimeout, SchemaDiffers
from gmi_drl.comm.shm.heartbeat import beat
from gmi_drl.comm.transports import LinkSpec, Packet, Receiver, Sender, StreamSpec, wait_any
from gmi_drl.roles.envs.protocol import VecEnv
from gmi_drl.roles.optimizers import round_steps
from gmi_drl.roles.policies.flat_parameters import FlatParameters, PublishedPolicy
from gmi_drl.roles.role.readiness import (
    HeartbeatDeadline,
    Heartbeats,
    heartbeats_in,
    send_heartbeat,
)
from gmi_drl.roles.samples.batch import Batch
from gmi_drl.roles.samples.codec import BatchCodec, sent_columns
from gmi_drl.roles.state import checkpoint, saving
from gmi_drl.roles.telemetry.phases import phase
from gmi_drl.roles.telemetry.progress import WORKER_STATS

from .evaluator import restore

if TYPE_CHECKING:
    from gmi_drl.roles.role.acting import ActingRole

_ORDERS: Final = 3  # slots: one that is kept, one that is followed, one more of a new trainer
_ANSWERS: Final = 2  # one that nobody waits for any more, and the one that somebody does
_LOOK_S: Final = 0.2  # how often heartbeats are looked for
_MAX_WORDS: Final = 500  # bytes of a word that an agent answers with
_FAILED: Final = 1  # `step` of an answer that says in words why the order was not followed; else 0
_CPU: Final = torch.device("cpu")


class Order(IntEnum):
    """The words by which an agent is told what to do."""

    COLLECT = 0  # the packet is the policy; to be answered with a rollout, or with its gradient
    SAVE = 1
    LEAVE = 2


def order_of(packet: Packet) -> Order:
    """Returns what an agent is told to do."""
    return Order(packet.header.step % len(Order))


def age_of(packet: Packet) -> int:
    """Returns the age of an order: that of the gradient that is asked for, by several trainers."""
    return packet.header.step // len(Order)


class Codec(Protocol):
    """Says how an answer to `COLLECT` lies in memory; both ends make the same."""

    nbytes: int
    schema: bytes


class Published(Protocol):
    """The policy that an order carries."""

    def load(self, vector: Tensor) -> None:
        """Make the policy what the trainer wrote."""


@dataclass(frozen=True)
class _Agent:
    orders: Sender
    answers: Receiver
    codec: Codec


class RolloutCoordinator:
    """The trainer's side: `out` and `back` are the links to and from its agents, by gmi_id.

    `policy_numel` float32 numbers are a policy; `codecs` say what each agent brings. An agent may
    take `timeout` from each of its `heartbeats` on. `still` is called while agents are waited for,
    oftener than each `timeout`; what it raises ends the wait. `device`: of this GMI's tensors.
    """

    def __init__(
        self,
        out: Mapping[int, LinkSpec],
        back: Mapping[int, LinkSpec],
        policy_numel: int,
        codecs: Mapping[int, Codec],
        timeout: timedelta,
        heartbeats: Heartbeats,
        still: Callable[[], object],
        device: torch.device = _CPU,
    ) -> None:
        self._heartbeats, self._still = heartbeats, still
        streams = [StreamSpec(4 * policy_numel, _ORDERS)]
        self._nbytes, self._timeout, self._number = 4 * policy_numel, timeout, -1
        self._asked: dict[int, int] = {}  # the number of the order, of agents asked one by one
        self._agents = {
            gmi_id: _Agent(
                link.sender(b"", streams, timeout), back[gmi_id].receiver(timeout), codecs[gmi_id]
            )
            for gmi_id, link in out.items()
        }
        for agent in self._agents.values():
            agent.orders.pin(device)
            agent.answers.pin(device)

    def collect(
        self, iteration: int, write: Callable[[Tensor], None], take: Callable[[int, Tensor], None]
    ) -> bool:
        """Have all agents collect; `write` puts the policy into a vector [policy_numel].

        `take` is given each agent's gmi_id and what it brought (see BatchCodec.unpack), which it
        copies. Returns when all have been taken; False when agents have left, as training was done.
        LinkTimeout names an agent that is late.
        """

        try:
            self._give(Order.COLLECT, iteration, write)
            self._await("has not brought its experience", self._checked(take))
        except LinkEnded:
            return False
        return True

    def ask(
        self, gmi_id: int, iteration: int, write: Callable[[Tensor], None], age: int = 0
    ) -> None:
        """Have one agent collect, with the policy that `write` puts into a vector [policy_numel].

        `age`: of the order, among those of several trainers (see `RolloutLoop`). LinkEnded when the
        agent has left, as training was done.
        """
        self._number += 1
        self._asked[gmi_id] = self._number
        self._send(self._agents[gmi_id], Order.COLLECT, iteration, write, age)

    def forget(self) -> None:
        """Await nobody's answer: what was asked before counts no more."""
        self._asked.clear()

    def first(self, take: Callable[[int, Tensor], None]) -> int:
        """Takes the answer of whoever is first of those that were asked; its gmi_id.

        LinkTimeout names an agent that is late, LinkEnded one that has left.
        """
        gmi_id = self._first(
            self._asked, "has not brought what it was asked for", self._checked(take)
        )
        del self._asked[gmi_id]
        return gmi_id

    @property
    def asked(self) -> set[int]:
        """Returns the agents that were asked, one by one, and have not answered."""
        return set(self._asked)

    def _checked(self, take: Callable[[int, Tensor], None]) -> Callable[[int, Packet], None]:
        """Returns what hands the memory of an answer to `take` if it is of the right schema."""

        def taken(gmi_id: int, packet: Packet) -> None:
            agent = self._agents[gmi_id]
            if agent.answers.schema != agent.codec.schema:
                raise SchemaDiffers(
                    f"{agent.answers.source} brings {agent.answers.schema.decode()}, and its "
                    f"trainer takes {agent.codec.schema.decode()}. roles.agent and "
                    "roles.trainer must make the same policy and environments."
                )
            take(gmi_id, packet.memory)

        return taken

    def save(self, iteration: int) -> str | None:
        """Have all agents write their part of checkpoint `iteration`.

        Returns when all have answered: an empty text, or why a part was not written. None when
        agents have left, as training was done.
        """
        failures = []

        def heard(gmi_id: int, packet: Packet) -> None:
            if packet.header.step == _FAILED:
                words = bytes(packet.memory.cpu().tolist()).decode(errors="replace")
                failures.append(f"gmi {gmi_id}: {words}")

        try:
            self._give(Order.SAVE, iteration)
            self._await("has not written its part of a checkpoint", heard)
        except LinkEnded:
            return None
        return "; ".join(failures)

    def dismiss(self) -> None:
        """Tell all agents that training is done; waits for none of them."""
        for agent in self._agents.values():
            with suppress(LinkEnded):  # told by the process before this one
                self._send(agent, Order.LEAVE, 0, lambda vector: None)

    def _give(
        self, order: Order, iteration: int, write: Callable[[Tensor], None] = lambda vector: None
    ) -> None:
        self._number += 1
        self._asked.clear()  # agents follow the newest order, and answer no older one
        for agent in self._agents.values():
            self._send(agent, order, iteration, write)

    def _send(
        self,
        agent: _Agent,
        order: Order,
        iteration: int,
        write: Callable[[Tensor], None],
        age: int = 0,
    ) -> None:
        slot, nbytes = agent.orders.reserve(0), self._nbytes if order == Order.COLLECT else 0
        write(slot.memory[:nbytes].view(torch.float32))
        step = len(Order) * age + order
        agent.orders.send(slot, nbytes, sequence=self._number, step=step, policy_version=iteration)

    def _await(self, late: str, take: Callable[[int, Packet], None]) -> None:
        """Take every agent's answer to the last order, as they come."""
        missing = dict.fromkeys(self._agents, self._number)
        while missing:
            del missing[self._first(missing, late, take)]

    def _first(
        self, missing: Mapping[int, int], late: str, take: Callable[[int, Packet], None]
    ) -> int:
        """Takes the first answer to an order of its number in `missing`, by gmi_id; whose it is.

        Of those that are there, the one that was asked first.
        """
        agents = {
            gmi_id: self._agents[gmi_id] for gmi_id in sorted(missing, key=missing.__getitem__)
        }
        deadline = HeartbeatDeadline(self._timeout, self._heartbeats)
        told_s, every_s = perf_counter(), self._timeout.total_seconds() / 2
        look_s = min(_LOOK_S, every_s / 2)
        while True:
            for gmi_id, agent in agents.items():
                while (packet := agent.answers.poll()) is not None:
                    header = packet.header
                    mine = header.policy_version == agent.orders.incarnation
                    is_wanted = mine and header.sequence == missing[gmi_id]
                    if is_wanted:
                        take(gmi_id, packet)
                    agent.answers.release(packet)
                    if is_wanted:
                        return gmi_id
            first, left_s = deadline.first(agents)
            if left_s <= 0:
                raise late_one(agents[first].answers, self._timeout, late)
            if perf_counter() > told_s + every_s:
                self._still()
                told_s = perf_counter()
            waiting = [agent.answers for agent in agents.values()]
            wait_any(waiting, timedelta(seconds=min(look_s, left_s)))


class RolloutWorker:
    """The agent's side: the links from and to GMI `trainer`.

    Waits for nobody when it is made. LinkClosed if the process before this one has left. `device`:
    of this GMI's tensors.
    """

    def __init__(
        self,
        orders: LinkSpec,
        answers: LinkSpec,
        codec: Codec,
        timeout: timedelta,
        trainer: int,
        heartbeats: Heartbeats,
        device: torch.device = _CPU,
    ) -> None:
        self.trainer, self._timeout, self._heartbeats = trainer, timeout, heartbeats
        room = max(codec.nbytes, _MAX_WORDS)
        streams = [StreamSpec(room, _ANSWERS)]
        self._answers = answers.sender(codec.schema, streams, timeout)
        self._orders = orders.receiver(timeout)
        self._answers.pin(device)
        self._orders.pin(device)
        self._kept: Packet | None = None

    def next(self) -> Packet:
        """Waits for an order of this trainer: see `first_order`."""
        return first_order([self], [self])[1]

    def poll(self) -> Packet | None:
        """Returns the newest order, None without a new one; none behind one to leave.

        `order_of` says what it is, `policy_version` of its header the iteration.
        """
        found: Packet | None = None
        while (packet := self._orders.poll()) is not None:
            if self._kept is not None:
                self._orders.release(self._kept)
            self._kept = found = packet
            if order_of(packet) == Order.LEAVE:
                break  # what a new trainer orders behind it is void: all was done
        return found

    def bring(self, write: Callable[[Tensor], None], nbytes: int) -> None:
        """Answer the last order with what `write` puts into memory [>= nbytes] uint8."""
        self._answer(0, write, nbytes)

    def tell(self, failure: str) -> None:
        """Answer the last order in a word: done if empty, else why not."""
        words = failure.encode()[:_MAX_WORDS]

        def write(memory: Tensor) -> None:
            if words:
                memory[: len(words)].copy_(torch.frombuffer(bytearray(words), dtype=torch.uint8))

        self._answer(_FAILED if failure else 0, write, len(words))

    def _answer(self, step: int, write: Callable[[Tensor], None], nbytes: int) -> None:
        assert self._kept is not None
        number, trainer = self._kept.header.sequence, self._kept.header.incarnation
        slot = self._answers.reserve(0)
        write(slot.memory)
        self._answers.send(slot, nbytes, sequence=number, step=step, policy_version=trainer)

    def leave(self) -> None:
        """Close both links: training is done. Not called when something went wrong."""
        self._answers.close()
        self._orders.close()


def first_order(
    workers: Sequence[RolloutWorker], missing: Sequence[RolloutWorker]
) -> tuple[RolloutWorker, Packet]:
    """Waits for an order of any of several trainers; whose it is, and the newest of that one.

    Twice the timeout from each sign of those that are `missing` on: a trainer may wait for another
    agent, and is to be the first that names it. LinkTimeout if none comes by then.
    """
    one = workers[0]
    timeout, by_trainer = 2 * one._timeout, {worker.trainer: worker for worker in missing}
    deadline = HeartbeatDeadline(timeout, one._heartbeats)
    while True:
        for worker in workers:
            if (order := worker.poll()) is not None:
                return worker, order
        trainer, left_s = deadline.first(by_trainer)
        if left_s <= 0:
            raise late_one(by_trainer[trainer]._orders, timeout, "has given no order")
        links = [worker._orders for worker in workers]
        wait_any(links, timedelta(seconds=min(_LOOK_S, left_s)))


class RolloutLoop:
    """Follows the orders of trainers until one of them says that all is done.

    Where there are several, each has a piece of the parameters, and gets one of the gradient. An
    order to collect is followed when every trainer has given one; but a trainer whose order of that
    age was answered may wait for another trainer, and is not waited for.
    """

    def __init__(self, role: ActingRole, env: VecEnv) -> None:
        self._role, self._mgr = role, role.mgr
        self._collector = role.collector(env, role.batch(env.num_env))
        self._parameters = FlatParameters(role.policy.network)
        self._make_codec(env.num_env)
        self._send_s = 0.0
        self._round_steps = round_steps(self._mgr.config, self._mgr.layout)
        if not self._mgr.context.replaced:  # else its episodes have gone with its process
            self._resume()

    def _make_codec(self, num_env: int) -> None:
        """Make what orders and answers are read and written by, for each trainer."""
        published: Published = PublishedPolicy(self._parameters, self._role.normalizers)
        codec: Codec = codec_of(self._role, num_env)
        self._published, self._codecs = [published], [codec]

    def run(self) -> dict[str, Any]:
        """Follows orders to the end, and returns the steps of this GMI in all its lives.

        Waits for nobody before the first order.
        """
        with suppress(LinkClosed):  # by the process before this one, whose work was done
            self._follow()
        self._collector.close()
        return {"steps": self._mgr.tally[self._mgr.GMI_id, "steps"]}

    def _resume(self) -> None:
        """Go on in the environments of the checkpoint that the run is resumed from."""
        if (path := self._mgr.context.resume) is None:
            return
        found = saving.read(path, self._mgr.layout)
        if found.policy_only:
            return  # its trainer says so
        restore(self._collector, found.load(f"gmi{self._mgr.GMI_id}"), self._mgr)

    def _follow(self) -> None:
        mgr, gmi_id = self._mgr, self._mgr.GMI_id
        wires, heartbeats = mgr.context.wires, heartbeats_in(mgr.tally)
        orders, answers = wires.into(gmi_id), wires.out_of(gmi_id)
        workers = [
            RolloutWorker(
                orders[trainer], answers[trainer], codec, mgr.timeout, trainer, heartbeats,
                mgr.context.device,
            )
            for trainer, codec in zip(sorted(answers), self._codecs, strict=True)
        ]  # fmt: skip
        given: dict[RolloutWorker, Packet] = {}
        done: dict[RolloutWorker, int] = {}  # the age of the order that was answered last
        start = perf_counter()
        while True:
            with phase("wait"):
                missing = [worker for worker in workers if worker not in given]
                worker, order = first_order(workers, missing)
            send_heartbeat(mgr.tally, gmi_id)
            kind = order_of(order)
            if kind == Order.LEAVE:
                for worker in workers:
                    worker.leave()
                return
            if kind == Order.SAVE:
                given.pop(worker, None)
                worker.tell(self._save(order.header.policy_version))
                start = perf_counter()
                continue
            given[worker] = order
            self._published[workers.index(worker)].load(order.memory.view(torch.float32))
            oldest = min(map(age_of, given.values()))
            if all(one in given or done.get(one, -1) >= oldest for one in workers):
                asking = {
                    place: one
                    for place, one in enumerate(workers)
                    if one in given and age_of(given[one]) == oldest
                }
                self._collect(order, asking, perf_counter() - start)
                for one in asking.values():
                    del given[one]
                    done[one] = oldest
                start = perf_counter()

    def _collect(self, order: Packet, asking: Mapping[int, RolloutWorker], waited_s: float) -> None:
        self._mgr.begin_iteration()
        iteration = order.header.policy_version
        self._role.algorithm.before_sampling(iteration * self._round_steps)
        with phase("infer"):
            self._collector.collect(iteration)
            (simulate_s, infer_s), seen = self._collector.read()
        start = perf_counter()
        batch = self._collector.batch
        # Sending is not over when it says how long it takes: the last one's seconds are told.
        stats = (*seen, simulate_s, infer_s, self._send_s, waited_s)
        self._mgr.tally[self._mgr.GMI_id, "steps"] += batch["reward"].numel()

        with phase("send"):
            self._prepare(batch)
            for place, worker in asking.items():
                worker.bring(partial(self._pack, place, batch, stats), self._codecs[place].nbytes)
        self._send_s = perf_counter() - start

    def _prepare(self, batch: Batch) -> None:
        """Make what is to be brought of a batch: here it is the batch."""

    def _pack(self, place: int, batch: Batch, stats: Sequence[float], memory: Tensor) -> None:
        """Write the answer to the trainer at `place` into memory [>= nbytes of its codec] uint8."""
        codec = self._codecs[place]
        assert isinstance(codec, BatchCodec)
        codec.pack(memory, batch, stats)

    def _save(self, iteration: int) -> str:
        """Write this GMI's part of a checkpoint; why not, if the disk does not take it."""
        beat("checkpoint")
        folder = self._mgr.context.folder
        assert folder is not None
        part, state = f"gmi{self._mgr.GMI_id}", self._collector.state_dict()
        try:
            checkpoint.write_part(saving.folder_of(folder), iteration, part, state)
        except OSError as error:
            return f"{type(error).__name__}: {error}"
        return ""


def codec_of(role: ActingRole, num_env: int) -> BatchCodec:
    """The codec of what one worker of `num_env` environments brings."""
    sent = sent_columns(role.policy, role.algorithm.recorded)
    return BatchCodec(role.batch(1), num_env, sent, role.of_bytes, stats=WORKER_STATS)


def late_one(receiver: Receiver, timeout: timedelta, what: str) -> LinkTimeout:
    """The error of a GMI that waits in vain."""
    return LinkTimeout(
        f"timed out after {timeout.total_seconds():g} s: {receiver.source} {what}. If it only "
        "takes longer, raise comm.timeout_s.",
        receiver.source,
    )
