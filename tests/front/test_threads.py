"""Runs whose GMIs are threads of one process: the same numbers as in processes of their own."""

import pytest
import torch

import bodies_recovery
import faults
import small_jobs
from gmi_drl.gmi.backends.cpu import CpuBackend
from run_files import metrics
from small_jobs import job_file

pytestmark = pytest.mark.usefixtures("warm")


def launch(tmp_path, **options):
    path = job_file(
        tmp_path,
        run={
            "total_steps": 6 * 32 * 8 * 2, "seed": 3, "checkpoint_every": 2, "eval_episodes": 4,
        },
        algorithm={"network": [32, 16], "horizon": 32, "minibatches": 2, "epochs": 2},
        layout={"gmi_per_gpu": 2},
        comm={"checksum_every": 1, "reduction": "mpr"},
    )  # fmt: skip
    return small_jobs.launch(path, **options)


def checkpoints(folder):
    """Everything the checkpoints of a run hold, but for how long things took."""
    for path in sorted(folder.glob("checkpoints/*/*.pt")):
        held = torch.load(path, weights_only=True)
        # Torch's own generator is one for all threads; nothing of ours draws from it.
        held = {k: v for k, v in held.items() if k not in ("trained_s", "global_generator")}
        yield path.relative_to(folder), held


def same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def returns(folder):
    return [
        (line["return_mean"], line["policy_loss"], line["value_loss"]) for line in metrics(folder)
    ]


@pytest.mark.slow
def test_two_threads_learn_what_two_processes_learn_bit_for_bit(tmp_path, monkeypatch):
    apart = launch(tmp_path)
    monkeypatch.setattr(CpuBackend, "gmis_are_threads", True)
    together = launch(tmp_path)
    assert (together.state, together.iteration, together.steps) == ("finished", 6, apart.steps)
    pairs = list(zip(checkpoints(apart.folder), checkpoints(together.folder), strict=True))
    assert len(pairs) == 9  # of three iterations: what all have, and each GMI's own
    for (one, his), (other, hers) in pairs:
        assert one == other
        assert same(hers, his), one
    assert returns(together.folder) == returns(apart.folder)
    assert together.eval_return == apart.eval_return
    assert (together.folder / "logs" / "gmi1.log").is_symlink()


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param((1, "reduce", 3), marks=pytest.mark.slow),
        (0, "checkpoint", 4),
        (1, "finished", 6),
    ],
)
def test_a_process_of_threads_that_dies_comes_back_and_the_run_is_whole(
    tmp_path, monkeypatch, moment
):
    monkeypatch.setattr(CpuBackend, "gmis_are_threads", True)
    faults.script(monkeypatch, tmp_path / "faults", moment)
    result = launch(tmp_path, roles={"trainer": bodies_recovery.Mortal})
    assert faults.struck(tmp_path / "faults") == 1
    assert (result.state, result.iteration, result.restarts) == ("finished", 6, 2)
    assert result.gmis[0] == result.gmis[1]
    assert len(returns(result.folder)) == 6
