"""Frames over a socket, however the stream is cut."""

import os
import random
import socket
import threading

import numpy as np
import pytest

from gmi_drl.runtime import Memfd, SerializationError
from gmi_drl.runtime.wire import framing, packing


@pytest.fixture
def pair():
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with left, right:
        yield left, right


def receive(sock, number, reader=None):
    reader = reader or framing.Reader()
    messages = []
    while len(messages) < number:
        messages += reader.read(sock)
    assert len(messages) == number
    return messages


def flat(value, id=0):
    packed = packing.pack(value)
    fds = [memfd.fd for memfd in packed.memfds]
    return framing.frame(7, id, packed.body, len(fds)), fds


def load(message):
    return packing.unpack(message.body, fds=message.fds or ())


def test_a_frame_without_a_value(pair):
    framing.send(pair[0], framing.frame(3, 2**40))
    (message,) = receive(pair[1], 1)
    assert (message.kind, message.id, message.body) == (3, 2**40, b"")


@pytest.mark.parametrize("seed", range(4))
def test_any_sizes_cut_anywhere(pair, seed):
    draw = random.Random(seed)
    sizes = draw.choices((0, 1, 500, 4096, 70_000, 131_040, 300_000, 900_000), k=40)
    values = [np.frombuffer(bytearray(draw.randbytes(n)), dtype=np.uint8) for n in sizes]
    stream = b"".join(flat([value, id], id)[0] for id, value in enumerate(values))

    def write():
        rest = memoryview(stream)
        while rest:
            cut = draw.choice((1, 31, 33, 4_000, 200_000))
            pair[0].sendall(rest[:cut])
            rest = rest[cut:]

    writer = threading.Thread(target=write)
    writer.start()
    for place, message in enumerate(receive(pair[1], len(values))):
        value, id = load(message)
        assert message.id == id == place
        assert not value.flags.writeable
        np.testing.assert_array_equal(value, values[place])
    writer.join()


def test_descriptors_stay_with_their_frames(pair):
    memfds = [Memfd.create(f"number {place}") for place in range(20)]
    for place, memfd in enumerate(memfds):
        memfd.resize(place + 1)
        data, fds = flat((place, memfd if place % 3 else None))
        framing.send(pair[0], data, fds)
    for message in receive(pair[1], len(memfds)):
        place, received = load(message)
        if received is not None:
            assert (received.size, received.name) == (place + 1, f"number {place}")
            assert received.fd not in [memfd.fd for memfd in memfds]
            assert not os.get_inheritable(received.fd)
            received.close()
    for memfd in memfds:
        memfd.close()


def test_descriptors_of_a_message_that_nobody_reads_are_closed(pair):
    before = len(os.listdir("/proc/self/fd"))
    memfd = Memfd.create("unread")
    data, fds = flat(memfd)
    framing.send(pair[0], data, fds)
    messages = receive(pair[1], 1)
    del messages
    framing.send(pair[0], data[:10], fds)  # and one that never comes whole
    reader = framing.Reader()
    assert reader.read(pair[1]) == []
    reader.close()
    memfd.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_end_of_the_stream(pair):
    data, _ = flat("last")
    framing.send(pair[0], data)
    pair[0].close()
    reader = framing.Reader()
    assert [load(message) for message in reader.read(pair[1])] == ["last"]
    assert reader.read(pair[1]) is None


def test_more_descriptors_than_the_kernel_passes():
    memfds = [Memfd.create("many") for _ in range(254)]
    with pytest.raises(SerializationError, match="254 Memfds; one call carries at most 253"):
        packing.pack(memfds)
    for memfd in memfds:
        memfd.close()


def test_a_memfd_in_what_only_cloudpickle_can_pickle(pair):
    memfd = Memfd.create("captured")
    memfd.resize(5)
    data, fds = flat(lambda: memfd.size)
    assert len(fds) == 1
    framing.send(pair[0], data, fds)
    (message,) = receive(pair[1], 1)
    size_of = load(message)
    memfd.close()
    assert size_of() == 5
    size_of.__closure__[0].cell_contents.close()
