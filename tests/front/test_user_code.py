"""`check` and `launch` on environments that cannot be trained on: the child, and what is told."""

import shutil
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
import torch

import bodies_spaces
from gmi_drl import launch
from gmi_drl.cli import main
from gmi_drl.launcher.plan import user_code
from gmi_drl.launcher.plan.child_process import ChildFailed, ask
from gmi_drl.launcher.plan.user_code import try_user_code
from gmi_drl.placement import ConfigError, PPOConfig, load_config
from gmi_drl.roles.algorithms import with_settings
from gmi_drl.roles.envs import make_env
from gmi_drl.roles.policies.description import described
from gmi_drl.roles.policies.networks import actor_critic_of
from gmi_drl.roles.policies.normalize import Normalizers
from gmi_drl.roles.state import checkpoint
from waits import until

OWN = Path(bodies_spaces.__file__)


def config_of(name, **sections):
    env = {"id": f"bodies_spaces:{name}-v0", "num_env": 2}
    return load_config({"version": 1, "env": env, **sections})


def test_check_makes_the_environment_that_lies_beside_the_config(tmp_path, capsys):
    shutil.copy(OWN, tmp_path / "own.py")
    path = tmp_path / "c.yaml"
    path.write_text('version: 1\nenv: {id: "own:ShowsOneOf-v0", num_env: 2}\n')
    assert main.main(["check", str(path)]) == 1
    told = capsys.readouterr().err
    assert "env own:ShowsOneOf-v0: observation space OneOf(" in told
    assert "gymnasium.wrappers.FlattenObservation" in told


def test_sizes_are_those_of_the_environment():
    tried = try_user_code(load_config({"version": 1, "env": {"id": "CartPole-v1"}}), OWN.parent)
    assert (tried.faults, tried.notes) == ([], [])
    sizes = tried.sizes
    assert (sizes.observation, sizes.action, sizes.parameters) == (4, 1, 2)


def test_a_config_may_be_longer_than_a_command_line():
    words = "a b " + 400_000 * "c"
    env = {"id": "bodies_spaces:Told-v0", "num_env": 2, "options": {"text": words}}
    tried = try_user_code(load_config({"version": 1, "env": env}), OWN.parent)
    assert (tried.faults, tried.sizes.observation) == ([], 3)


def test_an_environment_that_ends_its_process_is_told_how():
    (fault,) = try_user_code(config_of("BrokenDies"), OWN.parent).faults
    assert "it was killed by SIGSEGV" in fault


@pytest.mark.slow
def test_one_that_hangs_is_ended_with_all_that_it_has_started(tmp_path, monkeypatch):
    told = tmp_path / "told"
    monkeypatch.setenv("HANGS_TOLD", str(told))
    deadline = timedelta(seconds=3)
    while not told.exists():  # a busy machine takes longer to come that far
        (fault,) = try_user_code(config_of("BrokenHangs"), OWN.parent, deadline).faults
        assert f"it has not ended after {deadline.total_seconds():g} s" in fault
        deadline *= 2
        assert deadline < timedelta(minutes=4)
    pids = [int(pid) for pid in told.read_text().split()]
    assert len(pids) == 2
    assert not [pid for pid in pids if psutil.pid_exists(pid)]


@pytest.mark.parametrize(
    "name", ["CloseRaises", pytest.param("CloseHangs", marks=pytest.mark.slow)]
)
def test_a_close_that_fails_is_no_fault_as_it_fails_no_run(name):
    tried = try_user_code(config_of(name), OWN.parent)
    assert tried.faults == []
    assert tried.sizes is not None


def test_nothing_is_left_when_who_asks_is_killed(tmp_path, monkeypatch):
    told = tmp_path / "told"
    monkeypatch.setenv("HANGS_TOLD", str(told))
    asks = (
        "from pathlib import Path; from gmi_drl.launcher.plan.user_code import try_user_code\n"
        "from gmi_drl.placement import load_config\n"
        "env = {'id': 'bodies_spaces:BrokenHangs-v0'}\n"
        f"try_user_code(load_config({{'version': 1, 'env': env}}), Path({str(OWN.parent)!r}))"
    )
    with subprocess.Popen([sys.executable, "-c", asks]) as asking:
        until(lambda: told.exists() and len(told.read_text().split()) == 2, "it hangs", 55.0)
        asking.kill()
    pids = [int(pid) for pid in told.read_text().split()]
    until(lambda: not any(psutil.pid_exists(pid) for pid in pids), "all are gone")


def test_a_child_that_raises_says_so_in_its_last_line():
    with pytest.raises(ChildFailed, match=r"it exited with code 1: ModuleNotFoundError: .*nowhere"):
        ask("nowhere", "answer", [], timedelta(seconds=60))


def test_environments_of_a_role_of_ones_own_are_not_looked_at(tmp_path):
    text = "import gmi_drl\nclass Own(gmi_drl.Holistic):\n    def make_env(self, *given): ...\n"
    (tmp_path / "own_role.py").write_text(text)
    config = config_of("ShowsDict", roles={"trainer": "own_role:Own"})
    found = user_code.try_here(config.model_dump(mode="json"), str(tmp_path))
    assert found == {"notes": ["environments are made by Own, and were not looked at"]}


def test_an_algorithm_that_cannot_act_in_the_action_space_is_a_fault():
    given = {"version": 1, "env": {"id": "Pendulum-v1"}, "algorithm": {"name": "dqn"}}
    (fault,) = user_code.try_here(load_config(given).model_dump(mode="json"), "")["faults"]
    assert fault.startswith("env.id: action space Box(")
    assert "dqn takes Discrete" in fault


def test_more_memory_than_there_is_is_a_fault_of_check_and_of_launch(tmp_path, capsys):
    path = tmp_path / "c.yaml"
    path.write_text(
        "version: 1\nenv: {id: CartPole-v1, num_env: 1_000_000}\n"
        "algorithm: {horizon: 1_000_000, minibatches: 1000}\n"
    )
    assert main.main(["check", str(path)]) == 1
    told = capsys.readouterr().err
    assert "env.num_env=1000000; a GMI needs " in told
    assert "with observations of 4 and actions of 1" in told
    with pytest.raises(ConfigError, match=r"env\.num_env=1000000; a GMI needs "):
        launch(path, view="none")


def test_a_network_of_ten_to_the_ten_is_a_fault_also_where_num_env_is_auto(tmp_path, capsys):
    path = tmp_path / "c.yaml"
    path.write_text(
        "version: 1\nenv: {id: CartPole-v1, num_env: auto}\n"
        "algorithm: {network: [100_000, 100_000]}\n"
    )
    assert main.main(["check", str(path)]) == 1
    assert "algorithm.network=(100000, 100000); a GMI needs " in capsys.readouterr().err


def saved_policy(folder, **settings):
    """A checkpoint of a policy for CartPole, as a run with these settings writes it."""
    config = PPOConfig(**{"network": [8], **settings})
    env = make_env("CartPole-v1", 1)
    policy, normalizers = actor_critic_of(config, env), Normalizers.of(config, 4)
    env.close()
    parameters = [p.detach().flatten() for _, p in sorted(policy.named_parameters())]
    seen = normalizers.observations
    shared = {"parameters": torch.cat(parameters)}
    checkpoint.begin(folder, 1)
    checkpoint.write_part(
        folder, 1, "shared",
        shared | ({"observation_normalizer": seen.state_dict()} if seen is not None else {}),
    )  # fmt: skip
    manifest = {"environment": "CartPole-v1", "algorithm": "ppo"}
    return checkpoint.commit(folder, 1, manifest | {"policy": described(policy, env, normalizers)})


def serving(folder, **env):
    return load_config(
        {
            "version": 1,
            "mode": "serving",
            "env": {"id": "CartPole-v1", **env},
            "algorithm": {"network": [8]},
            "run": {"policy": str(folder)},
        }
    )


@pytest.mark.parametrize(
    ("settings", "env", "said"),
    [
        ({"activation": "tanh"}, {}, "activation: checkpoint tanh; config elu"),
        ({"network": [16]}, {}, "network: checkpoint [16]; config [8]"),
        ({}, {"id": "Pendulum-v1"}, "action space: checkpoint Discrete(2) from 0; config Box[1]"),
    ],
)
def test_a_policy_that_cannot_be_served_is_a_fault_in_the_words_of_launch(
    tmp_path, settings, env, said
):
    folder = saved_policy(tmp_path, **settings)
    tried = try_user_code(serving(folder, **env), OWN.parent)
    (fault,) = tried.faults
    assert f"{folder} (of ppo CartPole-v1) holds another policy than this config makes:" in fault
    assert said in fault
    assert f"gmi-drl launch {folder} --set mode=serving takes them." in fault
    assert tried.sizes is not None


@pytest.mark.slow
def test_the_policy_of_this_config_is_no_fault_and_a_torn_one_is(tmp_path):
    folder = saved_policy(tmp_path)
    tried = try_user_code(serving(folder), OWN.parent)
    assert (tried.faults, tried.notes) == ([], [])
    (folder / "shared.pt").unlink()
    assert try_user_code(serving(folder), OWN.parent).faults == [
        f"{folder} is torn: shared.pt is missing."
    ]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("ShowsGraph", "observation space Graph(Box(-1.0, 1.0, (2,), float32), None); must be "),
        ("TakesText", "action space Text(1, 5, charset="),
        ("BrokenInStep", "its step raised RuntimeError: no licence file ("),
    ],
)
def test_launch_tells_a_refusal_before_it_starts_anything(warm, tmp_path, monkeypatch, name, said):
    monkeypatch.chdir(tmp_path)
    config = config_of(name, algorithm={"network": [8]}, run={"folder": str(tmp_path)})
    with pytest.raises(ConfigError) as refused:
        launch(config, view="none", import_path=OWN.parent)
    (fault,) = refused.value.faults
    assert said in str(fault)
    assert not list(tmp_path.glob("run/*"))


WRONG = """
import gymnasium
from torch import nn
from gmi_drl.roles.envs import EnvWrapper
class NoModule:
    features = 3
    def __init__(self, space): pass
class Narrow(nn.Module):
    features = 3
    def __init__(self, space):
        super().__init__()
        self.layer = nn.Linear(4, 2)
    def forward(self, observation): return self.layer(observation)
class Raises(Narrow):
    def forward(self, observation): raise OSError("no weights")
class Made(gymnasium.Wrapper):
    def __init__(self, env): raise OSError("no display")
class Begun(gymnasium.Wrapper):
    def reset(self, **how): raise OSError("no track")
class Stepped(EnvWrapper):
    def step(self, action): raise OSError("no wind")
class Halved(EnvWrapper):
    def observe(self, observation): return observation[:, :2]
"""


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"algorithm": {"network": "wrong:Absent"}}, "wrong has no Absent"),
        ({"algorithm": {"network": "wrong:NoModule"}}, "torch.nn.Module"),
        ({"algorithm": {"network": "wrong:Narrow"}}, "forward gave [2, 2]"),
        ({"algorithm": {"network": "wrong:Raises"}}, "forward raised OSError"),
        ({"env": {"wrappers": ["wrong:Made"]}}, "OSError: no display"),
        ({"env": {"wrappers": ["wrong:Begun"]}}, "OSError: no track"),
        ({"env": {"wrappers": ["wrong:Stepped"]}}, "OSError: no wind"),
        ({"env": {"wrappers": ["wrong:Halved"]}}, "of shape [2, 2]; must be of shape [2, 4]"),
        ({"env": {"wrappers": [{"wrong:Made": {"speed": 3}}]}}, "speed"),
    ],
)
def test_launch_tries_networks_and_wrappers_before_it_starts_anything(
    warm, tmp_path, monkeypatch, changes, said
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wrong.py").write_text(WRONG)
    config = {
        "version": 1, "env": {"id": "CartPole-v1", "adapter": "gymnasium", "num_env": 2},
        "algorithm": {"horizon": 4}, "hardware": {"backend": "cpu", "num_gpus": 1},
        "run": {"folder": str(tmp_path), "total_steps": 16},
    }  # fmt: skip
    config |= {name: config[name] | its for name, its in changes.items()}
    with pytest.raises(ConfigError) as refused:
        launch(config, view="none", import_path=tmp_path)
    assert said in str(refused.value)
    assert not list(tmp_path.glob("run/*"))


def test_a_resumed_run_is_tried_as_well(warm, tmp_path):
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "mine.py").write_text("import gymnasium\nclass Made(gymnasium.Wrapper): pass\n")
    config = {
        "version": 1,
        "env": {
            "id": "CartPole-v1", "adapter": "gymnasium", "wrappers": ["mine:Made"], "num_env": 2
        },
        "algorithm": {"horizon": 4}, "hardware": {"backend": "cpu", "num_gpus": 1},
        "run": {"folder": str(tmp_path), "total_steps": 16, "eval_episodes": 0},
    }  # fmt: skip
    result = launch(config, view="none", import_path=folder)
    (folder / "mine.py").write_text(WRONG)
    before = (result.folder / "config.yaml").read_text()
    with pytest.raises(ConfigError, match="OSError: no display"):
        launch(resume=result.folder, overrides=["run.total_steps=64"], view="none")
    assert (result.folder / "config.yaml").read_text() == before


ALGORITHMS = """
from gmi_drl.placement import AlgorithmConfig
from gmi_drl.roles.algorithms import Algorithm
class NoLosses(Algorithm): pass
class Foreign:
    class Settings: pass
class Synchronous(Algorithm):
    def losses(self, batch): pass
class Both(Synchronous):
    class Settings(AlgorithmConfig):
        optimizers = ("all_reduce", "async_samples")
"""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("NoLosses", ["algorithm.class 'algorithms_of_a_user:NoLosses' lacks losses. Write it."]),
        (
            "Foreign",
            [
                "algorithm.class 'algorithms_of_a_user:Foreign' is no Algorithm. Derive it from "
                "gmi_drl.roles.algorithms.Algorithm."
            ],
        ),
        (
            "Synchronous",
            [
                "algorithm.optimizer='auto'; all_reduce runs in mode sync, and the mode is async. "
                "Set mode: sync."
            ],
        ),
        ("Both", []),
    ],
)
def test_a_class_that_cannot_be_the_algorithm_is_told(tmp_path, monkeypatch, name, said):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "algorithms_of_a_user.py").write_text(ALGORITHMS)
    own = {"class": f"algorithms_of_a_user:{name}"}
    config = config_of("Fine", algorithm=own, mode="async")
    assert user_code.algorithm_problems(config.model_dump(mode="json"), str(tmp_path)) == said
    if not said:
        assert with_settings(config).algorithm.resolved_optimizer == "async_samples"
