"""Comparing commits: lines and hops are counted, and different numbers are found."""

import importlib.machinery
import importlib.util
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def bench_folder(monkeypatch):
    """The benchmarks find each other in their own folder, and are forgotten afterwards."""
    monkeypatch.setattr(sys, "path", [str(ROOT / "bench"), *sys.path])
    yield
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(ROOT / "bench")):
            del sys.modules[name]


@pytest.fixture
def lines(monkeypatch):
    """The script as a module."""
    loader = importlib.machinery.SourceFileLoader("lines_script", str(ROOT / "scripts" / "lines"))
    spec = importlib.util.spec_from_loader("lines_script", loader)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "lines_script", module)
    loader.exec_module(module)
    return module


def test_blanks_comments_and_docstrings_are_no_code(lines):
    text = (
        '"""Of the\nmodule."""\n\n# a comment\nx = """two\nlines"""\n'
        '\n\ndef f():\n    "Of f."\n    return x\n'
    )
    assert lines.code_lines(text) == 4
    assert lines.folder_of("src/gmi_drl/cli/main.py", subfolders=True) == "gmi_drl/cli"
    assert lines.folder_of("comm/shm/board.py", subfolders=False) == "comm"


def test_hops_are_functions_files_and_changes_of_file_in_a_thread(lines):
    entered = [("1", "a", "f"), ("2", "b", "g"), ("1", "b", "h"), ("1", "b", "h"), ("2", "b", "g"),
               ("1", "a", "f"), ("1", "a", "f.<locals>.<genexpr>")]  # fmt: skip
    calls = [lines.Call(time, *where) for time, where in enumerate(entered)]
    assert lines.hops_of(calls) == lines.Hops(functions=3, files=2, file_changes=2)


def test_numbers_are_the_same_bit_for_bit_or_differ_by_so_much():
    from same_numbers import compare, flat

    def numbers(loss, weights, **more):
        metrics = {"loss": loss, "time_s": torch.rand(()).item(), **more}
        return dict(flat({"metrics": [metrics], "parameters": torch.tensor(weights)}))

    assert compare(numbers(1.0, [1.0, 2.0]), numbers(1.0, [1.0, 2.0])).bit_equal
    different = compare(numbers(1.0, [1.0, 2.0], kl=0.0), numbers(1.5, [1.0, 2.25]))
    assert different.differing == {"metrics/0/loss": 0.5, "parameters": 0.25}
    assert (different.largest, different.only_here) == (0.5, ["metrics/0/kl"])
    assert not compare(numbers(0.0, [0.0]), numbers(0.0, [-0.0])).bit_equal
