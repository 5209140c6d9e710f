"""Shared bytes: written and seen by several processes, and never given out twice."""

import copy
import ctypes
import gc
import mmap
import os
import threading

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from gmi_drl.runtime.store import arena as arena_module
from gmi_drl.runtime.store.allocator import Allocator
from gmi_drl.runtime.store.arena import Arena

LARGE = 300_000  # a view of it is a mapping; smaller ones are copies


@pytest.fixture
def arena():
    arena = Arena.create(256 << 20)
    yield arena
    arena.close()


def nothing():
    pass


def in_a_child(body):
    """What `body` returns, as text, in a forked process that has the descriptors."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(write, repr(body()).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as stream:
        text = stream.read()
    os.waitpid(child, 0)
    return text


@pytest.mark.parametrize("nbytes", [0, 1, 4096, LARGE, (5 << 20) + 3, (40 << 20) + 1])
def test_what_is_written_is_seen_however_often_and_by_whom(arena, nbytes):
    draw = np.random.default_rng(nbytes)
    for _ in range(3):  # each time by another way: write(2), populated pages, mapped pages
        data = draw.bytes(nbytes)
        third = nbytes // 3
        parts = [data[:third], memoryview(data)[third : 2 * third], bytearray(data[2 * third :])]
        arena.write(8192, [*parts, b"end"])
        assert arena.view(8192, nbytes + 3, nothing) == data + b"end"
    there = in_a_child(
        lambda: (
            bytes(Arena(arena.fd, arena.nbytes).view(8192 + third, nbytes, nothing))
            == data[third:] + b"end" + bytes(max(0, third - 3))
            if third > 3
            else True
        )
    )
    assert there == "True"


def test_many_small_parts(arena):
    parts = [bytes([number % 256]) * (number % 7) for number in range(5000)]
    arena.write(100, parts)
    data = b"".join(parts)
    assert arena.view(100, len(data), nothing) == data


def test_parts_of_any_type_and_shape(arena):
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    frozen = np.arange(2_000_000)
    frozen.flags.writeable = False
    for _ in range(3):
        arena.write(0, [memoryview(array), memoryview(frozen)])
        seen = arena.view(0, array.nbytes + frozen.nbytes, nothing)
        assert seen == array.tobytes() + frozen.tobytes()


def test_one_thread_writes_the_same_as_two(arena, monkeypatch):
    data = np.random.default_rng(1).bytes(20 << 20)
    parts = [data[:5], data[5 : 12 << 20], data[12 << 20 :]]

    def broken(self):
        raise RuntimeError("can't start new thread")

    for _ in range(2):
        arena.write(0, [data])
    for start in (threading.Thread.start, broken):
        monkeypatch.setattr(threading.Thread, "start", start)
        arena.write(0, [bytes(len(data))])
        arena.write(0, parts)
        assert arena.view(0, len(data), nothing) == data


def test_bytes_outside_the_arena_are_refused(arena):
    with pytest.raises(AssertionError):
        arena.write(arena.nbytes - 1, [b"ab"])
    with pytest.raises(AssertionError):
        arena.view(-1, 1, nothing)
    with pytest.raises(ValueError, match="must be 64 or more"):
        Arena.create(0)


@pytest.mark.parametrize("nbytes", [100, LARGE])
@pytest.mark.parametrize("writable", [False, True])
def test_on_release_is_called_once_when_the_last_of_all_is_gone(arena, nbytes, writable):
    released = []
    view = arena.view(4096, nbytes, lambda: released.append(1), writable=writable)
    assert view.readonly is not writable
    array = np.frombuffer(view, dtype=np.uint8)
    assert array.flags.writeable is writable
    part = array[10:20].reshape(2, 5)
    del view, array
    if writable:
        tensor = torch.from_numpy(part)
        del part
        part = tensor[0]
        del tensor
    assert released == []
    del part
    assert released == [1]


@pytest.mark.parametrize("nbytes", [100, LARGE])
def test_views_outlive_the_arena(nbytes):
    arena = Arena.create(1 << 20)
    arena.write(0, [b"x" * nbytes])
    view = arena.view(0, nbytes, nothing)
    arena.close()
    arena.close()
    assert view == b"x" * nbytes
    with pytest.raises(ValueError, match="closed"):
        arena.view(0, 1, nothing)


@pytest.mark.parametrize("nbytes", [100, LARGE])
def test_a_write_through_a_writable_view_is_seen_by_nobody_else(arena, nbytes):
    arena.write(4096, [b"o" * nbytes])
    other = arena.view(4096, nbytes, nothing, writable=True)
    tensor = torch.frombuffer(arena.view(4096, nbytes, nothing, writable=True), dtype=torch.uint8)
    tensor.fill_(ord("x"))

    def seen():
        attached = Arena(arena.fd, arena.nbytes)
        return bytes(attached.view(4096, nbytes, nothing)) == b"o" * nbytes

    assert other == b"o" * nbytes
    assert in_a_child(seen) == "True"
    assert arena.view(4096, nbytes, nothing) == b"o" * nbytes
    del tensor
    assert arena.view(4096, nbytes, nothing, writable=True) == b"o" * nbytes


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
@pytest.mark.parametrize("nbytes", [100, LARGE])
def test_a_tensor_made_on_a_read_only_array_can_be_written_and_harms_nobody(arena, nbytes):
    arena.write(4096, [b"o" * nbytes])
    array = np.frombuffer(arena.view(4096, nbytes, nothing), dtype=np.uint8)
    tensor = torch.from_numpy(array)
    tensor.fill_(ord("x"))
    attached = Arena(arena.fd, arena.nbytes)
    assert in_a_child(lambda: bytes(attached.view(4096, nbytes, nothing)[:1])) == "b'o'"
    del array, tensor
    assert arena.view(4096, nbytes, nothing) == b"o" * nbytes


@pytest.mark.parametrize("pagemap", [True, False])
def test_what_was_written_through_a_read_only_view_is_not_in_the_next_object(
    arena, monkeypatch, pagemap
):
    """Also in a forked process, which has the parent's window."""
    if not pagemap:
        monkeypatch.setattr(arena_module, "_UNWRITTEN", b"")

    def write_through_a_view():
        array = np.frombuffer(arena.view(4096, LARGE, nothing), dtype=np.uint8)
        ctypes.memset(array.ctypes.data, 1, LARGE)  # as torch does, which has threads: no fork
        assert array[0] == 1
        del array
        arena.write(4096, [b"n" * LARGE])
        return arena.view(4096, LARGE, nothing) == b"n" * LARGE

    assert write_through_a_view()
    assert in_a_child(write_through_a_view) == "True"
    assert write_through_a_view()


def test_a_view_shows_what_was_written_to_the_block_after_an_earlier_view(arena):
    for letter in (b"a", b"b", b"c"):
        arena.write(4096, [letter * LARGE])
        assert arena.view(4096, LARGE, nothing) == letter * LARGE


def test_the_collector_takes_a_view_from_nobody_who_still_looks_at_it(arena):
    """Finalizers of a cycle run in any order: one that reads the array must find it whole."""
    arena.write(4096, [b"o" * LARGE])
    said = []

    class Looks:
        def __del__(self):
            said.append(("looks", bytes(self.array[:2])))

    cycle = Looks()
    cycle.cycle = cycle
    view = arena.view(4096, LARGE, lambda: said.append("released"))
    cycle.array = np.frombuffer(view, dtype=np.uint8)
    cycle.view = view
    del cycle, view
    gc.collect()
    assert said == [("looks", b"oo"), "released"]


def test_a_view_that_cannot_be_mapped_is_a_copy(arena, monkeypatch):
    arena.write(4096, [b"o" * LARGE])
    monkeypatch.setattr(arena_module, "_mmap", lambda *_: arena_module._MAP_FAILED)
    released = []
    view = arena.view(4096, LARGE, lambda: released.append(1), writable=True)
    assert view == b"o" * LARGE
    del view
    assert released == [1]
    with pytest.raises(OSError, match="268435456 bytes of the object store cannot be mapped"):
        arena.view(4096, LARGE, nothing)


def test_an_arena_that_nobody_writes_costs_no_memory():
    arena = Arena.create(1 << 40)
    assert os.fstat(arena.fd).st_blocks == 0
    arena.write(1 << 39, [b"x"])
    assert os.fstat(arena.fd).st_blocks * 512 <= mmap.PAGESIZE
    arena.close()


def test_memory_that_ran_out_is_an_error(arena, monkeypatch):
    def full(*_):
        ctypes.set_errno(12)
        return -1

    arena.write(0, [b"o" * (2 << 20)])
    monkeypatch.setattr(arena_module, "_madvise", full)
    with pytest.raises(OSError, match="no memory for 2097152 bytes of the object store"):
        arena.write(0, [b"o" * (2 << 20)])


sizes = st.one_of(st.integers(0, 300), st.integers(0, 30_000), st.sampled_from([4095, 4096]))


def rounded(nbytes):
    unit = 4096 if nbytes >= 4096 else 64
    return max(64, -(-nbytes // unit) * unit)


def check_that_it_fits_nowhere(blocks, nbytes, whole):
    used = sorted((offset, offset + rounded(size)) for offset, size in blocks.items())
    starts, ends = [0, *(end for _, end in used)], [*(start for start, _ in used), whole]
    for start, end in zip(starts, ends, strict=True):
        assert end - (start + (-start % 4096 if nbytes >= 4096 else 0)) < rounded(nbytes)


def check_that_it_disturbs_nobody(blocks, offset, nbytes, whole):
    assert offset % (4096 if nbytes >= 4096 else 64) == 0
    assert 0 <= offset <= whole - nbytes
    for other, size in blocks.items():
        assert offset + nbytes <= other or other + size <= offset
        if max(nbytes, size) >= 4096:  # no page in common
            (_, end), (start, _) = sorted([(offset, offset + nbytes), (other, other + size)])
            assert -(-end // 4096) <= start // 4096


@given(st.lists(st.one_of(sizes, st.tuples(st.integers(0, 100), st.booleans())), max_size=60))
@example([0, 4033, 4033, 4033, 8193, 12289, 20481, 28673])  # its whole pages end beyond the arena
def test_blocks_never_overlap_and_all_comes_back(steps):
    allocator = Allocator(100_000)
    whole = allocator.nbytes
    blocks = {}
    for step in steps:
        if isinstance(step, int):
            offset = allocator.allocate(step)
            if offset is None:
                check_that_it_fits_nowhere(blocks, step, whole)
            else:
                check_that_it_disturbs_nobody(blocks, offset, step, whole)
                blocks[offset] = step
        elif blocks and step[1]:
            offset = sorted(blocks)[step[0] % len(blocks)]
            allocator.free(offset)
            del blocks[offset]
    for offset in blocks:
        allocator.free(offset)
    assert allocator.used_bytes == 0
    assert list(allocator.holes()) == [(0, whole)]


@given(st.lists(sizes, max_size=30), st.randoms(use_true_random=False), st.integers(1, 100_000))
def test_what_is_to_be_freed_makes_room_and_asking_changes_nothing(steps, draw, nbytes):
    allocator = Allocator(100_000)
    blocks = [offset for step in steps if (offset := allocator.allocate(step)) is not None]
    draw.shuffle(blocks)
    kept, offered = blocks[: len(blocks) // 3], blocks[len(blocks) // 3 :]
    before = copy.deepcopy(vars(allocator))
    chosen = allocator.to_free(nbytes, offered)
    assert vars(allocator) == before
    for offset in offered if chosen is None else chosen:
        allocator.free(offset)
    assert (allocator.allocate(nbytes) is None) == (chosen is None)
    assert chosen is None or not set(chosen) & set(kept)


def test_only_blocks_in_the_hole_are_to_be_freed():
    allocator = Allocator(10 * 4096)
    blocks = [allocator.allocate(4096) for _ in range(10)]
    order = [blocks[number] for number in (0, 9, 4, 2, 5, 6, 1)]
    assert allocator.to_free(3 * 4096, order) == [blocks[number] for number in (4, 5, 6)]
    assert allocator.to_free(4 * 4096, order[:6]) is None
    assert allocator.to_free(4096, order) == [blocks[0]]
    assert allocator.used_bytes == 10 * 4096


def test_freed_memory_is_used_again_before_memory_that_nobody_touched():
    allocator = Allocator(1 << 30)
    first = [allocator.allocate(1 << 20) for _ in range(10)]
    for offset in first[2:8]:
        allocator.free(offset)
    assert [allocator.allocate(1 << 20) for _ in range(7)] == [*first[2:8], 10 << 20]
    small = [allocator.allocate(100) for _ in range(3)]
    assert min(small) > (1 << 30) - 4096
    allocator.free(small[1])
    assert allocator.allocate(90) == small[1]
