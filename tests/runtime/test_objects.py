"""Values: immutable, shared without copies, on disk when memory is short, made again when lost."""

import os
import signal
import threading
from datetime import timedelta

import numpy as np
import pytest
import torch

import bodies_tasks as bodies
from gmi_drl import runtime
from gmi_drl.runtime.api import session
from gmi_drl.runtime.store import room_requests, trimmer
from killers import lose

LONG = timedelta(seconds=30)
MIB = 1 << 20


@pytest.mark.parametrize("length", [0, 1, 100, 8_191, 8_192, 300_000])
def test_what_was_put_is_got_aligned_and_read_only(shared, length):
    array = runtime.get(runtime.put(np.arange(length)), LONG)
    np.testing.assert_array_equal(array, np.arange(length))
    assert not array.flags.writeable
    assert array.flags.aligned


@pytest.mark.parametrize("length", [10, 300_000])
def test_put_copies(shared, length):
    array = np.zeros(length)
    ref = runtime.put(array)
    array[:] = 1
    assert not runtime.get(ref, LONG).any()


@pytest.mark.parametrize("length", [10, 300_000])
def test_a_tensor_arrives_as_it_was(shared, length):
    tensor = torch.arange(length, dtype=torch.float32).reshape(2, -1)
    back = runtime.get(runtime.remote(bodies.echo).remote(runtime.put(tensor)), LONG)
    assert torch.equal(back, tensor)


def test_large_values_are_views_of_one_memory(shared):
    ref = runtime.put({"a": np.ones(MIB), "b": torch.ones(MIB)})
    used = shared.objects.store.used_bytes
    first, second = runtime.get([ref, ref], LONG)
    assert shared.objects.store.used_bytes == used
    assert not first["a"].flags.owndata
    assert not second["a"].flags.owndata


@pytest.mark.parametrize("length", [10, 300_000])
def test_no_task_can_change_an_array_it_was_given(shared, length):
    ref = runtime.put(np.zeros(length))
    refusal = runtime.get(runtime.remote(bodies.write_first).remote(ref), LONG)
    assert "read-only" in str(refusal)
    assert not runtime.get(ref, LONG).any()


@pytest.mark.parametrize("length", [10, 300_000])
def test_a_tensor_written_in_one_process_is_not_seen_by_another(shared, length):
    ref = runtime.put(torch.zeros(length))
    assert runtime.get(runtime.remote(bodies.write_first).remote(ref), LONG) == 7
    assert not runtime.get(ref, LONG).any()
    ours = runtime.get(ref, LONG)
    ours[:] = 1
    assert runtime.get(runtime.remote(bodies.total).remote(ref), LONG) == 0
    assert not runtime.get(ref, LONG).any()


def test_a_view_outlives_its_reference(shared):
    array = runtime.get(runtime.put(np.arange(300_000)), LONG)
    others = [runtime.put(np.zeros(300_000)) for _ in range(5)]
    np.testing.assert_array_equal(array, np.arange(300_000))
    del others


def test_memory_is_free_when_reference_and_views_are_gone(shared):
    ref = runtime.put(np.zeros(MIB))
    array = runtime.get(ref, LONG)
    del ref
    bodies.until(lambda: not shared.objects.slots)
    assert shared.objects.store.used_bytes >= 8 * MIB
    del array
    bodies.until(lambda: shared.post(int) or not shared.objects.store.used_bytes)


def test_a_list_is_got_in_order_whatever_lies_where(shared):
    values = [1, np.zeros(100_000), "x", np.ones(20), None]
    got = runtime.get([runtime.put(value) for value in values], LONG)
    assert [type(value) for value in got] == [type(value) for value in values]


def test_a_large_argument_is_put_once_and_freed_after_the_call(shared):
    assert runtime.get(runtime.remote(bodies.total).remote(np.ones(MIB)), LONG) == MIB


def test_a_reference_cannot_be_put(shared):
    with pytest.raises(TypeError, match="takes a value"):
        runtime.put(runtime.put(1))
    with pytest.raises(TypeError, match="ObjectRef or a list"):
        runtime.get([1])
    with pytest.raises(TypeError):
        runtime.get(1)


def test_values_refer_to_values(shared):
    inner = runtime.put(np.ones(300_000))
    outer = runtime.put({"inner": inner, "other": np.zeros(300_000)})
    del inner
    assert runtime.get(runtime.get(outer, LONG)["inner"], LONG).all()


# What is lost is made again.


def test_a_lost_result_is_made_again_by_the_one_task_that_is_needed(shared, tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    first = runtime.remote(bodies.zeros).remote(20_000, a)
    second = runtime.remote(bodies.plus).remote(first, 1, b)
    lose(second)
    assert runtime.get(second, LONG).sum() == 20_000
    assert (bodies.marks(a), bodies.marks(b)) == (1, 2)


def test_what_it_was_made_from_is_made_again_if_it_is_lost_too(shared, tmp_path):
    a, b, c = tmp_path / "a", tmp_path / "b", tmp_path / "c"
    first = runtime.remote(bodies.zeros).remote(20_000, a)
    second = runtime.remote(bodies.plus).remote(first, 1, b)
    third = runtime.remote(bodies.plus).remote(second, 1, c)
    runtime.wait([third], 1, LONG)
    lose(first, second)
    assert runtime.get(runtime.remote(bodies.total).remote(second), LONG) == 20_000
    assert (bodies.marks(a), bodies.marks(b), bodies.marks(c)) == (2, 2, 1)


def test_what_nobody_held_any_more_is_made_again_when_it_is_needed(shared, tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    second = runtime.remote(bodies.plus).remote(
        runtime.remote(bodies.zeros).remote(20_000, a), 1, b
    )
    runtime.wait([second], 1, LONG)
    bodies.until(lambda: shared.post(int) or len(shared.objects.slots) == 1)
    lose(second)
    assert runtime.get(second, LONG).sum() == 20_000
    assert (bodies.marks(a), bodies.marks(b)) == (2, 2)


def test_a_task_that_already_waits_gets_what_is_made_again(shared, tmp_path):
    first = runtime.remote(bodies.zeros).remote(20_000, tmp_path / "a")
    runtime.wait([first], 1, LONG)
    lose(first)
    assert runtime.get(runtime.remote(bodies.total).remote(first), LONG) == 0
    inside = runtime.remote(bodies.get_in_time).remote([first], 20)
    assert runtime.get(inside, LONG).sum() == 0
    assert bodies.marks(tmp_path / "a") == 2


def test_one_lost_result_of_several_is_made_again_and_the_others_stay(shared, tmp_path):
    def two():
        bodies.mark(tmp_path / "n")
        return np.full(20_000, 1), np.full(20_000, 2)

    first, second = runtime.remote(two).options(num_returns=2).remote()
    kept = runtime.get(second, LONG)
    lose(first)
    assert runtime.get(first, LONG)[0] == 1
    assert runtime.get(second, LONG)[0] == kept[0] == 2
    assert bodies.marks(tmp_path / "n") == 2


def test_what_was_written_of_results_that_cannot_all_be_sent_is_free(shared):
    def two():
        return np.zeros(20_000), threading.Lock()

    for ref in runtime.remote(two).options(num_returns=2).remote():
        with pytest.raises(runtime.SerializationError):
            runtime.get(ref, LONG)
    bodies.until(lambda: not shared.objects.store.used_bytes, "memory free")


def test_what_a_generator_has_given_is_free_once_it_was_read_and_dropped(shared, tmp_path):
    def dies_once():
        for i in range(4):
            yield np.full(20_000, i)
            if i == 2:
                bodies.dies_at_first(tmp_path / "n", 1)
            yield bytes(1000)

    store, items = shared.objects.store, runtime.remote(dies_once).remote()
    for number, item in enumerate(items):
        value = runtime.get(item, LONG)
        assert value == bytes(1000) if number % 2 else value[0] == number // 2
    del item, value
    assert bodies.marks(tmp_path / "n") == 2
    bodies.until(lambda: shared.post(int) or not store.used_bytes, "memory free")
    assert len(shared.objects.slots) == 2  # the end, and what would come next


@pytest.mark.parametrize("calls", ["task", "method"])
def test_what_a_call_that_is_not_run_again_has_read_of_a_generator_is_free(shared, tmp_path, calls):
    class Reader:
        def read(self, *args):
            return bodies.reads_generator(*args)

    reads = runtime.remote(bodies.reads_generator).options(max_retries=0)
    if calls == "method":
        reads = runtime.remote(Reader).remote().read
    ref = reads.remote(3, tmp_path / "read", tmp_path / "go")
    bodies.until(lambda: bodies.marks(tmp_path / "read"), "it has read all")
    bodies.until(lambda: shared.post(int) or not shared.objects.store.used_bytes, "memory free")
    (tmp_path / "go").touch()
    assert runtime.get(ref, LONG) == 3


def test_a_task_that_is_run_again_reads_all_of_a_generator_again(shared, tmp_path):
    def reads():
        items = runtime.remote(bodies.count_to).remote(3, size=20_000)
        read = [float(runtime.get(item)[0]) for item in items]
        bodies.dies_at_first(tmp_path / "n", 1)
        return read

    assert runtime.get(runtime.remote(reads).remote(), LONG) == [0, 1, 2]
    assert bodies.marks(tmp_path / "n") == 2


def test_a_generator_that_two_read_gives_all_to_both(shared):
    items = runtime.remote(bodies.count_to).remote(3, size=20_000)
    read = runtime.remote(lambda box: [float(runtime.get(ref)[0]) for ref in box[0]])
    other = read.remote([items])
    assert [float(runtime.get(item, LONG)[0]) for item in items] == [0, 1, 2]
    assert runtime.get(other, LONG) == [0, 1, 2]


def test_a_lost_item_of_a_generator_is_made_again(shared):
    items = list(runtime.remote(bodies.count_to).remote(3, size=20_000))
    lose(items[1])
    assert [float(runtime.get(item, LONG)[0]) for item in items] == [0, 1, 2]


def test_an_argument_that_is_lost_while_its_calls_wait_fails_the_calls(shared, tmp_path):
    actor = runtime.remote(bodies.Counter).remote()
    array = runtime.put(np.zeros(50_000))
    blocked = actor.keep.remote(runtime.remote(bodies.wait_for_file).remote(tmp_path / "go"))
    calls, after = [actor.keep.remote(array) for _ in range(300)], actor.keep.remote(1)
    lose(array)
    (tmp_path / "go").touch()
    assert runtime.get([blocked, after], LONG) == [1, 2]
    for call in calls:
        with pytest.raises(runtime.ObjectLostError):
            runtime.get(call, LONG)


def test_a_put_value_that_is_lost_says_that_it_cannot_be_made_again(shared):
    ref = runtime.put(np.zeros(20_000))
    lose(ref)
    with pytest.raises(runtime.ObjectLostError, match=r"put\(\)"):
        runtime.get(ref, LONG)
    with pytest.raises(runtime.ObjectLostError, match=r"put\(\)"):
        runtime.get(runtime.remote(bodies.total).remote(ref), LONG)


# Less memory than values.


@pytest.fixture
def small(stopped):
    runtime.init(num_cpus=2, object_store_bytes=32 * MIB)
    return session.driver()


def test_what_does_not_fit_goes_to_disk_and_comes_back(small):
    refs = [runtime.put(np.full(MIB, i)) for i in range(12)]  # 8 MiB each
    bodies.until(lambda: small.objects.store.spilled_bytes)
    for i, ref in enumerate(refs):
        assert (runtime.get(ref, LONG) == i).all()
    sums = [runtime.remote(bodies.total).remote(ref) for ref in refs]
    assert runtime.get(sums, LONG) == [i * MIB for i in range(12)]
    folder = runtime.run_directory() / "spill"
    assert list(folder.iterdir())
    del refs, ref, sums
    bodies.until(lambda: small.post(int) or not list(folder.iterdir()), "no file left")


def test_results_of_tasks_go_to_disk_too(small):
    refs = [runtime.remote(bodies.zeros).remote(MIB) for _ in range(12)]
    more = [runtime.remote(bodies.plus).remote(ref, i) for i, ref in enumerate(refs)]
    assert [float(runtime.get(ref, LONG)[0]) for ref in more] == list(range(12))


def test_a_value_larger_than_the_store_is_refused_where_it_is_made(small):
    with pytest.raises(runtime.ObjectStoreFullError, match=r"object_store_bytes|limit"):
        runtime.put(np.zeros(5 * MIB))
    with pytest.raises(runtime.ObjectStoreFullError):
        runtime.remote(bodies.total).remote(np.zeros(5 * MIB))
    with pytest.raises(runtime.ObjectStoreFullError):
        runtime.get(runtime.remote(bodies.zeros).remote(5 * MIB), LONG)
    assert runtime.get(runtime.remote(bodies.total).remote(np.ones(MIB)), LONG) == MIB


def test_a_result_of_thirty_gigabytes_fails_and_its_worker_lives(small):
    pid = runtime.get(runtime.remote(bodies.pid).remote(), LONG)
    with pytest.raises(MemoryError, match=r"32\.2 GB"):
        runtime.get(runtime.remote(bodies.thirty_gigabytes).remote(), LONG)
    pids = {runtime.get(runtime.remote(bodies.pid).remote(), LONG) for _ in range(5)}
    assert pid in pids


def test_when_everything_is_looked_at_the_error_says_what(small, monkeypatch):
    monkeypatch.setattr(room_requests, "PINNED_S", 0.1)
    views = [runtime.get(runtime.put(np.full(MIB, i)), LONG) for i in range(3)]
    written = [runtime.put(np.full(2 * MIB, 5)), runtime.remote(bodies.zeros).remote(2 * MIB)]
    runtime.wait(written, 2, LONG)
    for ref in written:  # it was written to disk, and cannot be looked at now
        assert small.objects.store.state(ref.id) == "disk"
        with pytest.raises(runtime.ObjectStoreFullError, match=r"put\(\)"):
            runtime.get(ref, LONG)
    with pytest.raises(runtime.ObjectStoreFullError, match=r"put\(\)"):
        runtime.get(runtime.remote(bodies.total).remote(written[0]), LONG)
    assert [view[0] for view in views] == [0, 1, 2]
    del views
    assert runtime.get(runtime.remote(bodies.total).remote(written[0]), LONG) == 5 * 2 * MIB
    assert not runtime.get(written[1], LONG).any()


def test_a_call_that_waits_long_for_those_that_run_is_told_of(small, monkeypatch, capfd, tmp_path):
    def keeps(values, began, gate):
        bodies.mark(began)
        bodies.until(gate.exists, "the gate", 60)
        return len(values)

    monkeypatch.setattr(room_requests, "PINNED_S", 0.1)
    began, gate = tmp_path / "began", tmp_path / "go"
    runs = runtime.remote(keeps).remote(runtime.put(np.ones(3 * MIB)), began, gate)
    bodies.pid_in(began)
    waits = runtime.remote(bodies.total).remote(runtime.put(np.ones(2 * MIB)))
    said = []

    def is_told():
        said.append(capfd.readouterr().err)
        return "total waits until calls that run leave room for its arguments" in "".join(said)

    bodies.until(is_told, "a line")
    gate.touch()
    assert runtime.get([runs, waits], LONG) == [3 * MIB, 2 * MIB]
    assert "".join([*said, capfd.readouterr().err]).count("total waits") == 1


def in_thread(call):
    """Has a thread call something; a list that its result is in when there is one."""
    found = []
    threading.Thread(target=lambda: found.append(call()), daemon=True).start()
    return found


def test_what_is_looked_at_for_a_while_is_waited_for(small, monkeypatch):
    monkeypatch.setattr(room_requests, "PINNED_S", 3600.0)
    other = runtime.put(np.full(3 * MIB, 7.0))
    view = runtime.get(runtime.put(np.ones(3 * MIB)), LONG)
    bodies.until(lambda: small.objects.store.state(other.id) == "disk", "room for the view")
    result = runtime.remote(bodies.zeros).remote(3 * MIB)
    bodies.until(lambda: len(small.objects.room_requests._requests) == 1, "a result without room")
    put = in_thread(lambda: runtime.put(np.full(3 * MIB, 2.0)))
    bodies.until(lambda: len(small.objects.room_requests._requests) == 2, "a put() without room")
    got = in_thread(lambda: runtime.get(other, LONG)[0])
    bodies.until(lambda: len(small.objects.room_requests._requests) == 3, "a get() without room")
    total = runtime.remote(bodies.total).options(num_cpus=0).remote(other)
    bodies.until(lambda: small.dispatch._starved, "a call whose input finds no room")
    assert not put
    assert not got
    assert view.all()
    del view
    assert not runtime.get(result, LONG).any()
    bodies.until(lambda: put and got, "what waited for room")
    assert runtime.get(total, LONG) == 7 * 3 * MIB
    assert (runtime.get(put[0], LONG)[0], got[0]) == (2, 7)


def test_a_put_that_is_interrupted_while_it_waits_for_room_takes_none(small, monkeypatch):
    monkeypatch.setattr(room_requests, "PINNED_S", 3600.0)
    view = runtime.get(runtime.put(np.ones(3 * MIB)), LONG)
    main = threading.get_ident()

    def interrupt():
        bodies.until(lambda: small.objects.room_requests, "a put() without room")
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        runtime.put(np.ones(3 * MIB))
    thread.join()
    assert view.all()
    del view
    bodies.until(lambda: not small.objects.store.used_bytes, "memory free")


def test_a_put_that_is_interrupted_as_it_asks_for_room_takes_none(small, monkeypatch):
    view = runtime.get(runtime.put(np.ones(3 * MIB)), LONG)
    post = small.loop.post

    def interrupted(command, *args):
        post(command, *args)
        small.loop.post = post
        raise KeyboardInterrupt

    monkeypatch.setattr(room_requests, "PINNED_S", 3600.0)
    monkeypatch.setattr(small.loop, "post", interrupted)
    with pytest.raises(KeyboardInterrupt):
        runtime.put(np.ones(3 * MIB))
    assert view.all()
    del view
    bodies.until(lambda: small.post(int) or not small.objects.store.used_bytes, "memory free")


def test_memory_that_nobody_uses_any_more_is_given_back(stopped, monkeypatch):
    monkeypatch.setattr(trimmer, "_KEPT", 8 * MIB)
    runtime.init(num_cpus=1, object_store_bytes=128 * MIB)
    arena = session.driver().arena

    def there():
        return os.fstat(arena.fd).st_blocks * 512

    for _ in range(2):  # what was given back can be written again, as often as one likes
        refs = [runtime.put(np.full(MIB, i)) for i in range(10)]
        refs += [runtime.remote(bodies.zeros).remote(MIB)]
        assert [runtime.get(ref, LONG)[-1] for ref in refs] == [*range(10), 0]
        assert there() >= 88 * MIB
        del refs
        bodies.until(lambda: there() <= 10 * MIB, "memory given back", 20, lambda: str(there()))


def test_a_file_that_is_gone_from_the_disk_is_no_loss_for_a_result(small, tmp_path):
    refs = [runtime.remote(bodies.zeros).remote(MIB, tmp_path / "n") for _ in range(8)]
    runtime.wait(refs, 8, LONG)
    state = small.objects.store.state
    bodies.until(lambda: any(state(ref.id) == "disk" for ref in refs), "a result on disk")
    for file in (runtime.run_directory() / "spill").iterdir():
        file.unlink()
    assert all(runtime.get(ref, LONG).sum() == 0 for ref in refs)
    assert bodies.marks(tmp_path / "n") > 8


def test_no_call_overtakes_what_the_actor_is_built_from(stopped):
    """Its argument has to come back from disk first."""
    runtime.init(num_cpus=1, object_store_bytes=64 * MIB)
    driver = session.driver()
    store = driver.objects.store
    large = runtime.put(np.ones(20 * MIB, np.uint8))
    others = [runtime.put(np.zeros(20 * MIB, np.uint8)) for _ in range(3)]
    bodies.until(lambda: store.state(large.id) == "disk", "what makes room")
    del others
    actor = runtime.remote(bodies.Counter).remote(large)
    bodies.until(lambda: driver.actors.table[actor._id].process is not None, "a process")
    assert runtime.get(actor.keep.remote(7), LONG) == 1


def test_what_a_cancelled_call_has_asked_for_is_given_back(small, tmp_path):
    def reads(box):
        bodies.mark(tmp_path / "reads")
        runtime.get(box[0])

    def puts():
        bodies.mark(tmp_path / "puts")
        runtime.put(np.zeros(3 * MIB))

    store, go = small.objects.store, threading.Event()
    first = runtime.put(np.ones(3 * MIB))
    second = runtime.put(np.ones(3 * MIB))  # the first goes to disk for it
    bodies.until(lambda id=first.id: store.state(id) == "disk", "a value on disk")
    small.objects._on_disk(lambda _: go.wait(60), None)
    for call, asked in (
        (runtime.remote(puts).remote(), lambda: small.objects._creating),
        (runtime.remote(reads).remote([first]), lambda: small.objects._pinning),
    ):
        bodies.until(asked, "what it asks for")
        runtime.cancel(call)
        with pytest.raises(runtime.TaskCancelledError):
            runtime.get(call, LONG)
    go.set()
    del first, second, call, asked
    bodies.until(lambda: small.post(int) or not store.used_bytes, "memory given back")
