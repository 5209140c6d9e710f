"""The policy board: never torn, never back, whoever is killed."""

import random
import time
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch

import bodies_experience as bodies
from ends import Ends
from gmi_drl.comm.errors import BoardError, BoardTimeout
from gmi_drl.comm.shm import board as boards
from gmi_drl.comm.shm.board import create_board
from gmi_drl.runtime import Memfd
from waits import until

SHORT = timedelta(milliseconds=30)


def ledger_of(nbytes=4096):
    memfd = Memfd.create("ledger", nbytes)
    return memfd, memfd.map().cast("Q")


def test_the_newest_vector_is_read_with_its_version():
    board = create_board("gmi 4, GPU 1")
    writer, reader = board.writer(), board.reader()
    out = torch.empty(5)
    assert reader.version() == -1
    with pytest.raises(BoardError, match="gmi 4, GPU 1 has published no policy yet"):
        reader.read(out)
    for version in (0, 1, 7):
        writer.publish(version, torch.full((5,), float(version)))
        assert (reader.read(out), out.tolist()) == (version, [version] * 5)
    assert not reader.finished()
    writer.publish(8, torch.zeros(5))
    writer.finish()
    assert reader.finished()
    assert reader.wait(8, SHORT) == 8  # nothing newer comes: no reason to wait


def test_versions_only_grow_and_vectors_stay_alike():
    board = create_board()
    writer = board.writer()
    writer.publish(3, torch.zeros(5))
    with pytest.raises(BoardError, match="3 was published already"):
        writer.publish(3, torch.zeros(5))
    for wrong in (torch.zeros(6), torch.zeros(5, dtype=torch.float64)):
        with pytest.raises(BoardError, match=r"this board holds float32 \[5\]"):
            writer.publish(4, wrong)
    with pytest.raises(BoardError, match=r"float32 \[5\]"):
        board.reader().read(torch.zeros(4))


def test_a_wait_for_a_policy_ends_in_time_and_names_the_writer():
    board = create_board("gmi 4, GPU 1")
    with pytest.raises(BoardTimeout, match="gmi 4, GPU 1 has published none; it has not opened"):
        board.reader().wait(-1, SHORT)
    board.writer().publish(2, torch.zeros(1))
    with pytest.raises(BoardTimeout, match=r"published version 2 last; its process .* is running"):
        board.reader().wait(2, SHORT)
    assert board.reader().wait(2, timedelta(seconds=30), stop=lambda: True) == 2


def test_a_board_has_one_writer(monkeypatch):
    board = create_board()
    board.writer()
    monkeypatch.setattr(boards, "os", SimpleNamespace(getpid=lambda: 1))  # another process
    with pytest.raises(BoardError, match="publishes already"):
        board.writer()


class Killed(BaseException):
    """The process ends here."""


class Words:
    """The words of a board; `before` is called with each access, by its number."""

    def __init__(self, words, before, stores=False):
        self.words, self.before, self.stores = words, before, stores
        self.count = 0

    def __getitem__(self, index):
        if not self.stores:
            self._access()
        return self.words[index]

    def __setitem__(self, index, value):
        self._access()
        self.words[index] = value

    def _access(self):
        self.count += 1
        self.before(self.count)


def publish_and_die(board, version, stores):
    """Publishes a vector filled with its version, killed after so many stores of words."""

    def before(count):
        if count > stores:
            raise Killed

    writer = board.writer()
    writer._words = Words(writer._words, before, stores=True)
    try:
        writer.publish(version, torch.full((3,), float(version)))
    except Killed:
        return False
    return True


@pytest.mark.parametrize("stores", range(7))
def test_a_writer_killed_between_two_stores_leaves_a_board_to_go_on_with(stores):
    board, out = create_board(), torch.empty(3)
    board.writer().publish(1, torch.full((3,), 1.0))
    for version in (2, 3, 4, 5):
        whole = publish_and_die(board, version, stores)
        found = board.reader().read(out)
        assert found in ((version,) if whole else (version - 1, version))
        assert out.tolist() == [found] * 3
        if found < version:
            board.writer().publish(version, torch.full((3,), float(version)))
    assert (board.reader().read(out), out.tolist()) == (5, [5.0] * 3)


@pytest.mark.parametrize("stores", range(7))  # 6 are those of a publish
@pytest.mark.parametrize("versions", range(5))
def test_a_reader_overtaken_at_any_access_gets_one_version_whole(versions, stores):
    for place in range(1, 10):
        board, out = create_board(), torch.empty(3)
        board.writer().publish(0, torch.zeros(3))
        reader = board.reader()

        def overtake(count, board=board, place=place):
            if count == place:
                for version in range(1, versions + 1):
                    board.writer().publish(version, torch.full((3,), float(version)))
                publish_and_die(board, versions + 1, stores)

        reader._words = Words(reader._words, overtake)
        found = reader.read(out)
        assert out.tolist() == [found] * 3
        assert found <= board.reader().version()


def test_a_reader_that_comes_first_waits_for_the_first_policy():
    board = create_board()
    with Ends() as ends:
        ends.start("writer", bodies.publish_late, board, 0.1)
        assert board.reader().wait(-1, timedelta(seconds=30)) == 0
        ends.join("writer")


@pytest.mark.parametrize("kills", [0, 3])
def test_no_read_is_torn_or_goes_back_while_the_writer_is_killed_and_replaced(kills):
    board = create_board()
    memfd, words = ledger_of()
    numel = 20_000
    chance = random.Random(kills)
    with Ends() as ends:
        for which in range(2):
            ends.start(which, bodies.read, board, numel, memfd, which)
        ends.start("writer", bodies.publish, board, numel, memfd)
        for _ in range(kills):
            before = board.reader().version()
            until(lambda before=before: board.reader().version() > before, "another version")
            time.sleep(chance.random() * 0.01)  # killed at any moment
            ends.kill("writer")
            ends.start("writer", bodies.publish, board, numel, memfd)
        reads = [words[bodies.BEGUN + which] for which in range(2)]
        until(lambda: all(words[bodies.BEGUN + w] > reads[w] + 100 for w in range(2)), "more reads")
        words[bodies.STOP] = 1
        for name in ("writer", 0, 1):
            ends.join(name)
