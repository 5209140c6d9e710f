"""The agents of template tdg_ex, which sample in turn with the trainer of their device.

Two links join a trainer with each of its agents. On one the trainer gives orders: to collect a
horizon with the policy that the order carries, to write a part of a checkpoint, to leave. On the
other the agent answers each order but the last with a rollout or a text. An answer names its order:
its number, and the trainer's process. So what is learned is what co-located GMIs would learn.

Either may be killed at any moment. The agent keeps an order's packet until the next one is there,
so that its successor is given the order again, and answers it. A new trainer, or one that must go
back an iteration, gives a new order: the agent follows the newest it finds. Answers that nobody
waits for are released unread, so that nothing that was collected with another policy, or twice, is
trained on. In the memory of a GPU packets go with the process that sent them: its successor gives
its order, or its answer, again.

Agents close their links when they are told to leave, and only then: a trainer that finds them
closed knows that all training was done.
"""

from __future__ import annotations

from datetime import timedelta
from enum import IntEnum
from typing import Final, Protocol

from gmi_drl.comm.errors import LinkTimeout
from gmi_drl.comm.transports import Packet, Receiver

LOOK_S: Final = 0.2  # how often heartbeats are looked for
FAILED: Final = 1  # `step` of an answer whose text says why the order was not followed; else 0


class Order(IntEnum):
    """Names what an agent is told to do."""

    COLLECT = 0  # the packet is the policy; to be answered with a rollout, or with its gradient
    SAVE = 1
    LEAVE = 2


def order_of(packet: Packet) -> Order:
    """Returns what an agent is told to do."""
    return Order(packet.header.step % len(Order))


def age_of(packet: Packet) -> int:
    """Returns the age of an order of several trainers: that of the gradient it asks for."""
    return packet.header.step // len(Order)


class Codec(Protocol):
    """Says how an answer to `COLLECT` lies in memory; both ends make the same."""

    nbytes: int
    schema: bytes


def late_one(receiver: Receiver, timeout: timedelta, what: str) -> LinkTimeout:
    """Returns the error of a GMI that waits in vain."""
    return LinkTimeout(
        f"timed out after {timeout.total_seconds():g} s: {receiver.source} {what}. If it only "
        "takes longer, raise comm.timeout_s.",
        receiver.source,
    )
