"""Leaders of hosts that are told of a new epoch one after the other."""

import threading

import numpy as np
import pytest

from gmi_drl.comm.group import tags
from gmi_drl.comm.hosts import HostSpec, next_roster, read_endpoint, steps, write_roster
from gmi_drl.comm.hosts.links import HostLinks, Interrupted
from gmi_drl.comm.reducers.hosts_gloo import HostsGloo
from links import until

MEMBERS = (("gmi 0",), ("gmi 1",))


@pytest.fixture
def pair(tmp_path):
    """The links of two hosts, which have not met."""
    made = []
    for rank in range(2):
        folder = tmp_path / f"host{rank}"
        folder.mkdir(mode=0o700)
        spec = HostSpec(rank, MEMBERS, "127.0.0.1", folder)
        made.append(HostLinks(spec, 30.0, lambda: False))
    yield made, [tmp_path / f"host{rank}" for rank in range(2)]
    for links in made:
        links.close()


def test_what_comes_of_an_epoch_that_is_over_is_of_no_stranger(pair, monkeypatch):
    (first, second), folders = pair

    def form():
        until(lambda: all([links.form(0.02) for links in pair[0]]), "both are in one epoch")

    for links in pair[0]:
        links.begin(0)
    roster = next_roster(None, [read_endpoint(folder) for folder in folders])
    for folder in folders:
        write_roster(folder, roster)
    form()

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
