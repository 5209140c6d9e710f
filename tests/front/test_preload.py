"""What the fork server imports for a run, and what that does not start."""

import os
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import yaml

import warp_cache  # noqa: F401
from gmi_drl import launch, runtime
from gmi_drl.cli import main
from gmi_drl.launcher.start import launcher
from gmi_drl.launcher.start.preload import PRELOAD, preload_of
from gmi_drl.placement import load_config

WARP = (*PRELOAD, "gmi_drl.roles.envs.warp.vec")
CONFIG = {"version": 1, "env": {"id": "BallBalance-v0", "adapter": "warp", "num_env": 2}}


class Asked(Exception):
    """In place of a fork server."""


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "run" / "config.yaml"
    (tmp_path / "run" / "checkpoints" / "last").mkdir(parents=True)
    file.write_text(yaml.safe_dump(CONFIG))
    return file


def test_a_config_that_names_the_adapter_has_it_imported(path):
    named = [path, str(path), path.parent, path.parent / "checkpoints" / "last", CONFIG]
    named += [load_config(path), ["run.seed=1", "env.adapter=warp"], "--set=env.adapter=warp"]
    for given in named:
        assert preload_of(given) == WARP
    assert preload_of(None, ["run.seed=1"], path) == WARP
    flow = path.with_name("flow.yaml")
    flow.write_text('{"version": 1, "env": {"adapter": "warp"}}')
    assert preload_of(flow) == WARP


def test_a_config_that_comes_through_a_pipe_is_left_to_its_reader(monkeypatch, path):
    receive, send = os.pipe()
    os.write(send, path.read_bytes())
    os.close(send)
    assert preload_of(f"/dev/fd/{receive}") == PRELOAD
    with open(receive) as file:
        assert file.read() == path.read_text()
    monkeypatch.chdir(path.parent)
    assert preload_of("launch", "other.yaml") == PRELOAD  # not what lies beside them


def test_any_other_has_not(path):
    other = CONFIG | {"env": CONFIG["env"] | {"adapter": "mujoco"}}
    path.write_text(yaml.safe_dump(other))
    for given in (path, path.parent, other, load_config(path), [], None, "env.adapter=auto", 3,
                  {"env": 3}, {}, path / "not there", Path("/proc/self/mem"), "\0"):  # fmt: skip
        assert preload_of(given) == PRELOAD


def test_launch_and_the_command_ask_for_what_the_config_names(monkeypatch, path):
    def asked(preload):
        raise Asked(preload)

    monkeypatch.setattr(launcher.runtime, "is_initialized", lambda: False)
    monkeypatch.setattr(launcher.runtime, "init", asked)
    for call in (
        lambda: launch(path),
        lambda: launch({}, overrides=iter(["env.adapter=warp"])),
        lambda: launch(resume=path.parent),
        lambda: main.main(["launch", str(path)]),
        lambda: main.main(["tune", "other.yaml", "--set", "env.adapter=warp"]),
    ):
        with pytest.raises(Asked) as caught:
            call()
        assert caught.value.args == (WARP,)


class Seen:
    def look(self):
        """What there is of warp in a process that has been forked and has not made anything."""
        modules = {name: name in sys.modules for name in ("warp", "mujoco_warp")}
        started = sys.modules["warp"]._src.context.runtime is not None
        mapped = Path("/proc/self/maps").read_text()
        return modules, started, "/warp.so" in mapped, "libcuda" in mapped


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_gmi_finds_warp_imported_and_not_started():
    if runtime.is_initialized():
        runtime.shutdown()
    runtime.init(preload_of(CONFIG))
    try:
        ready = runtime.preloaded(timedelta(minutes=2))
        assert ready.skipped == {}
        assert ready.num_threads == 1  # it can fork
        seen = runtime.get(runtime.remote(Seen).remote().look.remote(), timedelta(minutes=1))
    finally:
        runtime.shutdown()
    modules, started, loaded, cuda = seen
    assert modules == {"warp": True, "mujoco_warp": True}
    assert (started, loaded, cuda) == (False, False, False)
