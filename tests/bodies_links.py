"""What the ends of links do in tests; imported by name in their processes."""

import os
import resource
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch

from gmi_drl.comm.errors import LinkEnded
from gmi_drl.comm.transports import StreamSpec, wait_any

WORDS = 3000  # of a packet of the first stream; the other's are short


class Log:
    """Whole lines, there for whoever looks even if this process is killed at once."""

    def __init__(self, path):
        self._fd = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def __call__(self, what, number):
        os.write(self._fd, f"{what} {number}\n".encode())


def send_numbers(link, folder):
    """Sends 0, 1, 2, ... on two streams, until told that it is enough; each number once."""
    folder = Path(folder)
    before = (folder / "sender").read_text().split()[1::2] if (folder / "sender").exists() else []
    number = max(map(int, before), default=-1) + 1
    log = Log(folder / "sender")
    with link.sender(b"numbers", [StreamSpec(8 * WORDS, 3), StreamSpec(24, 2)]) as sender:
        while not (folder / "enough").exists():
            stream = number % 2
            slot = sender.reserve(stream)
            words = slot.memory.view(torch.int64)
            words.fill_(number)
            log("begins", number)
            sender.send(slot, slot.memory.numel(), sequence=number, step=0, policy_version=0)
            log("sent", number)
            number += 1
    return number


def receive_numbers(link, folder):
    """Receives until the sender has closed; returns how many packets were torn."""
    log, torn, held, over = Log(Path(folder) / "receiver"), 0, [], False
    receiver = link.receiver()
    while not over:
        packet = None
        wait_any([receiver], timedelta(seconds=0 if held else 30))  # the sender may wait for those
        try:
            packet = receiver.poll()
        except LinkEnded:
            over = True
        if packet is not None:
            number = packet.header.sequence
            torn += not bool((packet.memory.view(torch.int64) == number).all())
            log("given", number)
            held.append(packet)
        if len(held) == 3 or packet is None or packet.header.sequence % 3 == 0:
            for one in reversed(held):
                log("releases", one.header.sequence)
                receiver.release(one)
                log("released", one.header.sequence)
            held = []
    receiver.close()
    return torn


def fill_and_wait(link, ready):
    """Sends all it can, says so, and does nothing more."""
    sender = link.sender(b"", [StreamSpec(1000, 4)])
    for number in range(4):
        sender.send(sender.reserve(0), 1000, sequence=number, step=0, policy_version=0)
    ready.send(True)
    threading.Event().wait()


def send_and_exit(link, number):
    """Sends one packet, once the receiver has come, and ends as an environment's sys.exit does."""
    with link.sender(b"", [StreamSpec(8, 2)]) as sender:
        sender.send(sender.reserve(0), 8, sequence=number, step=0, policy_version=0)
        while sender.under_way(0):
            time.sleep(0.001)  # between two looks
        if number == 0:
            sys.exit(3)


def open_and_wait(link, ready):
    """A receiver that never reads."""
    receiver = link.receiver()
    ready.send(receiver.connected())
    threading.Event().wait()


def send_with_file_limit(link, limit):
    """Opens the sending end where files may not be longer than `limit`."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    link.sender(b"", [StreamSpec(1 << 20, 4)])


def send_in_full_tmpfs(link, folder):
    """Opens the sending end in a file of a full tmpfs, which only this process sees."""
    import ctypes
    import ctypes.util

    from gmi_drl.runtime import Memfd

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(0x00020000) or libc.mount(b"none", b"/", None, 0x44000, None):
        return "not allowed"
    if libc.mount(b"tmpfs", folder.encode(), b"tmpfs", 0, b"size=1m"):
        return "not allowed"
    fd = os.open(f"{folder}/ring", os.O_CREAT | os.O_RDWR)
    os.write(fd, bytes(link.memfd.map()))
    object.__setattr__(link, "memfd", Memfd(fd, "ring"))
    link.sender(b"", [StreamSpec(1 << 20, 4)])
    return "it had room"


def send_on_gpu(link, over):
    """Sends 20 packets whose numbers a GPU writes, and keeps their memory until told."""
    sender = link.sender(b"gpu", [StreamSpec(1 << 20, 3)])
    for number in range(20):
        slot = sender.reserve(0)
        slot.memory.view(torch.int64).fill_(number)
        sender.send(slot, 1 << 20, sequence=number, step=0, policy_version=0)
    over.recv()
