"""Leaders of hosts that are told of a new epoch one after the other."""

import contextlib
import dataclasses
import itertools
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import get_args

import numpy as np
import pytest

from gmi_drl.comm.errors import PeerLeft
from gmi_drl.comm.group import tags
from gmi_drl.comm.group.group import Wire
from gmi_drl.comm.hosts import HostSpec, next_roster, read_endpoint, steps, write_roster
from gmi_drl.comm.hosts import links as links_file
from gmi_drl.comm.hosts.links import HostLinks, Interrupted
from gmi_drl.comm.reducers.hosts_gloo import HostsGloo
from links import assert_thrown_out, greeted, listening
from waits import until

# Of a number on its way, with up to five hosts: each of halving's, a share that is passed on.
ROUNDINGS = {"one_step": 1, "two_steps": 2, "halving": 4}
MEMBERS = (("gmi 0",), ("gmi 1",))


@contextlib.contextmanager
def made_links(folders):
    """The links of some hosts, which have not met."""
    members = tuple((f"gmi {rank}",) for rank in range(len(folders)))
    made = []
    for rank, folder in enumerate(folders):
        folder.mkdir(mode=0o700)
        spec = HostSpec(rank, members, "127.0.0.1", folder)
        made.append(HostLinks(spec, 30.0, lambda: False))
    try:
        yield made
    finally:
        for links in made:
            links.close()


def met(made, folders):
    """Has the links of all hosts meet in their first epoch; returns its roster."""
    for links in made:
        links.begin(0)
    roster = next_roster(None, [read_endpoint(folder) for folder in folders])
    for folder in folders:
        write_roster(folder, roster)
    until(lambda: all([links.form(0.02) for links in made]), "all are in one epoch")
    return roster


@pytest.fixture
def pair(tmp_path):
    folders = [tmp_path / f"host{rank}" for rank in range(2)]
    with made_links(folders) as made:
        yield made, folders


@pytest.mark.parametrize("count", [2, 3, 5])
def test_all_hosts_have_the_same_bits_by_each_way_and_wire_format(tmp_path, count):
    folders = [tmp_path / f"host{rank}" for rank in range(count)]
    with made_links(folders) as made:
        met(made, folders)
        for number, (way, wire, numel) in enumerate(
            itertools.product(get_args(steps.Way), get_args(Wire), (0, 1, 70_000))
        ):
            inputs = [np.random.default_rng(rank).standard_normal(numel) for rank in range(count)]
            vectors = [vector.astype("f4") for vector in inputs]
            tag = tags.make_tag(tags.SUM, count=number)

            def reduce(rank, vectors=vectors, way=way, wire=wire, numel=numel, tag=tag):
                made[rank].run(vectors[rank], steps.all_reduce(way, rank, count, numel), tag, wire)

            with ThreadPoolExecutor(count) as pool:
                list(pool.map(reduce, range(count)))
            roundings = 1e-6 if wire == "fp32" else ROUNDINGS[way] * 2**-8
            error = np.abs(np.sum(inputs, axis=0) - vectors[0])
            assert (error <= roundings * np.sum(np.abs(inputs), axis=0)).all(), (way, wire, numel)
            for vector in vectors:
                np.testing.assert_array_equal(vector.view("u4"), vectors[0].view("u4"))


def test_what_comes_of_an_epoch_that_is_over_is_of_no_stranger(pair, monkeypatch):
    (first, second), folders = pair

    def form():
        until(lambda: all([links.form(0.02) for links in pair[0]]), "both are in one epoch")

    roster = met(*pair)

    second.begin(1)  # a GMI of its host was replaced
    roster = next_roster(roster, [read_endpoint(folder) for folder in folders])
    write_roster(folders[1], roster)
    assert second.form(0.02) == 0  # the first one has not been told
    assert (first.epoch, second.epoch) == (1, 2)
    came, sort, raised = [], second._sort, []
    monkeypatch.setattr(second, "_sort", lambda frames: (came.append(frames), sort(frames)))

    def reduce():
        try:
            first.run(
                np.ones(100, "f4"), steps.all_reduce("one_step", 0, 2, 100), tags.make_tag(tags.SUM)
            )
        except Interrupted as error:
            raised.append(error)

    reduces = threading.Thread(target=reduce)
    reduces.start()
    until(lambda: second.form(0.02) or came, "what the first one has sent")
    write_roster(folders[0], roster)
    reduces.join()
    assert len(raised) == 1
    first.begin(0)
    form()
    assert first.refused == second.refused == {"connections": 0}


def test_a_leader_that_breaks_off_while_it_connects_is_no_stranger(pair):
    (first, _), folders = pair
    met(*pair)
    end = read_endpoint(folders[0])
    greeted(socket.create_connection((end.address, end.port))).close()
    until(lambda: first._take_in() or first._handshakes.failed, "it has broken off")
    assert first.refused == {"connections": 0}


def test_who_listens_in_place_of_a_leader_cannot_send_a_frame_that_is_too_large(pair):
    (first, _), folders = pair
    for links in pair[0]:
        links.begin(0)
    with listening() as (listens, port):
        own, other = map(read_endpoint, folders)
        write_roster(folders[0], next_roster(None, [own, dataclasses.replace(other, port=port)]))
        assert first.form(0.02) == 0
        with listens.accept()[0] as stranger:
            assert_thrown_out(greeted(stranger))


def test_a_process_ends_whose_links_are_not_closed_and_have_messages_to_the_dead(pair):
    (first, second), _ = pair
    met(*pair)
    second._context.destroy(0)
    for _ in range(100):
        first.tell(bytes(1 << 20))
    ends = threading.Thread(target=first._context.destroy, daemon=True)  # as pyzmq does at the end
    ends.start()
    ends.join(20)
    assert not ends.is_alive()


def test_hosts_that_form_are_interrupted_where_one_of_them_is_lost(pair):
    (first, second), folders = pair
    for links in pair[0]:
        links.begin(0)
    roster = next_roster(None, [read_endpoint(folder) for folder in folders])
    write_roster(folders[0], roster)
    assert first.form(0.02) == 0
    assert first.epoch == 1  # it is in that epoch, and the second one is not
    lost = next_roster(roster, [roster.endpoints[0], None])
    write_roster(folders[0], lost)
    with pytest.raises(Interrupted):
        first.form(0.02)
    first.begin(1)
    assert first.form(0.02) == 0  # it waits for that host to come back
    roster = next_roster(lost, roster.endpoints)
    for folder in folders:
        write_roster(folder, roster)
    until(lambda: all([links.form(0.02) for links in pair[0]]), "both are in one epoch")
    assert first.epoch == second.epoch == 3


def test_a_reason_of_any_length_is_told(pair):
    first, second = pair[0]
    met(*pair)
    second.leave("gone " * 1_000_000)
    until(lambda: first._take_in() or first._left, "the reason")
    with pytest.raises(PeerLeft, match="gone gone"):
        first.look(tags.make_tag(tags.SUM))


def test_what_a_leader_sends_that_was_replaced_is_not_kept(pair):
    (first, replaced), folders = pair
    roster = met(*pair)
    second = HostLinks(HostSpec(1, MEMBERS, "127.0.0.1", folders[1]), 30.0, lambda: False)
    try:
        first.begin(1)
        second.begin(0)
        roster = next_roster(roster, [read_endpoint(folder) for folder in folders])
        for folder in folders:
            write_roster(folder, roster)
        until(lambda: all([links.form(0.02) for links in (first, second)]), "both are in it")
        came = first._arrived[1]
        replaced.epoch = 2**32 - 1  # and its connection still stands
        replaced._send(0, links_file._HELLO)
        replaced.epoch = 2
        replaced._send(0, links_file._DATA)
        until(lambda: first._take_in() or first.refused.get("messages"), "what it has sent")
        assert (len(came), first._early) == (0, [])
    finally:
        second.close()


class Words:
    """What a HostsGloo needs of links: words get to the `other` at once."""

    other, is_over = None, False

    def __init__(self):
        self._words = []

    def begin_call(self):
        pass

    def tell(self, word):
        self.other._words.append(word)

    def told(self):
        words, self._words = self._words, []
        return words

    def agree(self, number, tag):
        pass

    def look(self, tag):
        if self.is_over:
            raise Interrupted


def test_a_sum_that_was_given_up_is_not_written_where_others_are_made(tmp_path):
    links = [Words(), Words()]
    links[0].other, links[1].other = links[1], links[0]
    made = [None, None]

    def make(rank):
        spec = HostSpec(rank, MEMBERS, "127.0.0.1", tmp_path, trusted=True)
        made[rank] = HostsGloo(links[rank], spec, 30.0)

    makers = [threading.Thread(target=make, args=(rank,)) for rank in range(2)]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join()
    vector, other = np.ones(1 << 18, "f4"), np.full(1 << 18, 2, "f4")
    links[0].is_over = True  # a GMI was replaced
    with pytest.raises(Interrupted):
        made[0].all_reduce(vector, 0)
    made[0].close()
    vector[:] = 7  # of a bucket of the next epoch
    made[1].all_reduce(other, 0)
    assert (other == 3).all()  # the other host was still in it
    made[1].close()
    until(
        lambda: not [one for one in threading.enumerate() if one.name == "backend's end"],
        "the end of both",
    )
    assert (vector == 7).all()
