"""DRL_role and GMI_manager outside a launched run, and how a role class is found by its name."""

from collections import namedtuple
from datetime import timedelta
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import gmi_drl
from gmi_drl.placement import Layout, Topology, load_config, tcg_ex
from gmi_drl.roles import ContextError, GMI_manager, RoleLoadError, load_role
from gmi_drl.roles.algorithms import with_settings
from gmi_drl.roles.envs import EnvSpecError
from gmi_drl.roles.errors import RoleError
from gmi_drl.roles.role import manager
from gmi_drl.roles.role.job import Pause
from gmi_drl.roles.seeds import DRAWS, EVALUATION

GOOD = """
import gmi_drl

class Trainer(gmi_drl.DRL_role):
    def GMI_run(self):
        return self.GMI_id

class NoRun(gmi_drl.DRL_role):
    pass

class NotARole:
    pass

class Unsure(Trainer):
    capturable_loss = "yes"

class Comma(Trainer):
    loss_stats = ("calm")
"""


class Echo(gmi_drl.DRL_role):
    def GMI_run(self, **params):
        return self.GMI_collective(torch.tensor([1.0, 2.0]))


class Few(gmi_drl.Holistic):
    def make_env(self, num_env=None, seed=0):
        return super().make_env(3, seed)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    (tmp_path / "roles_of_a_user.py").write_text(GOOD)
    (tmp_path / "broken_roles.py").write_text("import nothing_of_this_name")
    (tmp_path / "script_of_a_user.py").write_text("raise SystemExit(0)")
    return tmp_path


def test_a_role_runs_alone_without_a_launcher():
    role = Echo(3, "trainer", 0)
    assert (role.GMI_id, role.role, role.gpu_id) == (3, "trainer", 0)
    assert role.group.size == 1
    assert role.GMI_run().tolist() == [1.0, 2.0]


def test_alone_there_is_nobody_to_talk_to_and_no_config():
    role = Echo(0, "trainer", 0)
    with pytest.raises(ContextError, match="has no peers here"):
        role.GMI_send(1, 1)
    with pytest.raises(ContextError, match="was not launched"):
        _ = role.mgr.config


def test_messages_between_hosts_are_refused():
    layout = Layout.joined([tcg_ex(Topology.from_cores([0]), 1, 8)] * 2)
    config = load_config({"version": 1, "env": {"id": "CartPole-v1", "num_env": 8}})
    mgr = GMI_manager(1, manager.GmiContext(1, layout, config, mailbox=SimpleNamespace()))
    for verb, call in (("send", lambda: mgr.send(7, 0)), ("recv", lambda: mgr.recv(0))):
        with pytest.raises(ContextError) as raised:
            call()
        assert str(raised.value) == (
            f"{verb}: GMI 0 is on host 0, and GMI 1 on host 1; messages stay on a host. Use "
            "allreduce, or a GMI of this host."
        )


def test_allreduce_takes_what_numbers_come_in():
    mgr = Echo(0, "trainer", 0).mgr
    point = namedtuple("point", "x y")
    data = {"a": torch.arange(3), "b": [np.ones(2), 4.5], "c": point(1.0, np.ones(2).mean())}
    data["d"] = np.ones(2, dtype=np.float32).mean(), np.int64(3)  # which are no Python numbers
    out = mgr.allreduce(data, op="sum")
    assert (out["c"], out["d"]) == (point(1.0, 1.0), (1.0, 3.0))
    assert out["a"].tolist() == [0, 1, 2]
    assert out["b"][0].tolist() == [1.0, 1.0]
    assert out["b"][1] == 4.5


def test_a_message_that_is_not_waited_for_is_not():
    layout = tcg_ex(Topology.from_cores([0]), 1, 8)
    config = load_config({"version": 1, "env": {"id": "CartPole-v1", "num_env": 8}})
    mailbox = SimpleNamespace(recv=lambda source, timeout: timeout)
    mgr = GMI_manager(0, manager.GmiContext(0, layout, config, mailbox=mailbox))
    assert mgr.recv(0, timeout=timedelta(0)) == timedelta(0)


def test_a_training_draws_other_numbers_from_each_copy_that_it_goes_on_from():
    layout = tcg_ex(Topology.from_cores([0]), 1, 8)
    config = load_config({"version": 1, "env": {"id": "CartPole-v1", "num_env": 8}})
    # Two checkpoints of iteration 4, as of trainings whose horizons are not the same.
    first, second = (
        GMI_manager(0, manager.GmiContext(0, layout, config, resumed=4, pause=Pause(9, None, n)))
        for n in (1, 4)
    )
    assert first.seed(DRAWS) != second.seed(DRAWS)
    assert first.seed(EVALUATION) == second.seed(EVALUATION)


def test_no_environments_are_refused_and_not_taken_for_all_of_them():
    config = load_config({"version": 1, "env": {"id": "CartPole-v1", "num_env": 8}})
    spec = SimpleNamespace(num_env=8, cores=(0,), roles=("simulator", "agent"))
    context = SimpleNamespace(
        spec=spec, config=config, device=torch.device("cpu"), replaced=0, resumed=0, copy=0
    )
    mgr = GMI_manager(0, context)
    for num_env, made in ((None, 8), (3, 3)):
        env = mgr.make_env(num_env)
        assert env.num_env == made
        env.close()
    with pytest.raises(EnvSpecError, match="num_env=0"):
        mgr.make_env(0)
    spec.num_env = 0
    with pytest.raises(ContextError, match="GMI 0 has no environments, as its role is simulator"):
        mgr.make_env()


def test_a_role_that_makes_other_environments_than_the_layout_has_is_told():
    config = load_config({"version": 1, "env": {"id": "CartPole-v1", "num_env": 8}})
    layout = tcg_ex(Topology.from_cores([0]), 1, 8)
    context = manager.GmiContext(0, layout, with_settings(config))
    GMI_manager.bind(context)
    try:
        with pytest.raises(RoleError, match=r"Few\.make_env gave 3 .* GMI 0, which has 8"):
            Few(0, "simulator+agent+trainer", 0).GMI_run()
    finally:
        GMI_manager.bind(None)
        context.closing.all()


def test_environments_that_are_compiled_are_first_made_by_one_gmi(tmp_path, monkeypatch):
    monkeypatch.setattr(manager, "COMPILES", {"torch"})
    config = load_config({"version": 1, "env": {"id": "CartPole-v1", "num_env": 2}})
    spec = SimpleNamespace(num_env=2, cores=(0,), roles=("simulator",))
    context = SimpleNamespace(
        spec=spec,
        config=config,
        device=torch.device("cpu"),
        replaced=0,
        resumed=0,
        copy=0,
        private=tmp_path,
    )
    GMI_manager(0, context).make_env().close()
    assert (tmp_path / "compiled-torch-CartPole-v1-2").exists()


def test_a_role_class_is_found_beside_the_config(folder):
    assert load_role("roles_of_a_user:Trainer", folder)(5, "trainer", 0).GMI_run() == 5


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("roles_of_a_user", "write it as module:Class"),
        ("no_such_module:Trainer", "importing no_such_module failed"),
        ("broken_roles:Trainer", "nothing_of_this_name"),
        ("script_of_a_user:Trainer", "importing script_of_a_user failed with SystemExit: 0"),
        (
            "roles_of_a_user:Trainr",
            "has no Trainr; its classes: Trainer, NoRun, NotARole, Unsure",
        ),
        ("roles_of_a_user:NotARole", "is no DRL_role"),
        ("roles_of_a_user:NoRun", "lacks GMI_run"),
        ("roles_of_a_user:Unsure", "capturable_loss='yes'; must be True or False"),
        ("roles_of_a_user:Comma", "loss_stats='calm'; must be a tuple of names"),
    ],
)
def test_a_role_that_cannot_be_had_says_why(folder, reference, message):
    with pytest.raises(RoleLoadError, match=message):
        load_role(reference, folder)
