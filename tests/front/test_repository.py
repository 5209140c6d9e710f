"""What the repository promises: its examples run, its pages match the code, its links lead on."""

import ast
import importlib.util
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from gmi_drl.gmi.backends.backend import BACKENDS, CORE_BACKENDS
from gmi_drl.launcher import paper_config
from gmi_drl.placement import Topology, check, config_of_host, layout_of, load_config, simplest
from gmi_drl.placement.checks import layout as layout_checks
from gmi_drl.placement.config.config import BackendName

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted(
    path for folder in ("", "hosts") for path in (ROOT / "examples" / folder).glob("*.yaml")
)
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_can_run_on_two_cores(path):
    from gmi_drl.roles.envs import check_env

    config = load_config(path)
    if config.env.adapter == "pettingzoo":
        pytest.importorskip(config.env.id.partition(".")[0])
    topology = Topology.from_cores([0, 1], config.hardware.num_gpus or 1)
    for host in range(config.hosts):
        assert check(config_of_host(config, host), topology) == []
    assert check_env(config.env.id, config.env.adapter, config.env.options) == []
    assert layout_of(simplest(config), topology).gmis


def test_the_configuration_page_matches_the_schema():
    script = ROOT / "scripts" / "gen-config-docs"
    subprocess.run([sys.executable, script, "--check"], check=True, timeout=50)


def test_yaml_in_the_pages_is_valid():
    checked = 0
    for page in PAGES:
        for block in re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL):
            import yaml

            data = yaml.safe_load(block)
            if "version" in data:
                load_config(data)
                checked += 1
    assert checked >= 2


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


_OF_TODAY = [page for page in PAGES if page.name != "CHANGELOG.md"]  # that names what there was


def is_there(name):
    """Tells whether something of ours can be imported by this name, perhaps where Ray is."""
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        above = name.rpartition(".")[0]
        return is_package(above) and importlib.util.find_spec(name) is not None
    return True


def is_package(name):
    """Tells whether a package can be imported by this name."""
    try:
        return hasattr(importlib.import_module(name), "__path__")
    except ImportError:
        return False


@pytest.mark.parametrize("page", _OF_TODAY, ids=lambda path: path.name)
def test_names_on_the_pages_can_be_imported(page):
    text = page.read_text()
    names = set(re.findall(r"\bgmi_drl(?:\.\w+)+", text))
    for module, imported in re.findall(r"^ *from (gmi_drl[\w.]*) import ([\w, ]+)", text, re.M):
        names |= {f"{module}.{name.split()[0]}" for name in imported.split(",")}
    for module, name in re.findall(r"\b(gmi_drl[\w.]*):([A-Z]\w*)", text):
        names.add(f"{module}.{name}")
    gone = [name for name in sorted(names) if not is_there(name)]
    assert not gone, f"{page.name} names {', '.join(gone)}"


@pytest.mark.parametrize(
    "name", ["train", "test", "test-versions", "check", "gen-config-docs", "../.ci/run"]
)
def test_scripts_can_be_run(name):
    assert os.access(ROOT / "scripts" / name, os.X_OK)


def test_what_benchmarks_and_examples_import_of_us_exists():
    gone = [
        f"{path.relative_to(ROOT)}: {node.module}.{name.name}"
        for folder in ("bench", "examples")
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "gmi_drl"
        for name in node.names
        if not is_there(f"{node.module}.{name.name}")
    ]
    assert not gone


def test_every_package_is_a_link_to_its_folder_at_the_top():
    links = {path.name: os.readlink(path) for path in (ROOT / "src" / "gmi_drl").iterdir()
             if path.is_symlink()}  # fmt: skip
    folders = ["comm", "gmi", "placement", "roles", "runtime", "selector"]
    assert links == {name: f"../../{name}" for name in folders}


def test_no_package_is_imported_by_a_second_name():
    code = (
        "import sys, gmi_drl.launcher.start.launcher, gmi_drl.roles.role.trainer\n"
        "import gmi_drl.roles.envs\n"
        "packages = {'comm', 'gmi', 'placement', 'roles', 'runtime', 'selector'}\n"
        "assert not packages & {name.partition('.')[0] for name in sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=50)


def test_no_two_classes_have_one_name():
    where = {}
    for package in (ROOT / "src" / "gmi_drl").iterdir():
        for path in [package] if package.is_file() else package.rglob("*.py"):
            for node in ast.parse(path.read_text()).body if path.suffix == ".py" else ():
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    where.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert len(where) > 500
    assert {name: paths for name, paths in where.items() if len(paths) > 1} == {}


_LEFT_OF = {  # who may import whom
    "runtime": set(),
    "placement": set(),
    "gmi": {"runtime", "placement"},
    "comm": {"runtime", "placement", "gmi"},
    "roles": {"runtime", "placement", "gmi", "comm"},
    "launcher": {"runtime", "placement", "gmi", "comm", "roles"},
    "selector": {"runtime", "placement", "gmi", "comm", "roles", "launcher"},
    "report": {"runtime", "placement", "gmi", "comm", "roles", "launcher", "selector"},
    "page": {"runtime", "placement", "gmi", "comm", "roles", "launcher", "selector", "report"},
}


@pytest.mark.parametrize("package", _LEFT_OF)
def test_imports_point_left_only(package):
    allowed = _LEFT_OF[package] | {package}
    for path in sorted((ROOT / "src" / "gmi_drl" / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = (
                [node.module or ""]
                if isinstance(node, ast.ImportFrom) and not node.level
                else [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else []
            )
            for name in names:
                top, _, rest = name.partition(".")
                home = rest.partition(".")[0]
                if top == "gmi_drl" and home not in ("", "errors", "lazy"):
                    assert home in allowed, f"{path}:{node.lineno} imports {name}"


def test_every_backend_is_in_every_table_of_them():
    known = get_args(BackendName)
    assert set(known) == set(BACKENDS) == set(layout_checks._SHARES)
    assert set(layout_checks._ON_CORES) == set(CORE_BACKENDS)
    assert set(paper_config._BACKENDS) == {"auto", *known}
