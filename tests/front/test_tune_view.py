"""What a person sees of a tune: in lines, in a terminal, and not at all."""

from functools import partial

import pytest
from rich.console import Console

from gmi_drl.launcher.view.view import Screen, opened
from gmi_drl.selector.tune.candidate import Ask, Candidate, DeviceSplit, Failed, Measured, Space
from gmi_drl.selector.tune.tune_view import TuneView

ROWS = tuple(
    tuple(Candidate(DeviceSplit(g, "cpu"), n, 16, 16 * n * g) for n in (8, 16, 32)) for g in (1, 2)
)
SPACE = Space(ROWS)
VIEW = partial(TuneView, "Ant-v5", SPACE, 300.0)
FAILED = Failed("memory", "gmi 1 was ended by the kernel [oom]")


def measured(rate):
    return Measured(rate, 0.01, 5, 3.0, {"simulate": 1.0}, 2**28, None, 0.1, 1.0)


def tell(view):
    for row, rate in ((0, 1000.0), (1, 1800.0)):
        view.asks(Ask(ROWS[row][1], 3.0), 250.0)
        view.answers(Ask(ROWS[row][1], 3.0), measured(rate), recalled=row == 0, left_s=240.0)
    view.answers(Ask(ROWS[1][2], 3.0), FAILED, recalled=False, left_s=230.0)
    view.note("the machine is busy")
    view.racing("racing 2 finalists", 200.0)


def test_lines_tell_each_answer_the_best_and_what_is_left(capsys):
    with opened("auto", VIEW) as view:
        tell(view)
    first, known, best, failed, note, race = capsys.readouterr().out.splitlines()
    assert first == "Ant-v5: 6 candidates, 5:00 to spend"
    assert "1 GMI, num_env 16" in known
    assert "on record" in known
    assert "1,800 steps/s ± 1.0 %  4:00 left  best so far" in best
    assert "failed (memory): gmi 1 was ended by the kernel [oom]  3:50 left" in failed
    assert "best" not in failed
    assert note == "the machine is busy"
    assert race == "racing 2 finalists  3:20 left"


def test_a_terminal_shows_what_is_measured_now():
    screen = Screen("live")
    view = TuneView("Ant-v5 [2 cores]", SPACE, 300.0, screen)
    console = Console(width=110, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        console.print(view.render(110))
        assert "nothing measured yet" in console.export_text()
        screen.console = console
        tell(view)
        view.asks(Ask(ROWS[1][0], 3.0), 100.0)
        console.print(view.render(110))
        text = console.export_text()
    for piece in (
        "Ant-v5 [2 cores]",
        "2 GMIs, num_env 8 ",
        "2 GMIs, num_env 16: 1,800 steps/s",
        "3 of 6 candidates tried, 1 failed",
        "ended by the kernel [oom]",
        "of 5:00",
    ):
        assert piece in text


def test_quiet_is_silent(capsys):
    with opened("none", VIEW) as view:
        tell(view)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("name", ["live", "plain"])
def test_a_reader_that_has_gone_does_not_end_the_tune(monkeypatch, name):
    def broken(*args, **kwargs):
        raise BrokenPipeError

    with opened(name, VIEW) as view:
        monkeypatch.setattr("builtins.print", broken)
        monkeypatch.setattr(Console, "print", broken)
        tell(view)
