"""A trial as a task: in parts as in one go, again when its worker is killed, with new values."""

import contextlib
import os
import signal
import time
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gmi_drl import runtime
from gmi_drl.launcher.folder.run_folder import METRICS, last_metrics
from gmi_drl.launcher.start.preload import PRELOAD
from gmi_drl.placement import Topology, layout_of, load_config
from gmi_drl.selector.search import trial as trial_device
from gmi_drl.selector.search.trial import TrialJob, train_task

TESTS = Path(__file__).resolve().parents[1]
UNTIMED = {"trained_s"}


@pytest.fixture(scope="module", autouse=True)
def warm():
    """One fork server for all tasks of this module: importing torch takes seconds."""
    runtime.init(PRELOAD)
    yield
    runtime.shutdown()


def job(folder, steps, *overrides, role=None, **changes):
    """A trial on one core; 256 steps an iteration."""
    data = {
        "version": 1,
        "run": {"total_steps": 4096, "seed": 3, "eval_episodes": 0},
        "env": {"id": "CartPole-v1", "num_env": 8},
        "algorithm": {"network": [16], "horizon": 32, "epochs": 2, "schedule": "constant"},
    }
    if role is not None:
        data["roles"] = {"trainer": f"bodies_search:{role}"}
    config = load_config(data, overrides)
    layout = layout_of(config, Topology.from_cores(sorted(os.sched_getaffinity(0))[:1]))
    given = {"resume": None, "learning_rate": None, "session": folder.name, **changes}
    return TrialJob("trial 0", config, layout, steps, folder, sockets=runtime.run_directory(),
                    role_folder=TESTS, **given)  # fmt: skip


def trained(*args, **kwargs):
    return runtime.get(train_task.remote(job(*args, **kwargs)), timeout=40)


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
def test_a_trial_in_parts_is_the_one_in_one_go_to_the_last_bit(tmp_path, schedule):
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
def test_a_trial_whose_worker_is_killed_ends_as_if_it_had_not_been(tmp_path, every):
    """With checkpoints of its own it goes on from the last of them, without from its start."""
    how = (f"run.checkpoint_every={every}", "algorithm.schedule=adaptive")
    begun = trained(tmp_path / "begun", 512, *how)
    changed = {"resume": begun.checkpoint, "learning_rate": 5e-3}
    wanted = trained(tmp_path / "whole", 2048, *how, **changed)
    folder = tmp_path / "killed"
    ref = train_task.remote(job(folder, 2048, *how, role="Held", **changed))
    os.kill(int(written(folder / "pid")), signal.SIGKILL)
    (folder / "go").touch()
    found = runtime.get(ref, timeout=40)
    assert_same(state(wanted.checkpoint), state(found.checkpoint))
    assert (found.return_mean, found.points) == (wanted.return_mean, wanted.points)


def written(path, within_s=30.0):
    deadline_s = time.monotonic() + within_s
    while not path.exists():
        assert time.monotonic() < deadline_s, f"{path} does not come"
        time.sleep(0.005)  # between two looks
    return path.read_text()


def test_a_checkpoint_does_not_undo_the_learning_rate_that_a_trial_is_given(tmp_path):
    def rate(found):
        return state(found.checkpoint)["shared.optimizer"]["param_groups"][0]["lr"]

    source = trained(tmp_path / "source", 512, "algorithm.learning_rate=1e-3")
    new = "algorithm.learning_rate=5e-3"
    changed = trained(tmp_path / "a", 1024, new, resume=source.checkpoint, learning_rate=5e-3)
    assert (rate(source), rate(changed)) == (1e-3, 5e-3)
    kept = trained(tmp_path / "b", 1024, new, resume=source.checkpoint)
    assert rate(kept) == 1e-3  # what a resume is: HyperBand's rungs change nothing


def test_a_trial_that_has_nothing_left_to_do_leaves_a_checkpoint_of_its_own(tmp_path):
    first = trained(tmp_path / "first", 1024)
    again = trained(tmp_path / "again", 1000, resume=first.checkpoint)
    assert again.checkpoint.parent == tmp_path / "again" / "checkpoints"
    assert_same(state(first.checkpoint), state(again.checkpoint))
    assert (again.steps, again.return_mean, again.points) == (1024, first.return_mean, ())


def test_a_trial_that_raises_is_not_run_again_and_says_why(tmp_path):
    with pytest.raises(ValueError, match="a rate of no use"):
        trained(tmp_path / "x", 2048, "algorithm.learning_rate=0.5", role="FailsAboveATenth")
    with pytest.raises(runtime.TaskError, match=r"Derive it from gmi_drl\.Holistic"):
        trained(tmp_path / "y", 2048, "roles.trainer=bodies_front:Raises")


def test_a_trial_that_raises_on_a_gpu_leaves_nothing_in_its_memory(monkeypatch, tmp_path):
    """The GPU is made up; that what a trial had is gone when its memory is given back is not."""
    its = job(tmp_path, 256).layout
    (spec,), device = its.gmis, its.topology.devices[0]
    entered, held = [], []
    monkeypatch.setattr(trial_device, "_cuda_index", lambda spec: 1)
    monkeypatch.setattr(
        torch.cuda, "device", lambda index: entered.append(index) or contextlib.nullcontext()
    )
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: held.append(policies[0]() is not None))
    policies = []

    def body():
        policy = torch.zeros(8)
        policies.append(weakref.ref(policy))
        raise ValueError("diverged")

    cores = os.sched_getaffinity(0)
    with (
        pytest.raises(ValueError, match="diverged"),
        trial_device.on_device(spec, replace(device, kind="gpu")) as name,
    ):
        body()
    assert (name, entered, held) == ("cuda:1", [1], [False])
    assert os.sched_getaffinity(0) == cores


@pytest.mark.gpu
def test_a_trial_trains_on_the_gpu_it_is_given(tmp_path):
    from gmi_drl.gmi import discover

    topology = discover(1, "direct")
    its = job(tmp_path / "gpu", 1024, "hardware.backend=direct")
    layout = layout_of(its.config, topology)
    found = runtime.get(train_task.remote(TrialJob(**{**vars(its), "layout": layout})), timeout=50)
    assert found.steps == 1024
