"""What lies beside a config file is found first, by the launcher, GMIs and the sizer alike."""

import importlib
import sys
from types import SimpleNamespace

import pytest

from gmi_drl.launcher.plan.planning import _with_path, numel_of
from gmi_drl.placement import Topology, load_config, tcg_ex
from gmi_drl.roles.loading import importable
from gmi_drl.roles.role.host import GmiHost

NAME = "found_by_several"


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Two that have a module of one name, the second of them on the path already."""
    for name in ("beside", "installed"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{NAME}.py").write_text(
            f"from gmi_drl.roles import Holistic\nwhere = {name!r}\n"
        )
    path = [str(tmp_path / "installed"), *sys.path]
    monkeypatch.setattr(sys, "path", path)
    yield tmp_path
    sys.modules.pop(NAME, None)


def found():
    sys.modules.pop(NAME, None)
    return importlib.import_module(NAME).where


def test_a_launcher_finds_it_first_and_then_no_more(folders):
    with importable(folders / "beside"):
        assert found() == "beside"
    assert found() == "installed"


def test_a_gmi_finds_it_first(folders):
    role = f"{NAME}:Holistic"
    job = SimpleNamespace(role_folder=folders / "beside", class_of=lambda _: role, lock=None)
    GmiHost(0, job)
    assert found() == "beside"


def test_who_asks_for_the_size_finds_it_first(folders):
    config = load_config({"version": 1, "env": {"id": "CartPole-v1"}})
    layout, path = tcg_ex(Topology.from_cores([0]), 1, 1), [str(folders / "beside"), *sys.path]
    _with_path(path, numel_of, config, layout, f"{NAME}:Holistic")
    assert found() == "beside"
