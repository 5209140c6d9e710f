"""MJX environments, on JAX's CPU device: physics against MuJoCo's in C, episodes, saved state, and
what cannot be. The bodies run in processes of their own: see bodies_mjx.py."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

import bodies_mjx
import gmi_drl
from bodies_mjx import apart
from gmi_drl import runtime
from gmi_drl.launcher.start.preload import PRELOAD
from gmi_drl.placement import EnvConfig
from gmi_drl.roles.envs import EnvSpecError, check_env, make_env
from gmi_drl.roles.envs.adapters import ADAPTERS, MJX_IDS
from gmi_drl.roles.envs.on_device.tasks import DEVICE_TASKS
from gmi_drl.trained.exporting import export_policy

# A few times the largest differences seen: of observations, of rewards.
STEP = {"Humanoid-v5": (4e-3, 2e-5)}
pytestmark = pytest.mark.timeout(300)  # compiling, on a busy machine


@pytest.mark.slow
def test_a_batch_steps_as_mujoco_does_and_goes_on_from_saved_state(tmp_path):
    apart(bodies_mjx.a_cart, str(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("env_id", sorted(STEP))
def test_every_step_from_the_state_of_c_equals_its(env_id, tmp_path):
    apart(bodies_mjx.parity, env_id, str(tmp_path), *STEP[env_id])


@pytest.mark.slow
def test_models_and_devices_that_cannot_be_are_refused(tmp_path):
    apart(bodies_mjx.refusals, str(tmp_path))


@pytest.mark.gpu
def test_a_gpu_steps_as_the_cpu_does(tmp_path):
    if not any(importlib.util.find_spec(f"jax_cuda{major}_plugin") for major in (12, 13)):
        pytest.skip("JAX has no CUDA here")
    apart(bodies_mjx.on_a_gpu, str(tmp_path))


@pytest.mark.parametrize(
    ("env_id", "options", "words"),
    [
        ("Hopper-v5", {}, ["adapter mjx has Ant-v5, BallBalance-v0"]),
        ("Ant-v5", {"on_unstable": "raise"}, ["terminate with adapter mjx", "adapter: mujoco"]),
        ("Ant-v5", {"njmax": 9}, ["'njmax' is an option of adapter warp"]),
    ],
)
def test_faults_name_the_value_the_rule_and_the_remedy(env_id, options, words):
    (fault,) = check_env(env_id, "mjx", options)
    for word in words:
        assert word in fault
    with pytest.raises(EnvSpecError):
        make_env(env_id, 1, adapter="mjx", options=options)


def test_missing_packages_name_the_extra(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    faults = check_env("Ant-v5", "mjx")
    assert len(faults) == 3
    assert all("pip install -e '.[mjx]' in the clone" in fault for fault in faults)


@pytest.mark.slow
def test_a_setting_of_jax_that_leaves_no_cpu_is_told():
    code = "from gmi_drl.roles.envs import make_env; make_env('BallBalance-v0', 1, adapter='mjx')"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"JAX_PLATFORMS": "cuda"},
        capture_output=True, text=True, check=False, timeout=50,
    )  # fmt: skip
    last = done.stderr.splitlines()[-1]
    assert "EnvSpecError: env.adapter=mjx on cpu: JAX does not have that device" in last
    assert "Leave JAX_PLATFORMS unset" in last


def test_the_config_and_the_tasks_know_the_same():
    assert EnvConfig.model_json_schema()["properties"]["adapter"]["enum"] == ["auto", *ADAPTERS]
    assert set(MJX_IDS) <= set(DEVICE_TASKS)


@pytest.mark.slow
def test_two_gmis_train_a_policy_that_is_evaluated_and_exported(tmp_path, monkeypatch):
    """JAX starts in the GMIs, each on its core; not in what they are forked from."""
    monkeypatch.setenv("XLA_FLAGS", bodies_mjx.QUICK)
    model = tmp_path / "cart.xml"
    model.write_text(bodies_mjx.CART)
    config = {
        "version": 1,
        "run": {
            "name": "t",
            "folder": str(tmp_path / "runs"),
            "total_steps": 3 * 2 * 3 * 16,
            "eval_episodes": 0,  # a batch of another size, to be compiled
        },
        "env": {
            "id": "HalfCheetah-v5",
            "adapter": "mjx",
            "num_env": 3,
            "options": {"xml_file": str(model)},
        },
        "layout": {"gmi_per_gpu": 2},
        "algorithm": {"network": [16], "horizon": 16, "minibatches": 2, "epochs": 1},
    }
    runtime.init(PRELOAD)
    try:
        result = gmi_drl.launch(config, view="none")
    finally:
        runtime.shutdown()
    lines = (result.folder / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert len(records) == 3
    logs = [path.read_text() for path in (result.folder / "logs").iterdir()]
    assert len(logs) == 2
    assert "os.fork" not in "".join(logs)
    short = ["env.max_episode_steps=20"]
    found = gmi_drl.evaluate(result.folder, episodes=3, seed=0, overrides=short)
    assert found.lengths == (20, 20, 20)
    assert set(found.returns) != {0.0}
    policy = gmi_drl.load_policy(result.folder)
    assert "bit for bit" in export_policy(policy, "pt2", tmp_path / "policy.pt2")
