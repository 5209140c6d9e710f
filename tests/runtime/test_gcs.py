"""The control store: what is put is kept, in the file, whatever happens to the disk."""

import contextlib
import json
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
import threading

import pytest

from bodies_gcs import one_of_each, rows_in_file, task
from gmi_drl.runtime.gcs import database, gcs
from gmi_drl.runtime.gcs.database import DamagedStoreError, GcsError
from gmi_drl.runtime.gcs.gcs import Gcs
from gmi_drl.runtime.gcs.tables import ActorRow, EventRow, PolicyRow, TaskRow, policy_id


@pytest.fixture
def store(tmp_path):
    with contextlib.closing(Gcs(tmp_path / "gcs.sqlite")) as opened:
        yield opened


@pytest.fixture
def held(monkeypatch):
    """Writing that waits until it is let go: `held.set()`."""
    gate = threading.Event()
    write = database.Database.write
    monkeypatch.setattr(
        database.Database, "write", lambda self, batch: gate.wait(30) and write(self, batch)
    )
    yield gate
    gate.set()


def ask(path, text):
    """What a program that knows only SQL gets from the file."""
    code = (
        "import json, sqlite3, sys\n"
        "file = sqlite3.connect('file:' + sys.argv[1] + '?mode=ro', uri=True)\n"
        "print(json.dumps(file.execute(sys.argv[2]).fetchall()))"
    )
    command = [sys.executable, "-c", code, str(path), text]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    return json.loads(done.stdout)


def test_rows_come_back_before_and_after_they_are_written(store):
    rows = one_of_each()
    for row in rows:
        store.put(row)
    for _ in range(2):
        for row in rows[:4]:
            assert store.get(type(row), row.id) == row
        store.flush()
    assert [rows_in_file(store, type(row)) for row in rows] == [[row] for row in rows]
    assert store.backlog == 0
    assert store.get(TaskRow, b"none" * 4) is None
    assert store.get(ActorRow, rows[0].id) is None


def test_the_last_row_of_an_id_counts_whenever_it_was_written(store):
    for state in ("waiting", "running", "finished"):
        store.put(task(1, state))
        store.put(task(2, state))
        if state == "running":
            store.flush()
            assert ask(store.path, "SELECT state FROM tasks") == [["running"], ["running"]]
    store.put(ActorRow(b"a" * 16, "x", "X", "alive"))
    store.flush()
    store.put(ActorRow(b"a" * 16, "x", "X", "dead"))
    store.flush()
    assert ask(store.path, "SELECT name, state FROM tasks") == [
        ["work1", "finished"],
        ["work2", "finished"],
    ]
    assert ask(store.path, "SELECT state FROM actors") == [["dead"]]


def test_a_task_run_again_after_it_ended_keeps_its_one_row(store):
    for row in (
        task(1), task(1, "lost"), task(1, "running", attempts=2), task(1, attempts=2),
        task(1, "waiting", attempts=1), task(1, attempts=2),
    ):  # fmt: skip
        store.put(row)
        store.flush()
        assert ask(store.path, "SELECT state, attempts FROM tasks") == [[row.state, row.attempts]]


def test_rows_are_found_in_every_part_of_the_index(store):
    many = (1 << 15) + 5_000
    for number in range(many):
        store.put(TaskRow(number.to_bytes(16), "task", str(number), state="finished"))
    store.flush()
    for number in (0, 5, (1 << 15) - 2, 1 << 15, many - 1):
        assert store.get(TaskRow, number.to_bytes(16)).name == str(number)
    with contextlib.closing(database.open_to_read(store.path)) as file:
        table = database.TABLE_OF[TaskRow]
        prefix = (5).to_bytes(16)[:-1]
        assert len(database.ids_with_prefix(file, table, prefix, 1_000)) == 256
        plan = file.execute(f"EXPLAIN QUERY PLAN {database._NUMBER_OF}", (b"",)).fetchall()
        assert any("tasks_id" in row[-1] for row in plan)


def test_a_task_that_starts_and_ends_between_two_writes_is_written_once(store, held):
    store.put(EventRow(0.0, "first", b"", ""))
    for number in range(50):
        store.put(task(number, "running"))
    store.put(task(1))
    store.put(task(1, device=3))
    assert store.get(TaskRow, task(1).id) == task(1, device=3)
    assert 51 <= store.backlog <= 53
    held.set()
    store.flush()
    assert ask(store.path, "SELECT count(*), count(DISTINCT id) FROM tasks") == [[50, 50]]


def test_any_sql_tool_reads_it_while_it_is_written(store):
    for row in one_of_each():
        store.put(row)
    store.flush()
    id = task(1).id.hex()
    assert ask(store.path, "SELECT id, name, state FROM tasks_text") == [[id, "work1", "finished"]]
    assert ask(store.path, "SELECT id, place FROM objects_text") == [["6f" * 20, "memory"]]
    assert ask(store.path, "SELECT kind, subject FROM events_text") == [["WorkerDied", "61" * 16]]
    assert ask(store.path, "SELECT hex(id), length(body) FROM functions") == [["66" * 16, 2]]


def test_a_reader_who_stays_does_not_stop_the_writer(store):
    store.put(task(1))
    store.flush()
    with contextlib.closing(database.open_to_read(store.path)) as reader:
        reader.execute("BEGIN")
        assert len(list(database.scan(reader, TaskRow))) == 1
        store.put(task(2))
        store.flush()
        assert len(list(database.scan(reader, TaskRow))) == 1
    assert len(rows_in_file(store, TaskRow)) == 2


def test_many_rows_from_a_busy_thread_are_all_there(store):
    done = threading.Event()

    def read():
        while not done.is_set():
            found = store.get(TaskRow, task(0).id)
            assert found is None or found.name == task(0).name

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(3_000):
        again = number // 1_000 + 1  # each is run three times
        store.put(task(number % 1_000, "running")._replace(attempts=again))
        store.put(task(number % 1_000)._replace(attempts=again))
        store.put(EventRow(float(number), "tick", b"", ""))
    store.flush()
    done.set()
    reader.join()
    assert ask(store.path, "SELECT count(*) FROM tasks WHERE state = 'finished'") == [[1_000]]
    assert [row.time_s for row in rows_in_file(store, EventRow)] == [float(n) for n in range(3_000)]


def test_it_is_one_plain_file_when_it_is_closed(tmp_path):
    path = tmp_path / "gcs.sqlite"
    store = Gcs(path)
    store.put(task(1))
    store.close()
    assert os.listdir(tmp_path) == ["gcs.sqlite"]
    path.chmod(0o400)
    tmp_path.chmod(0o500)
    try:
        with contextlib.closing(database.open_to_read(path)) as file:
            assert list(database.scan(file, TaskRow)) == [task(1)]
    finally:
        tmp_path.chmod(0o700)


def test_a_moved_store_goes_on_with_all_it_had(store, tmp_path):
    for row in [*one_of_each(), task(2, "running")]:
        store.put(row)
    store.flush()
    store.put(task(3))
    old = store.path
    (tmp_path / "run").mkdir()
    store.move(tmp_path / "run" / "gcs.sqlite")
    store.put(task(2))
    store.put(task(1, "lost"))
    store.flush()
    assert sorted(os.listdir(tmp_path)) == ["run"]
    assert store.path != old
    assert ask(store.path, "SELECT name, state FROM tasks ORDER BY name") == [
        ["work1", "lost"], ["work2", "finished"], ["work3", "finished"],
    ]  # fmt: skip
    for row in one_of_each()[1:4]:
        assert store.get(type(row), row.id) == row
    assert [row.kind for row in rows_in_file(store, EventRow)] == ["WorkerDied"]
    store.move(store.path)


def test_a_resumed_run_adds_to_the_store_it_had(store, tmp_path):
    path = tmp_path / "before.sqlite"
    with contextlib.closing(Gcs(path)) as before:
        before.put(task(1, "running"))
        before.put(task(2))
        before.put(EventRow(1.0, "first", b"", ""))
    store.put(task(1))
    store.put(task(3, "running"))
    store.put(EventRow(2.0, "second", b"", ""))
    store.flush()
    store.move(path)
    store.put(task(3))
    store.put(task(2, device=5))  # its id is of the earlier session, whatever its attempts
    store.flush()
    assert ask(path, "SELECT name, state, device FROM tasks ORDER BY name") == [
        ["work1", "finished", -1], ["work2", "finished", 5], ["work3", "finished", -1],
    ]  # fmt: skip
    assert [row.kind for row in rows_in_file(store, EventRow)] == ["first", "second"]


def test_a_move_that_fails_changes_nothing(store, tmp_path):
    store.put(task(1))
    with pytest.raises(GcsError, match="a file system that has locks"):
        store.move(tmp_path / "nowhere" / "gcs.sqlite")
    (tmp_path / "text").write_text("no database, " * 100)
    with pytest.raises(DamagedStoreError, match="file is not a database"):
        store.move(tmp_path / "text")
    store.flush()
    assert store.get(TaskRow, task(1).id) == task(1)


def test_other_files_are_refused_with_a_remedy(tmp_path):
    path = tmp_path / "other.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE t (a)")
    for use in (Gcs, database.open_to_read):
        with pytest.raises(GcsError, match=r"not a control store .* Give a run's gcs.sqlite"):
            use(path)
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute(f"PRAGMA application_id={0x474D4943}")
        other.execute("PRAGMA user_version=99")
    with pytest.raises(GcsError, match=r"version 99; this is version 2"):
        database.open_to_read(path)
    with pytest.raises(GcsError, match=r"no such file.*gmi-drl runs"):
        database.open_to_read(tmp_path / "none")


def test_a_full_disk_stops_nothing_and_the_rows_are_written_when_there_is_room(tmp_path):
    """On a tmpfs of one MB; where none can be mounted, the next test has a limit instead."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        (disk / "ballast").write_bytes(bytes(800_000))
        with contextlib.closing(Gcs(disk / "gcs.sqlite")) as store:
            for number in range(1_000):
                store.put(task(number))
            with pytest.raises(GcsError, match=r"SQLITE_\w+.*Make room on that disk"):
                store.flush(3)
            assert store.backlog == 0
            store.put(task(1_000))
            assert store.get(TaskRow, task(3).id) == task(3)
            (disk / "ballast").unlink()
            store.flush(30)
            assert store.failure == ""
            assert store.dropped == 0
            assert ask(store.path, "SELECT count(*) FROM tasks") == [[1_001]]
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_file_that_may_not_grow_stops_nothing(store):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    store.put(task(0))
    store.flush()
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (65_536, hard))
        for number in range(2_000):
            store.put(task(number))
        with pytest.raises(GcsError, match="the run is not recorded"):
            store.flush(2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    store.flush(30)
    assert store.failure == ""
    assert len(rows_in_file(store, TaskRow)) == 2_000


def test_what_waits_for_a_failing_file_is_bounded_and_the_oldest_ended_go(store, monkeypatch):
    monkeypatch.setattr(gcs, "_MOST_WAITING", 100)
    write = database.Database.write

    def fail(self, batch):
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(database.Database, "write", fail)
    store.put(task(0, "running"))
    for number in range(1, 300):
        store.put(task(number))
    with pytest.raises(GcsError, match="disk I/O error"):
        store.flush(1)
    assert store.dropped == 210
    assert store._waiting == 90
    monkeypatch.setattr(database.Database, "write", write)
    store.flush()
    kept = {row.name for row in rows_in_file(store, TaskRow)}
    assert kept == {"work0", *(f"work{number}" for number in range(211, 300))}


def test_a_damaged_file_is_named_and_a_new_one_made_when_it_is_moved_away(store):
    for number in range(2_000):
        store.put(task(number))
    store.flush()
    assert store.get(TaskRow, task(1).id) == task(1)
    store._database._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with open(store.path, "r+b") as file:
        file.write(b"x" * 4096)
    store._database._connection.execute("PRAGMA cache_size=0")
    store.put(task(2_000, "running", attempts=2))
    with pytest.raises(GcsError, match=r"SQLITE_\w+.*Move the file away"):
        store.flush(2)
    database.remove(store.path)
    store.flush(30)
    assert ask(store.path, "SELECT name FROM tasks") == [["work2000"]]
    assert store.get(TaskRow, task(2_000).id).state == "running"
    assert store.get(TaskRow, task(1).id) is None


def pages(path):
    return range(path.stat().st_size // 4096)


def test_damage_on_any_page_is_found_when_a_store_is_added_to(store, tmp_path):
    whole = tmp_path / "whole.sqlite"
    with contextlib.closing(Gcs(whole)) as before:
        for number in range(1_000):
            before.put(task(number))
        for row in one_of_each():
            before.put(row)
    store.put(task(2_000))
    store.flush()
    path, noise = tmp_path / "gcs.sqlite.of-run", bytes(range(256)) * 16
    for page in pages(whole):
        shutil.copy(whole, path)
        with open(path, "r+b") as file:
            file.seek(page * 4096)
            file.write(noise)
        with pytest.raises(DamagedStoreError, match=r"damaged, or not a control store \(.+\)"):
            store.move(path)
        assert store.get(TaskRow, task(2_000).id) == task(2_000)


def truncated(path):
    os.truncate(path, 4096 * 3 + 100)


def text(path):
    path.write_text("no database, " * 100)


def folder(path):
    path.unlink()
    (path / "in it").mkdir(parents=True)


def folder_of_wal(path):
    path.with_name(path.name + "-wal").mkdir()


def other_tables(path):
    with contextlib.closing(sqlite3.connect(path)) as file:
        file.execute("ALTER TABLE events RENAME COLUMN kind TO sort")


def another_application(path):
    with contextlib.closing(sqlite3.connect(path)) as file:
        file.execute("PRAGMA application_id=5")


def number_of_a_task(path):
    with contextlib.closing(sqlite3.connect(path)) as file:
        file.execute(f"UPDATE tasks SET number = {2**62}")
        file.commit()


def name_that_is_no_text(path):
    """SQLite names the table in its error, which Python then cannot decode."""
    written = path.read_bytes()
    sql = written.index(b"CREATE TABLE tasks")
    damaged = written[:sql] + b"CREATE TABLE (asks" + written[sql + 18 :]
    path.write_bytes(damaged.replace(b"tabletasks", b"tablet\xa6sks"))


DAMAGES = [truncated, text, folder, folder_of_wal, other_tables, another_application,
           number_of_a_task, name_that_is_no_text]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_store_is_set_aside_whole_for_a_new_one(store, tmp_path, damage):
    path = tmp_path / "run.sqlite"
    with contextlib.closing(Gcs(path)) as before:
        before.put(task(1, state="finished"))
    damage(path)
    damaged = path.read_bytes() if path.is_file() else None
    for number in (1, 2):
        store.put(task(number))
        with pytest.raises(DamagedStoreError):
            store.move(path)
        aside = database.set_aside(path)
        assert aside.name == f"run.sqlite.damaged-{number}"
        assert damaged is None or aside.read_bytes() == damaged
        assert not any(part.exists() for part in database._parts(path))
        text(path)  # for the second time
        damaged = path.read_bytes()
    path.unlink()
    store.move(path)
    store.flush()
    assert ask(path, "SELECT count(*) FROM tasks") == [[2]]


@pytest.mark.parametrize("end", ["-wal", "-shm", "-journal"])
def test_noise_in_what_sqlite_keeps_beside_a_store_costs_nothing(store, tmp_path, end):
    path = tmp_path / "run.sqlite"
    with contextlib.closing(Gcs(path)) as before:
        before.put(task(1))
    path.with_name(path.name + end).write_bytes(bytes(range(256)) * 64)
    store.put(task(2))
    store.move(path)
    store.flush()
    assert ask(path, "SELECT count(*) FROM tasks") == [[2]]


def test_a_task_in_a_file_that_is_damaged_now_is_asked_for_with_an_error_of_ours(store):
    for number in range(2_000):
        store.put(task(number))
    store.flush()
    store._database._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with open(store.path, "r+b") as file:
        file.write(b"x" * 4096)
    with pytest.raises(GcsError, match="move this one away"):
        store.get(TaskRow, task(1).id)
    database.remove(store.path)


def test_closing_counts_what_could_not_be_written(tmp_path, monkeypatch):
    store = Gcs(tmp_path / "gcs.sqlite")

    def fail(self, batch):
        raise sqlite3.OperationalError("no disk")

    monkeypatch.setattr(database.Database, "write", fail)
    store.put(task(1))
    store.close()
    assert store.dropped == 1
    assert "no disk" in store.failure


def test_arguments_out_of_range_are_refused(tmp_path):
    with pytest.raises(ValueError, match="shards=0"):
        Gcs(tmp_path / "x", shards=0)


def test_rows_without_ids_cannot_be_asked_for(store):
    with pytest.raises(ValueError, match="EventRow has no id"):
        store.get(EventRow, b"x")


def policy(number):
    return PolicyRow(
        id=policy_id(0, number), branch=0, version=number, updates=number, steps=number, lag=0,
        experience="[]", replay="",
    )  # fmt: skip


def test_a_bounded_table_keeps_the_newest_rows(tmp_path):
    gcs = Gcs(tmp_path / "gcs.sqlite")
    gcs.bound(PolicyRow, 100)
    for number in range(1000):
        gcs.put(policy(number))
        if number % 10 == 9:
            gcs.flush()
    gcs.close()
    with contextlib.closing(database.open_to_read(tmp_path / "gcs.sqlite")) as store:
        kept = [row.version for row in database.scan(store, PolicyRow)]
    assert 100 <= len(kept) <= 110
    assert kept == list(range(1000 - len(kept), 1000))


@pytest.fixture
def mounted(tmp_path, monkeypatch):
    """Says what file system a folder of this test is on."""

    def mount(kind, folder):
        at = str(folder).replace(" ", "\\040")
        (tmp_path / "mountinfo").write_text(
            "20 1 8:1 / / rw - ext4 /dev/a rw\n"
            f"21 20 0:9 / {at} rw,relatime shared:1 - {kind} server:/runs rw\n"
            "22 20 0:5 / /proc rw - proc proc rw\n"
        )
        monkeypatch.setattr(database, "_MOUNTS", tmp_path / "mountinfo")

    return mount


@pytest.mark.parametrize(
    ("kind", "journal"),
    [("ext4", "wal"), ("nfs4", "delete"), ("fuse.sshfs", "delete"), ("unheard-of", "delete")],
)
def test_only_a_file_that_is_this_hosts_alone_has_a_write_ahead_log(
    tmp_path, mounted, kind, journal
):
    """Its readers share memory with who writes it, which those of another host cannot."""
    folder = tmp_path / "of all hosts"
    (folder / "run").mkdir(parents=True)
    mounted(kind, folder)
    with contextlib.closing(Gcs(tmp_path / "gcs.sqlite")) as store:
        assert ask(store.path, "PRAGMA journal_mode") == [["wal"]]
        store.put(task(1))
        store.move(kept := folder / "run" / "gcs.sqlite")
        for number in (2, 3):
            store.put(task(number))
            store.flush()
            assert ask(kept, "SELECT count(*) FROM tasks") == [[number]]
        assert ask(kept, "PRAGMA journal_mode") == [[journal]]
        assert kept.with_name("gcs.sqlite-shm").exists() == (journal == "wal")


def test_a_file_whose_mounts_are_unknown_has_no_write_ahead_log(tmp_path, monkeypatch):
    monkeypatch.setattr(database, "_MOUNTS", tmp_path / "none")
    with contextlib.closing(Gcs(tmp_path / "gcs.sqlite")) as store:
        assert ask(store.path, "PRAGMA journal_mode") == [["delete"]]


_KILLED = """
import os, signal, sqlite3, sys
store = sqlite3.connect(sys.argv[1], isolation_level=None)
store.execute("PRAGMA cache_size=1")
store.execute("BEGIN IMMEDIATE")
store.execute("UPDATE tasks SET name = 'half'")
store.execute("CREATE TABLE more (x)")
for _ in range(100):
    store.execute("INSERT INTO more VALUES (zeroblob(4000))")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_writer_has_half_done_is_told_and_undone_by_the_next(tmp_path, mounted):
    mounted("nfs4", tmp_path)
    with contextlib.closing(Gcs(path := tmp_path / "gcs.sqlite")) as store:
        store.put(task(1))
    subprocess.run([sys.executable, "-c", _KILLED, path], check=False, timeout=30)
    assert path.with_name("gcs.sqlite-journal").stat().st_size
    with pytest.raises(GcsError, match="its writer was killed while it wrote"):
        database.open_to_read(path)
    with contextlib.closing(Gcs(path)) as store:
        assert rows_in_file(store, TaskRow) == [task(1)]


def test_the_store_of_another_runtime_is_merged_once_however_often_it_is_begun(store, tmp_path):
    event = EventRow(7.0, "actor restarted", b"a" * 16, "it was killed")
    rows = [task(7), ActorRow(b"a" * 16, "gmi1", "GmiHost"), event]
    store.put(task(3))
    kept = tmp_path / "kept.sqlite"
    with contextlib.closing(Gcs(tmp_path / "temporary.sqlite")) as other:
        for row in rows:
            other.put(row)
        other.move(kept)
    store.flush()
    for _ in range(2):  # the second: as if killed before the file was removed
        shutil.copy(kept, again := tmp_path / "again.sqlite")
        store.merge(again, "host 1: ")
        assert not again.exists()
    marked = task(7)._replace(name=f"host 1: {task(7).name}")
    assert rows_in_file(store, TaskRow) == [task(3), marked]
    assert [row.name for row in rows_in_file(store, ActorRow)] == ["host 1: gmi1"]
    assert rows_in_file(store, EventRow) == [event._replace(text="host 1: it was killed")]


def test_a_merged_store_that_cannot_be_removed_is_merged_all_the_same(store, tmp_path, monkeypatch):
    kept = tmp_path / "kept.sqlite"
    with contextlib.closing(Gcs(tmp_path / "temporary.sqlite")) as other:
        other.put(task(7))
        other.move(kept)

    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(database, "remove", refuse)
    for _ in range(2):
        store.merge(kept, "host 1: ")
    assert [row.name for row in rows_in_file(store, TaskRow)] == [f"host 1: {task(7).name}"]


def test_a_store_that_cannot_be_merged_stays(store, tmp_path):
    damaged = tmp_path / "damaged.sqlite"
    damaged.write_bytes(b"no store" * 1000)
    with pytest.raises(DamagedStoreError):
        store.merge(damaged, "host 1: ")
    assert damaged.exists()
