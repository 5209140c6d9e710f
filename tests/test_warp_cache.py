"""Kernels for the tests are compiled once on a machine."""

import os
import subprocess
import threading

import pytest

import warp_cache


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """Takes the compiler's place in an empty cache: what was run, and how it ends."""
    ran, ends = [], [0]

    def run(command, **_):
        ran.append(command)
        return subprocess.CompletedProcess(command, ends[0], "", "no compiler")

    monkeypatch.setattr(warp_cache, "FOLDER", tmp_path)
    monkeypatch.setattr(warp_cache.subprocess, "run", run)
    run.ran, run.ends = ran, ends
    return run


def test_of_several_processes_one_compiles_and_the_others_wait(compiler):
    said = []
    threads = [threading.Thread(target=warp_cache.prepare, args=(said.append,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(compiler.ran) == len(said) == 1
    warp_cache.prepare(said.append)
    assert len(compiler.ran) == 1


def test_a_compiler_that_fails_is_told_and_asked_again(compiler):
    compiler.ends[0] = 1
    for _ in range(2):
        with pytest.raises(RuntimeError, match="cannot be compiled: no compiler"):
            warp_cache.prepare(lambda line: None)
    assert len(compiler.ran) == 2


def test_a_changed_environment_is_compiled_anew(compiler, tmp_path, monkeypatch):
    envs = tmp_path / "envs"
    (envs / "warp").mkdir(parents=True)
    monkeypatch.setattr(warp_cache, "_ENVS", envs)
    warp_cache.prepare(lambda line: None)
    (envs / "warp" / "world.py").write_text("changed")
    warp_cache.prepare(lambda line: None)
    assert len(compiler.ran) == 2
    assert sorted(name[:9] for name in os.listdir(tmp_path) if name.startswith("prepared")) == [
        "prepared-", "prepared-",
    ]  # fmt: skip
