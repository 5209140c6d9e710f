"""The steps of a slot on a GPU machine: their limits, what they refuse, and how they go on."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SLOT = ROOT / "bench" / "gpu" / "slot.sh"
no_gpu = pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="there is a GPU here")


@pytest.fixture
def slot(tmp_path):
    """Runs steps: each call is a command on a machine that keeps `state`, and its OUT is empty."""
    number = 0

    def run(*steps, timeout=55, limits=None, **variables):
        nonlocal number
        number += 1
        out = Path(variables.pop("OUT", tmp_path / f"out{number}"))
        environment = {
            **os.environ, "PYTHON": sys.executable, "OUT": str(out),
            "STATE": str(tmp_path / "state"), "BEFORE": str(tmp_path / "before"),
            "PACK": str(tmp_path / "pack"), "PARTS": str(tmp_path / "parts"), **variables,
        }  # fmt: skip
        done = subprocess.run(
            [str(SLOT), *steps], env=environment, capture_output=True, text=True, timeout=timeout,
            check=False, preexec_fn=limits,
        )  # fmt: skip
        return done, out

    return run


def files_of(out):
    return {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}


def steps_of(done):
    return {one["step"]: one["limit_s"] for one in map(json.loads, done.stdout.splitlines())}


def test_the_steps_and_their_limits_can_be_read(slot):
    limits = steps_of(slot("--list")[0])
    assert list(limits) == [
        "unpack", "facts", "first", "headline", "serving", "reduction", "seeds", "trials",
        "num_env", "update", "rest",
    ]  # fmt: skip
    assert max(limits.values()) + 20 <= 600  # with the time to be killed in
    main = ("facts", "first", "headline", "serving", "reduction")
    assert 2 * limits["unpack"] + sum(limits[step] for step in main) <= 1800
    lower = steps_of(slot("--list", SLOT_LIMIT_S="200")[0])
    assert (lower["facts"], lower["unpack"]) == (200, 60)


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        (["facts", "nope"], "no step nope. Steps: unpack N, facts first headline serving"),
        (["unpack"], "unpack : which part? Write unpack 1."),
        (["unpack", "facts"], "unpack facts: which part? Write unpack 1."),
    ],
)
def test_steps_that_are_not_there_are_told_before_any_is_run(slot, steps, told):
    done, out = slot(*steps)
    assert done.returncode == 2
    assert told in done.stderr
    assert not out.exists()


@pytest.mark.parametrize(("steps", "code"), [("1 2", 0), ("1", 3), ("2 1", 3)])
def test_parts_of_a_pack_may_be_unpacked_by_one_command(slot, tmp_path, steps, code):
    python = tmp_path / "python"  # 3: kept, others are missing
    python.write_text('#!/bin/sh\ncase "$3" in */part-1) exit 3 ;; esac\n')
    python.chmod(0o755)
    words = [word for number in steps.split() for word in ("unpack", number)]
    done, _ = slot(*words, PYTHON=str(python))
    assert done.returncode == code, done.stdout
    assert done.stdout.count("step unpack ended") == len(steps.split())


def test_a_pack_that_is_not_complete_is_told_by_what_is_missing(slot, tmp_path):
    kept = tmp_path / "pack" / "parts"
    kept.mkdir(parents=True)
    (kept / "manifest.json").write_text(json.dumps({"pack": "0" * 64, "parts": [{}, {}]}))
    (kept / "part-1").touch()
    done, _ = slot("facts", SLOT_DRY="1")
    assert (done.returncode, "is not complete; missing: part-2" in done.stdout) == (3, True)


@pytest.mark.parametrize("limit", ["abc", "0", "-5"])
def test_a_limit_is_a_number_of_seconds(slot, limit):
    done, _ = slot("facts", SLOT_LIMIT_S=limit)
    assert done.returncode == 2
    assert f"SLOT_LIMIT_S={limit}; must be a whole number of seconds" in done.stderr


@no_gpu
@pytest.mark.slow
def test_without_a_gpu_a_step_does_not_end_well(slot):
    done, out = slot("headline", ENV_ID="BallBalance-v0", ADAPTER="torch")
    assert done.returncode == 4
    assert "no GPU here, nothing is measured" in done.stderr
    assert not out.exists()


def test_a_missing_package_is_told_and_nothing_else_is_measured(slot, tmp_path):
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')  # as if nothing were installed
    bare.chmod(0o755)
    done, out = slot("first", "headline", PYTHON=str(bare), SLOT_DRY="1")
    assert done.returncode == 2
    assert ". Unpack the pack of this node (slot.sh unpack N), or install it." in (done.stderr)
    done, out = slot("first", SLOT_DRY="1", ADAPTER="wrap")
    assert done.returncode == 2
    assert "env.adapter='wrap'; known: " in done.stderr
    assert not out.exists()


def test_a_full_folder_is_told_at_once(slot, tmp_path):
    def half_a_mebibyte():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, 1 << 19))

    done, out = slot("unpack", "1", limits=half_a_mebibyte)
    assert done.returncode == 2
    assert f"{out} cannot be written, or has no room for 1 MiB. Make room, or name" in done.stderr
    assert files_of(out) == set()
    (tmp_path / "file").write_text("")
    done, _ = slot("unpack", "1", OUT=tmp_path / "file")
    assert done.returncode == 2
    assert "cannot be written" in done.stderr


def test_a_part_that_is_not_there_ends_the_command(slot, tmp_path):
    done, out = slot("unpack", "7", "reduction", SLOT_DRY="1")
    assert done.returncode == 2
    assert "step unpack ended with 2" in done.stdout
    assert files_of(out) == {"unpack.log"}


def test_there_are_never_more_files_than_may_be_given_back(slot, tmp_path):
    """Eight: five of results, two logs, and one of all earlier logs."""
    out = tmp_path / "out"
    out.mkdir()
    for number, name in enumerate(("facts", "first", "headline", "serving", "reduction")):
        (out / f"{name}.log").write_text(f"{name} was here\n")
        os.utime(out / f"{name}.log", (number, number))
    slot("unpack", "1", OUT=out)
    assert files_of(out) == {
        "earlier.log", "reduction.log", "unpack.log"
    }  # fmt: skip
    joined = [f"{name} was here" for name in ("facts", "first", "headline", "serving")]
    assert (out / "earlier.log").read_text().splitlines() == joined


@pytest.mark.slow
def test_a_step_is_ended_at_its_limit_and_the_next_is_run(slot, tmp_path):
    """What it started is gone with it, which is looked for after every test."""
    hangs = tmp_path / "python"
    hangs.write_text(
        f'#!/bin/sh\ncase "$*" in *suite.py*reduction*) echo so far >&2; sleep 60;; '
        f'*suite.py*) ;; *) exec {sys.executable} "$@";; esac\n'
    )
    hangs.chmod(0o755)
    done, out = slot("reduction", "num_env", PYTHON=str(hangs), SLOT_DRY="1", SLOT_LIMIT_S="2")
    assert done.returncode == 124, done.stderr
    assert "step reduction ended with 124" in done.stdout
    assert "step num_env ended with 0" in done.stdout
    assert files_of(out) == {"reduction.log", "num_env.log"}
    assert "so far" in (out / "reduction.log").read_text()


def test_tests_that_cannot_be_collected_do_not_keep_the_next_step_from_being_run(slot, tmp_path):
    """Pytest's exit code 2 is an error of a test's imports, and no missing package of the suite."""
    plays = tmp_path / "python"
    plays.write_text('#!/bin/sh\ncase "$*" in *"-m pytest"*) exit 2;; esac\n')
    plays.chmod(0o755)
    done, _ = slot("facts", "num_env", PYTHON=str(plays), SLOT_DRY="1")
    assert "step facts ended with 1 " in done.stdout
    assert "step num_env ended with 0 " in done.stdout
    assert done.returncode == 1


def test_modules_of_the_pack_are_compiled_once(slot, tmp_path):
    """An image may have switched off that Python keeps what it compiles."""
    plays = tmp_path / "python"
    plays.write_text('#!/bin/sh\necho "kept: ${PYTHONDONTWRITEBYTECODE:-yes} by $*" >&2\n')
    plays.chmod(0o755)
    done, _ = slot("update", PYTHON=str(plays), SLOT_DRY="1", PYTHONDONTWRITEBYTECODE="1")
    (update,) = [line for line in done.stdout.splitlines() if "bench/gpu/update.py --dry" in line]
    assert update.startswith("kept: yes by ")
    assert "kept: 1" not in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_steps_go_on_from_what_earlier_ones_left_on_this_machine_or_gave_back(slot, tmp_path):
    limit = {"SLOT_DRY": "1", "timeout": 100}
    done, first = slot("reduction", **limit)
    assert done.returncode == 0, done.stdout + done.stderr
    assert files_of(first) == {"reduction.log", "dry-cpu/suite.json"}
    cells = json.loads((first / "dry-cpu" / "suite.json").read_text())["cells"]
    assert {cell["experiment"] for cell in cells} == {"reduction"}
    done, second = slot("reduction", **limit)  # of the same machine
    assert f"{len(cells)} cells of {tmp_path / 'state'}" in done.stdout
    given = {"STATE": str(tmp_path / "anew"), "BEFORE": str(first)}
    done, third = slot("reduction", **limit, **given)  # of a fresh one
    assert f"{len(cells)} cells of {first}" in done.stdout
    for out in (second, third):
        assert json.loads((out / "dry-cpu" / "suite.json").read_text())["cells"] == cells
