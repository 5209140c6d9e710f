"""The commands that the pages name: they can be called, and say in a line what is wrong."""

import importlib
import json
import os
import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path

import pytest
import typer

from gmi_drl import runtime
from gmi_drl.cli import main as main_module
from gmi_drl.cli.main import main
from gmi_drl.launcher.start.preload import PRELOAD
from gmi_drl.placement import ConfigError, load_config

ROOT = Path(__file__).resolve().parents[2]
BENCH = ROOT / "bench"
UsageError = typer.BadParameter.__base__  # of click, which some versions of typer have within
SUITE, UPDATE = BENCH / "gpu" / "suite" / "suite.py", BENCH / "gpu" / "update.py"


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def called():
    """Scripts that a page calls by name, as its first word in a line of shell or in backticks."""
    found = (re.findall(r"(?m)(?:^|`)(bench/[\w/]+\.py)", page.read_text()) for page in PAGES)
    return sorted({name for names in found for name in names})


@pytest.mark.parametrize("name", called())
def test_a_script_that_a_page_calls_can_be_called(name):
    assert os.access(ROOT / name, os.X_OK)
    assert (ROOT / name).read_text().startswith("#!/usr/bin/env python3\n")


def shell_lines(page):
    """Lines of a page's blocks of shell, and of its indented blocks."""
    text = page.read_text().replace("\\\n", " ")
    fence = r"(?ms)^ *```(\w*)\n(.*?)^ *```$"
    blocks = [block for language, block in re.findall(fence, text) if language in ("", "bash")]
    blocks += re.findall(r"(?m)^    \S.*$", re.sub(fence, "", text))
    return [line for block in blocks for line in block.splitlines()]


def commands(page):
    """The words of each `gmi-drl` command in a page's shell, without `gmi-drl`."""
    for line in shell_lines(page):
        if match := re.search(r"(?:^|[\s$])gmi-drl ([a-z]+(?: .*)?)$", line):
            may = re.sub(r" \[(-[^]]*)\]", r" \1", match[1])  # what may be left out
            yield shlex.split(may, comments=True)


def parsers():
    """The parser of each command of `gmi-drl`."""
    for name in ("commands", "trained_commands", "tune_commands", "run_commands"):
        import_module(f"gmi_drl.cli.{name}")
    return typer.main.get_command(import_module("gmi_drl.cli.app").app).commands


def fault_of(words):
    """Says why `gmi-drl` would not take a command, or a path or key in it is not there; ""."""
    try:
        context = parsers()[words[0]].make_context(words[0], words[1:])
    except (KeyError, UsageError) as error:
        return f"{type(error).__name__}: {error}"
    paths = [word for word in words if re.match(r"(?:examples|bench|scripts)/", word)]
    if gone := [path for path in paths if not (ROOT / path).exists()]:
        return f"there is no {gone[0]}"
    given = ROOT / paths[0] if paths else {"version": 1, "env": {"id": "Ant-v5"}}
    try:
        load_config(given, context.params.get("overrides") or [])
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_in_shell_are_taken_by_the_parser(page):
    faults = {shlex.join(words): fault for words in commands(page) if (fault := fault_of(words))}
    assert not faults


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_in_sentences_have_the_options_that_are_named(page):
    known = parsers()
    for text in re.findall(r"`gmi-drl ([a-z][^`]*)`", page.read_text()):
        name, *words = text.split()
        options = {opt for each in known[name].params for opt in (*each.opts, *each.secondary_opts)}
        named = {word.partition("=")[0] for word in words if word.startswith("-")}
        assert named <= options | {"--help"}, text


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        ("lunch examples/ant.yaml", "KeyError"),
        ("launch examples/ant.yaml --no-such-option", "NoSuchOption"),
        ("evaluate RUN --episodes few", "BadParameter"),
        ("launch examples/no_such.yaml", "there is no examples/no_such.yaml"),
        ("launch examples/ant.yaml --set run.no_such=1", "no_such"),
    ],
)
def test_a_command_that_is_wrong_is_found(command, fault):
    assert fault in fault_of(command.split())


def test_commands_are_found_in_every_way_that_pages_have_them(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "`gmi-drl no` and\n\n    gmi-drl indented\n\n```bash\nA=1 gmi-drl launch a \\\n  b # c\n"
        "docker run gmi-drl check [--x]\n```\n\n```\n$ gmi-drl state\nno gmi-drl: x\n```\n"
        "```python\ngmi-drl no\n```\nand\n\n```\ngmi-drl runs\n```\n"
    )
    assert list(commands(page)) == [["launch", "a", "b"], ["check", "--x"], ["state"], ["runs"],
                                    ["indented"]]  # fmt: skip


SMALL = ("env.num_env=4", "env.max_episode_steps=50", "run.eval_episodes=1")
UPDATE_SMALL = ("algorithm.horizon=16", "algorithm.minibatches=1", "algorithm.epochs=1")
MODEL_SMALL = (
    "run.total_steps=100", "env.max_episode_steps=20", "run.eval_episodes=1",
    "algorithm.replay_start=50", "algorithm.random_steps=50", "algorithm.batch_size=16",
)  # fmt: skip
SHRUNK = [  # what is added to the first that a command begins like, to be done in a second or two
    ("launch --resume", ["run.total_steps=1024"]),
    ("launch runs/ant/<time> --set mode=serving", ["run.total_steps=256"]),
    ("launch examples/a3c", ["run.total_steps=512", *SMALL]),
    ("launch examples/async", ["run.total_steps=512", *SMALL]),
    ("launch examples/own_algorithm", ["run.total_steps=512", *SMALL]),
    ("launch examples/mbpo", [*MODEL_SMALL, "algorithm.rollouts=50", "algorithm.model_epochs=1"]),
    ("launch examples/cem", [*MODEL_SMALL, "algorithm.candidates=10", "algorithm.plan_elites=2"]),
    ("launch", ["run.total_steps=512", *SMALL, *UPDATE_SMALL, "algorithm.network=[8]"]),
    ("search examples/pbt", ["run.total_steps=1024", "search.population=2",
                             "search.interval_steps=512", *SMALL, *UPDATE_SMALL]),
    ("search", ["run.total_steps=1024", "search.min_steps=512", *SMALL, *UPDATE_SMALL[:2]]),
]  # fmt: skip
HOSTS = ("needs Ray", "hosts/test_hosts_together.py", '"examples" / "hosts"')
LOGGED = ("starts a service", "front/test_loggers.py", '"log": there')
ELSEWHERE = {  # what takes too long here, by its beginning: why, which test runs it, how
    "launch examples/cartpole.yaml --seeds 5": ("launchers", "front/test_seeds.py", '"--seeds"'),
    "launch examples/hosts/impala_cartpole.yaml": HOSTS,
    "launch examples/cartpole.yaml --set run.log=[tensorboard,wandb]": LOGGED,
    "launch examples/cartpole.yaml --set run.log=[mlflow]": LOGGED,
    "tune examples/ant.yaml": ("five minutes", "front/test_tune_runs.py", "tuned_by("),
    "tune config.yaml": ("five minutes", "front/test_tune_runs.py", "tuned_by("),
    "launch examples/auto.yaml": ("tunes first", "front/test_tune_runs.py", "launch(found.output"),
    "resize": ("takes a run that trains", "front/test_resize.py", '"gmi_drl", "resize"'),
    "page": ("serves until it is ended", "page/test_server.py", "pages.served("),
}
GIVEN = {  # what stands in a page for something of the reader's
    "RUN": "runs/ant/<time>",
    "RUN...": "runs/ant/<time>",
    "runs/ant/*": "runs/ant/<time>",
    "runs/async_cartpole/2026-11-26_12-02-11": "runs/ant/<time>",
    "policy@400": "policy@2",
    "4xmy-hardware.yaml": f"4x{ROOT / 'selector/forecast/machines/dgx-a100.yaml'}",
}


def shrunk(words):
    """A command as it is run here: small, and with what is there in place of the reader's."""
    line = " ".join(words)
    added = next((added for begins, added in SHRUNK if line.startswith(begins)), [])
    files = {"video": "film.mp4", "export": "exported/policy.pt2"}
    given = GIVEN | {"FILE": files.get(words[0])}
    return [*(given.get(word, word) for word in words), *(f"--set={one}" for one in added)]


def elsewhere(words):
    """The beginnings in ELSEWHERE that a command has."""
    return [begins for begins in ELSEWHERE if f"{' '.join(words)} ".startswith(f"{begins} ")]


def test_commands_that_are_too_dear_here_are_in_the_pages_and_run_elsewhere():
    found = [one for page in PAGES for words in commands(page) for one in elsewhere(words)]
    assert set(found) == set(ELSEWHERE)
    for _, file, how in ELSEWHERE.values():
        assert how in (ROOT / "tests" / file).read_text()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_command_of_the_pages_runs(tmp_path, monkeypatch):
    for package in ("imageio_ffmpeg", "mujoco", "onnxruntime", "onnxscript", "safetensors"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "examples", "examples")
    for name in ("config.yaml", "my_config.yaml"):
        shutil.copy(ROOT / "examples" / "cartpole.yaml", name)
    first = [f"--set={one}" for one in ("run.name=ant", "run.total_steps=512", *SMALL)]
    assert main(["launch", "config.yaml", *first, "--quiet"]) == 0
    monkeypatch.setattr(main_module, "_fork_server", lambda words: nullcontext())
    runtime.init(PRELOAD)  # once for all of them
    try:
        (run,) = Path("runs/ant").iterdir()
        run = run.rename(run.with_name("<time>"))  # as pages have it
        shutil.copytree(run, "runs/b/<time>")
        shutil.copy(run / "gcs.sqlite", "gcs.sqlite")
        with sqlite3.connect("gcs.sqlite") as store:
            ((task,),) = store.execute("SELECT id FROM tasks_text LIMIT 1")
        store.close()
        asked = [words for page in PAGES for words in commands(page) if not elsewhere(words)]
        lines = dict.fromkeys(tuple(shrunk(words)) for words in asked)
        for line in sorted(lines, key=lambda line: line[0] in ("launch", "search", "tune")):
            words = [task if word in ("ID", "ed9927") else word for word in line]
            assert main(words) == 0, words
    finally:
        runtime.shutdown()


@pytest.mark.parametrize(
    ("script", "arguments", "word"),
    [
        (SUITE, ["--report", "nope.json"], "No such file"),
        (SUITE, ["--report", "empty.json"], "is not a suite's results"),
        (UPDATE, ["--dry", "--network", "foo"], "'foo'"),
    ],
)
def test_a_wrong_argument_is_told_without_a_traceback(script, arguments, word, tmp_path):
    (tmp_path / "empty.json").write_text(json.dumps({}))
    done = subprocess.run(
        [sys.executable, str(script), *arguments],
        cwd=tmp_path, capture_output=True, text=True, timeout=50, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert word in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def plan(monkeypatch):
    """The suite's plan, whose modules are forgotten afterwards."""
    monkeypatch.setattr(sys, "path", [str(BENCH), *sys.path])
    yield importlib.import_module("gpu.suite.plan")
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(BENCH)):
            del sys.modules[name]


@pytest.mark.parametrize(
    ("only", "ladders"),
    [("precision", {"training"}), ("serving", {"serving"}), ("start", set()),
     ("devices", {"training", "serving"})],
)  # fmt: skip
def test_an_experiment_alone_brings_the_ladders_that_it_follows_from(plan, only, ladders):
    stage = importlib.import_module("gpu.suite.stage").dry_stage(
        "BallBalance-v0", "torch", (0, 1), lambda *_: []
    )
    cells = plan.cells(stage, 1, [only])
    assert {cell.experiment for cell in cells if cell.block == "ladder"} == ladders
    assert {cell.experiment for cell in cells if cell.block != "ladder"} <= {only}
    blocks = [cell.block for cell in cells]
    assert blocks == sorted(blocks, key="ladder".__ne__)  # ladders come first
