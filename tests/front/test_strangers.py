"""Looking at a run that somebody else has made: what it holds is shown, and does nothing."""

import contextlib
import json
import os
import pickle
import sqlite3
import subprocess
import sys
import time
from datetime import timedelta

import pytest
from rich.console import Console

from gmi_drl.cli import main
from gmi_drl.launcher.view.tables import printable, printable_lines
from gmi_drl.report import run_state
from gmi_drl.report.run_list import list_runs, print_runs
from gmi_drl.report.run_state import print_state, read_state
from gmi_drl.runtime.gcs.gcs import Gcs
from gmi_drl.runtime.gcs.tables import ActorRow, EventRow, ObjectRow, TaskRow

# It clears the screen, turns the writing, sets a title (C1), is no text, and looks like markup.
HOSTILE = "\x1b[2J\u202eevil\x9b31m\x7f\r\b\u2028\ud880 [/red][link=x]"
SHOWN = r"\x1b[2J\u202eevil\x9b31m\x7f\r\x08\u2028\ud880 [/red][link=x]"
TASK, ACTOR = b"\xab" * 16, b"\xac" * 16
TOOLS = ("state", "lineage", "timeline")


def make_store(folder, text="name"):
    with contextlib.closing(Gcs(folder / "gcs.sqlite")) as store:
        store.put(
            TaskRow(
                TASK, "task", text, state="failed", pid=3, started_s=1.0, finished_s=2.0,
                error=f"{text}\nmore", inputs=b"\xad" * 20, spec=text.encode("utf-8", "replace"),
            )
        )  # fmt: skip
        store.put(ActorRow(ACTOR, text, text, "dead", 3, reason=text, created_s=1.0))
        store.put(ObjectRow(b"\xae" * 20, 10, text, 0, 1.0))
        store.put(EventRow(1.0, text, TASK, text))
    return folder


def look(tool, folder, capsys):
    """Exit code, and all that it printed."""
    words = {"lineage": ["abab", str(folder)], "timeline": [str(folder), "-o"]}
    given = words.get(tool, [str(folder)])
    if tool == "timeline":
        given.append(str(folder / "trace.json"))
    code = main.main([tool, *given])
    captured = capsys.readouterr()
    return code, captured.out + captured.err


def test_what_a_terminal_would_obey_is_shown_as_an_escape_sequence():
    assert printable(HOSTILE) == SHOWN
    assert printable("±12 ─ Größe 日本") == "±12 ─ Größe 日本"
    assert printable_lines("a\x1b\nb\tc") == "a\\x1b\nb\\tc"


@pytest.fixture
def hostile(tmp_path):
    text = HOSTILE.replace("\ud880", "")  # SQLite keeps UTF-8
    return make_store(tmp_path, text), printable(text)


@pytest.mark.parametrize("tool", TOOLS)
def test_hostile_text_in_a_store_is_made_printable(hostile, capsys, tool):
    folder, shown = hostile
    code, told = look(tool, folder, capsys)
    assert code == 0
    assert all(c.isprintable() for c in told.replace("\n", ""))
    assert (shown in told) == (tool != "timeline")


def test_hostile_text_in_a_terminal_and_in_errors(hostile, capsys):
    folder, shown = hostile
    console = Console(force_terminal=True, color_system=None, width=400)
    with console.capture() as captured:
        print_state(console, read_state(folder / "gcs.sqlite"))
    told = captured.get()
    assert all(c.isprintable() for c in told.replace("\n", ""))
    assert told.count(shown) >= 5
    assert main.main(["lineage", "a", str(folder)]) == 2  # several begin so, and they are named
    told = capsys.readouterr().err
    assert shown in told
    assert all(c.isprintable() for c in told.replace("\n", ""))


def make_run(folder, name, text):
    path = folder / name / "t0"
    path.mkdir(parents=True)
    (path / "run.json").write_text(text if isinstance(text, str) else json.dumps(text))
    return path


def test_hostile_text_in_the_list_of_runs(tmp_path, capsys):
    name = os.fsdecode(b"\x1b[2J\xff")  # no UTF-8
    make_run(tmp_path, name, {"state": "finished", "env": HOSTILE, "seed": 3})
    assert main.main(["runs", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert printable(name) in told
    assert SHOWN in told
    assert all(c.isprintable() for c in told.replace("\n", ""))
    console = Console(force_terminal=True, color_system=None, width=300)
    with console.capture() as captured:
        print_runs(console, list_runs(tmp_path))
    assert SHOWN in captured.get()


GOOD = {
    "state": "finished",
    "started": 10.0,
    "iteration": 2,
    "steps": 5,
    "env": "Ant-v5",
    "seed": 1,
}
DAMAGE = [
    {"started": 1e300},
    {"started": [1]},
    {"started": -1},
    {"started": "yesterday"},
    {"state": 3},
    {"state": "conquered"},
    {"steps": 1e300},
    {"steps": 10**400},
    {"steps": [[]]},
    {"iteration": "many"},
    {"return_mean": {}},
    {"steps_per_s": 10**400},
    {"env": ["Ant-v5"]},
    {"env": "x" * 10_000},
    {"seed": True},
]


@pytest.mark.parametrize("damage", DAMAGE, ids=str)
def test_a_damaged_run_is_shown_as_such_and_hides_no_other(tmp_path, capsys, damage):
    make_run(tmp_path, "good", GOOD)
    make_run(tmp_path, "bad", GOOD | damage)
    states = {run.name: run.state for run in list_runs(tmp_path)}
    assert states == {"good": "finished", "bad": "damaged"}
    assert main.main(["runs", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any("damaged" in line and "bad" in line for line in lines)
    assert any(line.split()[3:8] == ["finished", "Ant-v5", "1", "2", "5"] for line in lines)


@pytest.mark.parametrize("pid", [-1, 10**30, "1", [1]])
def test_a_run_of_no_process_has_failed(tmp_path, pid):
    make_run(tmp_path, "gone", GOOD | {"state": "running", "pid": pid})
    assert [run.state for run in list_runs(tmp_path)] == ["failed"]


def test_files_of_a_run_that_never_end_or_are_too_deep_do_not_hold_up_the_list(tmp_path):
    make_run(tmp_path, "good", GOOD)
    os.mkfifo(make_run(tmp_path, "pipe", "") / "metrics.jsonl")
    os.unlink(tmp_path / "pipe" / "t0" / "run.json")
    (tmp_path / "pipe" / "t0" / "config.yaml").write_text("")
    os.mkfifo(tmp_path / "pipe" / "t0" / "run.json")
    deep = make_run(tmp_path, "deep", "[" * 200_000)
    (deep / "metrics.jsonl").write_text("[" * 60_000)
    make_run(tmp_path, "nan", '{"state": "finished", "started": NaN}')
    make_run(tmp_path, "diverged", '{"state": "finished", "return_mean": NaN}')
    states = {run.name: run.state for run in list_runs(tmp_path)}
    assert states.pop("good") == states.pop("diverged") == "finished"
    assert states == dict.fromkeys(("pipe", "deep", "nan"), "damaged")


def change(folder, *statements):
    with contextlib.closing(sqlite3.connect(folder / "gcs.sqlite")) as store, store:
        for statement in statements:
            store.execute(statement)


@pytest.mark.parametrize("tool", TOOLS)
def test_a_view_in_the_place_of_a_table_is_refused_before_it_is_asked(tmp_path, capsys, tool):
    change(
        make_store(tmp_path), "DROP TABLE tasks",
        "CREATE VIEW tasks AS WITH RECURSIVE r (number) AS (SELECT 1 UNION ALL "
        "SELECT number + 1 FROM r) SELECT number, x'00' AS id FROM r",
    )  # fmt: skip
    code, told = look(tool, tmp_path, capsys)
    assert code == 2
    assert 'tasks is this view: "CREATE VIEW tasks' in told
    assert "do not use it" in told


@pytest.mark.parametrize("tool", TOOLS)
def test_a_name_in_the_schema_that_is_no_text_is_told_as_damage(tmp_path, capsys, tool):
    path = make_store(tmp_path) / "gcs.sqlite"
    damaged = path.read_bytes().replace(b"CREATE TABLE tasks", b"CREATE TABLE (asks", 1)
    path.write_bytes(damaged.replace(b"tabletasks", b"tablet\xa6sks"))
    code, told = look(tool, tmp_path, capsys)
    assert code == 2
    assert "damaged" in told
    assert "malformed database schema" in told


def test_a_table_that_computes_its_columns_or_is_missing_is_refused(tmp_path, capsys):
    change(make_store(tmp_path), "ALTER TABLE events ADD COLUMN e AS (zeroblob(1000000))")
    assert "events is this table" in look("state", tmp_path, capsys)[1]
    change(tmp_path, "DROP TABLE events")
    assert "events is not there" in look("timeline", tmp_path, capsys)[1]


WRONG = [
    ("tasks", "name", "NULL", "name=None in a row of it; must be str"),
    ("tasks", "name", "x'00ff'", "must be str"),
    ("tasks", "state", "x'00'", "must be str"),
    ("tasks", "started_s", "'soon'", "started_s="),
    ("tasks", "started_s", "9e999", "must be a time"),
    ("tasks", "finished_s", "1e300", "must be a time"),
    ("tasks", "device", "'gpu'", "must be int"),
    ("tasks", "inputs", "'text'", "must be bytes"),
    ("tasks", "error", "7", "must be str"),
    ("tasks", "parent", "NULL", "must be bytes"),
    ("tasks", "actor", "12", "must be bytes"),
    ("actors", "pid", "'x'", "must be int"),
    ("actors", "device", "NULL", "must be int"),
    ("actors", "reason", "NULL", "must be str"),
    ("actors", "id", "'text'", "must be bytes"),
    ("objects", "nbytes", "'many'", "must be int"),
    ("events", "time_s", "1e300", "must be a time"),
    ("events", "time_s", "NULL", "must be float"),
    ("events", "text", "x'ff'", "must be str"),
    ("events", "subject", "3", "must be bytes"),
]


@pytest.mark.parametrize(("table", "column", "value", "rule"), WRONG)
def test_values_of_the_wrong_type_are_named_or_do_no_harm(
    tmp_path, capsys, table, column, value, rule
):
    change(make_store(tmp_path), f"UPDATE {table} SET {column} = {value}")
    refused = 0
    for tool in TOOLS:
        code, told = look(tool, tmp_path, capsys)
        if code:
            refused += 1
            assert code == 2
            assert f"{table}.{column}=" in told or "tasks.mean_s=" in told
            assert rule in told
            assert "SQLite's `.recover`" in told
    assert refused or (table, column) == ("objects", "nbytes")  # of which SQLite makes a sum


def test_rows_that_keep_a_query_busy_end_at_a_deadline(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(run_state, "_READ", timedelta(seconds=0.2))
    change(make_store(tmp_path), f"UPDATE tasks SET number = {2**62}")
    begun_s = time.monotonic()
    code, told = look("lineage", tmp_path, capsys)  # looks through 2^47 parts of the table
    assert code == 2
    assert "not read after 0.2 s" in told
    assert time.monotonic() - begun_s < 30


def test_ctrl_c_ends_a_long_query(tmp_path):
    make_store(tmp_path)

    def interrupted():
        raise KeyboardInterrupt  # as a signal would while SQLite asks for the time

    def read(query):
        with run_state.opened(tmp_path / "gcs.sqlite") as store:
            store.set_progress_handler(interrupted, 1000)
            store.execute(query).fetchone()

    query = "WITH RECURSIVE r (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT max(n) FROM r"
    with pytest.raises(KeyboardInterrupt):
        read(query)


def test_huge_values_are_refused_and_long_ones_cut(tmp_path, capsys, monkeypatch):
    change(make_store(tmp_path), "UPDATE tasks SET name = printf('%.100000c', 'n')",
           "UPDATE events SET text = printf('%.100000c', 't')")  # fmt: skip
    for tool in TOOLS:
        code, told = look(tool, tmp_path, capsys)
        assert code == 0
        assert len(told) < 5_000
    assert (tmp_path / "trace.json").stat().st_size < 200_000
    monkeypatch.setattr(run_state, "_LONGEST_BYTES", 50_000)
    for tool in TOOLS:
        code, told = look(tool, tmp_path, capsys)
        assert code == 2
        assert "too big" in told


class Trap:
    """Makes a file where it is unpickled."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


def test_nothing_of_a_run_is_executed_by_looking_at_it(tmp_path):
    mark = tmp_path / "executed"
    folder = make_store(make_run(tmp_path / "runs", "trap", GOOD))
    trap = pickle.dumps(Trap(mark))
    code = f"import os\nos.mkdir({str(mark)!r})\n"
    for name in ("my_role", "yaml", "rich", "numpy", "sitecustomize", "conftest"):
        (folder / f"{name}.py").write_text(code)
    (folder / "config.yaml").write_text(
        "version: 1\nenv: {id: 'my_role:Env'}\nroles: {trainer: 'my_role:Role'}\n"
        f"evil: !!python/object/apply:os.mkdir ['{mark}']\n"
    )
    (folder / "checkpoints" / "iteration_000001").mkdir(parents=True)
    (folder / "checkpoints" / "iteration_000001" / "policy.pt").write_bytes(trap)
    with contextlib.closing(sqlite3.connect(folder / "gcs.sqlite")) as store, store:
        store.execute("UPDATE tasks SET spec = ?", (trap,))
        store.execute("INSERT INTO functions VALUES (?, 'f', ?)", (TASK, trap))
    looking = (
        "import sys\n"
        "from gmi_drl.cli.main import main\n"
        "seen = []\n"
        "sys.addaudithook(lambda what, _: what == 'pickle.find_class' and seen.append(what))\n"
        "for words in ([ 'runs', '..'], ['state', '.'], ['state', '.', '--json'],\n"
        "              ['lineage', 'abab', '.'], ['timeline', '.', '-o', 'trace.json']):\n"
        "    assert main(words) == 0, words\n"
        "assert not seen and not {'torch', 'cloudpickle', 'my_role'} & set(sys.modules)\n"
    )
    script = tmp_path / "look.py"  # its folder is looked in for modules, as that of `gmi-drl` is
    script.write_text(looking)
    subprocess.run([sys.executable, script], cwd=folder, check=True, timeout=50)
    assert not mark.exists()
