"""Links between real processes: killed, slow, silent, without memory."""

import random
import time
from datetime import timedelta

import pytest

import bodies_links as bodies
from gmi_drl.comm.errors import LinkEnded, LinkError, LinkTimeout
from gmi_drl.comm.transports import create_link
from links import End, lines, pipe
from waits import until

SHORT = timedelta(milliseconds=50)


def new(kind, folder):
    folder.chmod(0o700)
    return create_link("gmi 0, GPU 0", "gmi 3, GPU 1", directory=folder, kind=kind)


def check_kills(kind, folder, kills, seed, sender_too=True):
    """Both ends count on while they are killed at random moments."""
    chance, link = random.Random(seed), new(kind, folder)
    with (
        End(bodies.send_numbers, link, str(folder)) as sender,
        End(bodies.receive_numbers, link, str(folder)) as receiver,
    ):
        for _ in range(kills):
            before = len(lines(folder / "receiver"))
            until(
                lambda n=before: len(lines(folder / "receiver")) > n + 30, "the link stands still"
            )
            time.sleep(chance.uniform(0, 0.03))  # at any moment
            (sender if sender_too and chance.random() < 0.5 else receiver).restart()
        (folder / "enough").touch()
        sender.outcome()
        assert receiver.outcome() == 0, "torn packets"
    nothing_lost = kind == "ring" or not sender_too
    logs = lines(folder / "sender"), lines(folder / "receiver")
    check_logs(*logs, kind, kills, nothing_lost)


def check_logs(sent, received, kind, kills, nothing_lost):
    """Each number that was surely sent arrived, in order, and once it was released never again.

    Over a socket the word of a release may be lost with the process that gave it.
    """
    by = {
        what: [int(line.split()[1]) for line in (*sent, *received) if line.split()[0] == what]
        for what in ("begins", "sent", "given", "releases", "released")
    }
    given = set(by["given"])
    assert given <= set(by["begins"])
    if nothing_lost:
        assert set(by["sent"]) <= given
        assert set(by["sent"]) <= set(by["releases"])
    gone, again = set(), []
    for line in received:
        what, number = line.split()
        if what == "given" and number in gone:
            again.append(number)
        if what == "released":
            gone.add(number)
    assert len(again) <= (0 if kind == "ring" else 5 * kills)  # at most all slots, each time
    for stream in range(2):
        first = list(dict.fromkeys(number for number in by["given"] if number % 2 == stream))
        assert first == sorted(first)


@pytest.mark.parametrize("kind", ["ring", "tcp"])
def test_killed_at_random_moments_nothing_is_torn_repeated_or_out_of_order(kind, tmp_path):
    check_kills(kind, tmp_path, kills=3, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["ring", "tcp"])
def test_fifty_kills_of_either_end(kind, tmp_path):
    check_kills(kind, tmp_path, kills=50, seed=2)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_sockets_lose_nothing_when_receivers_are_killed(tmp_path):
    check_kills("tcp", tmp_path, kills=20, seed=3, sender_too=False)


def test_a_sender_that_is_dead_is_named_and_what_it_sent_is_still_there():
    link = create_link("gmi 0, GPU 0", "gmi 3, GPU 1")
    ready, say = pipe()
    with End(bodies.fill_and_wait, link, say) as end:
        assert ready.recv()
        end.process.kill()
        end.process.join()
    receiver = link.receiver()
    assert [receiver.poll().header.sequence for _ in range(4)] == [0, 1, 2, 3]
    assert receiver.poll() is None
    sender = link.sender(b"", [bodies.StreamSpec(1000, 4)])
    assert (sender.incarnation, sender.under_way(0)) == (1, 4)


@pytest.mark.parametrize("kind", ["ring", "tcp"])
def test_a_sender_that_calls_sys_exit_has_not_closed_its_link(kind, tmp_path):
    link = new(kind, tmp_path)
    with link.receiver() as receiver:
        for number in range(2):
            with End(bodies.send_and_exit, link, number) as end:
                until(receiver.ready, "no packet")
                packet = receiver.poll()
                assert (packet.header.incarnation, packet.header.sequence) == (number, number)
                receiver.release(packet)
                until(lambda end=end: receiver.ready() or not end.process.is_alive(), "the end")
        until(receiver.ready, "the end")
        with pytest.raises(LinkEnded):
            receiver.poll()


def test_a_reader_that_never_reads_is_named_and_so_is_one_that_died():
    link = create_link("gmi 0, GPU 0", "gmi 3, GPU 1")
    sender = link.sender(b"", [bodies.StreamSpec(8, 1)])
    sender.send(sender.reserve(0), 8, sequence=0, step=0, policy_version=0)
    ready, say = pipe()
    with End(bodies.open_and_wait, link, say):
        assert ready.recv()
        with pytest.raises(LinkTimeout, match=r"gmi 3, GPU 1 has released none.*is running") as e:
            sender.reserve(0, SHORT)
        assert e.value.late == "gmi 3, GPU 1"
    with pytest.raises(LinkTimeout, match=r"its process \d+ has ended and was not replaced"):
        sender.reserve(0, SHORT)


def test_a_slow_consumer_slows_its_sender_and_fills_no_memory(tmp_path):
    link = create_link("gmi 0, GPU 0", "gmi 3, GPU 1")
    with End(bodies.send_numbers, link, str(tmp_path)) as end:
        receiver = link.receiver()
        assert receiver.schema == b"numbers"
        size = link.memfd.size
        for number in range(0, 40, 2):
            until(receiver.ready, "no packet")
            packet = receiver.poll()
            while packet.header.stream:  # those of the other stream wait here all the time
                receiver.release(packet)
                until(receiver.ready, "no packet")
                packet = receiver.poll()
            assert packet.header.sequence == number
            sent = len([line for line in lines(tmp_path / "sender") if line.startswith("sent")])
            assert sent <= number + 12
            receiver.release(packet)
        assert link.memfd.size == size
        (tmp_path / "enough").touch()
        receiver.close()
        end.process.join(20)


def test_a_full_shared_memory_is_an_error_of_the_sender_that_names_what_it_asked_for(tmp_path):
    for body, argument in (
        (bodies.send_with_file_limit, 1 << 20),
        (bodies.send_in_full_tmpfs, str(tmp_path)),
    ):
        link = create_link("gmi 0, GPU 0", "gmi 3, GPU 1")
        with End(body, link, argument) as end:
            outcome = end.outcome()
        if outcome == "not allowed":  # to mount: what a file limit shows has to do
            continue
        assert isinstance(outcome, LinkError)
        assert "4,202,496 bytes of shared memory asked for" in str(outcome)
        assert "File too large" in str(outcome) or "No space left" in str(outcome)
        with link.sender(b"", [bodies.StreamSpec(1 << 20, 4)]) as sender:  # where there is room
            assert sender.incarnation == 0
