"""What the page says of one run."""

import json
import os
import time

import pytest

import pages
from gmi_drl.launcher.folder.run_folder import lock_of
from gmi_drl.page.run_reader import RunReader, devices_of
from gmi_drl.placement import Topology, tcg_ex
from gmi_drl.runtime import shared_lock


def reader_of(path):
    reader = RunReader(path)
    reader.poll()
    return reader


def head(path, now_s=None):
    return reader_of(path).head(time.time() if now_s is None else now_s)


def alarms(path, now_s=None):
    return [(alarm["level"], alarm["text"]) for alarm in head(path, now_s)["alarms"]]


@pytest.fixture
def trained():
    """Holds the lock of a run, as a launch does."""
    locks = []

    def hold(path):
        locks.append(shared_lock.begin(lock_of(path)))
        return path

    yield hold
    for lock in locks:
        shared_lock.release(lock)


def test_a_finished_run_says_how_it_ended(tmp_path):
    path = pages.make_run(tmp_path, iterations=4, steps_per_s=950.0, return_mean=4.0, iteration=4,
                          steps=400, eval_return=6.25, eval_std=0.5)  # fmt: skip
    said = head(path)
    assert (said["state"], said["iteration"], said["steps"]) == ("finished", 4, 400)
    assert (said["return"], said["evaluation"]) == ("4.0", "6.2 ± 0.5")
    assert (said["env"], said["algorithm"], said["mode"]) == ("Ant-v5", "ppo", "sync")
    assert said["total_steps"] == 10_000
    assert said["left"] is None
    assert said["alarms"] == []


def test_a_run_that_goes_on_says_how_long_it_will(tmp_path, trained):
    path = trained(pages.make_run(tmp_path, state="running", iterations=40))
    said = head(path)
    assert said["state"] == "running"
    assert said["steps_per_s"] == pytest.approx(1000.0)
    assert said["left"] == "0:06"  # 6,000 steps
    assert said["alarms"] == []
    with open(path / "metrics.jsonl", "a") as file:
        file.write(pages.line(41))
    assert head(path)["iteration"] == 41
    (path / "metrics.jsonl").write_text(pages.line(1, steps_per_s=5e-324))
    assert head(path)["left"] is None  # longer than a number can say


def test_a_run_whose_launcher_was_killed_has_failed(tmp_path):
    path = pages.make_run(tmp_path, state="running")
    assert head(path)["state"] == "failed"
    assert alarms(path) == [
        ("error", "its launcher was killed before it could say how the run ended")
    ]


def test_a_run_that_failed_says_why_and_how_to_go_on(tmp_path):
    path = pages.make_run(tmp_path, state="failed", error="gmi 1 ran out of memory\nits log: x")
    (path / "checkpoints" / "iteration_000002").mkdir(parents=True)
    assert alarms(path) == [("error", "gmi 1 ran out of memory\nits log: x")]
    assert head(path)["resume"] == f"gmi-drl launch --resume {path}"


def test_restarts_and_notes_are_told_the_newest_first(tmp_path):
    restarts = [
        {"gmi_id": 1, "how": "was killed by SIGKILL", "time": 5.0},
        {"gmi_id": 0, "how": "x"},
    ]
    path = pages.make_run(tmp_path, restarts=restarts, noise_notes=[{"text": "larger updates"}])
    assert alarms(path) == [
        ("warning", "GMI 0 x; it was restarted"),
        ("warning", "GMI 1 was killed by SIGKILL; it was restarted"),
        ("note", "larger updates"),
    ]
    assert [gmi["restarts"] for gmi in reader_of(path).gmis()] == [1, 1]


def test_a_run_in_which_nothing_happens_any_more_is_told(tmp_path, trained):
    path = trained(pages.make_run(tmp_path, state="running", iterations=40))
    now_s = (path / "metrics.jsonl").stat().st_mtime
    assert alarms(path, now_s + 59) == []
    assert alarms(path, now_s + 65.5) == [("warning", "no iteration has ended for 1:05")]


def test_a_slow_run_is_waited_for_longer(tmp_path, trained):
    path = trained(pages.make_run(tmp_path, state="running", iterations=0))
    with open(path / "metrics.jsonl", "a") as file:
        file.writelines(pages.line(i, time_s=60.0 * i) for i in range(1, 5))
    now_s = (path / "metrics.jsonl").stat().st_mtime
    assert alarms(path, now_s + 500) == []
    assert alarms(path, now_s + 700) != []


def test_a_policy_that_diverged_is_told(tmp_path):
    path = pages.make_run(tmp_path, return_mean=float("nan"))
    assert ("error", "the return is nan: the policy has diverged") in alarms(path)


def test_a_layout_is_drawn_to_scale(tmp_path):
    device, = devices_of(tcg_ex(Topology.from_cores(range(8)), 2, 16))  # fmt: skip
    assert [(gmi["begin"], gmi["width"]) for gmi in device["gmis"]] == [(0.0, 0.5), (0.5, 0.5)]
    assert [gmi["share"] for gmi in device["gmis"]] == ["4 of 8 cores"] * 2
    assert [gmi["num_env"] for gmi in device["gmis"]] == [16, 16]


def test_a_gmi_is_used_as_far_as_it_computes(tmp_path):
    first, second = reader_of(pages.make_run(tmp_path)).gmis()
    assert first["use"] == pytest.approx(0.07 / 0.08, abs=1e-3)  # the rest it reduces
    assert second["use"] == pytest.approx(0.07 / 0.09, abs=1e-3)
    assert second["phases"]["train"] == pytest.approx(0.05 / 0.09, abs=1e-3)
    assert (first["held"], first["share"]) == ("256 MiB", "")


def test_use_is_that_of_the_last_iterations(tmp_path):
    path = pages.make_run(tmp_path, iterations=0)
    with open(path / "metrics.jsonl", "a") as file:
        for number in range(1, 101):
            seconds = [{"train": 1.0, "wait": 0.0 if number <= 80 else number % 2}, {"train": 1.0}]
            file.write(pages.line(number, gmi_seconds=seconds))
    assert [gmi["use"] for gmi in reader_of(path).gmis()] == [pytest.approx(2 / 3, abs=1e-3), 1.0]


def test_metrics_that_do_not_tell_of_seconds_have_no_use(tmp_path):
    path = pages.make_run(tmp_path, iterations=0, mem_peak_bytes=[2**20, 2**21])
    (path / "metrics.jsonl").write_text('{"iteration": 1, "steps": 10, "train_s": 0.1}\n')
    gmis = reader_of(path).gmis()
    assert [gmi["use"] for gmi in gmis] == [None, None]
    assert [gmi["held"] for gmi in gmis] == ["1 MiB", "2 MiB"]


def test_a_log_is_that_of_the_number(tmp_path):
    reader = reader_of(pages.make_run(tmp_path))
    assert reader.log(1)["text"] == "this is GMI 1\n"
    for gmi_id in (2, -1, 10**9):
        assert reader.log(gmi_id)["text"] == ""
        assert f"no GMI {gmi_id}" in reader.log(gmi_id)["note"]


def test_the_end_of_a_long_log_is_shown_and_no_more_is_read(tmp_path):
    path = pages.make_run(tmp_path)
    with open(path / "logs" / "gmi0.log", "wb") as file:
        file.truncate(2**33)  # a read of all of it would not end
        file.seek(0, os.SEEK_END)
        file.write(b"\n" + b"the last line\n" * 3000)
    log = reader_of(path).log(0)
    assert log["cut"]
    assert len(log["text"]) <= 32 * 1024
    assert set(log["text"].splitlines()) == {"the last line"}


def test_a_log_is_text_and_obeys_nobody(tmp_path):
    path = pages.make_run(tmp_path)
    (path / "logs" / "gmi0.log").write_bytes(
        b"\x1b[31mred\x1b[0m \x1b]0;title\x07 \xff\n<b>\xe2\x80\xae\n"
    )
    text = reader_of(path).log(0)["text"]
    assert text.startswith("red \\x1b]0;title")
    assert "<b>" in text
    assert "\u202e" not in text


def test_a_log_that_leads_elsewhere_is_not_shown(tmp_path):
    path = pages.make_run(tmp_path)
    (path / "logs" / "gmi0.log").unlink()
    os.symlink("/etc/passwd", path / "logs" / "gmi0.log")
    log = reader_of(path).log(0)
    assert log["text"] == ""
    assert "leads out" in log["note"]


@pytest.mark.parametrize("name", ["run.json", "config.yaml", "layout.json", "metrics.jsonl"])
@pytest.mark.parametrize("how", ["link", "pipe", "binary", "deep", "gone", "folder"])
def test_a_file_that_cannot_be_shown_costs_the_rest_nothing(tmp_path, name, how):
    path = pages.make_run(tmp_path)
    (path / name).unlink()
    if how == "link":
        (tmp_path / "secret").write_text('{"env": "secret"}')
        os.symlink(tmp_path / "secret", path / name)
    elif how == "pipe":
        os.mkfifo(path / name)
    elif how == "folder":
        (path / name).mkdir()
    elif how != "gone":
        (path / name).write_bytes(b"\x00\xff" if how == "binary" else b"[" * 100_000)
    reader = reader_of(path)
    said = reader.head(0.0), reader.gmis(), reader.picture(), reader.log(0)
    text = json.dumps(said, allow_nan=False)
    assert "secret" not in text.replace(str(tmp_path), "")
    if how == "link":
        assert any("leads out" in alarm["text"] for alarm in said[0]["alarms"])


@pytest.mark.parametrize(
    "config",
    [
        "run: {total_steps: .nan}",
        "run: [1]",
        "a: &a [*a]",
        "run: {total_steps: many}",
        "!!python/object/apply:os.system [true]",
        "mode: {a: b}",
    ],
)
def test_a_config_of_a_stranger_does_nothing(tmp_path, config):
    path = pages.make_run(tmp_path)
    (path / "config.yaml").write_text(config)
    said = head(path)
    json.dumps(said, allow_nan=False)
    assert said["total_steps"] is None


def test_what_has_not_changed_is_not_read_again(tmp_path, monkeypatch):
    reader = reader_of(pages.make_run(tmp_path))
    monkeypatch.setattr("gmi_drl.page.run_reader.read_inside", None)
    monkeypatch.setattr("gmi_drl.page.curves.open_inside", None)
    reader.poll()
    assert reader.head(0.0)["iteration"] == 3
