"""Chains of replicas: what was acknowledged is there, whoever is killed."""

import contextlib
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bodies_gcs import Load, one_of_each, task
from gmi_drl.runtime.gcs import membership as do
from gmi_drl.runtime.gcs.chain import Chains
from gmi_drl.runtime.gcs.database import GcsError
from gmi_drl.runtime.gcs.gcs import Gcs
from gmi_drl.runtime.gcs.membership import ChainMembership
from gmi_drl.runtime.gcs.replica import Rows
from gmi_drl.runtime.gcs.tables import ActorRow, FunctionRow, ObjectRow, TaskRow
from stops import stop
from waits import until


def whole(chains, replicas):
    """Waits until every chain has all its members, and gives these."""
    until(lambda: all(len(members) == replicas for members in chains.members()))
    return chains.members()


@pytest.fixture
def chains():
    with contextlib.closing(Chains(1, 3)) as opened:
        yield opened


def chain_of(replicas):
    """A state with members 1, 2, ... and nothing going on."""
    chain = ChainMembership(replicas)
    assert chain.begin() == [do.StartReplica()] * replicas
    for member in range(1, replicas + 1):
        chain.ready(member)
        if member > 1:
            chain.acknowledged(member, chain.acked)
    assert chain.members == list(range(1, replicas + 1))
    return chain


def test_the_first_that_is_ready_is_the_chain_and_others_join_one_by_one():
    chain = ChainMembership(3)
    chain.begin()
    assert chain.ready(1) == [do.BeginChain(1), do.Acknowledge(1, True), do.Resend()]
    assert chain.ready(2) == [do.Connect(1, 2, True), do.Acknowledge(2, True)]
    assert chain.ready(3) == []
    assert chain.acknowledged(2, 0) == [
        do.Acknowledge(1, False), do.Connect(2, 3, True), do.Acknowledge(3, True),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("dead", "todo"),
    [
        (1, [do.Resend(), do.StartReplica()]),
        (2, [do.Connect(1, 3), do.Resend(), do.StartReplica()]),
        (3, [do.Acknowledge(2, True), do.Resend(), do.StartReplica()]),
    ],
)
def test_a_chain_closes_over_a_dead_head_middle_or_tail(dead, todo):
    chain = chain_of(3)
    assert chain.died(dead) == todo


def test_one_that_joins_is_the_last_only_when_it_has_all_that_was_acknowledged():
    chain = chain_of(2)
    chain.acknowledged(2, 10)
    chain.died(1)
    assert chain.ready(3) == [do.Connect(2, 3, True), do.Acknowledge(3, True)]
    assert chain.acknowledged(3, 8) == []
    chain.acknowledged(2, 12)  # too late to be heard: it may not be with the new one
    assert (chain.members, chain.acked) == ([2], 10)
    assert chain.acknowledged(3, 11) == [do.Acknowledge(2, False)]
    assert (chain.members, chain.acked) == ([2, 3], 11)


def test_one_whose_source_died_while_it_joined_is_discarded():
    chain = chain_of(2)
    chain.died(1)
    chain.ready(3)
    assert chain.died(2) == [do.Discard(3), do.StartReplica(), do.StartReplica()]
    assert chain.died(3) == []
    assert chain.ready(4) == [do.BeginChain(4), do.Acknowledge(4, True), do.Resend()]


def test_processes_that_never_start_are_not_started_for_ever():
    chain = ChainMembership(2)
    chain.begin()
    starts = 2
    while not chain.broken:
        starts += len(chain.not_started())
    assert starts == 2 + do.MOST_FAILED_STARTS - 1


def test_no_acknowledged_write_is_missing_from_any_state_of_a_random_chain():
    """Members are counters here: what each has, while they die and join at random."""
    for seed in range(200):
        rng = random.Random(seed)
        chain, has, number, written = ChainMembership(3), {}, 0, 0
        todo = chain.begin()
        for _ in range(60):
            starting = chain.starting
            choice = rng.randrange(5)
            if choice == 0 and starting:
                number += 1
                has[number] = 0
                todo = chain.ready(number)
            elif choice == 1 and has:
                member = rng.choice(list(has))
                del has[member]
                todo = chain.died(member)
            elif choice == 2:
                written += 1
                todo = []
            else:
                for before, after in zip(chain.members, chain.members[1:], strict=False):
                    has[after] = max(has[after], rng.randint(has[after], has[before]))
                if chain.members:
                    has[chain.members[0]] = written
                speaker = rng.choice([*chain.members[-1:], *filter(None, [chain.joining])] or [0])
                todo = chain.acknowledged(speaker, has[speaker]) if speaker else []
            for each in todo:
                if isinstance(each, do.BeginChain):
                    has[each.member] = chain.acked
                elif isinstance(each, do.Connect) and each.joins:
                    has[each.after] = has[each.before]
                elif isinstance(each, do.Discard):
                    has.pop(each.member, None)
            assert all(has[member] >= chain.acked for member in chain.members), seed


def test_writes_that_come_again_or_too_early_change_nothing():
    rows = Rows()
    first, second = (0, tuple(task(1, "running"))), (0, tuple(task(2, "running")))
    assert rows.write(1, [first, second])
    assert rows.write(1, [first, second])
    assert not rows.write(4, [first])
    assert (rows.version, len(rows)) == (2, 2)
    assert rows.write(2, [second, (0, tuple(task(1)))])
    assert rows.get(0, task(1).id) == tuple(task(1))


def test_replicas_forget_what_has_ended_and_is_in_the_file():
    rows = Rows()
    rows.write(1, [(0, tuple(task(1))), (0, tuple(task(2, "running"))), (4, (0.0, "x", b"", ""))])
    rows.forget(2)
    assert [row[0] for row in rows.some(rows.keys())] == [2, 3]
    rows.forget(3)
    rows.write(4, [(0, tuple(task(2)))])
    rows.forget(4)
    assert len(rows) == 0
    rows.forget(10)
    rows.write(5, [(0, tuple(task(3)))])
    assert len(rows) == 0


def test_one_that_takes_over_rows_keeps_what_it_was_told_meanwhile():
    old, new = Rows(), Rows()
    old.write(1, [(0, tuple(task(1, "running"))), (0, tuple(task(2, "running")))])
    new.version = old.version
    new.write(3, [(0, tuple(task(1)))])
    new.take_over(old.some(old.keys()))
    assert new.get(0, task(1).id) == tuple(task(1))
    assert new.get(0, task(2).id) == tuple(task(2, "running"))


def test_rows_of_every_table_come_back_from_the_last_of_the_chain(chains):
    for row in one_of_each():
        chains.put(row)
    chains.sync()
    for row, row_class in zip(
        one_of_each(), (TaskRow, ActorRow, ObjectRow, FunctionRow), strict=False
    ):
        assert chains.get(row_class, row.id) == row
    assert chains.get(TaskRow, b"none" * 4) is None


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_killed_head_middle_or_tail_loses_nothing_and_is_replaced(chains, place):
    load = Load(chains, place)
    load.put(500)
    (members,) = whole(chains, 3)
    load.put(2_000)
    os.kill(members[place], signal.SIGKILL)
    load.put(2_000)
    chains.sync()
    assert load.lost() == []
    until(lambda: members[place] not in chains.members()[0] and len(chains.members()[0]) == 3)
    (after,) = chains.members()
    assert after[:2] == [pid for pid in members if pid != members[place]]
    # Only the one that joined is left: it has all that was put before its time.
    for pid in after[:2]:
        os.kill(pid, signal.SIGKILL)
    until(lambda: not {*after[:2]} & {*chains.members()[0]})
    assert load.lost() == []


def kill_at_random(chains, load, times):
    """Kills members while rows are put, each time wherever the chains happen to be."""
    for _ in range(times):
        # A chain outlives all but one of its members: those count that live, known or not.
        until(lambda: all(len({*chain} - load.killed) >= 2 for chain in chains.members()))
        load.put(load.random.randrange(1, 1_500))
        load.kill_one()
        load.put(load.random.randrange(1, 300))
        if load.random.random() < 0.5:
            chains.sync()
    chains.sync()
    assert load.lost() == []


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [0])
def test_hundreds_of_members_killed_at_random_lose_nothing(seed):
    with contextlib.closing(Chains(2, 3)) as chains:
        kill_at_random(chains, Load(chains, seed), 100)


def test_a_chain_whose_members_are_all_killed_is_made_anew(chains):
    (members,) = whole(chains, 3)
    for pid in members:
        os.kill(pid, signal.SIGKILL)
    chains.put(task(1, "running"))
    chains.sync()
    assert chains.get(TaskRow, task(1).id) == task(1, "running")


def test_a_member_that_hangs_is_replaced(chains):
    (members,) = whole(chains, 3)
    stop(members[1])
    chains.put(task(1, "running"))
    chains.sync()
    assert members[1] not in chains.members()[0]
    assert chains.get(TaskRow, task(1).id) == task(1, "running")


def test_replicas_that_cannot_start_are_told_of_and_the_file_still_has_the_rows(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with contextlib.closing(Gcs(tmp_path / "gcs.sqlite", shards=1, replicas=2)) as store:
        store.put(task(1))
        with pytest.raises(GcsError, match=r"in a row did not start.*without replicas"):
            store.sync()
        store.flush()
        assert "did not start" in store.failure
        assert store.backlog == 0
        assert store.get(TaskRow, task(1).id) == task(1)


def test_a_store_with_replicas_forgets_there_what_has_ended(tmp_path):
    with contextlib.closing(Gcs(tmp_path / "gcs.sqlite", shards=2, replicas=2)) as store:
        for number in range(1_000):
            store.put(task(number))
        store.put(task(1_000, "running"))
        store.sync()
        store.flush()
        until(lambda: all(store.chains.get(TaskRow, task(n).id) is None for n in range(1_000)))
        assert store.chains.get(TaskRow, task(1_000).id) == task(1_000, "running")
        assert store.get(TaskRow, task(1).id) == task(1)
        for members in store.chains.members():
            os.kill(members[-1], signal.SIGKILL)
        store.put(task(1_000))
        store.sync()
        store.flush()
        assert store.get(TaskRow, task(1_000).id) == task(1_000)


HOLDS_CHAINS = """
import sys, time
from gmi_drl.runtime.gcs.chain import Chains
chains = Chains(2, 2)
while not all(len(members) == 2 for members in chains.members()):
    time.sleep(0.01)
print(*(pid for members in chains.members() for pid in members), flush=True)
time.sleep(60)
"""


def test_replicas_do_not_outlive_a_client_that_is_killed():
    client = subprocess.Popen([sys.executable, "-c", HOLDS_CHAINS], stdout=subprocess.PIPE)
    with client:
        pids = [int(word) for word in client.stdout.readline().split()]
        assert len(pids) == 4
        client.kill()
    until(lambda: not any(_runs(pid) for pid in pids))


def _runs(pid):
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
