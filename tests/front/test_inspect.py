"""`gmi-drl state`, `timeline` and `lineage` on the control store of a made-up run."""

import contextlib
import hashlib
import itertools
import json
import os
import re

import pytest

from gmi_drl.cli import main
from gmi_drl.runtime.gcs.gcs import Gcs
from gmi_drl.runtime.gcs.tables import ActorRow, EventRow, ObjectRow, TaskRow

DRIVER = b"\0" * 16
ACTOR = hashlib.blake2b(b"actor", digest_size=16).digest()


def made(name):
    """An id as the runtime makes them: a hash, the same each time."""
    return hashlib.blake2b(name.encode(), digest_size=16).digest()


def output(name, index=0):
    return made(name) + index.to_bytes(4, "little")


def ran(name, start_s, end_s, *inputs, **fields):
    """A task that ran from then to then."""
    row = TaskRow(
        made(name), "task", name, DRIVER, state="finished", device=0, pid=10, attempts=1,
        submitted_s=99.5, started_s=start_s, finished_s=end_s, inputs=b"".join(inputs),
    )  # fmt: skip
    return row._replace(**fields)


def call(number, start_s, *inputs, **fields):
    name = f"Learner.step{number}"
    fields = {"kind": "method", "actor": ACTOR, "sequence": number, "pid": 20, **fields}
    return ran(name, start_s, start_s + 0.5, *inputs, **fields)


ROWS = [
    ran("root", 100.0, 104.0),
    ran("load", 100.5, 101.0, parent=made("root")),
    ran("split", 101.0, 101.5, output("load"), device=1, pid=11, num_returns=2),
    ran("rollout", 101.0, 102.0, output("split"), attempts=2, pid=12),
    ran("Learner", 100.0, 100.2, kind="actor", actor=ACTOR, pid=19, function=b"f" * 16),
    call(1, 101.0, output("rollout"), pid=19),
    call(2, 102.0, output("rollout"), output("split", 1)),
    call(3, 102.1, output("load")),
    ran("late", 103.0, 0.0, state="running", pid=13),
    ran("queued", 0.0, 0.0, state="waiting", pid=0),
    ran("bad", 103.0, 103.1, state="failed", error="ValueError: no [/such] thing\nmore"),
    ActorRow(ACTOR, "learner", "Learner", "alive", 20, 0, 1, 3, 1, 100.0),
    ObjectRow(output("split", 1), 4_000_000, "memory", 1, 101.5),
    ObjectRow(b"p" * 20, 2_500_000, "disk", 0, 100.0),
    EventRow(101.9, "ActorDied", ACTOR, "killed by [signal] 9"),
    EventRow(103.5, "DiskFull", b"", "spilling stopped"),
]


@pytest.fixture
def run(tmp_path):
    """The folder of a run that goes on: its store is open for writing."""
    with contextlib.closing(Gcs(tmp_path / "gcs.sqlite")) as store:
        for row in ROWS:
            store.put(row)
        store.flush()
        yield tmp_path


def test_state_shows_tasks_actors_objects_and_events(run, capsys):
    assert main.main(["state", str(run)]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    newest = made("rollout").hex()[:12]
    assert f"rollout task finished 1 1.00 s 1.00 s {newest}" in lines
    assert f"late task running 1 - - {made('late').hex()[:12]}" in lines
    assert f"learner Learner alive 20 0 1 3 {ACTOR.hex()[:12]}" in lines
    assert "disk 1 2.5" in lines
    assert any(line.endswith("killed by [signal] 9") for line in lines)


def test_state_for_programs_is_json(run, capsys):
    assert main.main(["state", str(run / "gcs.sqlite"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {row["name"]: row["state"] for row in found["tasks"]}["queued"] == "waiting"
    assert found["actors"][0]["calls"] == 3
    assert found["objects"][1] == {"where": "memory", "count": 1, "nbytes": 4_000_000}
    assert [row["kind"] for row in found["events"]] == ["ActorDied", "DiskFull"]


def test_state_in_a_terminal_takes_brackets_for_text(run):
    from rich.console import Console

    from gmi_drl.report.run_state import print_state, read_state

    console = Console(force_terminal=True, width=200)
    with console.capture() as captured:
        print_state(console, read_state(run / "gcs.sqlite"))
    assert "killed by [signal] 9" in captured.get()


def test_without_a_run_the_newest_that_has_a_store_is_shown(run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main.main(["state"]) == 2
    assert "none of the 0 runs in it has a gcs.sqlite" in capsys.readouterr().err
    for name, started in (("new", 20.0), ("old", 10.0), ("newest", 30.0)):
        folder = tmp_path / "runs" / name / "t0"
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(json.dumps({"state": "finished", "started": started}))
        if name != "newest":
            with contextlib.closing(Gcs(folder / "gcs.sqlite")) as store:
                store.put(ran(f"of-{name}", 1.0, 2.0))
    assert main.main(["state"]) == 0
    out = capsys.readouterr().out
    assert "of-new" in out
    assert "of-old" not in out


def trace_of(run, *words):
    path = run / "trace.json"
    assert main.main(["timeline", str(run), "-o", str(path), *words]) == 0
    return json.loads(path.read_text())["traceEvents"]


def test_a_trace_goes_through_a_link(run, capsys):
    target = run / "target.json"
    target.write_text("")
    (run / "trace.json").symlink_to(target)
    events = trace_of(run)
    assert json.loads(target.read_text())["traceEvents"] == events


def test_timeline_is_a_chrome_trace(run, capsys):
    events = trace_of(run)
    assert "10 tasks" in capsys.readouterr().out
    assert all({"ph", "ts", "pid", "tid", "name"} <= set(event) for event in events)
    times = [event["ts"] for event in events]
    assert times == sorted(times)
    slices = {event["name"]: event for event in events if event["ph"] == "X"}
    assert all(event["dur"] >= 0 for event in slices.values())
    assert slices["rollout"]["args"]["attempts"] == 2
    assert slices["rollout"]["args"]["id"] == made("rollout").hex()
    assert (slices["load"]["ts"], slices["load"]["dur"]) == (500_000.0, 500_000.0)
    assert slices["late"]["args"]["state"] == "running"
    assert slices["late"]["ts"] + slices["late"]["dur"] == 4_000_000.0  # the last time known
    assert "queued" not in slices


def test_timeline_has_a_row_for_each_device_and_worker_and_slices_do_not_overlap(run):
    events = trace_of(run)
    names = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["ph"] == "M"
    }
    assert {names[1, 0], names[2, 0]} == {"device 0", "device 1"}
    rows = {}
    for event in events:
        if event["ph"] == "X":
            rows.setdefault((event["pid"], event["tid"]), []).append(event)
    shown = {names[row]: [event["name"] for event in found] for row, found in rows.items()}
    actor = f"learner {ACTOR.hex()[:4]}"
    assert shown[actor] == ["Learner", "Learner.step1", "Learner.step2"]
    assert shown[f"{actor} (2)"] == ["Learner.step3"]
    assert shown["worker 11"] == ["split"]
    for found in rows.values():
        for one, following in itertools.pairwise(found):
            assert one["ts"] + one["dur"] <= following["ts"]


def test_timeline_has_arrows_from_parents_and_marks_of_events_and_restarts(run):
    events = trace_of(run)
    begin, end = (next(e for e in events if e["ph"] == kind) for kind in "sf")
    parent = next(e for e in events if e["name"] == "root")
    child = next(e for e in events if e["name"] == "load")
    assert begin["id"] == end["id"] == made("load").hex()
    assert (begin["pid"], begin["tid"]) == (parent["pid"], parent["tid"])
    assert parent["ts"] <= begin["ts"] <= parent["ts"] + parent["dur"]
    assert (end["pid"], end["tid"], end["ts"]) == (child["pid"], child["tid"], child["ts"])
    marks = {e["name"]: e for e in events if e["ph"] == "i"}
    assert marks["DiskFull"]["s"] == "g"
    assert marks["ActorDied"]["tid"] == marks["restarted"]["tid"] > 0
    assert marks["restarted"]["args"] == {"pid": 20}


def test_timeline_says_what_it_left_out(run, capsys):
    events = trace_of(run, "--last", "4")
    assert sum(event["ph"] == "X" for event in events) == 4
    assert "4 tasks; 6 earlier ones are left out (--last)" in capsys.readouterr().out


def test_timeline_of_a_run_that_has_done_nothing(tmp_path):
    Gcs(tmp_path / "gcs.sqlite").close()
    assert trace_of(tmp_path) == []


def lineage_of(run, capsys, *words):
    assert main.main(["lineage", words[0], str(run), *words[1:]]) == 0
    return capsys.readouterr().out.splitlines()


def test_lineage_follows_inputs_and_the_calls_before_on_the_actor(run, capsys):
    lines = lineage_of(run, capsys, made("Learner.step2").hex())
    words = [line.replace(" ", "").lstrip("│├└─") for line in lines]
    ids = {name: made(name).hex()[:12] for name in ("rollout", "split", "load", "Learner")}
    assert "Learner.step2(method),finished,pid20ondevice0,500.00ms" in words[0]
    assert f"after{made('Learner.step1').hex()[:12]}" in words[1]
    assert any(word.startswith(f"after{ids['Learner']}Learner(actor)") for word in words)
    assert any(word.startswith(ids["rollout"]) and "2attempts" in word for word in words)
    assert sum(word.startswith(ids["split"]) for word in words) == 2
    assert sum("(seeitsotherline)" in word for word in words) == 2
    assert sum(word.startswith(ids["load"]) for word in words) == 1


@pytest.mark.parametrize(
    ("text", "first"),
    [
        (output("split", 1).hex(), "split"),
        (output("rollout").hex(), "rollout"),  # too small for the table of objects
        (made("rollout").hex()[:9].upper(), "rollout"),
        (ACTOR.hex(), "Learner.step3"),
        ("70" * 8, "an object that was put"),
    ],
)
def test_lineage_takes_digits_of_tasks_objects_and_actors(run, capsys, text, first):
    assert first in lineage_of(run, capsys, text)[0]


def test_an_actor_and_the_task_that_creates_it_are_one_id(tmp_path, capsys):
    actor, call = b"\xab" * 16, b"\xcd" * 16
    with contextlib.closing(Gcs(tmp_path / "gcs.sqlite")) as store:
        store.put(TaskRow(actor, "actor", "one.__init__", actor=actor))
        store.put(TaskRow(call, "method", "one.step", actor=actor, sequence=1))
        store.put(ActorRow(actor, "one", "One", "alive", 20, 0, 0, 3, 0, 100.0))
    assert call.hex()[:12] in lineage_of(tmp_path, capsys, "abab")[0]


def test_lineage_says_what_was_cut(run, capsys):
    lines = lineage_of(run, capsys, made("Learner.step2").hex(), "--depth", "1")
    assert lines[-1].startswith("cut: 2 sources")
    assert sum("... " in line for line in lines) == 2


def test_lineage_as_a_graph(run, capsys):
    lines = lineage_of(run, capsys, made("Learner.step3").hex(), "--dot")
    assert (lines[0], lines[-1]) == ("digraph lineage {", "}")
    one, two = (made(f"Learner.step{n}").hex() for n in (1, 2))
    assert f'  "{one}" -> "{two}" [style=dashed];' in lines
    nodes = [line.split()[0] for line in lines if "label=" in line]
    assert len(nodes) == len(set(nodes)) == 7


def test_ambiguous_digits_name_the_candidates(tmp_path, capsys):
    with contextlib.closing(Gcs(tmp_path / "gcs.sqlite")) as store:
        for number in range(20):
            store.put(TaskRow(b"\xab" + bytes([number]) * 15, "task", f"one{number}"))
    assert main.main(["lineage", "ab", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "ab: several ids begin so. Give more digits" in error
    assert f"{'ab' + '03' * 15} one3, waiting" in error
    assert "and 12 more" in error
    assert main.main(["lineage", "ab0", str(tmp_path)]) == 2
    assert "and 8 more" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "xyz", "-1", "a" * 41, "12 34"])
def test_what_is_no_id_is_refused(run, capsys, text):
    assert (
        main.main(["lineage", str(run), text] if text == "-1" else ["lineage", text, str(run)]) == 2
    )
    assert capsys.readouterr().err


def test_unknown_ids_and_missing_or_foreign_files_exit_2_with_a_remedy(run, tmp_path, capsys):
    (tmp_path / "text").write_text("no database at all " * 100)
    (tmp_path / "empty").mkdir()
    for words, piece in (
        (["lineage", "abcdef", str(run)], "no task, object or actor of this run"),
        (["state", str(tmp_path / "nowhere")], "no such folder or file. Give the folder of a run"),
        (["state", str(tmp_path / "empty")], "there is no gcs.sqlite in it"),
        (["timeline", str(tmp_path / "text")], "damaged, or not a control store"),
        (["timeline", str(run), "-o", str(tmp_path / "no" / "x.json")], "its folder is not there"),
        (["timeline", str(run), "-o", "/proc/x.json"], "-o /proc/x.json: No such file"),
    ):
        assert main.main(words) == 2
        assert piece in capsys.readouterr().err


def test_an_error_of_lineage_points_to_ids_that_are_shown(run, capsys):
    assert main.main(["lineage", "abcdef", str(run)]) == 2
    assert "`gmi-drl state` shows some" in capsys.readouterr().err
    assert main.main(["state", str(run)]) == 0
    shown = re.findall(r"\b[0-9a-f]{12}\b", capsys.readouterr().out)
    assert {made("rollout").hex()[:12], ACTOR.hex()[:12]} <= set(shown)
    for id in shown:
        assert lineage_of(run, capsys, id)


def test_an_actor_that_was_ended_as_it_should_is_not_told_as_dead(tmp_path, capsys):
    from gmi_drl.runtime import ActorDiedError

    clean = ActorDiedError("one", 20, exit_code=0, reason="it was stopped")
    killed = ActorDiedError("two", 21, signal=9, reason="it was killed by kill()")
    with contextlib.closing(Gcs(tmp_path / "gcs.sqlite")) as store:
        for name, death in (("one", clean), ("two", killed)):
            store.put(ActorRow(made(name), name, "Body", "dead", 20, reason=death.how()))
    assert main.main(["state", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "  ended: it was stopped  " in out
    assert "dead: was killed by SIGKILL: it was killed by kill()" in out
    assert "exited with code 0" not in out


def test_a_damaged_store_is_told_of(tmp_path, capsys):
    with contextlib.closing(Gcs(tmp_path / "gcs.sqlite")) as store:
        for number in range(5_000):
            store.put(TaskRow(number.to_bytes(16), "task", "work" * 20))
    path = tmp_path / "gcs.sqlite"
    with open(path, "r+b") as file:
        file.seek(40_960)
        file.write(os.urandom(200_000))
    assert main.main(["state", str(tmp_path)]) == 2
    assert "the control store is damaged" in capsys.readouterr().err
