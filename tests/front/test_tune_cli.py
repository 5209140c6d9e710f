"""The commands tune and search: what their words mean, and what is told when they are wrong."""

import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest

from gmi_drl.cli import main
from gmi_drl.selector.errors import BudgetTooShort, NothingMeasured
from gmi_drl.selector.record.record import TuneJournal, record_path
from gmi_drl.selector.tune.candidate import Ask, Candidate, Chosen, DeviceSplit, Measured

AUTO = """\
version: 1
env: {id: CartPole-v1, num_env: auto}
layout: {gmi_per_gpu: auto}
"""


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "auto.yaml"
    path.write_text(AUTO)
    return path


@pytest.fixture
def tuner(monkeypatch):
    """A tuner that notes its calls, and a runtime that starts nothing."""
    from gmi_drl import runtime

    calls = []
    fake = types.ModuleType("gmi_drl.selector.tune.tuning")
    fake.calls, fake.error = calls, None

    def tune(config, **options):
        calls.append(("tune", config, options))
        if fake.error is not None:
            raise fake.error

    fake.tune = tune
    monkeypatch.setitem(sys.modules, "gmi_drl.selector.tune.tuning", fake)
    monkeypatch.setattr(runtime, "init", lambda preload: calls.append(("init",)))
    monkeypatch.setattr(runtime, "shutdown", lambda: calls.append(("shutdown",)))
    return fake


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("5m", 300), ("90s", 90), ("1h", 3600), ("1h30m", 5400), ("120", 120), (" 2.5 M ", 150)],
)
def test_a_budget_is_a_time_as_people_write_it(config, tuner, written, seconds):
    assert main.main(["tune", str(config), "--quiet", "--budget", written]) == 0
    assert tuner.calls[1][2]["budget"] == seconds


@pytest.mark.parametrize("written", ["5x", "", "m", "five", "nan", "1e3", "5ms", "0", "-5m"])
def test_a_budget_that_is_no_time_is_refused(config, tuner, capsys, written):
    assert main.main(["tune", str(config), f"--budget={written}"]) == 2
    told = capsys.readouterr().err
    assert repr(written) in told
    assert "Use for example 5m" in told
    assert not [call for call in tuner.calls if call[0] == "tune"]


def test_tune_starts_the_fork_server_first_and_hands_its_words_on(config, tuner):
    words = ["--set", "env.id=Ant-v5", "--objective", "steps", "--algorithm", "paper", "--again"]
    assert main.main(["tune", str(config), *words, "-o", "found.yaml", "--quiet"]) == 0
    assert [call[0] for call in tuner.calls] == ["init", "tune", "shutdown"]
    assert tuner.calls[1][1:] == (
        config,
        {
            "run": None,
            "overrides": ["env.id=Ant-v5", "tune.objective=steps", "tune.algorithm=paper"],
            "budget": None, "output": Path("found.yaml"), "again": True, "view": "none",
        },
    )  # fmt: skip


@pytest.mark.parametrize("on", [("--on", "dgx-a100"), ("--on=dgx-a100",)])
def test_a_search_on_a_model_starts_no_process(config, tuner, on):
    main.main(["tune", str(config), *on])
    assert tuner.calls == []


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BudgetTooShort(1.0, 8.0, took=True), 2),
        (NothingMeasured("num_env 4: it crashed"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_tuning_that_fails_has_exit_codes_and_no_traceback(config, tuner, capsys, error, code):
    tuner.error = error
    assert main.main(["tune", str(config), "--quiet"]) == code
    told = capsys.readouterr().err
    assert told
    assert "Traceback" not in told


def test_tune_needs_a_config_and_known_words(tuner, capsys):
    for words in ([], ["x.yaml", "--objective", "return"], ["x.yaml", "--algorithm", "random"]):
        assert main.main(["tune", *words]) == 2
    assert "give a config, or --show" in capsys.readouterr().err


def test_show_starts_nothing_and_tells_what_is_not_there(config, tmp_path, capsys):
    damaged = tmp_path / "damaged.jsonl"
    damaged.write_text("[]\n")
    for words, said in (
        ([], "nothing is on record. Tune first"),
        ([str(config)], f"gmi-drl tune {config}"),
        ([str(tmp_path / "none.jsonl")], "No such file or directory. Give a config, or a record."),
        ([str(tmp_path / "none.yaml")], "no such file"),
        ([str(damaged)], f"{damaged} is damaged"),
    ):
        assert main.main(["tune", "--show", *words]) == 2, words
        assert said in capsys.readouterr().err


@pytest.mark.slow
def test_show_draws_again_where_tuning_drew(config, tmp_path, monkeypatch, capsys):
    row = DeviceSplit(1, "cpu")
    best, other = (Candidate(row, num_env, 16, 16 * num_env) for num_env in (32, 64))
    header = {"env": "CartPole-v1", "key": "ab12"}
    kept, notes = TuneJournal.open(record_path("ab12"), header, anew=False)
    assert not notes
    for candidate, speed in ((best, 2e4), (other, 1e4)):
        answer = Measured(speed, 0.01, 9, 1.0, {"train": 1.0}, 1 << 30, None, 0.1, 1.0)
        kept.profiled(Ask(candidate, 1.0), answer, 2.0)
    kept.chose(Chosen(best, other, (), True), {"steps_per_s": 2e4})
    copy = tmp_path / "mine.report" / "record.jsonl"
    copy.parent.mkdir()
    copy.write_bytes(kept.path.read_bytes())
    monkeypatch.chdir(tmp_path)
    shutil.copy(config, "mine.yaml")  # as if tuning had written it
    for words, folder in (
        (["-o", "other.yaml"], "other.report"),  # the newest
        ([str(copy)], "mine.report"),
        (["mine.yaml"], "mine.report"),
        ([str(kept.path)], "."),  # nothing is drawn among what is kept
    ):
        assert main.main(["tune", "--show", *words]) == 0
        told = capsys.readouterr().out
        assert "CartPole-v1: 1 GMI, num_env 32, 20,000 steps/s" in told
        for kind in ("png", "svg"):
            assert (tmp_path / folder / f"tuning.{kind}").stat().st_size > 1000
    assert [path.name for path in kept.path.parent.iterdir()] == [kept.path.name]
    (tmp_path / "file").write_text("")
    assert main.main(["tune", "--show", "-o", "file/other.yaml"]) == 2
    told = capsys.readouterr()
    assert "CartPole-v1: 1 GMI, num_env 32, 20,000 steps/s" in told.out
    assert "no pictures (Not a directory). Give another place: -o FILE." in told.err
    theirs = tmp_path / "theirs.report"
    TuneJournal.open(theirs / "record.jsonl", {**header, "key": "cd34"}, anew=False)
    assert main.main(["tune", "--show", "-o", "theirs.yaml"]) == 2
    assert "no pictures, it has another tune's. Give another place" in capsys.readouterr().err
    assert [path.name for path in theirs.iterdir()] == ["record.jsonl"]


def test_a_config_that_is_not_tuned_yet_is_checked_but_not_planned(config, capsys):
    assert main.main(["check", str(config)]) == 0
    assert main.main(["plan", str(config)]) == 2
    told = capsys.readouterr().err
    assert "env.num_env='auto'; no record that still holds" in told
    assert "layout.gmi_per_gpu='auto'; no record that still holds" in told
    assert "Run gmi-drl tune, or give a number." in told


@pytest.mark.slow
def test_check_finds_a_batch_that_no_candidate_can_keep(config, capsys):
    kept = ["--set", "tune.keep=update", "--set", "tune.batch=7"]
    assert main.main(["check", str(config), *kept]) == 1
    assert "tune.batch=7; 4 environments in each GMI, with 1 on" in capsys.readouterr().err
    assert main.main(["check", str(config), "--set", "algorithm.minibatches=3"]) == 0  # num_env 6


def test_showing_and_planning_import_no_torch(config):
    code = (
        "import sys; from gmi_drl.cli.main import main\n"
        "assert main(['plan', sys.argv[1]]) == 2 and main(['tune', '--show']) == 2\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(config)], check=True, timeout=50)


def test_search_starts_the_fork_server_first_and_hands_its_words_on(config, tuner, monkeypatch):
    fake = types.ModuleType("gmi_drl.selector.search.searching")
    fake.search = lambda config, **options: tuner.calls.append(("search", config, options))
    monkeypatch.setitem(sys.modules, "gmi_drl.selector.search.searching", fake)
    assert main.main(["search", str(config), "--set", "run.seed=3", "--again", "--quiet"]) == 0
    assert [call[0] for call in tuner.calls] == ["init", "search", "shutdown"]
    options = {"overrides": ["run.seed=3"], "again": True, "view": "none"}
    assert tuner.calls[1][1:] == (config, options)


def test_python_has_what_the_commands_have_and_imports_it_when_it_is_used():
    code = (
        "import sys, gmi_drl\n"
        "heavy = {'gmi_drl.selector.tune.tuning', 'gmi_drl.selector.search.searching',\n"
        "'pydantic'}\n"
        "assert not heavy & set(sys.modules)\n"
        "assert callable(gmi_drl.tune) and callable(gmi_drl.search)\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=50)
