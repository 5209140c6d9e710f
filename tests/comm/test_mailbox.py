"""Messages arrive whole and in order, a full mailbox makes its sender wait, and nothing is left."""

import contextlib
import dataclasses
import os
import pickle
import threading
from datetime import timedelta

import numpy as np
import pytest
import torch

import bodies_comm as bodies
from gmi_drl.comm import (
    Mailbox,
    MailboxClosed,
    MailboxError,
    MailboxTimeout,
    MessageError,
    PeerClosed,
    PeerRestarted,
)
from gmi_drl.comm.mailbox.mailbox import decode, encode
from ranks import Died, run_ranks

SHORT = timedelta(milliseconds=100)


@pytest.fixture
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("m", numbered=True)
    path.chmod(0o700)
    return path


@pytest.fixture
def pair(folder):
    with Mailbox(folder, 0, capacity=3) as first, Mailbox(folder, 1, capacity=3) as second:
        yield first, second
    assert os.listdir(folder) == []


def test_messages_of_each_sender_come_in_their_order(folder):
    with Mailbox(folder, 0) as a, Mailbox(folder, 1) as b, Mailbox(folder, 2) as c:
        for number in range(20):
            a.send(2, ("a", number))
            b.send(2, ("b", number))
        assert [c.recv(1) for _ in range(20)] == [("b", number) for number in range(20)]
        assert [c.recv(0) for _ in range(20)] == [("a", number) for number in range(20)]
        c.send(2, "to myself")
        assert c.recv(2) == "to myself"


def test_a_message_is_what_it_was_when_it_was_sent(pair):
    first, second = pair
    data = {"small": torch.arange(3.0), "large": torch.ones(100_000), "array": np.ones((300, 7))}
    first.send(1, data)
    for value in data.values():
        value[:] = -1
    got = second.recv(0)
    assert torch.equal(got["small"], torch.arange(3.0))
    assert torch.equal(got["large"], torch.ones(100_000))
    assert (got["array"] == 1).all()
    for value in got.values():  # the receiver's own, to write in
        value += 1


def test_senders_wait_when_the_mailbox_is_full_and_name_the_receiver(pair):
    first, second = pair
    for number in range(3):
        first.send(1, number)
    with pytest.raises(MailboxTimeout, match=r"after 0.1 s: gmi 1 has not received") as caught:
        first.send(1, 3, SHORT)
    assert caught.value.gmi_id == 1
    assert second.recv(0) == 0
    first.send(1, 3, timedelta(seconds=20))  # there is room again; what was refused was not sent
    assert [second.recv(0) for _ in range(3)] == [1, 2, 3]
    with pytest.raises(MailboxTimeout, match=r"gmi 0 has sent nothing to gmi 1$"):
        second.recv(0, SHORT)


def test_a_slow_receiver_makes_a_fast_sender_wait_and_loses_nothing(pair):
    first, second = pair
    received = []
    thread = threading.Thread(target=lambda: received.extend(second.recv(0) for _ in range(200)))
    thread.start()
    for number in range(200):
        first.send(1, number)
    thread.join(30)
    assert received == list(range(200))


def test_a_gmi_that_is_not_there_is_named(pair):
    with pytest.raises(MailboxTimeout, match=r"gmi 7 has opened no mailbox in .*GMI 7 in"):
        pair[0].send(7, "hello", SHORT)
    with pytest.raises(MailboxTimeout, match="gmi 7 has sent nothing to gmi 0; it has no mailbox"):
        pair[0].recv(7, SHORT)


def test_closed_here_and_closed_there_are_different_errors(folder):
    first, second = Mailbox(folder, 0), Mailbox(folder, 1)
    first.send(1, "last words")
    first.close()
    first.close()
    with pytest.raises(MailboxClosed, match="gmi 0 has been closed here"):
        first.send(1, "more")
    with pytest.raises(MailboxClosed):
        first.recv(1)
    assert second.recv(0) == "last words"
    with pytest.raises(PeerClosed, match="gmi 0 has closed its mailbox and sends nothing more"):
        second.recv(0)
    with pytest.raises(PeerClosed, match="gmi 0 has closed its mailbox and receives nothing"):
        second.send(0, "answer")
    second.close()


def test_what_was_sent_before_closing_arrives_even_if_it_is_large(folder):
    with Mailbox(folder, 1) as second:
        with Mailbox(folder, 0) as first:
            for number in range(10):
                first.send(1, torch.full((1_000_000,), float(number)))
        for number in range(10):
            assert float(second.recv(0).mean()) == number


def test_processes_send_to_each_other(folder):
    assert run_ranks(bodies.pass_round, 3, str(folder)) == [True] * 3
    assert os.listdir(folder) == []


def test_a_killed_gmi_s_mailbox_can_be_opened_again(folder):
    (died,) = run_ranks(bodies.open_and_die, 1, str(folder))
    assert died == Died(-9)
    assert os.listdir(folder) == ["gmi0"]
    with Mailbox(folder, 0) as again, pytest.raises(MailboxError, match="gmi 0 has a mailbox open"):
        Mailbox(folder, 0)
    assert os.listdir(folder) == []
    again.close()


def test_a_process_ends_whose_mailbox_is_not_closed_and_has_a_message_to_the_dead(folder):
    assert run_ranks(bodies.exit_with_a_message_to_the_dead, 1, str(folder)) == [True]


def die(mailbox):
    """As if its process were killed: its file stays, and it says nothing."""
    for context in (mailbox._outgoing, mailbox._incoming):
        context.destroy(0)
    mailbox._path.touch()  # ZeroMQ removes it when it closes in order


def test_who_talked_to_a_restarted_gmi_is_told_once_and_then_reaches_it(folder):
    with Mailbox(folder, 0, capacity=3) as first:
        before = Mailbox(folder, 1)
        before.send(0, "of before")
        for number in range(3):  # its mailbox is full
            first.send(1, number)
        die(before)
        with Mailbox(folder, 1) as again:
            with pytest.raises(PeerRestarted, match="gmi 1 was restarted: messages between gmi 0"):
                first.send(1, "lost")
            first.send(1, "hello")
            assert again.recv(0) == "hello"  # and nothing that was meant for the dead one
            again.send(0, "here I am")
            assert first.recv(1) == "here I am"


def test_a_receiver_is_told_of_a_restart_and_gets_no_message_of_before(folder):
    with Mailbox(folder, 0) as first:
        before = Mailbox(folder, 1)
        before.send(0, 1)
        assert first.recv(1) == 1
        before.send(0, 2)
        die(before)
        with Mailbox(folder, 1) as again:
            again.send(0, 3)
            with pytest.raises(PeerRestarted) as error:
                first.recv(1)
            assert error.value.gmi_id == 1
            assert first.recv(1) == 3


def test_a_waiting_receiver_is_told_of_a_restart(folder):
    with Mailbox(folder, 0) as first:
        before = Mailbox(folder, 1)
        before.send(0, 1)
        assert first.recv(1) == 1
        told = []

        def wait():
            try:
                first.recv(1)
            except PeerRestarted as error:
                told.append(error.gmi_id)

        thread = threading.Thread(target=wait)
        thread.start()
        die(before)
        with Mailbox(folder, 1):
            thread.join(20)
    assert told == [1]


@pytest.mark.parametrize("look", [1, 2])
def test_who_hears_of_a_restart_in_a_call_is_told_before_it_goes_on(folder, look, monkeypatch):
    """At its first look for what has come in, or at the second, when it waits."""
    with Mailbox(folder, 0, capacity=1) as first, contextlib.ExitStack() as stack:
        take_in, current = first._take_in, Mailbox(folder, 1)
        looks = 0

        def take_in_until(reached):
            while not reached() and first._inbox.poll(20_000):
                take_in()

        def restart_at_look():
            nonlocal current, looks
            looks += 1
            if looks == look:
                if is_sending:
                    current.recv(0)  # so that there is room for the next one
                    take_in_until(lambda: not first._peers[1].under_way)
                die(current)
                current = stack.enter_context(Mailbox(folder, 1))
                current.send(0, "here I am")
                take_in_until(lambda: first._restarted)
            take_in()

        monkeypatch.setattr(first, "_take_in", restart_at_look)
        for is_sending in (True, False):
            looks = look  # not now
            first.send(1, "of before")
            assert is_sending or current.recv(0) == "of before"
            looks = 0
            with pytest.raises(PeerRestarted):
                first.send(1, "lost") if is_sending else first.recv(1)
            assert first.recv(1) == "here I am"


def test_who_never_talked_to_it_does_not_notice_a_restart(folder):
    die(Mailbox(folder, 1))
    with Mailbox(folder, 1) as again, Mailbox(folder, 0) as first:
        assert sorted(os.listdir(folder)) == ["gmi0", "gmi1.1"]
        first.send(1, "hello")
        assert again.recv(0) == "hello"


def test_a_folder_that_others_can_use_is_refused(folder, tmp_path):
    folder.chmod(0o750)
    with pytest.raises(MailboxError, match=r"mode 0750: others may use it \(050\).*chmod 0700"):
        Mailbox(folder, 0)
    link = tmp_path / "link"
    folder.chmod(0o700)
    link.symlink_to(folder)
    with pytest.raises(MailboxError, match="is not a folder of this user"):
        Mailbox(link, 0)
    with pytest.raises(MailboxError, match=r"No such file.*Make it with mode 0700"):
        Mailbox(folder / "missing", 0)


def test_a_path_too_long_for_a_socket_is_refused(folder):
    deep = folder / ("x" * 120)
    deep.mkdir(mode=0o700)
    with pytest.raises(MailboxError, match=r"at most 107\. Use a shorter folder"):
        Mailbox(deep, 0)
    deep.rmdir()


def test_what_cannot_be_pickled_is_refused_and_nothing_is_sent(pair):
    with pytest.raises(MessageError, match=r"the message to gmi 1 cannot be pickled.*Send plain"):
        pair[0].send(1, threading.Lock())
    with pytest.raises(MailboxTimeout):
        pair[1].recv(0, SHORT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("shape", [(), (0, 3), (3,), (200, 33)])
def test_tensors_keep_type_and_shape(dtype, shape):
    value = (torch.rand(shape) * 10).to(dtype)
    got = decode([memoryview(frame) for frame in encode([value], "it")], "it")[0]
    assert (got.dtype, got.shape) == (dtype, value.shape)
    assert torch.equal(got, value)


def test_only_what_a_view_shows_is_sent_and_no_graph():
    weight = torch.nn.Parameter(torch.rand(1000, 1000))
    frames = encode({"column": weight[:, 3] * 2, "parameter": weight[:2]}, "it")
    assert sum(len(frame) for frame in frames) < 20_000
    got = decode([memoryview(frame) for frame in frames], "it")
    assert torch.equal(got["column"], weight[:, 3].detach() * 2)
    assert not got["column"].requires_grad


def test_large_memory_is_not_copied_into_the_pickle():
    array = np.arange(100_000.0)
    pickled, raw = encode({"array": array}, "it")
    assert len(pickled) < 1000
    assert np.shares_memory(np.frombuffer(raw), array)


def test_other_kinds_of_values_go_too():
    @dataclasses.dataclass
    class Local:
        x: int

    for value in (None, {"a": [1, (2.5, "s")]}, Local(3), lambda: 7):
        got = decode([memoryview(frame) for frame in encode(value, "it")], "it")
        assert (
            got() == 7
            if callable(value)
            else vars(got) == {"x": 3}
            if value == Local(3)
            else (got == value)
        )


def test_a_module_gone_on_this_side_is_a_named_error():
    with pytest.raises(MessageError, match=r"a message of gmi 2 cannot be rebuilt here: Module"):
        decode([memoryview(b"cno_such_module\nthing\n.")], "a message of gmi 2")


def test_errors_cross_processes():
    for error in (MailboxTimeout("late", 3), PeerClosed("gone", 4), MailboxClosed("here")):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))
