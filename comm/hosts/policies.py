"""Carries policies from the board of a host to boards of hosts where nobody trains.

An actor on either side: one reads the board and sends its newest version to each other host as soon
as that has room for it, the other publishes what comes. Versions that are overtaken on the way are
left out. The board there is finished when this one is. Either actor may be killed: the one in its
place goes on with the newest version. Nothing here imports torch, as the launcher must not.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import timedelta
from typing import Final

from gmi_drl.comm.errors import BoardTimeout, CorruptPacket, LinkEnded, LinkTimeout
from gmi_drl.comm.shm.board import BoardReader, BoardSpec
from gmi_drl.comm.shm.tally import TallySpec
from gmi_drl.comm.transports import LinkSpec, PacketSlot, Sender, StreamSpec, wait_any

_LOOK: Final = timedelta(seconds=1)  # of each wait: how long training takes is not known
_STREAM: Final = 0
_SLOTS: Final = 1  # the next version goes when this one has been published


class PolicySender:
    """Sends the policies of a board on this host by links to other hosts."""

    def __init__(self, board: BoardSpec, links: Sequence[LinkSpec]) -> None:
        self._board, self._links = board, links

    def run(self) -> None:
        """Sends until the board is finished."""
        pool = ThreadPoolExecutor(len(self._links))
        try:
            for sent in as_completed([pool.submit(self._send, link) for link in self._links]):
                sent.result()
        finally:  # after an error the others go on until this process is ended
            pool.shutdown(wait=False)

    def _send(self, link: LinkSpec) -> None:
        import torch

        reader, version = self._board.reader(), -1
        _waited(reader, version)
        vector = torch.empty(max(reader.numel, 1))  # it may be finished before its first version
        nbytes = vector.nbytes
        with link.sender(b"policy", [StreamSpec(nbytes, _SLOTS)]) as sender:
            number = 0
            while (slot := _reserved(sender, reader)) is not None and _waited(reader, version):
                version = reader.read(vector)
                slot.memory.copy_(vector.view(torch.uint8))
                sender.send(slot, nbytes, sequence=number, step=0, policy_version=version)
                number += 1


class PolicyReceiver:
    """Publishes on a board of this host what policies come by a link from another host."""

    def __init__(self, link: LinkSpec, board: BoardSpec, tally: TallySpec, gmi_id: int) -> None:
        """Strangers at its port are counted as of `gmi_id`, as no GMI has that port."""
        self._link, self._board, self._tally, self._gmi_id = link, board, tally, gmi_id

    def run(self) -> None:
        """Receives until the board there is finished, and finishes this one."""
        import torch

        writer, tally, refused = self._board.writer(), self._tally.open(), 0
        with self._link.receiver() as receiver:
            while True:
                wait_any([receiver], _LOOK)
                tally[self._gmi_id, "refused"] += receiver.refused - refused
                refused = receiver.refused
                try:
                    packet = receiver.poll()
                except LinkEnded:
                    writer.finish()
                    return
                except CorruptPacket:  # a stranger's, and counted, or one that another replaces
                    continue
                if packet is None:
                    continue
                version = packet.header.policy_version
                if version > writer.version():  # else its sender was replaced, and began anew
                    writer.publish(version, packet.memory.view(torch.float32))
                receiver.release(packet)


def _reserved(sender: Sender, reader: BoardReader) -> PacketSlot | None:
    """Waits until the version before was published there; returns None when nothing is to be sent.

    A link does its work in such calls, so that the version goes out meanwhile.
    """
    while True:
        try:
            return sender.reserve(_STREAM, _LOOK)
        except LinkTimeout:  # if that host is lost, the driver will know
            if reader.finished():
                return None
        except LinkEnded:
            return None


def _waited(reader: BoardReader, version: int) -> bool:
    """Waits for a version above this one; returns False when there will be none."""
    while not reader.finished():
        try:
            return reader.wait(version, _LOOK) > version
        except BoardTimeout:
            continue
    return False
