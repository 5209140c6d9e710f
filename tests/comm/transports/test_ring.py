"""The shared-memory ring: packets, order, back-pressure, ends, and what is refused."""

import os
import threading
import time
from datetime import timedelta

import pytest
import torch

from gmi_drl.comm.errors import (
    CorruptPacket,
    LinkClosed,
    LinkEnded,
    LinkError,
    LinkTimeout,
    SchemaDiffers,
)
from gmi_drl.comm.shm import liveness
from gmi_drl.comm.transports import StreamSpec, create_doorbell, create_link, wait_any
from gmi_drl.comm.transports.packet import HEADER_BYTES
from gmi_drl.comm.transports.ring import CONTROL_BYTES

SHORT = timedelta(milliseconds=50)
STREAMS = [StreamSpec(100, 2), StreamSpec(8, 3)]


@pytest.fixture
def link():
    return create_link("gmi 0, GPU 0", "gmi 3, GPU 1")


def test_a_kind_of_link_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="kind 'rings': a link is one of ring, cuda, tcp"):
        create_link("gmi 0", "gmi 1", kind="rings")


@pytest.fixture
def anew(monkeypatch):
    """The process at an end is always taken to be gone."""
    monkeypatch.setattr(liveness, "is_alive", lambda pid, started: False)


def send(sender, stream, value, nbytes=8):
    slot = sender.reserve(stream, SHORT)
    slot.memory[:nbytes] = value
    sender.send(slot, nbytes, sequence=value, step=-1, policy_version=7)


def test_a_packet_arrives_with_its_header_where_it_was_written(link):
    with link.sender(b"schema", STREAMS) as sender, link.receiver() as receiver:
        assert receiver.schema == b"schema"
        assert receiver.poll() is None
        send(sender, 1, 5)
        send(sender, 1, 6, nbytes=3)
        first, second = receiver.poll(), receiver.poll()
        assert first.header == (1, 0, 0, 5, -1, 7, 8)
        assert first.memory.tolist() == [5] * 8
        assert (second.header.number, second.memory.tolist()) == (1, [6] * 3)
        first.memory[0] = 77  # the same memory at both ends
        assert 77 in [int(slot.memory[0]) for slot in sender._streams[1].busy]


def test_a_sender_waits_while_all_slots_are_under_way_and_slots_come_back_in_any_order(link):
    sender, receiver = link.sender(b"", STREAMS), link.receiver()
    for value in range(3):
        send(sender, 1, value)
    assert sender.try_reserve(1) is None
    assert sender.under_way(1) == 3
    packets = [receiver.poll() for _ in range(3)]
    receiver.release(packets[1])
    send(sender, 1, 3)
    receiver.release(packets[0])
    send(sender, 1, 4)
    assert packets[2].memory.tolist() == [2] * 8  # held all the time, not touched
    assert [receiver.poll().header.sequence for _ in range(2)] == [3, 4]
    with pytest.raises(ValueError, match="was released already"):
        receiver.release(packets[0])


def test_slots_are_sent_in_the_order_of_send_and_only_once(link):
    sender, receiver = link.sender(b"", STREAMS), link.receiver()
    first, second = sender.reserve(0), sender.reserve(0)
    with pytest.raises(LinkError, match="all slots of stream 0 are reserved here"):
        sender.reserve(0)
    for sequence, slot in enumerate((second, first)):
        sender.send(slot, 0, sequence=sequence, step=0, policy_version=0)
    with pytest.raises(ValueError, match="reserve the slot"):
        sender.send(first, 0, sequence=2, step=0, policy_version=0)
    with pytest.raises(ValueError, match="0 to 8 bytes"):
        sender.send(sender.reserve(1), 9, sequence=2, step=0, policy_version=0)
    assert [receiver.poll().header.sequence for _ in range(2)] == [0, 1]


def test_streams_take_turns(link):
    sender, receiver = link.sender(b"", STREAMS), link.receiver()
    assert receiver.connected()
    for stream in (0, 0, 1, 1):
        send(sender, stream, stream)
    assert [receiver.poll().header.stream for _ in range(4)] == [0, 1, 0, 1]


def test_both_ends_closing_are_different_errors(link):
    sender, receiver = link.sender(b"", STREAMS), link.receiver()
    send(sender, 0, 1)
    sender.close()
    sender.close()
    assert receiver.poll().header.sequence == 1  # what came before the end
    assert wait_any([receiver], SHORT)
    with pytest.raises(LinkEnded, match="gmi 0, GPU 0 has closed it, and all packets"):
        receiver.poll()
    for call in (lambda: sender.reserve(0), lambda: sender.under_way(0)):
        with pytest.raises(LinkClosed, match="closed here"):
            call()
    receiver.close()
    with pytest.raises(LinkClosed, match="closed here"):
        receiver.poll()


def test_a_sender_learns_that_the_receiver_has_closed_also_while_it_waits(link):
    sender, receiver = link.sender(b"", [StreamSpec(8, 1)]), link.receiver()
    send(sender, 0, 1)
    closer = threading.Thread(target=receiver.close)
    closer.start()
    with pytest.raises(LinkEnded, match="gmi 3, GPU 1 has closed it and receives nothing more"):
        sender.reserve(0)
    closer.join()


def test_deadlines_name_the_late_end_and_say_what_is_known_of_it(link, anew):
    receiver = link.receiver(SHORT)
    with pytest.raises(LinkTimeout, match="gmi 0, GPU 0 has not opened its end yet") as late:
        assert receiver.schema
    assert late.value.late == "gmi 0, GPU 0"
    assert not wait_any([receiver], SHORT)
    sender = link.sender(b"", [StreamSpec(8, 1)], SHORT)
    send(sender, 0, 1)
    with pytest.raises(LinkTimeout, match=r"gmi 3, GPU 1 has released none of the 1 packets of st"):
        sender.reserve(0)


def test_waits_do_not_look_at_the_clock_on_the_wall(link, monkeypatch):
    monkeypatch.setattr(time, "time", lambda: pytest.fail("the wall clock was read"))
    sender, receiver = link.sender(b"", [StreamSpec(8, 1)], SHORT), link.receiver(SHORT)
    send(sender, 0, 1)
    assert wait_any([receiver], SHORT)
    with pytest.raises(LinkTimeout):
        sender.reserve(0)


def test_one_doorbell_wakes_for_any_link_and_links_with_others_are_heard_too():
    doorbell = create_doorbell()
    links = [create_link(f"gmi {i}", "gmi 9", doorbell=doorbell) for i in range(3)]
    links.append(create_link("gmi 3", "gmi 9"))
    senders = [link.sender(b"", STREAMS) for link in links]
    receivers = [link.receiver() for link in links]
    for heard in (receivers[:3], receivers):
        assert not wait_any(heard, timedelta(0))
        for index in range(len(heard)):
            thread = threading.Thread(target=send, args=(senders[index], 0, index))
            thread.start()
            assert wait_any(heard, timedelta(seconds=20))
            thread.join()
            packet = receivers[index].poll()
            assert packet.header.sequence == index
            receivers[index].release(packet)


def test_an_end_is_open_once(link):
    with link.sender(b"", STREAMS), link.receiver():
        with pytest.raises(LinkError, match=f"sender is open already, in process {os.getpid()}"):
            link.sender(b"", STREAMS)
        with pytest.raises(LinkError, match="its receiver is open already"):
            link.receiver()


def test_a_replaced_sender_must_send_the_same(link, anew):
    assert link.sender(b"schema", STREAMS).incarnation == 0
    with pytest.raises(SchemaDiffers, match="the sender has a schema b'other'"):
        link.sender(b"other", STREAMS)
    with pytest.raises(SchemaDiffers, match=r"the sender has streams .* \[\(100, 2\)\]"):
        link.sender(b"schema", STREAMS[:1])
    assert link.sender(b"schema", STREAMS).incarnation == 1


def test_an_end_that_was_closed_does_not_come_back(link, anew):
    link.sender(b"", STREAMS).close()
    link.receiver().close()
    with pytest.raises(LinkClosed, match="sender had closed it"):
        link.sender(b"", STREAMS)
    with pytest.raises(LinkClosed, match="receiver had closed it"):
        link.receiver()


@pytest.mark.parametrize("byte", range(HEADER_BYTES))
def test_a_damaged_header_is_refused_whichever_byte_and_the_rest_goes_on(link, byte):
    sender, receiver = link.sender(b"", STREAMS), link.receiver()
    send(sender, 0, 1)
    send(sender, 0, 2)
    sender._streams[0].headers[sender._streams[0].busy[0].place][byte] ^= 0x10
    with pytest.raises(CorruptPacket, match="link from gmi 0, GPU 0 to gmi 3, GPU 1") as error:
        receiver.poll()
    field = "magic" if byte < 4 else "version" if byte < 6 else "header checksum"
    assert error.value.field == field
    assert receiver.poll().header.sequence == 2
    assert sender.under_way(0) == 1  # the slot of what was refused is free again


def test_a_well_formed_header_of_another_link_schema_or_place_is_refused(link):
    sender, receiver = link.sender(b"", STREAMS), link.receiver()
    stranger = create_link("gmi 0", "gmi 3").sender(b"", STREAMS)
    other = create_link("gmi 0", "gmi 3")
    object.__setattr__(other, "link", link.link)
    cases = {"link": stranger, "schema checksum": other.sender(b"another", STREAMS)}
    for field, writer in cases.items():
        send(sender, 0, 1)
        send(writer, 0, 1)
        place = sender._streams[0].busy[-1].place
        theirs = writer._streams[0]
        sender._streams[0].headers[place][:] = theirs.headers[theirs.busy[-1].place]
        with pytest.raises(CorruptPacket) as error:
            receiver.poll()
        assert error.value.field == field
    for field, change in {
        "stream": {"stream": 1},
        "nbytes": {"nbytes": 101},
        "number": {"number": 9},
    }.items():
        send(sender, 0, 1)
        mine = sender._streams[0]
        header = receiver._origin.unpack(bytes(mine.headers[mine.busy[-1].place]), [100, 8])
        raw = sender._origin.pack(header._replace(**change))
        mine.headers[mine.busy[-1].place][:] = raw
        with pytest.raises(CorruptPacket) as error:
            receiver.poll()
        assert error.value.field == field
    assert sender.under_way(0) == 0


def test_more_memory_than_the_machine_has_is_an_error_at_once_and_fewer_slots_then_do(link):
    with pytest.raises(LinkError, match=r"281,[\d,]+ bytes .* asked for.* Use fewer slots"):
        link.sender(b"", [StreamSpec(1 << 30, 262_144)])
    assert link.memfd.size == CONTROL_BYTES
    with link.sender(b"", STREAMS) as sender:
        assert sender.incarnation == 0


def test_pages_are_reserved_when_the_link_opens(link):
    link.sender(b"", [StreamSpec(1 << 20, 4)])
    status = os.fstat(link.memfd.fd)
    assert status.st_blocks * 512 >= 4 << 20


def test_wrong_arguments_are_named(link):
    with pytest.raises(ValueError, match="0 streams: a link has 1 to"):
        link.sender(b"", [])
    with pytest.raises(ValueError, match="both are 1 or more"):
        StreamSpec(8, 0)
    with pytest.raises(ValueError, match="must be more than nothing"):
        link.receiver(timedelta(0))
    with pytest.raises(ValueError, match="no receivers"):
        wait_any([], SHORT)


def test_received_memory_outlives_its_link():
    link = create_link("gmi 0", "gmi 3")
    sender, receiver = link.sender(b"", STREAMS), link.receiver()
    send(sender, 0, 9, nbytes=100)
    memory = receiver.poll().memory
    sender.close()
    receiver.close()
    del sender, receiver, link
    assert torch.equal(memory, torch.full((100,), 9, dtype=torch.uint8))
