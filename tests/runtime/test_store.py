"""The object store's decisions, in memory alone: the driver here is a list of instructions."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gmi_drl.runtime.store.object_store import (
    Lost,
    ObjectPinned,
    ObjectStore,
    Placed,
    Refuse,
    Restore,
    Spill,
    Unlink,
    size_text,
)

PAGE = 4096
LIMIT = 4 * PAGE


def filled(*keys, pages=1):
    """A store of four pages with these objects, sealed in this order."""
    store = ObjectStore(LIMIT)
    for key in keys:
        (place,) = store.create(key, pages * PAGE, f"f.remote #{key.decode()}")
        assert isinstance(place, Placed)
        assert store.seal(key) == []
    return store


def kinds(instructions):
    return [(type(each).__name__, each.key) for each in instructions]


def test_an_object_is_placed_sealed_pinned_and_deleted():
    store = ObjectStore(LIMIT)
    assert store.create(b"a", 5000) == [Placed(b"a", 0, 5000)]
    assert store.state(b"a") == "creating"
    assert store.seal(b"a") == []
    assert store.state(b"a") == "memory"
    assert store.pin(b"a") == store.pin(b"a") == [ObjectPinned(b"a", 0, 5000)]
    assert store.used_bytes == 2 * PAGE
    assert store.delete(b"a") == store.unpin(b"a") == []
    assert b"a" not in store
    assert store.used_bytes == 2 * PAGE
    assert store.unpin(b"a") == []
    assert store.used_bytes == 0


def test_the_least_recently_used_go_to_disk_and_only_as_many_as_are_needed():
    store = filled(b"a", b"b", b"c", b"d")
    store.pin(b"a")
    store.unpin(b"a")
    assert kinds(store.create(b"e", PAGE)) == [("Spill", b"b")]
    assert store.state(b"b") == "spilling"
    assert kinds(store.spilled(b"b")) == [("Placed", b"e")]
    assert store.state(b"b") == "disk"
    assert store.spilled_bytes == PAGE


def test_only_objects_where_the_new_one_will_lie_go_to_disk():
    store = filled(b"a", b"b", b"c", b"d")
    store.pin(b"b")
    assert kinds(store.create(b"e", 2 * PAGE)) == [("Spill", b"c"), ("Spill", b"d")]
    assert store.state(b"a") == "memory"
    assert store.spilled(b"d") == []
    assert store.spilled(b"c") == [Placed(b"e", 2 * PAGE, 2 * PAGE)]


def test_what_is_on_disk_is_read_back_for_all_who_wait_and_dropped_again_for_nothing():
    store = filled(b"a", b"b", b"c", b"d")
    store.create(b"e", PAGE)
    store.spilled(b"a")
    store.seal(b"e")
    assert kinds(store.pin(b"a")) == [("Spill", b"b")]
    assert store.pin(b"a") == []
    assert store.spilled(b"b") == [Restore(b"a", PAGE, PAGE)]
    assert store.state(b"a") == "restoring"
    assert store.pin(b"a") == []
    assert store.restored(b"a") == [ObjectPinned(b"a", PAGE, PAGE)] * 3
    for _ in range(3):
        store.unpin(b"a")
    assert kinds(store.create(b"f", 3 * PAGE)) == [("Spill", b"c"), ("Spill", b"d")]
    store.spilled(b"c")
    assert store.spilled(b"d") == [Placed(b"f", PAGE, 3 * PAGE)]
    assert store.state(b"a") == "disk"
    assert store.delete(b"a") == [Unlink(b"a")]


def test_an_object_that_is_pinned_on_its_way_to_disk_stays_and_another_goes():
    store = filled(b"a", b"b", b"c", b"d")
    store.create(b"e", PAGE)
    assert kinds(store.pin(b"a")) == [("ObjectPinned", b"a")]
    assert kinds(store.spilled(b"a")) == [("Spill", b"b")]
    assert store.state(b"a") == "memory"
    assert kinds(store.spilled(b"b")) == [("Placed", b"e")]


def test_requests_are_served_in_order_even_if_a_later_one_would_fit():
    store = filled(b"a", b"b", b"c")
    store.pin(b"a")
    assert kinds(store.create(b"large", 3 * PAGE)) == [("Spill", b"b"), ("Spill", b"c")]
    assert store.create(b"small", PAGE) == []
    assert store.spilled(b"b") == store.unpin(b"a") == []
    assert kinds(store.spilled(b"c")) == [("Placed", b"large"), ("Spill", b"a")]
    assert kinds(store.spilled(b"a")) == [("Placed", b"small")]


def test_a_request_waits_for_what_is_being_written():
    store = ObjectStore(LIMIT)
    store.create(b"a", 3 * PAGE)
    assert store.create(b"b", 2 * PAGE) == []
    assert kinds(store.seal(b"a")) == [("Spill", b"a")]
    store = ObjectStore(LIMIT)
    store.create(b"a", 3 * PAGE)
    store.create(b"b", 2 * PAGE)
    assert kinds(store.abort(b"a")) == [("Placed", b"b")]


def test_an_object_larger_than_the_store_is_refused_at_once():
    store = ObjectStore(2_000_000_000)
    (refused,) = store.create(b"a", 3_000_000_000)
    assert refused.reason == (
        "an object of 3.0 GB does not fit: the object store has 2.0 GB. "
        "Give init(object_store_bytes=...) more."
    )
    assert b"a" not in store


def test_when_all_is_pinned_the_refusal_names_the_largest_and_who_made_them():
    store = ObjectStore(100_000)
    for number in range(7):
        store.create(bytes([number]), 5000 + 1000 * number, f"made by f #{number}")
        store.seal(bytes([number]))
        store.pin(bytes([number]))
    store.delete(bytes([6]))
    (refused,) = store.create(b"x", 80_000)
    assert refused.reason == (
        "an object of 80.0 kB does not fit: of the object store's 100.0 kB, 56.0 kB are in use by "
        "7 objects (the largest: 11.0 kB made by f #6, 10.0 kB made by f #5, "
        "9.0 kB made by f #4, 8.0 kB made by f #3, 7.0 kB made by f #2). "
        "Drop the references to them, or give init(object_store_bytes=...) more."
    )
    assert b"x" not in store


def test_a_refusal_says_when_the_rest_is_in_pieces():
    store = filled(b"a", b"b", b"c", b"d")
    store.pin(b"b")
    store.pin(b"d")
    (refused,) = store.create(b"e", 2 * PAGE)
    assert "2 objects (" in refused.reason
    assert "what is left is in pieces" in refused.reason
    assert store.state(b"a") == store.state(b"c") == "memory"


def test_each_pin_of_an_object_that_cannot_come_back_is_refused():
    store = filled(b"a", b"b", pages=2)
    store.create(b"c", 2 * PAGE)
    store.spilled(b"a")
    store.seal(b"c")
    store.pin(b"b")
    assert kinds(store.pin(b"a")) == [("Spill", b"c")]
    store.pin(b"a")
    store.pin(b"c")
    assert kinds(store.spilled(b"c")) == [("Refuse", b"a")] * 2
    assert store.state(b"a") == "disk"
    store.unpin(b"b")
    assert kinds(store.pin(b"a")) == [("Spill", b"b")]


def test_a_full_disk_refuses_who_waits_and_keeps_the_object():
    store = filled(b"a", b"b", b"c", b"d")
    store.create(b"e", PAGE)
    store.create(b"f", PAGE)
    out = store.spilled(b"a", "No space left on device.")
    assert kinds(out) == [("Refuse", b"e"), ("Spill", b"b")]
    assert out[0].reason == (
        "an object of 4.1 kB does not fit: moving others to disk failed: No space left on device. "
        "Make room on the disk, drop references to objects, "
        "or give init(object_store_bytes=...) more."
    )
    assert store.state(b"a") == "memory"
    assert kinds(store.spilled(b"b")) == [("Placed", b"f")]


def test_a_file_that_cannot_be_read_back_loses_the_object():
    store = filled(b"a", pages=3)
    store.create(b"b", 2 * PAGE)
    store.spilled(b"a")
    store.abort(b"b")
    store.pin(b"a")
    store.pin(b"a")
    unlink, lost = store.restored(b"a", "Input/output error")
    assert unlink == Unlink(b"a")
    assert lost == Lost(b"a", "it could not be read back from disk: Input/output error")
    assert b"a" not in store
    assert store.used_bytes == store.spilled_bytes == 0


def test_a_deleted_object_is_neither_moved_nor_freed_under_the_disk():
    store = filled(b"a", pages=3)
    store.create(b"b", 2 * PAGE)
    assert store.delete(b"a") == []
    assert store.state(b"a") is None
    assert kinds(store.spilled(b"a")) == [("Unlink", b"a"), ("Placed", b"b")]


def test_a_block_that_the_disk_still_reads_is_not_freed_with_its_last_pin():
    store = filled(b"a", pages=3)
    store.create(b"b", 2 * PAGE)
    store.pin(b"a")
    assert kinds(store.delete(b"a")) == [("Refuse", b"b")]
    assert store.unpin(b"a") == store.create(b"b", 2 * PAGE) == []
    assert store.used_bytes == 3 * PAGE
    assert kinds(store.spilled(b"a")) == [("Unlink", b"a"), ("Placed", b"b")]


def test_an_object_deleted_while_it_is_written_is_gone_when_sealed():
    store = ObjectStore(LIMIT)
    store.create(b"a", PAGE)
    store.delete(b"a")
    assert store.used_bytes == PAGE
    store.seal(b"a")
    assert b"a" not in store
    assert store.used_bytes == 0


def test_what_is_written_to_disk_at_once_is_read_back_or_removed_like_others():
    store = filled(b"a", pages=4)
    store.pin(b"a")
    assert store.create(b"b", PAGE)[0].pinned
    store.create_on_disk(b"b", PAGE)
    assert (store.state(b"b"), store.spilled_bytes) == ("creating", PAGE)
    assert store.seal(b"b") == []
    assert store.state(b"b") == "disk"
    assert kinds(store.pin(b"b")) == [("Refuse", b"b")]
    store.unpin(b"a")
    store.delete(b"a")
    assert kinds(store.pin(b"b")) == [("Restore", b"b")]
    assert kinds(store.restored(b"b")) == [("ObjectPinned", b"b")]
    store.unpin(b"b")
    assert kinds(store.delete(b"b")) == [("Unlink", b"b")]
    store.create_on_disk(b"c", PAGE)
    assert kinds(store.abort(b"c")) == [("Unlink", b"c")]
    assert (store.spilled_bytes, store.used_bytes) == (0, 0)


def test_an_object_that_is_made_again_on_disk_keeps_the_pins_of_the_one_before():
    store = filled(b"a")
    store.pin(b"a")
    store.delete(b"a")
    store.create_on_disk(b"a", PAGE)
    store.seal(b"a")
    assert kinds(store.pin(b"a")) == [("Restore", b"a")]
    assert kinds(store.restored(b"a")) == [("ObjectPinned", b"a")]
    store.unpin(b"a")
    assert store.used_bytes == 2 * PAGE  # the one before may still be looked at
    store.unpin(b"a")
    assert store.used_bytes == PAGE


def test_mistakes_of_the_caller_are_errors():
    store = filled(b"a")
    with pytest.raises(ValueError, match="61 exists already"):
        store.create(b"a", 1)
    with pytest.raises(ValueError, match="62 cannot be pinned"):
        store.pin(b"b")
    with pytest.raises(ValueError, match="61 is not pinned"):
        store.unpin(b"a")
    assert store.abort(b"a") == store.seal(b"a") == []
    assert store.state(b"a") == "memory"
    assert store.abort(b"b") == store.seal(b"b") == store.delete(b"b") == []


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (1000, "1.0 kB"), (2_000_000_000, "2.0 GB"),
     (999_999, "1.0 MB"), (3 * 10**13, "30.0 TB")],
)  # fmt: skip
def test_sizes_as_people_read_them(nbytes, text):
    assert size_text(nbytes) == text


class StoreMachine(RuleBasedStateMachine):
    """Any requests, answered by any driver, against what was promised.

    The model keeps what every byte holds: an object's number, from Placed until nobody may look at
    it any more. `versions` counts how often a key was created.
    """

    def __init__(self):
        super().__init__()
        self.store = ObjectStore(LIMIT)
        self.pages = [None] * 4
        self.versions = {}  # key -> number of its present object
        self.nbytes = {}  # by number
        self.creating = set()  # keys that wait for an answer
        self.writing = {}  # key -> offset
        self.sealed = set()  # keys
        self.waiting = {}  # key -> pins without an answer
        self.pins = []  # (key, number, offset)
        self.disk = {}  # key -> number: files
        self.jobs = {}  # key -> Spill or Restore in flight, with the number
        self.doomed = set()  # keys deleted while they were written

    # What the store says

    def done(self, instructions):
        for each in instructions:
            getattr(self, type(each).__name__.lower())(each)

    def placed(self, each):
        self.creating.remove(each.key)
        number = self.versions[each.key]
        assert each.nbytes == self.nbytes[number]
        self.fill(each.offset, number)
        self.writing[each.key] = each.offset

    def fill(self, offset, number):
        assert offset % PAGE == 0
        block = slice(offset // PAGE, (offset + self.nbytes[number]) // PAGE)
        assert block.stop <= 4
        for _, pinned, at in self.pins:
            assert not overlap(block, at, self.nbytes[pinned])
        for key, at in self.writing.items():
            assert not overlap(block, at, self.nbytes[self.versions[key]])
        for job, other in self.jobs.values():
            assert not overlap(block, job.offset, self.nbytes[other])
        self.pages[block] = [number] * (block.stop - block.start)

    def objectpinned(self, each):
        self.waiting[each.key] -= 1
        number = self.versions[each.key]
        assert each.nbytes == self.nbytes[number]
        self.check_bytes(each.offset, number)
        self.pins.append((each.key, number, each.offset))

    def check_bytes(self, offset, number):
        block = slice(offset // PAGE, (offset + self.nbytes[number]) // PAGE)
        assert set(self.pages[block]) == {number}

    def refuse(self, each):
        assert each.reason.endswith(".")
        if each.key in self.creating:
            self.creating.remove(each.key)
            self.doomed.discard(each.key)
            del self.versions[each.key]
        else:
            self.waiting[each.key] -= 1
            assert self.waiting[each.key] >= 0

    def lost(self, each):
        self.gone(each.key)

    def gone(self, key):
        del self.versions[key]
        self.waiting.pop(key, None)
        self.creating.discard(key)
        self.writing.pop(key, None)
        self.sealed.discard(key)
        self.doomed.discard(key)

    def spill(self, each):
        number = self.versions[each.key]
        assert each.key in self.sealed
        assert each.key not in self.jobs
        assert each.key not in self.disk
        assert all(each.key != key for key, _, _ in self.pins)
        self.check_bytes(each.offset, number)
        self.jobs[each.key] = each, number

    def restore(self, each):
        number = self.versions[each.key]
        assert self.disk[each.key] == number
        assert each.key not in self.jobs
        self.fill(each.offset, number)
        self.jobs[each.key] = each, number

    def unlink(self, each):
        assert each.key not in self.jobs
        del self.disk[each.key]

    # What the driver and the processes do

    keys = st.sampled_from([b"a", b"b", b"c", b"d", b"e"])

    @rule(key=keys, pages=st.sampled_from([1, 1, 1, 2, 3, 4, 5]))
    def create(self, key, pages):
        if key in self.versions:
            return
        number = len(self.nbytes)
        self.nbytes[number] = pages * PAGE
        self.versions[key] = number
        self.creating.add(key)
        self.done(self.store.create(key, pages * PAGE, "label"))

    @rule(key=keys)
    def seal(self, key):
        if self.writing.pop(key, None) is None:
            return
        self.sealed.add(key)
        if key in self.doomed:
            self.gone(key)
        self.done(self.store.seal(key))

    @rule(key=keys)
    def abort(self, key):
        if key in self.creating or key in self.writing:
            self.gone(key)
            self.done(self.store.abort(key))

    @rule(key=keys)
    def pin(self, key):
        if key in self.sealed:
            self.waiting[key] = self.waiting.get(key, 0) + 1
            self.done(self.store.pin(key))

    @precondition(lambda self: self.pins)
    @rule(data=st.data())
    def unpin(self, data):
        pin = data.draw(st.sampled_from(self.pins))
        self.check_bytes(pin[2], pin[1])
        self.pins.remove(pin)
        self.done(self.store.unpin(pin[0]))

    @rule(key=keys)
    def delete(self, key):
        if key in self.creating or key in self.writing:
            self.doomed.add(key)
        elif key in self.sealed:
            refused, rest = [], []
            for each in self.store.delete(key):
                mine = isinstance(each, Refuse) and each.key == key
                (refused if mine else rest).append(each)
            assert len(refused) == self.waiting.get(key, 0)
            self.gone(key)
            self.done(rest)
            return
        self.done(self.store.delete(key))

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), failed=st.integers(0, 3).map(lambda number: number == 0))
    def disk_has_worked(self, data, failed):
        key = data.draw(st.sampled_from(sorted(self.jobs)))
        job, number = self.jobs.pop(key)
        error = "it is full" if failed else ""
        if isinstance(job, Spill):
            if not failed:
                self.check_bytes(job.offset, number)
                self.disk[key] = number
            self.done(self.store.spilled(key, error))
        else:
            self.done(self.store.restored(key, error))

    # What holds at any time

    @invariant()
    def all_is_answered_or_something_is_under_way(self):
        if self.creating or any(self.waiting.values()):
            assert self.jobs or self.writing
        for key, count in self.waiting.items():
            assert not count or self.store.state(key) in ("disk", "restoring")

    @invariant()
    def the_books_are_right(self):
        for key in (b"a", b"b", b"c", b"d", b"e"):
            assert (key in self.store) == (key in self.versions)
            assert (self.store.state(key) == "creating") == (
                key in self.creating or key in self.writing
            )
        assert 0 <= self.store.used_bytes <= LIMIT
        assert self.store.spilled_bytes == sum(self.nbytes[each] for each in self.disk.values())

    def teardown(self):
        for key in list(self.versions):
            self.abort(key)
            self.delete(key)
        while self.jobs:
            key, (job, number) = self.jobs.popitem()
            if isinstance(job, Spill):
                self.disk[key] = number
                self.done(self.store.spilled(key))
            else:
                self.done(self.store.restored(key))
        for key, _, _ in self.pins:
            assert self.store.unpin(key) == []
        assert self.store.used_bytes == self.store.spilled_bytes == 0
        assert not self.disk


def overlap(block, offset, nbytes):
    return block.start * PAGE < offset + nbytes and offset < block.stop * PAGE


StoreMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=50)
TestAnyRequestsAnyEngine = StoreMachine.TestCase
