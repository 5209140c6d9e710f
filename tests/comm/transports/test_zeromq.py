"""Links over ZeroMQ: the same as in shared memory, keys, and connections that are lost."""

import contextlib
import dataclasses
import pickle
import socket
import stat
import threading
import time
from datetime import timedelta

import pytest
import torch
import zmq

from gmi_drl.comm.errors import (
    CorruptPacket,
    LinkClosed,
    LinkEnded,
    LinkError,
    LinkTimeout,
    SchemaDiffers,
)
from gmi_drl.comm.transports import StreamSpec, create_link, wait_any, zeromq, zeromq_ends

SHORT = timedelta(milliseconds=80)
LONG = timedelta(seconds=20)
STREAMS = [StreamSpec(100_000, 2), StreamSpec(8, 3)]


@pytest.fixture
def link(tmp_path):
    return new(tmp_path)


@pytest.fixture(autouse=True)
def short_goodbyes(monkeypatch):
    """Both ends are in one thread here: the receiver cannot answer while the sender closes."""
    monkeypatch.setattr(zeromq_ends, "_GOODBYE_S", 0.2)


@pytest.fixture
def anew(monkeypatch):
    """The process of a sender before is always taken to be gone."""
    monkeypatch.setattr(zeromq, "is_alive", lambda pid, started: False)


def new(folder):
    folder.chmod(0o700)
    return create_link("gmi 0, GPU 0", "gmi 3, GPU 1", directory=folder, kind="tcp")


def send(sender, stream, value, nbytes=8):
    slot = sender.reserve(stream, SHORT)
    slot.memory[:nbytes] = value
    sender.send(slot, nbytes, sequence=value, step=-1, policy_version=7)


def meet(sender, receiver):
    """Returns when both ends are connected."""
    deadline_s = time.monotonic() + 20
    while not sender._welcome:
        assert time.monotonic() < deadline_s
        assert wait_any([receiver], SHORT) in (True, False)
        sender.under_way(0)


def take(receiver):
    assert wait_any([receiver], LONG)
    return receiver.poll()


def test_packets_arrive_in_order_with_their_headers(link):
    link = pickle.loads(pickle.dumps(link))
    with link.sender(b"schema", STREAMS) as sender, link.receiver(LONG) as receiver:
        send(sender, 0, 5, nbytes=100_000)  # before they are connected
        assert receiver.schema == b"schema"
        meet(sender, receiver)
        send(sender, 1, 6, nbytes=3)
        first, second = take(receiver), take(receiver)
        assert first.header == (0, 0, 0, 5, -1, 7, 100_000)
        assert torch.equal(first.memory, torch.full((100_000,), 5, dtype=torch.uint8))
        assert first.memory.view(torch.float64).shape == (12_500,)
        assert (second.header.number, second.memory.tolist()) == (0, [6] * 3)
        with pytest.raises(ValueError, match="0 to 8 bytes"):
            sender.send(sender.reserve(1), 9, sequence=2, step=0, policy_version=0)


def test_large_packets_are_not_copied_after_libzmq(link):
    with link.sender(b"", STREAMS) as sender, link.receiver(LONG) as receiver:
        meet(sender, receiver)
        send(sender, 0, 5, nbytes=100_000)
        memory = take(receiver).memory
        assert memory.untyped_storage().nbytes() == 100_000
        assert memory.data_ptr() % 16 == 8  # where libzmq lays them; a copy would be at 64


def test_a_sender_waits_while_all_slots_are_under_way(link):
    with link.sender(b"", STREAMS) as sender, link.receiver(LONG) as receiver:
        meet(sender, receiver)
        for value in range(3):
            send(sender, 1, value)
        packets = [take(receiver) for _ in range(3)]
        assert sender.try_reserve(1) is None
        with pytest.raises(LinkTimeout, match=r"gmi 3, GPU 1 has released none.*is connected"):
            sender.reserve(1, SHORT)
        receiver.release(packets[1])
        sender.reserve(1, LONG)
        assert sender.under_way(1) == 2
        with pytest.raises(ValueError, match="was released already"):
            receiver.release(packets[1])


def test_both_ends_closing_are_different_errors(link):
    with link.sender(b"", STREAMS) as sender, link.receiver(LONG) as receiver:
        meet(sender, receiver)
        send(sender, 1, 1)
        closer = threading.Thread(target=sender.close)
        closer.start()
        assert take(receiver).header.sequence == 1
        assert wait_any([receiver], LONG)
        with pytest.raises(LinkEnded, match="gmi 0, GPU 0 has closed it"):
            receiver.poll()
        closer.join()
        with pytest.raises(LinkClosed, match="closed here"):
            sender.try_reserve(0)
        receiver.close()
        with pytest.raises(LinkClosed, match="closed here"):
            receiver.poll()


def test_a_sender_learns_that_the_receiver_has_closed(link):
    with link.sender(b"", STREAMS) as sender:
        with link.receiver(LONG) as receiver:
            meet(sender, receiver)
        while not sender._ended:
            sender._wait_for_room(0, 20)
            sender.under_way(0)
        with pytest.raises(LinkEnded, match="gmi 3, GPU 1 has closed it"):
            sender.reserve(0)


def test_a_receiver_whose_sender_has_closed_writes_nothing_more(link):
    """A close would wait 2 s for nobody to take it."""
    receiver = link.receiver(LONG)
    with link.sender(b"", STREAMS) as sender:
        meet(sender, receiver)
        closer = threading.Thread(target=sender.close)
        closer.start()
        assert wait_any([receiver], LONG)
        closer.join()
    told = []
    receiver._tell = told.append
    receiver.close()
    assert told == []


def test_a_receiver_listens_without_linger(link, monkeypatch):
    """`bind` copies it for connections lost just before `close`, which else may never end."""
    lingers = []
    bind = zmq.Socket.bind

    def spied(one, address):
        if one.type == zmq.ROUTER:
            lingers.append(one.linger)
        return bind(one, address)

    monkeypatch.setattr(zmq.Socket, "bind", spied)
    link.receiver(LONG).close()
    assert lingers == [0]


def test_a_replaced_receiver_is_given_again_what_was_not_released(link):
    with link.sender(b"", STREAMS) as sender:
        with link.receiver(LONG) as receiver:
            meet(sender, receiver)
            for value in range(3):
                send(sender, 1, value)
            packets = [take(receiver) for _ in range(3)]
            receiver.release(packets[1])
            while sender.under_way(1) > 2:
                time.sleep(0.001)  # between two looks
            receiver._tell = lambda note: None  # it is killed, and says nothing
        with link.receiver(LONG) as receiver:
            found = []
            while len(found) < 2:
                sender.under_way(0)  # it works when it is called
                if wait_any([receiver], SHORT):
                    found.append(receiver.poll())
            assert [(one.header.number, one.header.sequence) for one in found] == [(0, 0), (2, 2)]


def test_a_sender_that_closes_waits_for_who_replaces_a_receiver_that_died_in_the_handshake(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(zeromq_ends, "_GOODBYE_S", 20.0)
    monkeypatch.setattr(zeromq_ends, "_GLANCE_S", 0.05)
    link = new(tmp_path)
    sender = link.sender(b"", STREAMS, LONG)
    with link.receiver(LONG) as receiver:
        meet(sender, receiver)
        receiver._tell = lambda note: None  # it is killed, and says nothing
    send(sender, 1, 5)
    with socket.socket() as dying:
        dying.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        dying.bind(("127.0.0.1", int(link.endpoint.rpartition(":")[2])))
        dying.listen()
        dying.setblocking(False)
        while not sender._handshakes.failed:
            sender.under_way(1)  # it looks at what became of its connection
            with contextlib.suppress(BlockingIOError):
                dying.accept()[0].close()
    closer = threading.Thread(target=sender.close)
    closer.start()
    closer.join(0.5)
    with link.receiver(LONG) as receiver:
        packet = take(receiver)
        assert packet.header.sequence == 5
        receiver.release(packet)
        assert wait_any([receiver], LONG)
        with pytest.raises(LinkEnded):
            receiver.poll()
        closer.join()


def test_a_replaced_receiver_is_told_the_end_by_a_sender_that_has_nothing_left(link, monkeypatch):
    monkeypatch.setattr(zeromq_ends, "_GOODBYE_S", 20.0)
    monkeypatch.setattr(zeromq_ends, "_GLANCE_S", 0.05)
    sender = link.sender(b"", STREAMS, LONG)
    with link.receiver(LONG) as receiver:
        meet(sender, receiver)
        receiver._tell = lambda note: None  # it is killed, and says nothing
    while sender._handshakes.up:
        sender.under_way(1)
    closer = threading.Thread(target=sender.close)
    closer.start()
    closer.join(0.5)
    with link.receiver(LONG) as receiver:
        assert wait_any([receiver], LONG)
        with pytest.raises(LinkEnded):
            receiver.poll()
        closer.join()


def test_a_replaced_sender_has_the_next_incarnation_and_sends_the_same(link, anew):
    with link.receiver(LONG) as receiver:
        first = link.sender(b"schema", STREAMS)
        meet(first, receiver)
        send(first, 1, 1)
        assert take(receiver).header.sequence == 1
        first._disconnect(0)  # killed
        with link.sender(b"schema", STREAMS) as second:
            assert second.incarnation == 1
            meet(second, receiver)
            send(second, 1, 2)
            assert take(receiver).header[:4] == (1, 1, 0, 2)
            with (
                link.sender(b"other", STREAMS) as third,
                pytest.raises(SchemaDiffers, match="another schema"),
            ):
                meet(third, receiver)
        first._context.term()
        first._context = None


def test_a_second_end_is_refused_while_the_first_lives(link):
    with link.sender(b"", STREAMS), link.receiver(LONG):
        with pytest.raises(LinkError, match="its sender is open already, in process"):
            link.sender(b"", STREAMS)
        with pytest.raises(LinkError, match="A link has one receiver"):
            link.receiver(LONG)


def test_who_waits_in_vain_names_the_other_end(link):
    with link.receiver(SHORT) as receiver, pytest.raises(LinkTimeout, match="nobody has conn") as e:
        assert receiver.schema
    assert e.value.late == "gmi 0, GPU 0"
    with link.sender(b"", STREAMS, SHORT) as sender:
        for value in range(3):
            send(sender, 1, value)
        with pytest.raises(LinkTimeout, match=r"released none of the 3.*does not listen at") as e:
            sender.reserve(1)
        assert e.value.late == "gmi 3, GPU 1"
        sender._streams[1].busy.clear()  # close would wait for them


@pytest.mark.parametrize("whose", ["client", "server"])
def test_a_wrong_key_is_refused_and_both_ends_say_so(tmp_path, whose):
    link = new(tmp_path)
    public, secret = zmq.curve_keypair()
    wrong = dataclasses.replace(link.keys, **{f"{whose}_public": public, f"{whose}_secret": secret})
    with (
        dataclasses.replace(link, keys=wrong).sender(b"", [StreamSpec(8, 1)]) as sender,
        link.receiver(timedelta(seconds=1)) as receiver,
    ):
        send(sender, 0, 1)
        with pytest.raises(LinkTimeout, match=r"CURVE handshake does not succeed.* same run"):
            assert receiver.schema
        with pytest.raises(LinkTimeout, match=r"CURVE handshake did not succeed.* same run"):
            sender.reserve(0, timedelta(seconds=1))
        sender._streams[0].busy.clear()  # close would wait for it


def test_who_has_no_key_at_all_is_not_heard(tmp_path):
    link = new(tmp_path)
    with zmq.Context() as context, context.socket(zmq.DEALER) as bare:
        bare.linger = 0
        with link.receiver(timedelta(seconds=1)) as receiver:
            bare.connect(link.endpoint)
            bare.send(b"hello")
            with pytest.raises(LinkTimeout):
                assert receiver.schema
            assert receiver.refused > 0
            assert not wait_any([receiver], SHORT)


def test_tcp_listens_on_this_host_alone_at_the_port_that_was_kept_for_it(tmp_path):
    link = new(tmp_path)
    address, port = link.endpoint.removeprefix("tcp://").split(":")
    assert address == "127.0.0.1"
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind((address, int(port)))
    assert link.keys.server_secret.decode() not in repr(link)


def test_damaged_and_foreign_messages_are_refused_and_what_follows_arrives(link):
    with link.sender(b"", STREAMS) as sender, link.receiver(LONG) as receiver:
        meet(sender, receiver)
        send(sender, 1, 1)
        assert take(receiver).header.sequence == 1
        pack = sender._origin.pack
        sender._origin = type("Damaged", (), {"pack": lambda _, header: b"x" + pack(header)[1:]})()
        send(sender, 1, 2)
        sender._origin = type("Right", (), {"pack": lambda _, header: pack(header)})()
        send(sender, 1, 3)
        with pytest.raises(CorruptPacket, match=r"link from gmi 0.*magic is"):
            take(receiver)
        assert take(receiver).header.sequence == 3
        for frames, field in (
            ([b"hello"], "length"),
            ([b"x" * 60], "magic"),
            ([b"a", b"b", b"c"], "length"),
        ):
            sender._socket.send_multipart(frames)
            with pytest.raises(CorruptPacket) as error:
                take(receiver)
            assert error.value.field == field
        while sender.under_way(1) > 2:  # the refused one is not under way any more
            time.sleep(0.001)  # between two looks


def test_a_folder_that_others_can_reach_is_refused(tmp_path):
    tmp_path.chmod(0o755)
    with pytest.raises(LinkError, match="chmod 0700"):
        create_link("a", "b", directory=tmp_path, kind="tcp")
    with pytest.raises(ValueError, match="a tcp link needs a private folder"):
        create_link("a", "b", kind="tcp")
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


def test_a_folder_may_have_a_longer_path_than_a_unix_socket(tmp_path):
    deep = tmp_path / ("x" * 120)
    deep.mkdir(mode=0o700)
    link = create_link("gmi 0", "gmi 1", directory=deep, kind="tcp")
    with link.receiver() as receiver, link.sender(b"", [StreamSpec(8, 1)]) as sender:
        assert receiver.schema == b""
        sender.give_up()


def test_no_thread_is_started(link):
    before = threading.active_count()
    with link.sender(b"", STREAMS) as sender, link.receiver(LONG) as receiver:
        meet(sender, receiver)
        send(sender, 0, 1, nbytes=100_000)
        take(receiver)
        assert threading.active_count() == before


def test_packets_and_schemas_of_any_size_come_by_frames_that_are_let_in(link, monkeypatch):
    streams = [StreamSpec(1_000_001, 2)]
    monkeypatch.setattr(zeromq_ends, "PIECE_BYTES", 100_000)  # what one frame may carry
    with link.sender(b"s" * (1 << 19), streams) as sender, link.receiver(LONG) as receiver:
        meet(sender, receiver)
        for nbytes in (1_000_001, 0, 100_000, 200_000):
            slot = sender.reserve(0)
            numbers = torch.arange(nbytes) % 251
            slot.memory[:nbytes] = numbers
            sender.send(slot, nbytes, sequence=nbytes, step=0, policy_version=0)
            packet = take(receiver)
            assert (packet.header.sequence, packet.header.nbytes) == (nbytes, nbytes)
            assert torch.equal(packet.memory.long(), numbers)
            receiver.release(packet)
    with pytest.raises(LinkError, match=r"a schema of 524,289 bytes; .* 524,288"):
        link.sender(b"s" * ((1 << 19) + 1), streams)


def test_a_packet_of_a_whole_frame_is_let_in(link):
    streams = [StreamSpec(2 << 20, 1)]
    with link.sender(b"", streams) as sender, link.receiver(LONG) as receiver:
        meet(sender, receiver)
        send(sender, 0, 7, nbytes=2 << 20)
        assert take(receiver).memory.unique().tolist() == [7]


def test_a_packet_far_ahead_of_those_before_it_keeps_nobody(link):
    with link.sender(b"", STREAMS) as sender, link.receiver(LONG) as receiver:
        meet(sender, receiver)
        sender._streams[1].next = 1_000_000
        send(sender, 1, 5)
        told = []
        receiver._tell = told.append
        assert take(receiver).header.number == 1_000_000
        assert [note.number for note in told] == [
            999_997,
            999_998,
            999_999,
        ]  # no more are under way
        sender._streams[1].busy.clear()  # close would wait for it
