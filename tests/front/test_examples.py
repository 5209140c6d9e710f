"""The examples and the pages of the runtime: they run as they are, and print what they claim."""

import importlib
import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "runtime"


def output_of(name):
    return run(FOLDER / f"{name}.py")


def run(*arguments, timeout_s=50, **environment):
    ended = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=timeout_s,
        env=os.environ | environment,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stderr == ""
    return ended.stdout


def numbers(text):
    return [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?(?:e-?\d+)?", text)]


def test_every_example_is_tested():
    for path in FOLDER.glob("*.py"):
        if path.stem == "on_ray":  # runs the others: tests/runtime/test_ray.py
            continue
        assert any(name.startswith(f"test_{path.stem}_") for name in globals()), path


def test_tasks_feed_each_other_are_retried_and_call_tasks():
    assert output_of("tasks").splitlines() == [
        "pi is about 3.14",
        "squares: [0, 1, 4, 9, 16]",
        "extremes: 1.0 3.0",
        "page 7 at attempt 2",
        "sorted by tasks that call tasks: 20 numbers",
        "the exception of the task is one of its own class: TaskError(AttributeError)",
    ]


def test_actors_come_back_as_they_were():
    lines = output_of("actors").splitlines()
    assert re.fullmatch(
        r"its deaths: \['actor savings \(pid \d+\) was killed by SIGKILL'\]", lines.pop(2)
    )
    assert lines == [
        "balance: 150",
        "after kill -9: 120",
        "by name, from a task: 125",
        "refused: 1000 is more than the 125 there are",
        "tally goes on at: 251",
        "calls run again: 50",
        "[3, 'served 125']",
        "dead: it was killed by kill()",
    ]


def test_values_are_shared_immutable_and_spilled():
    text = output_of("values")
    assert "means: [1999998.0, 1999999.0, 2000000.0, 2000001.0]" in text
    assert "values are immutable: assignment destination is read-only" in text
    assert "all are there: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]" in text
    assert "too large: an object of 300.0 MB does not fit" in text


def test_parameter_server_loses_no_update_when_killed():
    updates, deaths, error = numbers(output_of("parameter_server"))
    assert (updates, deaths) == (600, 1)
    assert error < 1e-6


@pytest.mark.slow
def test_policy_gradient_learns_while_a_simulator_is_killed():
    first, last, deaths = numbers(output_of("policy_gradient"))
    assert last > 2 * first
    assert deaths == 1


@pytest.mark.slow
def test_evolution_gives_the_same_each_time():
    first, last = numbers(output_of("evolution"))
    assert first < -10 < -0.1 < last
    assert output_of("evolution") == f"fitness at first: {first:.3f}\nfitness at last: {last:.3f}\n"


def test_an_example_may_be_run_from_any_folder_and_leaves_nothing_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    output_of("tasks")
    assert list(tmp_path.iterdir()) == []


def code_of(page, language):
    blocks = re.findall(rf"```{language}\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)
    assert blocks
    return "\n".join(blocks)


def run_page(page):
    """Runs its blocks as one script; each line that prints says what."""
    code = code_of(page, "python")
    Path("page.py").write_text(code)
    wanted = [line.partition(")  #")[2] for line in re.sub(r"\) +#", ")  #", code).splitlines()
              if line.lstrip().startswith("print(")]  # fmt: skip
    assert run("page.py").splitlines() == [text.strip() for text in wanted]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a3c_learns_from_gradients_that_two_processes_send():
    lines = run(ROOT / "examples" / "rl" / "a3c.py", timeout_s=280).splitlines()
    assert len(lines) > 10
    assert numbers(lines[-1])[0] >= 450


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ppo_es", "a3c_es"])
def test_an_optimizer_is_evaluated_by_what_it_makes_of_a_policy(name, monkeypatch):
    """A member of the population: the same noise gives the same, and its return counts alone."""
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "rl"))
    example = importlib.import_module(name)
    monkeypatch.setattr(example.Member, "iterations", 1 if name == "ppo_es" else 6)
    member, again, other = (example.Member(3) for _ in range(3))
    begin = member.policy()
    score, after, steps = member.trained(begin, seed=7)
    assert 8 <= score <= 500
    assert steps == (512 if name == "ppo_es" else 6 * 32)
    ours = after["parameters"]
    assert 0 < abs(ours - begin["parameters"]).max() < 1
    same, unlike = again.trained(begin, seed=7), other.trained(begin, seed=8)
    assert (same[0], same[1]["parameters"].tobytes(), same[2]) == (score, ours.tobytes(), steps)
    assert unlike[1]["parameters"].tobytes() != ours.tobytes()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_ppo_in_evolution_learns():
    code = "import ppo_es; ppo_es.main(steps=60_000)"
    environment = {"PYTHONPATH": str(ROOT / "examples" / "rl")}
    lines = run("-c", code, timeout_s=280, **environment).splitlines()
    assert len(lines) == 8 + 1
    assert numbers(lines[-1])[0] > 2 * numbers(lines[0])[-1]


def test_the_page_of_the_runtime_does_what_it_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_page("runtime.md")


@pytest.mark.slow
def test_the_page_of_the_control_store_does_what_it_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_page("control-store.md")
    page = (ROOT / "docs" / "control-store.md").read_text()
    assert shape(run("-m", "gmi_drl", "state", "gcs.sqlite")) == shape(shown_in(page, "state"))
    assert run("-m", "gmi_drl", "timeline", "gcs.sqlite") == shown_in(page, "timeline")
    with sqlite3.connect("gcs.sqlite") as store:
        ((last,),) = store.execute("SELECT id FROM tasks_text WHERE sequence = 2")
        found = [
            store.execute(text).fetchall() for text in code_of("control-store.md", "sql").split(";")
        ]
    store.close()
    assert all(found[:3])
    tree = run("-m", "gmi_drl", "lineage", last[:6], "gcs.sqlite")
    assert sorted(shape(tree)) == sorted(shape(shown_in(page, "lineage")))


def shown_in(page, command):
    return re.search(rf"\$ gmi-drl {command} .*\n((?:.+\n)+)```", page)[1]


def shape(text):
    """Its words, without what differs from run to run."""
    varies = re.compile(r"\b[0-9a-f]{12}\b|, \d attempts")
    return [re.findall(r"[A-Za-z_]{4,}", varies.sub("", line)) for line in text.splitlines()]
