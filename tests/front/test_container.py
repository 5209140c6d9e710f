"""The container's description names what is there; where Docker is, it is built and tried."""

import re
import shutil
import subprocess
import tomllib
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
