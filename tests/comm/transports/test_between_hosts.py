"""Links between hosts, whose ends are made apart: what each host tells, and what it keeps."""

import dataclasses
import pickle
import time
from datetime import timedelta

import pytest
import torch

from gmi_drl.comm.errors import LinkError
from gmi_drl.comm.transports import CrossHostLinks, PeerInfo, StreamSpec, wait_any, zeromq_ends
from links import assert_thrown_out, greeted, listening

NAMES = ("gmi 3, device 0, host 1", "gmi 0, device 0, host 0")
SHORT, LONG = timedelta(milliseconds=80), timedelta(seconds=20)
STREAMS = [StreamSpec(64, 2)]


@pytest.fixture(autouse=True)
def short_goodbyes(monkeypatch):
    """Both ends are in one thread here: the receiver cannot answer while the sender closes."""
    monkeypatch.setattr(zeromq_ends, "_GOODBYE_S", 0.2)


def host(folder, number):
    private = folder / f"host{number}"
    private.mkdir(mode=0o700)
    return CrossHostLinks(f"127.0.0.{2 + number}", private)


@pytest.fixture
def two(tmp_path):
    """The ends of two hosts, the first of which is to receive from the second."""
    trainers, agents = host(tmp_path, 0), host(tmp_path, 1)
    trainers.listen(*NAMES)
    return trainers, agents


def test_packets_go_from_host_to_host_by_what_both_have_told(two):
    trainers, agents = two
    receiving = trainers.receiver(*NAMES, agents.peer_info)
    sending = agents.sender(*NAMES, trainers.peer_info)
    assert sending.endpoint.startswith("tcp://127.0.0.2:")
    with sending.sender(b"schema", STREAMS) as sender, receiving.receiver(LONG) as receiver:
        slot = sender.reserve(0)
        slot.memory[:8] = torch.arange(8, dtype=torch.uint8)
        sender.send(slot, 8, sequence=1, step=0, policy_version=5)
        assert receiver.schema == b"schema"
        packet = receiver.poll()
        while packet is None:
            sender.under_way(0)  # both ends are in one thread: it takes in the welcome
            wait_any([receiver], SHORT)
            packet = receiver.poll()
        assert packet.header.policy_version == 5
        assert packet.memory.tolist() == [*range(8)]
        receiver.release(packet)
        assert receiver.refused == 0


def test_no_secret_is_told_and_neither_end_has_the_others(two):
    trainers, agents = two
    ends = [trainers.receiver(*NAMES, agents.peer_info), agents.sender(*NAMES, trainers.peer_info)]
    secrets = {key for link in ends for key in (link.keys.server_secret, link.keys.client_secret)}
    assert len(secrets) == 3  # one each, and what is not there
    for told in (trainers.peer_info, agents.peer_info):
        text = pickle.dumps(told)
        assert not any(secret in text for secret in secrets - {b""})
    receiving, sending = (pickle.dumps(link) for link in ends)
    assert ends[0].keys.server_secret not in sending
    assert ends[1].keys.client_secret not in receiving
    assert not any(secret.decode() in repr(ends) for secret in secrets - {b""})


def test_who_is_not_of_the_sending_host_is_refused_and_counted(two, tmp_path):
    trainers, agents = two
    receiving = trainers.receiver(*NAMES, agents.peer_info)
    other = host(tmp_path, 2).sender(*NAMES, trainers.peer_info)
    with other.sender(b"", STREAMS) as sender, receiving.receiver(SHORT) as receiver:
        sender.send(sender.reserve(0), 8, sequence=0, step=0, policy_version=0)
        deadline_s = time.monotonic() + LONG.total_seconds()
        while receiver.refused == 0 and time.monotonic() < deadline_s:
            wait_any([receiver], SHORT)
        assert receiver.refused > 0
        assert not receiver.connected()
        assert receiver.poll() is None
        sender._streams[0].busy.clear()  # close would wait for it


def test_a_sender_whose_receiver_is_lost_waits_for_nobody(two, monkeypatch):
    monkeypatch.setattr(zeromq_ends, "_GOODBYE_S", 600.0)
    trainers, agents = two
    receiving = trainers.receiver(*NAMES, agents.peer_info)
    with receiving.receiver(LONG) as receiver:
        sender = agents.sender(*NAMES, trainers.peer_info).sender(b"", STREAMS)
        while not receiver.connected():
            wait_any([receiver], SHORT)
        while not sender._was_let_in:
            sender.under_way(0)  # takes in the welcome
        sender.send(sender.reserve(0), 8, sequence=0, step=0, policy_version=0)
        sender.give_up()
        sender.close()


def test_a_link_that_nobody_listens_for_is_an_error(two):
    _, agents = two
    nothing = PeerInfo(b"key", {})
    with pytest.raises(LinkError, match=r"gmi 3.*has no such link.*same layout"):
        agents.sender(*NAMES, nothing)


def test_who_listens_in_place_of_the_receiver_cannot_send_a_frame_that_is_too_large(two):
    trainers, agents = two
    sending = agents.sender(*NAMES, trainers.peer_info)
    with listening() as (listens, port):
        elsewhere = dataclasses.replace(sending, endpoint=f"tcp://127.0.0.1:{port}")
        with elsewhere.sender(b"schema", STREAMS), listens.accept()[0] as stranger:
            assert_thrown_out(greeted(stranger))


def test_an_address_of_another_host_is_refused(tmp_path):
    tmp_path.chmod(0o700)
    with pytest.raises(LinkError, match=r"192\.0\.2\.1 cannot be listened at"):
        CrossHostLinks("192.0.2.1", tmp_path).listen(*NAMES)
