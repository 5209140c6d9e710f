"""Every error of gmi-drl has one base, which knows the exit code of the command that it ends."""

import pickle

import pytest

import gmi_drl
from gmi_drl.cli.app import guarded
from gmi_drl.comm.errors import CommError
from gmi_drl.errors import GmiDrlError
from gmi_drl.gmi import DiscoveryError, GmiDied, GmiError
from gmi_drl.launcher.folder.run_folder import RunFolderError
from gmi_drl.placement import ConfigError, LayoutError
from gmi_drl.roles.envs.errors import EnvError, EnvSpecError
from gmi_drl.roles.errors import CheckpointError, RoleError, RoleLoadError
from gmi_drl.runtime.errors import ActorDiedError, ActorRuntimeError, task_error
from gmi_drl.runtime.gcs.database import DamagedStoreError, GcsError
from gmi_drl.selector.errors import (
    BudgetTooShort,
    OutputError,
    RecordError,
    SearchError,
    TuneError,
)

BAD_INPUT = (
    BudgetTooShort, CheckpointError, ConfigError, DamagedStoreError, DiscoveryError, EnvSpecError,
    GcsError, LayoutError, OutputError, RecordError, RoleLoadError, RunFolderError,
)  # fmt: skip
FAILED = (
    ActorDiedError, ActorRuntimeError, CommError, EnvError, GmiDied, GmiError, RoleError,
    SearchError, TuneError,
)  # fmt: skip


@pytest.mark.parametrize("kind", [*BAD_INPUT, *FAILED], ids=lambda kind: kind.__name__)
def test_every_error_knows_the_exit_code_of_the_command(kind):
    assert issubclass(kind, GmiDrlError)
    assert issubclass(kind, ValueError | RuntimeError)
    assert kind.command_exit_code == (2 if kind in BAD_INPUT else 1)


def test_value_rule_and_remedy_make_the_text_and_survive_the_way_between_processes():
    error = RunFolderError(value="runs/ant", rule="no run is there", remedy="Give another.")
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == "runs/ant: no run is there. Give another."
    assert (copy.value, copy.rule, copy.remedy) == (error.value, error.rule, error.remedy)
    assert str(pickle.loads(pickle.dumps(gmi_drl.GmiDrlError("a text")))) == "a text"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError(["a fault"]), 2),
        (task_error(ConfigError(["raised in an actor"]), "traceback", "call"), 2),
        (ActorDiedError("gmi 0", exit_code=7), 1),  # the code is the process's, not the command's
    ],
)
def test_a_command_tells_an_error_and_ends_with_its_code(error, code, capsys):
    def command():
        raise error

    assert guarded(command) == code
    assert str(error).splitlines()[0] in capsys.readouterr().err


def test_an_error_that_is_not_ours_shows_where_it_was_raised():
    with pytest.raises(ZeroDivisionError):
        guarded(lambda: 1 // 0)
