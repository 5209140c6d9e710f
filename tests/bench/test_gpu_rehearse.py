"""The rehearsal of the half hour on a GPU node: its limits, and a short one that is real."""

import json
import lzma
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# scripts/test-versions makes it: Python 3.12 with the torch of the GPU node.
NODE = Path(os.environ.get("REHEARSAL_PYTHON", ROOT / ".venv-3.12" / "bin" / "python"))


@pytest.fixture
def rehearse(suite):
    from gpu import rehearse

    return rehearse


@pytest.fixture
def parts(tmp_path):
    folder = tmp_path / "pack"
    for number in (1, 2):
        (folder / f"part-{number}").mkdir(parents=True)
        (folder / f"part-{number}" / "data").write_bytes(bytes(1000))
    return folder


@pytest.fixture
def played(rehearse, monkeypatch, parts, tmp_path):
    """Rehearses with calls that only leave files: by the first word of a call, name and text."""
    monkeypatch.setattr(rehearse.report, "RESULTS", tmp_path)
    seen = []

    def play(files, codes=None):
        def run(node, command, out, step_s):
            words = command[2:]
            seen.append(words)
            for name, text in files.get(words[0], {}).items():
                path = out / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            kept = 3 if words == ["unpack", "1"] else 0
            return (codes or {}).get(words[0], kept), "its last words"

        monkeypatch.setattr(rehearse.Node, "_run", run)
        code = rehearse.main(["--parts", str(parts), "--node", sys.executable])
        kept = rehearse.report.rows_of(tmp_path / "gpu" / "rehearsal.json")["whole"]
        return code, kept

    play.seen = seen
    return play


def suite_file(*keys):
    return json.dumps({"cells": [{"key": key, "steps_per_s": 1.0} for key in keys]})


@pytest.mark.slow
def test_every_step_is_called_with_a_part_at_most_and_each_limit_is_told(rehearse, played):
    code, kept = played({"first": {"gpu/suite.json": suite_file("a")}})
    assert (code, kept["faults"]) == (0, [])
    steps = [word for words in played.seen for word in words if word not in ("unpack", "1", "2")]
    listed = subprocess.run(
        ["bash", str(ROOT / "bench/gpu/slot.sh"), "--list"], capture_output=True, check=True
    ).stdout.splitlines()
    assert steps == [s for line in listed if (s := json.loads(line)["step"]) != "unpack"]
    limits = {json.loads(line)["step"]: json.loads(line)["limit_s"] for line in listed}
    for words in played.seen:  # what goes into one command may take ten minutes
        assert sum(limits.get(word, 0) for word in words) <= rehearse.LIMITS["call_s"]
    # The machine is lost after `first`: its successor gets the parts again.
    assert [words[0] for words in played.seen].count("unpack") == 4
    assert kept["limits"].keys() == rehearse.LIMITS.keys()
    assert 1 < kept["limits"]["tree_mib"]["used"] <= 64


@pytest.mark.slow
def test_what_would_not_come_back_is_a_fault(played):
    code, kept = played(
        {
            "serving": {f"{i}.log": "" for i in range(9)},
            "first": {"a/b/c/d.json": "{}"},
            "headline": {"a b.log": ""},
            "num_env": {"big.log": "x" * (17 << 20)},
        }
    )
    assert code == 1
    for fault in (
        "files: 9.0; the limit is 8",
        "folders: 3.0; the limit is 2",
        "a b.log: a name may have",
        "file_mib: 17.0; the limit is 16",
    ):
        assert any(fault in one for one in kept["faults"]), (fault, kept["faults"])


@pytest.mark.slow
@pytest.mark.parametrize("keys", [("b",), ()])
def test_a_cell_that_is_lost_after_it_was_given_back_is_a_fault(played, keys):
    first, then = suite_file("a"), suite_file(*keys)
    code, kept = played({"first": {"gpu/suite.json": first}, "headline": {"gpu/suite.json": then}})
    assert code == 1
    assert "slot.sh headline: lost or run again: ['a']" in kept["faults"]


@pytest.mark.slow
def test_a_step_that_fails_is_a_fault_with_its_last_words(played):
    code, kept = played({}, codes={"num_env": 2})
    assert code == 1
    assert kept["faults"] == ["slot.sh num_env update ended with 2:\nits last words"]


def test_a_folder_without_parts_is_refused(rehearse, tmp_path, capsys):
    assert rehearse.main(["--parts", str(tmp_path)]) == 2
    assert "scripts/gpu-pack build" in capsys.readouterr().err


def bare(python, without, folder):
    """An environment with what `python` has, but not these packages, nor ours."""
    found = subprocess.run(
        [python, "-c", "import importlib.metadata as m, json, sysconfig, sys\n"
         "out = {f.parts[0] for n in sys.argv[1:] for f in m.distribution(n).files or ()}\n"
         "print(json.dumps([sysconfig.get_path('purelib'), sorted(out)]))", *without],
        capture_output=True, check=True, text=True,
    ).stdout  # fmt: skip
    site, left_out = json.loads(found)
    subprocess.run([python, "-m", "venv", "--without-pip", str(folder)], check=True)
    (target,) = folder.glob("lib/python*/site-packages")
    for entry in Path(site).iterdir():
        if entry.name not in left_out and "gmi_drl" not in entry.name:
            (target / entry.name).symlink_to(entry)
    return folder / "bin" / "python"


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_short_rehearsal_on_a_bare_node_without_a_network(rehearse, monkeypatch, tmp_path):
    """A pack without kernels, quickly compressed, and each step cut off early; else it is real."""
    if not NODE.exists():
        pytest.skip(f"{NODE} is not there: scripts/test-versions makes it, where it can")
    from gpu.pack import aot_kernels, builder

    quick = [{"id": lzma.FILTER_LZMA2, "preset": 0}]
    monkeypatch.setattr(builder, "_FILTERS", quick)
    order = builder.Order(
        out=tmp_path / "pack", part_mib=50, python="3.12", torch="2.11", envs=(),
        has=builder.HAS, target=aot_kernels.Target(90, "13.0"), jobs=1, source="",
    )  # fmt: skip
    parts = builder.build(order, print)
    packages = json.loads((parts[0] / "manifest.json").read_text())["packages"]
    node = bare(NODE, packages, tmp_path / "node")
    missing = subprocess.run([node, "-c", "import zmq"], capture_output=True, check=False)
    assert missing.returncode == 1, "the node is not bare"
    monkeypatch.setattr(rehearse.report, "RESULTS", tmp_path)
    code = rehearse.main(
        ["--short", "--step-s", "60", "--parts", str(tmp_path / "pack"), "--node", str(node)]
    )
    kept = rehearse.report.rows_of(tmp_path / "gpu" / "rehearsal.json")["short"]
    assert (code, kept["faults"]) == (0, [])
    assert kept["cells"] >= 2
    assert kept["node"]["torch"].startswith("2.11")
