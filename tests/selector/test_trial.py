"""A trial: in parts as in one go, again when its GMI is killed, with new values, by any layout."""

import os
import signal
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch

from gmi_drl import runtime
from gmi_drl.launcher.folder.run_folder import METRICS, last_metrics
from gmi_drl.placement import Topology, layout_of, load_config
from gmi_drl.selector.search.trial import TrialGmis, TrialJob
from waits import until

TESTS = Path(__file__).resolve().parents[1]
UNTIMED = {"trained_s"}


pytestmark = pytest.mark.usefixtures("warm")


@pytest.fixture
def gmis(warm):
    """The GMIs that one trial after another is trained in."""
    its = TrialGmis()
    yield its
    its.close()


def ended(gmis, within_s=60.0):
    """How a run ends that was begun."""
    deadline_s = time.monotonic() + within_s
    while (result := gmis.look()) is None:
        assert time.monotonic() < deadline_s, "the trial does not end"
        runtime.wait(gmis.to_come(), 1, timedelta(seconds=0.25))
    return result


def job(folder, steps, *overrides, role=None, **changes):
    """A trial on a core a GMI; 256 steps an iteration of one."""
    data = {
        "version": 1,
        "run": {"total_steps": 4096, "seed": 3, "eval_episodes": 0},
        "env": {"id": "CartPole-v1", "num_env": 8},
        "algorithm": {"network": [16], "horizon": 32, "epochs": 2, "schedule": "constant"},
    }
    if role is not None:
        data["roles"] = {"trainer": f"bodies_search:{role}"}
    config = load_config(data, overrides)
    cores = sorted(os.sched_getaffinity(0))[: config.layout.gmi_per_gpu]
    layout = layout_of(config, Topology.from_cores(cores))
    given = {"resume": None, "learning_rate": None, "session": folder.name, **changes}
    return TrialJob("trial 0", config, layout, steps, folder, sockets=runtime.run_directory(),
                    role_folder=TESTS, **given)  # fmt: skip


@pytest.fixture
def trained(gmis):
    def train(*args, **kwargs):
        gmis.begin(job(*args, **kwargs))
        return ended(gmis)

    return train


def state(checkpoint):
    """Everything in a checkpoint, but times."""
    parts = {}
    for name in ("shared", "gmi0"):
        found = torch.load(checkpoint / f"{name}.pt", weights_only=True)
        parts |= {f"{name}.{key}": value for key, value in found.items() if key not in UNTIMED}
    return parts


def bits(value):
    """The same for the same to the last bit, NaN as well."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape, value.numpy().tobytes()
    if isinstance(value, dict):
        return {key: bits(inner) for key, inner in value.items()}
    return [bits(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def assert_same(one, other):
    assert one.keys() == other.keys()
    assert [key for key in one if bits(one[key]) != bits(other[key])] == []


@pytest.mark.parametrize("schedule", ["linear", "adaptive"])
def test_a_trial_in_parts_is_the_one_in_one_go_to_the_last_bit(trained, tmp_path, schedule):
    # Linear: the rate falls by the steps of the whole search, not by those of a part.
    how = f"algorithm.schedule={schedule}"
    whole = trained(tmp_path / "whole", 2048, how)
    at, points = None, ()
    for steps in (512, 1000, 2048):
        part = trained(tmp_path / str(steps), steps, how, resume=at)
        at, points = part.checkpoint, points + part.points
        assert part.steps == -(-steps // 256) * 256
    assert_same(state(whole.checkpoint), state(part.checkpoint))
    assert (part.return_mean, points) == (whole.return_mean, whole.points)
    assert last_metrics(tmp_path / "2048" / METRICS)["steps"] == 2048


@pytest.mark.parametrize("every", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_trial_whose_gmi_is_killed_ends_as_if_it_had_not_been(trained, gmis, tmp_path, every):
    """With checkpoints of its own it goes on from the last of them, without from its start."""
    how = (f"run.checkpoint_every={every}", "algorithm.schedule=adaptive")
    begun = trained(tmp_path / "begun", 512, *how)
    changed = {"resume": begun.checkpoint, "learning_rate": 5e-3}
    wanted = trained(tmp_path / "whole", 2048, *how, **changed)
    folder = tmp_path / "killed"
    gmis.begin(job(folder, 2048, *how, role="Held", **changed))
    os.kill(int(written(folder / "pid")), signal.SIGKILL)
    (folder / "go").touch()
    found = ended(gmis)
    assert_same(state(wanted.checkpoint), state(found.checkpoint))
    assert (found.return_mean, found.points) == (wanted.return_mean, wanted.points)


def written(path):
    until(path.exists, path)
    return path.read_text()


def test_a_checkpoint_does_not_undo_the_learning_rate_that_a_trial_is_given(trained, tmp_path):
    def rate(found):
        return state(found.checkpoint)["shared.optimizer"]["param_groups"][0]["lr"]

    source = trained(tmp_path / "source", 512, "algorithm.learning_rate=1e-3")
    new = "algorithm.learning_rate=5e-3"
    changed = trained(tmp_path / "a", 1024, new, resume=source.checkpoint, learning_rate=5e-3)
    assert (rate(source), rate(changed)) == (1e-3, 5e-3)
    kept = trained(tmp_path / "b", 1024, new, resume=source.checkpoint)
    assert rate(kept) == 1e-3  # what a resume is: HyperBand's rungs change nothing


def test_a_trial_that_has_nothing_left_to_do_leaves_a_checkpoint_of_its_own(trained, tmp_path):
    first = trained(tmp_path / "first", 1024)
    again = trained(tmp_path / "again", 1000, resume=first.checkpoint)
    assert again.checkpoint.parent == tmp_path / "again" / "checkpoints"
    assert_same(state(first.checkpoint), state(again.checkpoint))
    assert (again.steps, again.return_mean, again.points) == (1024, first.return_mean, ())


def test_a_trial_that_raises_is_not_run_again_and_says_why(trained, tmp_path):
    with pytest.raises(ValueError, match="a rate of no use"):
        trained(tmp_path / "x", 2048, "algorithm.learning_rate=0.5", role="FailsAboveATenth")
    with pytest.raises(runtime.TaskError, match=r"Derive it from gmi_drl\.Holistic"):
        trained(tmp_path / "y", 2048, "roles.trainer=bodies_front:Raises")


def test_processes_stay_for_the_next_trial_unless_one_is_lost_or_raises(gmis, trained, tmp_path):
    trained(tmp_path / "a", 256)
    before = gmis._gang
    trained(tmp_path / "b", 256, "algorithm.gamma=0.9")
    assert gmis._gang is before
    with pytest.raises(ValueError, match="of no use"):
        trained(tmp_path / "c", 512, "algorithm.learning_rate=0.5", role="FailsAboveATenth")
    assert gmis._gang is None
    trained(tmp_path / "d", 256, "env.num_env=4")
    assert gmis._gang is not None


@pytest.mark.parametrize("each", [1, 2])
def test_the_next_trial_may_have_another_layout(gmis, trained, tmp_path, each):
    how = f"layout.gmi_per_gpu={each}"
    trained(tmp_path / "a", 512, how)
    before = gmis._gang
    assert trained(tmp_path / "b", 512, how, "env.num_env=4").steps == 512
    assert gmis._gang is not before
    pid, *_ = gmis._gang.pids().values()
    os.kill(pid, signal.SIGKILL)  # idle
    assert trained(tmp_path / "c", 512, how, "env.num_env=4").steps == 512


@pytest.mark.gpu
def test_a_trial_trains_on_the_gpu_it_is_given(gmis, tmp_path):
    from gmi_drl.gmi import discover

    topology = discover(1, "direct")
    its = job(tmp_path / "gpu", 1024, "hardware.backend=direct")
    layout = layout_of(its.config, topology)
    gmis.begin(TrialJob(**{**vars(its), "layout": layout}))
    assert ended(gmis).steps == 1024
