"""The lineage of policies equals what roles have traced on their own, in every mode and over kills.

Traces know policies and experience by digests of their bytes alone: see bodies_lineage.
"""

import itertools
import json
import random
import time

import pytest

import bodies_lineage as bodies
import faults
import gmi_drl
from gmi_drl.cli import main
from gmi_drl.launcher.watch.policy_log import GMI_DIED, process_id
from gmi_drl.report.policy_lineage import PolicyReader, Version
from gmi_drl.report.run_state import opened
from gmi_drl.runtime.gcs.database import Database, GcsError
from gmi_drl.runtime.gcs.tables import BranchRow, EventRow, PolicyRow, branch_id, policy_id
from small_jobs import job_file

HORIZON, NUM_ENV = 8, 4


pytestmark = pytest.mark.usefixtures("warm")


def config(tmp_path, iterations, gmis=1, **changes):
    return job_file(
        tmp_path,
        changes,
        run={
            "checkpoint_every": 8, "log": [], "eval_episodes": 0,
            "total_steps": iterations * HORIZON * NUM_ENV * gmis,
        },
        env={"id": "CartPole-v1", "num_env": NUM_ENV, "max_episode_steps": 50},
        algorithm={"network": [8], "horizon": HORIZON},
        layout={"gmi_per_gpu": gmis},
    )  # fmt: skip


def launch(path=None, **options):
    return gmi_drl.launch(path, view="none", keep_gcs=True, **options)


class Trace:
    """What the roles of a run have written, put together by digests."""

    def __init__(self, path):
        self.processes, self.sampled, self.number, self.digest = {}, {}, {}, {}
        self.versions = {}  # by number: (what each trainer used, its updates), as made last
        files = [
            [json.loads(line) for line in file.read_text().splitlines()]
            for file in sorted(path.glob("trace*"))
        ]
        for lines in files:
            launches = {}
            for line in lines:
                if "began" in line:
                    pids = launches.setdefault(line["began"], [])
                    self.processes[line["gmi"], line["pid"]] = len(pids)
                    pids.append(line["pid"])
        for line in (line for lines in files for line in lines):
            for data in line.get("sampled", ()):
                who = line["gmi"], self.processes[line["gmi"], line["pid"]]
                self.sampled.setdefault(data, []).append((*who, line["policy"]))
            if "version" in line:
                policy = line.get("made", line.get("connected"))
                self.digest[line["version"]] = policy
                self.number.setdefault(policy, line["version"])
        for lines in files:
            self._read_versions(lines)

    def _read_versions(self, lines):
        used, drawn, rows, mine = [], [], 0, {}
        for line in lines:
            if "began" in line or "connected" in line:
                used, drawn = [], []
            if "connected" in line:  # what came after it was undone
                mine = {
                    number: found for number, found in mine.items() if number <= line["version"]
                }
            used += line.get("used", [])
            drawn += [line["drawn"]] if "drawn" in line else []
            rows = line.get("rows", rows)
            if line.get("noted"):
                mine[line["version"]] = {
                    "used": used, "drawn": drawn, "rows": rows, "updates": line["updates"],
                    "gmi": line["gmi"], "pid": line["pid"],
                }  # fmt: skip
                used, drawn = [], []
        for number, found in mine.items():
            self.versions.setdefault(number, []).append(found)

    def samples(self, number):
        """(trainer, gmi, process, version it was sampled with) of all that `number` has used."""
        found = []
        for told in self.versions[number]:
            for data in told["used"]:
                # A process that takes another's place may do what that has done, to the bit.
                done = self.sampled[data]
                own = told["gmi"], self.processes[told["gmi"], told["pid"]]
                gmi, process, policy = next((d for d in done if d[:2] == own), done[0])
                found.append((told["gmi"], gmi, process, self.number[policy]))
        return sorted(found)


def answered(policy, trace, each):
    """The same, as the store answers: `each` of parts, or a horizon of steps, was traced once."""
    found = []
    for s in policy.samples:
        # Versions before the first update of a replay are the same policy.
        number = trace.number[trace.digest[s.sampled_with.number]]
        count = s.parts if each == "parts" else s.steps // HORIZON
        found += [(s.trainer, s.gmi_id, s.process, number)] * count
    return sorted(found)


def check(folder, trace, each="steps"):
    """Asks for every version, in random order; returns how many there are."""
    numbers = sorted(trace.versions)
    assert numbers == list(range(1, len(numbers) + 1))
    random.Random(1).shuffle(numbers)
    with opened(folder / "gcs.sqlite") as store:
        reader = PolicyReader(store)
        assert [p.version.number for p in reader.chain()] == sorted(numbers)
        for number in numbers:
            policy = reader.policy(reader.find(f"policy@{number}"))
            assert answered(policy, trace, each) == trace.samples(number), number
            assert not policy.undone
            assert policy.last_update == trace.versions[number][0]["updates"]
            assert policy.previous.number == number - 1
            assert bool(policy.replays) == bool(trace.versions[number][0]["rows"])
            for replay, told in zip(policy.replays, trace.versions[number], strict=False):
                assert (replay.trainer, replay.rows) == (told["gmi"], told["rows"])
                assert replay.minibatches == len(told["drawn"])
                if told["drawn"]:
                    assert number - replay.oldest >= max(told["drawn"])
    return len(numbers)


def killed(folder):
    with opened(folder / "gcs.sqlite") as store:
        return PolicyReader(store).killed()


def saw(trace, gmi, process):
    """The versions that used what a process has sampled."""
    return [
        number for number in sorted(trace.versions)
        if any(sample[1:3] == (gmi, process) for sample in trace.samples(number))
    ]  # fmt: skip


def in_pieces(numbers):
    pieces = []
    for number in numbers:
        if pieces and pieces[-1][1] == number - 1:
            pieces[-1][1] = number
        else:
            pieces.append([number, number])
    return pieces


@pytest.mark.slow
def test_two_gmis_one_of_which_is_killed_and_a_resume(tmp_path, monkeypatch, capsys):
    faults.script(monkeypatch, path := tmp_path / "script", (1, "sampled", 21))
    role = {"trainer": bodies.TracedHolistic}
    result = launch(config(tmp_path, 40, gmis=2), roles=role)
    folder, steps = result.folder, HORIZON * NUM_ENV * 2
    result = launch(resume=folder, overrides=[f"run.total_steps={70 * steps}"], roles=role)
    trace = Trace(path)
    assert check(folder, trace) == 70
    (dead,) = killed(folder)
    assert (dead.gmi_id, dead.process) == (1, 0)
    assert "SIGKILL" in dead.how
    # Process 0 of the resume is another one.
    assert dead.versions == [[1, 21]]
    with opened(folder / "gcs.sqlite") as store:
        reader = PolicyReader(store)
        first = reader.policy(reader.find("policy@41"))
        assert first.restored.endswith("iteration_000040")
        after = reader.policy(reader.find("policy@22"))
        assert after.restored == "peers"
        given = reader.contributions(1, after=30)
        assert [one.process for one in given] == [1, 0]
        assert [one.steps for one in given] == [10 * steps // 2, 30 * steps // 2]
    for words, text in (
        (["policy@41", "--depth", "1"], "begun from"),
        (["policy@41", "--dot"], "digraph"),
        (["--gmi", "1", "--after", "30"], "30 versions, policy@41 to 70"),
        (["--killed"], "seen by policy@1 to 21"),
        (["--longest-lag"], "0 updates behind"),
    ):
        assert main.main(["lineage", str(folder), *words]) == 0
        assert text in capsys.readouterr().out
    for words, text in (
        (["policy@71"], "not made yet; policy@70 is the last one"),
        (["policy@0"], "initial weights"),
        (["policy@-1"], "Write policy@N"),
        (["--gmi", "2"], "It has GMIs 0, 1"),
        (["policy@3", "--killed"], "one thing"),
    ):
        assert main.main(["lineage", str(folder), *words]) == 2
        assert text in capsys.readouterr().err


def test_the_file_has_all_of_a_run_when_launch_returns(tmp_path, monkeypatch):
    write = Database.write

    def slow_write(store, batch):
        time.sleep(0.3)
        write(store, batch)

    monkeypatch.setattr(Database, "write", slow_write)
    folder = launch(config(tmp_path, 3)).folder
    with opened(folder / "gcs.sqlite") as store:
        assert [p.version.number for p in PolicyReader(store).chain()] == [1, 2, 3]


@pytest.mark.slow
def test_versions_that_are_undone_and_flushed(tmp_path, monkeypatch):
    """A GMI without peers goes back to its checkpoint; the store keeps about 16 versions."""
    faults.script(monkeypatch, path := tmp_path / "script", (0, "step", 11))
    roles = {"trainer": bodies.TracedHolistic}
    folder = launch(config(tmp_path, 12), roles=roles).folder
    assert check(folder, Trace(path)) == 12
    with opened(folder / "gcs.sqlite") as store:
        reader = PolicyReader(store)
        # Mostly 8: on a busy machine that checkpoint may not be whole yet, nor any before it.
        # The store holds branches of earlier launches too: the last two are of this.
        second, back = store.execute(
            "SELECT number, version FROM branches ORDER BY number DESC LIMIT 1"
        ).fetchone()
        first = second - 1
        (last,) = store.execute(
            "SELECT max(version) FROM policies WHERE branch = ?", (first,)
        ).fetchone()
        assert all(reader.policy(Version(first, n)).undone for n in range(back + 1, last + 1))
        again = reader.policy(reader.find(f"policy@{back + 1}"))
        before = Version(first if back else second, back)
        assert (again.version, again.previous) == (Version(second, back + 1), before)
        assert again.restored.endswith(f"iteration_{back:06d}" if back else "")
    words = [f"run.total_steps={60 * HORIZON * NUM_ENV}", "run.lineage=16"]
    launch(resume=folder, overrides=words, roles=roles)
    with opened(folder / "gcs.sqlite") as store:
        (count,) = store.execute("SELECT count(*) FROM policies").fetchone()
        reader = PolicyReader(store)
        assert 16 <= count < 60
        assert len(list(reader.chain())) == count
        assert reader.policy(reader.find("policy@60")).version == Version(second + 1, 60)
        for text in ("policy@9", "policy@30"):
            with pytest.raises(GcsError, match=rf"{text}: flushed.*run\.lineage.*from policy@"):
                reader.find(text)


@pytest.mark.slow
def test_versions_of_which_nothing_was_heard_before_a_kill_are_told_again(tmp_path, monkeypatch):
    faults.script(monkeypatch, path := tmp_path / "script", (0, "step", 11))
    folder = launch(config(tmp_path, 12), roles={"trainer": bodies.Unheard}).folder
    assert check(folder, Trace(path)) == 12
    words = [f"run.total_steps={20 * HORIZON * NUM_ENV}"]
    launch(resume=folder, overrides=words, roles={"trainer": bodies.TracedHolistic})
    assert check(folder, Trace(path)) == 20


def test_agents_that_send_all_the_time_one_of_which_is_killed(tmp_path, monkeypatch):
    faults.script(monkeypatch, path := tmp_path / "script", (0, "sampled", 6))
    roles = {"agent": bodies.TracedAgent, "trainer": bodies.TracedTrainer}
    made = config(tmp_path, 120, mode="async", hardware={"num_gpus": 2}, layout={})
    folder = launch(made, roles=roles).folder
    trace = Trace(path)
    assert check(folder, trace) == 120
    (dead,) = killed(folder)
    assert dead.versions == in_pieces(saw(trace, 0, 0)) != []
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    with opened(folder / "gcs.sqlite") as store:
        longest = PolicyReader(store).longest_lag()
        lags = [json.loads(line)["policy_lag_max"] for line in lines]
        assert (longest.lag, longest.version.number) == (max(lags), 1 + lags.index(max(lags)))


REPLAY = {
    "algorithm__name": "dqn", "algorithm__replay_start": 64, "algorithm__batch_size": 16,
    "algorithm__replay_capacity": 200, "algorithm__updates_per_row": 0.1,
}  # fmt: skip


def test_updates_of_a_version_are_told_where_they_are_known(tmp_path, capsys):
    def told(version):
        assert main.main(["lineage", str(folder), version, "--depth", "0"]) == 0
        return capsys.readouterr().out

    folder = launch(config(tmp_path, 60, run__lineage=16)).folder
    with opened(folder / "gcs.sqlite") as store:
        oldest, second = itertools.islice(PolicyReader(store).chain(), 2)
    assert oldest.version.number > 1  # what was before it has been flushed
    assert oldest.first_update is None
    assert second.first_update == oldest.last_update + 1
    assert f"updates up to {oldest.last_update}, " in told(str(oldest.version))
    folder = launch(config(tmp_path, 3, **REPLAY)).folder
    assert " no update, " in told("policy@1")  # the replay is not full enough


TDG = {"layout": {"template": "tdg_ex", "gmi_per_gpu": 2}}
ASYNC = {"mode": "async", "hardware": {"num_gpus": 2}, "layout": {}}
APART = {"agent": bodies.TracedAgent, "trainer": bodies.TracedTrainer}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "roles", "moments", "each"),
    [
        (TDG, APART, [(0, "sampled", 9)], "steps"),
        (
            TDG | {"algorithm__name": "a3c"},
            {"agent": bodies.TracedGradientAgent, "trainer": bodies.TracedGradientTrainer},
            [(0, "sampled", 9)],
            "parts",
        ),
        (REPLAY, {"trainer": bodies.TracedHolistic}, [(0, "step", 20)], "steps"),
        (ASYNC | REPLAY, APART, [(0, "sampled", 9)], "steps"),
        (ASYNC, APART, [(1, "step", 19)], "steps"),
        (
            {
                "algorithm": {"name": "es", "network": [8], "population": 8},
                "run__total_steps": 4000,
            },
            {"trainer": bodies.TracedEvolution},
            [(0, "sampled", 9)],
            "parts",
        ),
    ],
    ids=["tdg_ex", "a3c", "replay", "apex", "async trainer", "es"],
)
def test_every_mode(tmp_path, monkeypatch, changes, roles, moments, each):
    faults.script(monkeypatch, path := tmp_path / "script", *moments)
    folder = launch(config(tmp_path, 24, **changes), roles=roles).folder
    assert faults.struck(path) == len(moments)
    trace = Trace(path)
    check(folder, trace, each)
    (dead,) = killed(folder)
    assert (dead.gmi_id, dead.process) == (moments[0][0], 0)
    if not changes.keys() & REPLAY.keys():
        assert dead.versions == in_pieces(saw(trace, dead.gmi_id, 0))


@pytest.mark.parametrize(("optimizer", "last"), [("tree_search, AlphaZero", 4), ("replay, DQN", 3)])
def test_data_of_a_killed_gmi_is_seen_for_as_long_as_a_replay_holds_it(tmp_path, optimizer, last):
    """A resize from two GMIs to one after policy@3: one replay of AlphaZero holds all games."""
    before, after = "ab" * 16, "cd" * 16
    gmis = [[0, 0, "trainer", 1], [1, 0, "trainer", 1]]
    branches = [
        BranchRow(
            id=branch_id(number), number=number, session=session, generation=0, version=version,
            board=-1, restored=restored, optimizer=optimizer,
            layout=json.dumps({"template": "tcg_ex", "gmis": layout}),
        )
        for number, session, version, restored, layout in (
            (0, before, 0, "", gmis), (1, after, 3, "iteration_000003", gmis[:1]),
        )
    ]  # fmt: skip
    oldest = {1: 1, 2: 1, 3: 1, 4: 2, 5: 4}  # policy@3 is the last one that GMI 1 put something in
    policies = [
        PolicyRow(
            id=policy_id(branch, version), branch=branch, version=version, updates=version,
            steps=version, lag=0, made_s=0.0, checkpoint="iteration_000003" if version == 3 else "",
            experience=json.dumps([[gmi, gmi, 0, version - 1, 1, 1] for gmi, *_ in trainers]),
            replay=json.dumps([[gmi, 9, oldest[version], 1] for gmi, *_ in trainers]),
        )
        for branch, version, trainers in (
            *((0, version, gmis) for version in (1, 2, 3)),
            *((1, version, gmis[:1]) for version in (4, 5)),
        )
    ]  # fmt: skip
    died = EventRow(1.0, GMI_DIED, process_id(before, 1, 0), "gmi 1, process 0, was killed")
    Database(tmp_path / "gcs.sqlite").write(
        {BranchRow: branches, PolicyRow: policies, EventRow: [died]}
    )
    (dead,) = killed(tmp_path)
    assert dead.versions == [[1, last]]
