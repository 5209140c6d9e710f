"""The trainer's side of template tdg_ex: gives its agents orders, and takes their answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from time import perf_counter
from typing import Final

import torch
from torch import Tensor

from gmi_drl.comm.errors import LinkEnded, SchemaDiffers
from gmi_drl.comm.transports import LinkSpec, Packet, Receiver, Sender, StreamSpec, wait_any
from gmi_drl.roles.role.readiness import HeartbeatDeadline, Heartbeats

from .orders import FAILED, LOOK_S, Codec, Order, late_one

_ORDERS: Final = 3  # slots: one that is kept, one that is followed, one more of a new trainer
_CPU: Final = torch.device("cpu")


@dataclass(frozen=True)
class _Agent:
    orders: Sender
    answers: Receiver
    codec: Codec


class RolloutCoordinator:
    """Gives orders to a trainer's agents by the links `out`, and takes answers by the links `back`.

    Links are by gmi_id. `policy_numel` float32 numbers are a policy; `codecs` say what each agent
    brings. An agent may take `timeout` from each of its `heartbeats` on. `still` is called while
    agents are waited for, oftener than each `timeout`; what it raises ends the wait. `device` is
    that of this GMI's tensors.
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
        self._asked: dict[int, int] = {}  # by agent: the order to collect that it has not answered
        self._abandoned: dict[int, int] = {}  # by agent: the one that is answered to nobody
        self.dropped = 0  # answers to orders to collect that came when nobody waited for them
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
        self,
        iteration: int,
        write: Callable[[Tensor], None],
        take: Callable[[int, Tensor], None],
        drop_slowest: int = 0,
    ) -> bool:
        """Has agents collect; `write` puts the policy into a vector [policy_numel].

        `take` is given each agent's gmi_id and what it brought (see BatchCodec.unpack), which it
        copies. Returns True when all but the slowest `drop_slowest` have been taken; False when
        agents have left, as training was done. A late answer to an earlier order is dropped, and
        its agent is asked again. LinkTimeout names an agent that is late.
        """
        if not drop_slowest:
            self.forget()
        late, answered = self.asked, set[int]()

        def take_new(gmi_id: int, memory: Tensor) -> None:
            if gmi_id not in late:
                take(gmi_id, memory)

        try:
            while len(answered) < len(self._agents) - drop_slowest:
                for gmi_id in self._agents:
                    if gmi_id not in answered and gmi_id not in self._asked:
                        self.ask(gmi_id, iteration, write)
                gmi_id = self.first(take_new)
                if gmi_id in late:
                    late.remove(gmi_id)
                    self.dropped += 1
                else:
                    answered.add(gmi_id)
        except LinkEnded:
            return False
        return True

    def ask(
        self, gmi_id: int, iteration: int, write: Callable[[Tensor], None], age: int = 0
    ) -> None:
        """Has one agent collect, with the policy that `write` puts into a vector [policy_numel].

        `age`: of the order, among those of several trainers (see `RolloutLoop`). LinkEnded when the
        agent has left, as training was done.
        """
        self._number += 1
        self._asked[gmi_id] = self._number
        self._send(self._agents[gmi_id], Order.COLLECT, iteration, write, age)

    def forget(self) -> None:
        """Forgets what was asked: nobody's answer to it is awaited any more."""
        self._abandoned |= self._asked
        self._asked.clear()

    def first(self, take: Callable[[int, Tensor], None]) -> int:
        """Takes the first answer of the agents that were asked; returns that agent's gmi_id.

        LinkTimeout names an agent that is late, LinkEnded one that has left.
        """
        late = "has not brought its rollout or gradient"
        gmi_id = self._take_first(self._asked, late, self._checked(take))
        del self._asked[gmi_id]
        return gmi_id

    @property
    def asked(self) -> set[int]:
        """Returns the agents that were asked, one by one, and have not answered."""
        return set(self._asked)

    def _checked(self, take: Callable[[int, Tensor], None]) -> Callable[[int, Packet], None]:
        """Returns what hands the memory of an answer to `take` if it is of the right schema."""

        def take_checked(gmi_id: int, packet: Packet) -> None:
            agent = self._agents[gmi_id]
            if agent.answers.schema != agent.codec.schema:
                raise SchemaDiffers(
                    f"{agent.answers.source} brings {agent.answers.schema.decode()}, and its "
                    f"trainer takes {agent.codec.schema.decode()}. roles.agent and "
                    "roles.trainer must make the same policy and environments."
                )
            take(gmi_id, packet.memory)

        return take_checked

    def save(self, iteration: int) -> str | None:
        """Has all agents write their part of checkpoint `iteration`.

        Returns when all have answered: an empty text, or why a part was not written. None when
        agents have left, as training was done.
        """
        failures = []

        def note_failure(gmi_id: int, packet: Packet) -> None:
            if packet.header.step == FAILED:
                message = bytes(packet.memory.cpu().tolist()).decode(errors="replace")
                failures.append(f"gmi {gmi_id}: {message}")

        try:
            self._number += 1
            self.forget()  # agents follow the newest order, and answer no older one
            for agent in self._agents.values():
                self._send(agent, Order.SAVE, iteration)
            missing = dict.fromkeys(self._agents, self._number)
            while missing:
                late = "has not written its part of a checkpoint"
                del missing[self._take_first(missing, late, note_failure)]
        except LinkEnded:
            return None
        return "; ".join(failures)

    def dismiss(self) -> None:
        """Tells all agents that training is done; waits for none of them."""
        for agent in self._agents.values():
            with suppress(LinkEnded):  # told by the process before this one
                self._send(agent, Order.LEAVE, 0)

    def _send(
        self,
        agent: _Agent,
        order: Order,
        iteration: int,
        write: Callable[[Tensor], None] = lambda vector: None,
        age: int = 0,
    ) -> None:
        slot, nbytes = agent.orders.reserve(0), self._nbytes if order == Order.COLLECT else 0
        write(slot.memory[:nbytes].view(torch.float32))
        step = len(Order) * age + order
        agent.orders.send(slot, nbytes, sequence=self._number, step=step, policy_version=iteration)

    def _take_first(
        self, missing: Mapping[int, int], late: str, take: Callable[[int, Packet], None]
    ) -> int:
        """Takes the first answer to an order in `missing` (numbers by gmi_id); returns its gmi_id.

        Of several answers that are there it takes that of the agent that was asked first.
        """
        agents = {
            gmi_id: self._agents[gmi_id] for gmi_id in sorted(missing, key=missing.__getitem__)
        }
        deadline = HeartbeatDeadline(self._timeout, self._heartbeats)
        called_s, every_s = perf_counter(), self._timeout.total_seconds() / 2
        look_s = min(LOOK_S, every_s / 2)
        while True:
            for gmi_id, agent in agents.items():
                while (packet := agent.answers.poll()) is not None:
                    header = packet.header
                    is_current = header.policy_version == agent.orders.incarnation
                    is_expected = is_current and header.sequence == missing[gmi_id]
                    if is_expected:
                        take(gmi_id, packet)
                    agent.answers.release(packet)
                    if is_expected:
                        return gmi_id
                    if is_current and header.sequence == self._abandoned.get(gmi_id):
                        self.dropped += 1
                        del self._abandoned[gmi_id]
            next_late, left_s = deadline.first(agents)
            if left_s <= 0:
                raise late_one(agents[next_late].answers, self._timeout, late)
            if perf_counter() > called_s + every_s:
                self._still()
                called_s = perf_counter()
            waiting = [agent.answers for agent in agents.values()]
            wait_any(waiting, timedelta(seconds=min(look_s, left_s)))
