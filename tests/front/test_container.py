"""The container's description names what is there; where Docker is, it is built and tried."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "Dockerfile").read_text()


def test_what_it_installs_is_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = set(re.findall(r"/opt/gmi-drl\[([a-z,]+)\]", TEXT))
    extras = {extra for group in named for extra in group.split(",")}
    assert extras >= {"mujoco", "cuda"}
    assert extras <= set(project["optional-dependencies"])
    assert (entry := re.search(r'ENTRYPOINT \["([^"]+)"\]', TEXT)) is not None
    assert entry[1] in project["scripts"]
    setup = (ROOT / "scripts" / "_setup.sh").read_text()
    assert re.search(r"ARG TORCH=(\S+)", TEXT)[1] in setup  # the version that is tested


def test_nobody_is_root_and_every_stage_begins_from_one_that_is_there():
    stages = re.findall(r"^FROM (\S+)(?: AS (\S+))?", TEXT, re.M)
    known = set()
    for base, name in stages:
        assert base in known or ":" in base  # an image is pinned to a version
        known.add(name)
    for stage in re.split(r"^FROM .*$", TEXT, flags=re.M)[1:]:
        users = re.findall(r"^USER (\S+)", stage, re.M)
        assert users in ([], ["trainer"], ["root", "trainer"])


KNOWN = {"FROM", "ARG", "RUN", "ENV", "COPY", "USER", "WORKDIR", "ENTRYPOINT", "CMD"}


def instructions():
    """The name and the text of each instruction, without comments and line ends."""
    lines = re.sub(r"(?m)^#.*\n", "", TEXT).replace("\\\n", " ")
    return [tuple(line.split(None, 1)) for line in lines.splitlines() if line.strip()]


def test_its_instructions_are_ones_that_docker_and_the_shell_take():
    for name, text in instructions():
        assert name in KNOWN, name
        if name in ("ENTRYPOINT", "CMD"):
            assert all(isinstance(word, str) for word in json.loads(text))  # run without a shell
        elif name == "ENV":
            assert all(re.fullmatch(r"[A-Z_]+=\S+", word) for word in shlex.split(text)), text
        elif name == "COPY":
            *sources, target = text.split()
            assert all((ROOT / source).exists() for source in sources)
            assert target.startswith("/")
        elif name == "RUN":
            subprocess.run(["sh", "-n", "-c", text], check=True)
            assert {words.split()[0] for words in text.split(" && ")} <= {
                "apt-get", "rm", "pip", "useradd", "mkdir", "chown",
            }  # fmt: skip
            if "apt-get install" in text:  # nothing is asked, kept or taken along
                assert "apt-get update" in text
                assert {"--yes", "--no-install-recommends"} <= set(text.split())
                assert "rm -rf /var/lib/apt/lists/*" in text
            used = set(re.findall(r"\$\{?(\w+)", text))
            assert used <= set(re.findall(r"(?m)^ARG (\w+)", TEXT))
    last = [text for name, text in instructions() if name == "FROM"][-1]
    assert last == "cpu"  # what is built where no target is named


def test_its_entry_point_answers_as_the_container_would_call_it():
    (entry,) = [json.loads(text) for name, text in instructions() if name == "ENTRYPOINT"]
    (words,) = [json.loads(text) for name, text in instructions() if name == "CMD"]
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, function = scripts[entry[0]].partition(":")
    code = f"import sys; from {module} import {function}; sys.exit({function}(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, cwd="/", timeout=50,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "launch" in done.stdout


def test_what_is_copied_is_what_is_installed():
    """The checkout's own environment and runs stay out of it, and no package does."""
    patterns = (ROOT / ".dockerignore").read_text().split()
    for name in (".git", ".venv", "build", "runs"):
        assert any(fnmatch(name, pattern) for pattern in patterns)
    for name in ("src", *(link.name for link in (ROOT / "src" / "gmi_drl").glob("[!_]*"))):
        assert not any(fnmatch(name, pattern) for pattern in patterns)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_it_is_built_and_runs():
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "info"], capture_output=True).returncode:
        pytest.skip("no Docker daemon answers")
    tag = "gmi-drl:test"
    subprocess.run([docker, "build", "-t", tag, ROOT], check=True)
    done = subprocess.run(
        [docker, "run", "--rm", tag, "--version"], check=True, capture_output=True, text=True
    )
    assert done.stdout.startswith("gmi-drl ")
