"""Choosing an adapter, refusing what cannot be, and Gymnasium's own checker over all we ship."""

import pickle
import subprocess
import sys
from types import ModuleType

import gymnasium
import pytest

from gmi_drl.roles.envs import EnvSpecError, check_env, choose_adapter, make_env
from gmi_drl.roles.envs.errors import UnstableSimulation
from gmi_drl.roles.envs.protocol import VecEnv


@pytest.mark.parametrize(
    ("env_id", "adapter"),
    [
        ("Ant-v5", "mujoco"),
        ("Ant-v4", "gymnasium"),
        ("CartPole-v1", "torch"),
        ("BallBalance-v0", "torch"),
        ("MountainCar-v0", "gymnasium"),
    ],
)
def test_auto_takes_the_fastest_adapter_that_has_the_environment(env_id, adapter):
    assert choose_adapter(env_id) == adapter
    assert not check_env(env_id)


@pytest.mark.parametrize(
    ("adapter", "env_id"), [("gymnasium", "CartPole-v1"), ("mujoco", "Hopper-v5")]
)
def test_an_adapter_asked_for_is_taken(adapter, env_id):
    env = make_env(env_id, 2, adapter=adapter)
    assert type(env).__name__.lower().startswith(adapter)
    assert isinstance(env, VecEnv)
    env.close()


@pytest.mark.parametrize(
    ("env_id", "how", "words"),
    [
        ("Ant-v6", {}, ["'Ant-v6' is not a registered", "Ant-v5"]),
        (
            "Antt-v5",
            {"adapter": "mujoco"},
            ["adapter mujoco has Ant-v5, Barkour-v0", "Close: Ant-v5"],
        ),
        ("Ant-v5", {"adapter": "torch"}, ["adapter torch has BallBalance-v0, CartPole-v1"]),
        ("ShadowHand-v0", {"adapter": "mjx"}, ["Ant-v5, Ball", "Use adapter: mujoco or warp,"]),
        ("Barkour-v0", {"adapter": "gymnasium"}, ["Use adapter: mujoco or warp or mjx,"]),
        ("MountainCar-v0", {"adapter": "warp"}, ["Use adapter: gymnasium, or another id"]),
        ("Ant-v5", {"adapter": "mujoco", "options": {"capture": False}}, ["or use adapter: warp"]),
        ("BallBalance-v0", {"options": {"njmax": 9}}, ["'njmax' is an option of adapter warp"]),
        ("Ant-v5", {"adapter": "brax"}, ["env.adapter='brax'", "known: auto, mujoco"]),
        ("Ant-v5", {"options": {"healty_reward": 1}}, ["'healty_reward'", "healthy_reward?"]),
        ("Ant-v5", {"options": {"frame_skip": 0}}, ["frame_skip=0; must be at least 1"]),
        ("Ant-v5", {"options": {"frame_skip": 2.5}}, ["must be a whole number"]),
        ("Ant-v5", {"options": {"healthy_z_range": [1]}}, ["two numbers, [low, high]"]),
        ("Ant-v5", {"options": {"main_body": True}}, ["a whole number or a text"]),
        ("Ant-v5", {"options": {"render_mode": "human"}}, ["rendering", "adapter: gymnasium"]),
        ("Ant-v5", {"options": {"on_unstable": "pray"}}, ["must be terminate or raise"]),
        ("MountainCar-v0", {"options": {"vectorization": "gpu"}}, ["must be sync or async"]),
        ("MountainCar-v0", {"options": {"wind": 1}}, ["unknown option 'wind'", "goal_velocity"]),
        ("no_such_module_x:Env-v0", {}, ["module no_such_module_x does not import"]),
    ],
)
def test_faults_name_the_value_the_rule_and_the_known(env_id, how, words):
    faults = check_env(env_id, how.get("adapter", "auto"), how.get("options"))
    assert len(faults) == 1
    for word in words:
        assert word in faults[0]
    with pytest.raises(EnvSpecError) as caught:
        make_env(env_id, 1, **how)
    assert caught.value.faults == faults


def test_all_faults_come_at_once():
    with pytest.raises(EnvSpecError) as caught:
        make_env("Ant-v5", 0, options={"a": 1, "frame_skip": "x"}, threads=0, max_episode_steps=0)
    assert len(caught.value.faults) == 5
    assert "env.num_env=0; must be at least 1" in str(caught.value)


def test_missing_mujoco_names_the_extra(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install -e '.[mujoco]' in the clone" in check_env("Ant-v5")[0]


def test_checking_imports_neither_torch_nor_a_simulator():
    code = (
        "import sys; from gmi_drl.roles.envs import check_env;"
        "assert not check_env('CartPole-v1'); assert check_env('Ant-v6');"
        "assert not {'torch', 'mujoco'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=50)


def test_errors_survive_a_trip_between_processes():
    for error in (EnvSpecError("a", "b"), UnstableSimulation("Ant-v5", 3, 7, "bad qacc")):
        again = pickle.loads(pickle.dumps(error))
        assert str(again) == str(error)
        assert vars(again) == vars(error)


@pytest.mark.parametrize(
    ("env_id", "told"),
    [
        ("Ant-v6", "Close: Ant-v5"),
        ("Amt-v5", "Close: Ant-v5"),
        ("cartpole", "Close: CartPole-v1"),
        ("HalfCheeta-v5", "Close: HalfCheetah-v5"),
        ("Foo/Bar-v0", "Nothing has registered the namespace Foo: install the package that does"),
        ("Zork-v1", "not a registered environment. Write module:Id"),
        ("bodies_agents:Meadow", "bodies_agents has Meadow, and has not registered it: have it"),
        ("toy.agents", "a module of several agents: set env.adapter: pettingzoo"),
    ],
)
def test_an_unknown_id_is_guessed_at_only_where_it_is_near(env_id, told, monkeypatch):
    monkeypatch.setitem(sys.modules, "toy", ModuleType("toy"))
    monkeypatch.setitem(sys.modules, "toy.agents", ModuleType("toy.agents"))
    sys.modules["toy.agents"].parallel_env = dict
    (fault,) = check_env(env_id)
    assert told in fault
    assert ("Close:" in fault) == told.startswith("Close:")


def test_a_module_that_raises_is_a_fault(tmp_path, monkeypatch):
    (tmp_path / "raises_at_import.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    (fault,) = check_env("raises_at_import:X-v0")
    assert "module raises_at_import does not import (ZeroDivisionError: " in fault


@pytest.mark.parametrize(
    ("entry_point", "told"),
    [
        ("math:pi", "'Odd-v0': its entry point is of type float; must be a class or function that"),
        (3, "its entry point is of type int; must be"),
        ("json:nothing", "cannot be loaded: module 'json' has no attribute 'nothing'"),
        ("nowhere:Env", "cannot be loaded: No module named 'nowhere'"),
        ("builtins:max", None),  # which does not tell its parameters
    ],
)
def test_an_entry_point_that_makes_no_environment_is_a_fault(entry_point, told, monkeypatch):
    entry = gymnasium.envs.registration.EnvSpec("Odd-v0", entry_point=entry_point)
    monkeypatch.setitem(gymnasium.registry, "Odd-v0", entry)
    faults = check_env("Odd-v0")
    assert [told in fault for fault in faults] == ([True] if told else [])
