"""Policies that travel from the board of one host to that of another."""

import threading
from datetime import timedelta

import pytest
import torch

from gmi_drl.comm.hosts.policies import PolicyReceiver, PolicySender
from gmi_drl.comm.shm.board import create_board
from gmi_drl.comm.shm.tally import create_tally
from gmi_drl.comm.transports import CrossHostLinks, StreamSpec

LONG = timedelta(seconds=20)
NAMES = ("the policies of host 0", "host 1")


@pytest.fixture
def link(tmp_path):
    """Both ends of a link between two hosts: that of its sender, and that of its receiver."""
    made = []
    for number in (0, 1):
        folder = tmp_path / f"host{number}"
        folder.mkdir(mode=0o700)
        made.append(CrossHostLinks(f"127.0.0.{2 + number}", folder))
    trainers, agents = made
    agents.listen(*NAMES)
    return (
        trainers.sender(*NAMES, agents.peer_info),
        agents.receiver(*NAMES, trainers.peer_info),
    )


def running(*calls):
    """Threads that make these calls, as the actors do."""
    threads = [threading.Thread(target=call, daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    return threads


def test_a_board_of_another_host_has_the_newest_version_and_ends_as_this_one(link):
    sending, receiving = link
    here, there = create_board("gmi 0"), create_board("gmi 0")
    tally = create_tally(1, ["refused"])
    threads = running(
        PolicySender(here, [sending]).run,
        PolicyReceiver(receiving, there, tally, 0).run,
    )
    writer, reader, vector = here.writer(), there.reader(), torch.zeros(1000)
    for version in (0, 1, 7):
        writer.publish(version, torch.full((1000,), float(version)))
        assert reader.wait(version - 1, LONG) >= version
        assert reader.read(vector) == version
        assert vector.unique().tolist() == [version]
    for version in range(8, 500):  # faster than they travel
        writer.publish(version, torch.full((1000,), float(version)))
        if reader.version() > 7:
            torn = vector.unique()
            assert len(torn) == 1
            assert reader.read(vector) >= torn.item()
    assert reader.wait(498, LONG) == 499
    assert not reader.finished()
    writer.finish()
    for thread in threads:
        thread.join(LONG.total_seconds())
        assert not thread.is_alive()
    assert reader.finished()
    assert tally.open()[0, "refused"] == 0


def test_the_actor_in_the_place_of_a_killed_sender_goes_on_with_the_newest(link, monkeypatch):
    monkeypatch.setattr("gmi_drl.comm.transports.zeromq.is_alive", lambda pid, started: False)
    sending, receiving = link
    here, there = create_board("gmi 0"), create_board("gmi 0")
    (receiver,) = running(PolicyReceiver(receiving, there, create_tally(1, ["refused"]), 0).run)
    writer, reader = here.writer(), there.reader()
    writer.publish(3, torch.ones(4))
    killed = sending.sender(b"policy", [StreamSpec(16, 1)])  # has sent nothing, and never closes
    (sender,) = running(PolicySender(here, [sending]).run)
    assert reader.wait(-1, LONG) == 3
    writer.finish()
    sender.join(LONG.total_seconds())
    receiver.join(LONG.total_seconds())
    assert reader.finished()
    killed.give_up()
    killed.close()


def test_a_board_that_ends_before_its_first_version_ends_the_other(link):
    sending, receiving = link
    here, there = create_board("gmi 0"), create_board("gmi 0")
    threads = running(
        PolicySender(here, [sending]).run,
        PolicyReceiver(receiving, there, create_tally(1, ["refused"]), 0).run,
    )
    here.writer().finish()
    for thread in threads:
        thread.join(LONG.total_seconds())
        assert not thread.is_alive()
    assert there.reader().finished()
