"""A wheel has all files of the package, also those behind the links to its folders."""

import subprocess
import sys
import tarfile
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path("src", "gmi_drl")


@pytest.mark.slow
def test_a_wheel_has_every_file_of_the_package(tmp_path):
    pytest.importorskip("setuptools", "77")  # which pyproject.toml asks for
    # A copy, as a build leaves folders behind from which the next one would take removed files.
    tree, archive = tmp_path / "tree", tmp_path / "tree.tar"
    subprocess.run(["git", "archive", "-o", archive, "HEAD"], cwd=ROOT, check=True, timeout=60)
    with tarfile.open(archive) as files:
        files.extractall(tree, filter="data")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    subprocess.run(
        [*command, "--wheel-dir", tmp_path, tree],
        check=True, capture_output=True, timeout=250,
    )  # fmt: skip
    (wheel,) = tmp_path.glob("*.whl")
    with ZipFile(wheel) as files:
        packed = {name for name in files.namelist() if not name.split("/")[0].endswith("-info")}
    folders = {tree / PACKAGE: "gmi_drl"}
    folders |= {
        link.resolve(): f"gmi_drl/{link.name}"
        for link in (tree / PACKAGE).iterdir()
        if link.is_symlink()
    }
    assert packed == {
        f"{name}/{path.relative_to(folder)}"
        for folder, name in folders.items()
        for path in folder.rglob("*")
        if path.is_file()
    }
