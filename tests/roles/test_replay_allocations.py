"""What training on a replay asks memory for on the CPU: nothing that stays, and no new pages."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from bodies_off_policy import algorithm
from gmi_drl.comm import solo_group
from gmi_drl.roles.optimizers.learner import Learner
from gmi_drl.roles.optimizers.replay import on_replay
from gmi_drl.roles.samples.batch import Batch
from gmi_drl.roles.samples.replay.sum_tree import SumTree

TESTS = Path(__file__).resolve().parents[1]


def allocations(work):
    """The bytes of each tensor that `work` allocates, and with a minus of each that it frees."""
    with profile(
        activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True
    ) as profiled:
        work()
    events = profiled.profiler.kineto_results.events()
    return [event.nbytes() for event in events if event.name() == "[memory]"]


def rounds(kind, rows, **settings):
    """What puts a batch in, takes an update for each four of its rows, and reads their stats."""
    made = algorithm(
        kind, batch_size=64, replay_capacity=4_096, replay_start=0, updates_per_row=0.25,
        **settings,
    )  # fmt: skip
    learner = Learner(made, torch.Generator().manual_seed(0))
    learner.connect(solo_group())
    seen = torch.rand(rows + 1, 4, 3)
    done = torch.rand(rows, 4) < 0.1
    action = torch.rand(rows, 4, 1 if made.policy.action_columns == 1 else 2)
    batch = Batch(
        {
            "raw_observation": seen[:-1], "next_observation": seen[1:], "action": action,
            "reward": torch.rand(rows, 4), "done": done.float(), "terminated": done,
        }
    )  # fmt: skip
    kept = on_replay(learner, batch, None, lambda: None)
    return lambda: (kept.update(batch), learner.stats())


@pytest.mark.parametrize("sampler", ["uniform", "prioritized"])
@pytest.mark.parametrize("kind", ["sac", "td3"])
def test_a_round_frees_what_it_allocates(kind, sampler):
    update = rounds(kind, 8, sampler=sampler)

    def kept(count):
        changes = allocations(lambda: [update() for _ in range(count)])
        assert len(changes) > 100 * count  # of eight updates each: it does count
        return sum(changes)

    kept(1)
    # What took the place of scalars of before, which is the same after any number of rounds.
    assert kept(3) == kept(1) < 1_024


def test_rows_are_found_and_priorities_set_with_one_copy_of_the_trees_groups_each():
    tree, size = SumTree(100_000, torch.device("cpu")), 256
    tree.fill(0, 100_000, torch.rand(100_000, dtype=torch.float64))
    shares = torch.rand(size, dtype=torch.float64)
    groups = size * 64 * 8
    found = allocations(lambda: tree.find(shares))
    assert [count for count in found if count > groups // 8] == [groups]
    places = tree.find(shares)
    changed = allocations(lambda: tree.set(places, shares))
    assert [count for count in changed if count > groups // 8] == [groups]


_UPDATES = """
import resource
import torch
from gmi_drl.gmi.backends.cpu import keep_freed_memory
import bodies_off_policy
from gmi_drl.comm import solo_group

keep_freed_memory()  # as in each GMI of cores
torch.set_num_threads(1)
bodies_off_policy.SHARED["network"] = [256, 256]
made = bodies_off_policy.algorithm("sac")
learner = bodies_off_policy.connected(made, solo_group())
rows = bodies_off_policy.rows_of(made, rows=256)
counts = []
for _ in range(4):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        learner.repeat(rows)
    counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(min(counts[1:]))
"""


@pytest.mark.slow
def test_updates_on_cpu_cores_use_the_pages_of_those_before():
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("not glibc")
    told = subprocess.run(
        [sys.executable, "-c", _UPDATES], capture_output=True, text=True, timeout=120, check=True,
        cwd=TESTS,
    )  # fmt: skip
    assert int(told.stdout) < 100  # pages of ten updates; they allocate thousands
