"""TDG: a simulator GMI and an agent GMI that exchange observations and actions.

The simulator has its environments in two halves, and two links join the pair, one a direction, with
a stream for each half. While one half waits for its actions the other is simulated, so that both
GMIs work at once (TDG pays 2 S + A + W bytes a step for it; GMI-DRL, table 4).

An answer names the question it is to: the number of the packet and the simulator's process. So
either may be killed at any moment: a new agent is given the questions that were not released, a
new simulator asks anew and lets answers to its predecessor go by.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from time import perf_counter
from typing import Any, Final

import torch
from torch import Tensor

from gmi_drl.comm.errors import LinkClosed, LinkEnded, SchemaDiffers
from gmi_drl.comm.shm.pinned import is_pinned
from gmi_drl.comm.transports import LinkSpec, Packet, Receiver, Sender, StreamSpec, wait_any
from gmi_drl.placement import Config
from gmi_drl.roles.evaluators.orders import late_one
from gmi_drl.roles.policies.actor_critic import distribution_for, observation_width
from gmi_drl.roles.policies.policy import GreedyActor
from gmi_drl.roles.telemetry.phases import phase

from .serving import Server, Simulation

_HALVES: Final = 2
_SLOTS: Final = 2  # a packet, and one that was answered and is being released
_LOOK: Final = timedelta(milliseconds=200)  # how often a waiting GMI asks whether it should stop


class ServingSimulator(Server):
    """The simulator of a pair. Override `make_env` to change it."""

    def GMI_run(self, **params: Any) -> dict[str, Any]:
        """Simulates this GMI's share of the steps, or until the launcher asks to stop."""
        self.check_no_params(params)
        num_env = self.mgr.context.spec.num_env
        sizes = (num_env - num_env // 2, num_env // 2)
        envs = []
        for half, size in enumerate(sizes):
            envs.append(self.make_env(size, seed=3 + half))
            self.mgr.close_later(envs[-1].close)
        pool = self.pool(envs[0].device)
        simulations = [Simulation(env, pool) for env in envs]
        self._width = distribution_for(envs[0].action_space).action_columns
        timeout = self.mgr.timeout
        # Where the policy remembers, a column more says which observations begin an episode.
        self._sends_began = _remembers(self.mgr.config)
        shapes = [[s.env.num_env, s.observation.shape[1] + self._sends_began] for s in simulations]
        streams = [StreamSpec(4 * rows * width, _SLOTS) for rows, width in shapes]
        outgoing, incoming = _links(self)
        self._begin(("simulate", "wait"))
        with (
            suppress(LinkClosed),  # by the process before this one, whose work was done
            outgoing.sender(json.dumps(shapes).encode(), streams, timeout) as sender,
            incoming.receiver(timeout) as receiver,
        ):
            self._sender, self._receiver = sender, receiver
            sender.pin(envs[0].device)
            receiver.pin(envs[0].device)
            self._arrived: dict[int, Packet] = {}
            self._asked = [-1] * _HALVES
            if self._has_steps_left():
                for half, simulation in enumerate(simulations):
                    self._ask(half, simulation)
            while self._has_steps_left():
                self._turn()
                for half, simulation in enumerate(simulations):
                    if not self._step(half, simulation):
                        break
                self._report(simulations)
        self._report(simulations, last=True)
        return {"steps": self._steps}

    def _ask(self, half: int, simulation: Simulation) -> None:
        """Sends what a half shows."""
        self._asked[half] += 1
        observation = simulation.observation
        if self._sends_began:
            observation = torch.cat([observation, simulation.began[:, None]], 1)
        _send(self._sender, half, observation, self._asked[half], 0)

    def _step(self, half: int, simulation: Simulation) -> bool:
        """Awaits the actions of a half and steps it; False if asked to stop meanwhile."""
        self._clock.begin("wait")
        with phase("wait"):
            packet = self._answer(half)
        self._clock.begin("" if packet is None else "simulate")
        if packet is None:
            return False
        rows = simulation.env.num_env
        with phase("simulate"):
            action = _read(packet, rows, self._width, simulation.env.device)
            simulation.step(simulation.to_env(action))
            simulation.settle()
            self._receiver.release(packet)
            self._ask(half, simulation)
        self._clock.stop()
        self._count(rows)
        return True

    def _answer(self, half: int) -> Packet | None:
        """Returns the answer to a half's last question; None if asked to stop before it came."""
        deadline_s = perf_counter() + self.mgr.timeout.total_seconds()
        while half not in self._arrived:
            packet = self._receiver.poll()
            if packet is not None:
                header = packet.header
                is_current = header.policy_version == self._sender.incarnation
                is_repeated = header.stream in self._arrived
                if is_current and not is_repeated and header.sequence == self._asked[header.stream]:
                    self._arrived[header.stream] = packet
                else:  # to a question of this GMI's dead process, or answered by a dead agent too
                    self._receiver.release(packet)
            elif not wait_any([self._receiver], _LOOK):
                if self.mgr.stop_requested():
                    return None
                if perf_counter() > deadline_s:
                    raise late_one(self._receiver, self.mgr.timeout, "has not answered")
        return self._arrived.pop(half)


class ServingAgent(Server):
    """The agent of a pair. Override `make_policy` to change it."""

    def GMI_run(self, **params: Any) -> dict[str, Any]:
        """Acts for the simulator of the pair until it has ended."""
        self.check_no_params(params)
        with self.mgr.closed_after(self.make_env(1, seed=3)) as env:
            pool = self.pool(self.mgr.context.device)
            self._load(env)
            width = distribution_for(env.action_space).action_columns
            observations = observation_width(env.observation_space) + _remembers(self.mgr.config)
        timeout = self.mgr.timeout
        outgoing, incoming = _links(self)
        self._begin(("infer", "wait"))
        # Both were closed, or one, if the work of the process before this one was done.
        with suppress(LinkClosed), incoming.receiver(timeout) as receiver:
            shapes = json.loads(receiver.schema)
            _check_widths(receiver, shapes, observations)
            streams = [StreamSpec(4 * rows * width, _SLOTS) for rows, _ in shapes]
            with outgoing.sender(b"", streams, timeout) as sender:
                sender.pin(self.mgr.context.device)
                receiver.pin(self.mgr.context.device)
                actors = [self._actor(pool) for _ in shapes]
                self._act(actors, receiver, sender, shapes)
        self._report(last=True)
        return {"steps": self._steps}

    def _act(
        self,
        actors: Sequence[GreedyActor],
        receiver: Receiver,
        sender: Sender,
        shapes: Sequence[Sequence[int]],
    ) -> None:
        device, remembers = self.mgr.context.device, actors[0].remembers
        none_began = [torch.zeros(rows, dtype=torch.bool, device=device) for rows, _ in shapes]
        heard_s = perf_counter()
        while True:
            self._clock.begin("wait")
            try:
                packet = receiver.poll()
                if packet is None:
                    with phase("wait"):
                        arrived = wait_any([receiver], _LOOK)
                    silent_s = 0.0 if arrived else perf_counter() - heard_s
                    if silent_s > self.mgr.timeout.total_seconds():
                        raise late_one(receiver, self.mgr.timeout, "has not asked")
                    continue
                self._clock.begin("infer")
                half = packet.header.stream
                rows, width = shapes[half]
                if half == 0:  # the first half of a step
                    self._turn()
                with phase("infer"):
                    observation, began = _read(packet, rows, width, device), none_began[half]
                    if remembers:
                        observation, began = observation[:, :-1], observation[:, -1].bool()
                    self._send(sender, packet, actors[half].act(observation, began))
                    receiver.release(packet)  # only now: one that was not answered is given again
            except LinkEnded:
                self._clock.stop()
                return
            self._clock.stop()
            heard_s = perf_counter()
            self._count(rows)
            self._report()

    def _send(self, sender: Sender, packet: Packet, action: Tensor) -> None:
        """Answers the question in a packet."""
        header = packet.header
        _send(sender, header.stream, action, header.sequence, header.incarnation)


def _check_widths(receiver: Receiver, shapes: Sequence[Sequence[int]], width: int) -> None:
    """Raises SchemaDiffers unless the simulator shows as many numbers as the policy takes."""
    for _, shown in shapes:
        if shown != width:
            raise SchemaDiffers(
                f"{receiver.source} shows {shown} numbers of an environment, and its agent takes "
                f"{width}. roles.simulator and roles.agent must make the same environments."
            )


def _remembers(config: Config) -> bool:
    """Tells whether the policy of a config remembers."""
    return getattr(config.algorithm, "recurrent", None) is not None


def _links(role: Server) -> tuple[LinkSpec, LinkSpec]:
    """Returns the link to the other GMI of the pair, and the one from it."""
    wires = role.mgr.context.wires
    (outgoing,), (incoming,) = wires.out_of(role.GMI_id).values(), wires.into(role.GMI_id).values()
    return outgoing, incoming


def _send(sender: Sender, stream: int, rows: Tensor, number: int, to: int) -> None:
    """Sends float32 rows; `send` waits for the copy into memory that is pinned.

    `number` of the question; `to` is the process that asked it, in an answer.
    """
    slot, nbytes = sender.reserve(stream), rows.numel() * 4
    memory = slot.memory[:nbytes].view(torch.float32).view(rows.shape)
    memory.copy_(rows, non_blocking=is_pinned(slot.memory))
    sender.send(slot, nbytes, sequence=number, step=stream, policy_version=to)


def _read(packet: Packet, rows: int, width: int, device: torch.device) -> Tensor:
    """Returns the float32 rows [rows, width] of a packet, on `device`; on a CPU where they lie."""
    memory = packet.memory.view(torch.float32).view(rows, width)
    return memory.to(device, non_blocking=is_pinned(packet.memory))
