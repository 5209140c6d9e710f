"""What a person sees of a run, and that records of others cannot spoil it."""

import io
import json

import pytest
from rich.console import Console

from gmi_drl.launcher.folder.curve import draw_curve
from gmi_drl.launcher.view.view import RunView, Screen, duration, eta_s, is_for_view, opened
from gmi_drl.placement import Topology, load_config, tcg_ex

CONFIG = load_config(
    {"version": 1, "run": {"name": "ant", "total_steps": 10_000}, "env": {"id": "Ant-v5"}}
)
LAYOUT = tcg_ex(Topology.from_cores([0, 1]), 2, 8, "cpu")
RECORD = {
    "kind": "iteration", "iteration": 3, "steps": 4000, "steps_per_s": 2000.0,
    "return_mean": 123.45, "kl": 0.01, "learning_rate": 3e-4, "simulate_s": 0.6, "infer_s": 0.1,
    "train_s": 0.2, "reduce_s": 0.1, "gmi_seconds": [
        {"simulate": 0.6, "infer": 0.1, "train": 0.2, "reduce": 0.1},
        {"simulate": 0.5, "infer": 0.1, "train": 0.2, "reduce": 0.2},
    ],
}  # fmt: skip


def drawn(view, width=120):
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        console.print(view.render(width))
        return console.export_text()


def test_the_live_view_shows_each_gmi_and_the_run():
    view = RunView(Screen("live"), CONFIG, LAYOUT)
    assert "waiting for the first iteration" in drawn(view)
    view.show(RECORD)
    text = drawn(view)
    for piece in ("ant: Ant-v5, 2 GMIs", "60 %", "50 %", "4,000", "2,000 steps/s", "123.5"):
        assert piece in text
    assert "ETA 0:03" in text


def test_what_strangers_tried_is_shown_where_there_was_anything():
    view = RunView(Screen("live"), CONFIG, LAYOUT)
    view.show({**RECORD, "refused": 0})
    assert "refused" not in drawn(view)
    view.show({**RECORD, "refused": 3})
    assert "3 refused" in drawn(view)


def test_self_play_shows_its_rating():
    view = RunView(Screen("live"), CONFIG, LAYOUT)
    view.show(RECORD)
    assert "rating" not in drawn(view)
    view.show({**RECORD, "rating": 182.87})
    assert "return 123.5   rating 183" in drawn(view)
    view.show({**RECORD, "return_mean": -0.04, "rating": -0.4})
    assert "return 0.0   rating 0 " in drawn(view)


def test_steps_that_came_too_late_are_shown_where_there_were_any():
    view = RunView(Screen("live"), CONFIG, LAYOUT)
    view.show({**RECORD, "dropped_steps": 0})
    assert "dropped" not in drawn(view)
    view.show({**RECORD, "dropped_steps": 64})
    assert "64 steps dropped" in drawn(view)


def test_what_is_told_is_printed_whole_and_nothing_stands_beside_the_bar():
    screen = Screen("live")
    view = RunView(screen, CONFIG, LAYOUT)
    view.show(RECORD)
    assert set(drawn(view, 60).splitlines()[-1]) == {"━"}
    out = io.StringIO()
    screen.console = Console(width=60, file=out)
    for number in range(5):
        message = (
            f"stopping [/soon] {number}, \x1b[31m in 10 s at the latest; once more stops at once"
        )
        view.show({"kind": "warning", "message": message})
    told = " ".join(out.getvalue().split())
    for number in range(5):
        assert f"warning: stopping [/soon] {number}, \\x1b[31m in 10 s at the latest; once" in told
    assert set(drawn(view, 60).splitlines()[-1]) == {"━"}


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_live_view_fits_the_terminal(width):
    view = RunView(Screen("live"), CONFIG, LAYOUT)
    view.show(RECORD | {"gmi_mem_peak_bytes": [300 << 20, 5 << 29]})
    lines = drawn(view, width).splitlines()
    assert all(len(line) <= width for line in lines)
    text = " ".join(lines)
    assert "…" not in text
    for piece in ("GMI", "simulate", "infer", "train", "reduce", "60 %", "ETA"):
        assert piece in text
    assert ("not shown in 60 columns: cores" in text) == (width == 60)
    assert ("cores ┃" in text) == (width == 120)


def test_the_live_view_shows_the_memory_that_each_gmi_held():
    view = RunView(Screen("live"), CONFIG, LAYOUT)
    view.show(RECORD | {"gmi_mem_peak_bytes": [300 << 20, 5 << 29]})
    text = drawn(view)
    assert "300 MiB" in text
    assert "2.50 GiB" in text
    view.show(RECORD | {"gmi_mem_peak_bytes": ["much"]})  # of a role of the user's own
    assert "memory" not in drawn(view)


def test_the_live_view_before_an_episode_has_ended():
    view = RunView(Screen("live"), CONFIG, LAYOUT)
    view.show(RECORD | {"return_mean": None})
    assert "return -" in drawn(view)


def test_the_plain_view_prints_lines(capsys):
    with opened("plain", lambda on: RunView(on, CONFIG, LAYOUT)) as view:
        view.show(RECORD)
        view.show(RECORD | {"iteration": 4})  # within the same seconds: no second line
        view.show({"kind": "warning", "message": "careful"})
    first, second = capsys.readouterr().out.splitlines()
    assert "steps      4,000" in first
    assert "return 123.5" in first
    assert second == "warning: careful"


def test_a_reader_that_has_gone_does_not_end_the_run(monkeypatch):
    def broken(*args, **kwargs):
        raise BrokenPipeError

    monkeypatch.setattr("builtins.print", broken)
    with opened("plain", lambda on: RunView(on, CONFIG, LAYOUT)) as view:
        view.show(RECORD)


@pytest.mark.parametrize("record", [5, None, {"kind": []}, {"kind": "iteration"}, {"a": 1}])
def test_records_of_others_are_not_shown(record):
    assert not is_for_view(record)
    assert is_for_view(RECORD)


def test_times_are_written_as_people_do():
    assert duration(65.2) == "1:05"
    assert duration(3 * 3600 + 61) == "3:01:01"
    assert eta_s(CONFIG, RECORD) == pytest.approx(3.0)


def test_a_picture_is_drawn_of_what_agents_trainers_and_servers_write(tmp_path):
    lag = {"policy_lag_mean": 0.5, "policy_lag_max": 2}
    agents = {"simulate_s": 0.1, "infer_s": 0.1, "send_s": 0.1}
    trainers = {"wait_s": 0.2, "train_s": 0.2, "reduce_s": 0.0}
    lines = {
        "async": [lag | agents | trainers] * 3,
        "serving": [{"simulate_s": 0.1, "wait_s": 0.2}, {"infer_s": 0.3, "wait_s": 0.1}, {}],
    }
    for name, its in lines.items():
        folder = tmp_path / name
        folder.mkdir()
        text = [
            json.dumps({"iteration": i, "steps": i, "time_s": float(i), "return_mean": 1.0} | line)
            for i, line in enumerate(its, 1)
        ]
        (folder / "metrics.jsonl").write_text("\n".join(text))
        assert draw_curve(folder, name).stat().st_size > 10_000
