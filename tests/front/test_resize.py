"""Runs that become another layout while they train: what goes on, what is refused, what fails."""

import errno
import itertools
import os
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, nullcontext
from pathlib import Path

import pytest

import bodies_resize as bodies
import gmi_drl
from gmi_drl.gmi import GmiDied, LayoutSlices, SliceError
from gmi_drl.launcher.callbacks.calls import Callbacks
from gmi_drl.launcher.folder.resize_request import (
    ResizeRequest,
    answer_in,
    make_request,
    request_in,
    withdraw_request,
)
from gmi_drl.launcher.folder.run_folder import RunFolder
from gmi_drl.launcher.start.jobs import new_job
from gmi_drl.launcher.start.launcher import launch
from gmi_drl.launcher.start.resizer import Resizer, _Change
from gmi_drl.launcher.start.training_run import TrainingRun
from gmi_drl.launcher.watch import noise_watch
from gmi_drl.launcher.watch.noise_watch import NoiseFit
from gmi_drl.launcher.watch.watch import Drift, Drifted, Promise
from gmi_drl.placement import ConfigError, load_config
from gmi_drl.report.policy_lineage import PolicyReader
from gmi_drl.report.run_state import opened
from gmi_drl.resizing import ResizeError
from gmi_drl.roles.seeds import ENVIRONMENTS, seed_of
from run_files import metrics as metrics_of
from small_jobs import job_file

HORIZON, NUM_ENV = 16, 8
TWO = "layout.gmi_per_gpu=2"


pytestmark = pytest.mark.usefixtures("warm")


def config(tmp_path, **changes):
    return job_file(
        tmp_path,
        changes,
        run={"log": [], "total_steps": 10**8, "eval_episodes": 0, "checkpoint_every": 20},
        algorithm={"network": [8], "horizon": HORIZON, "gamma": 0.9, "lam": 0.9},
    )


class Resizing(gmi_drl.Callback):
    """Asks for one layout after another, each some iterations after the last; ends the run then."""

    def __init__(self, *layouts, **options):
        self.layouts, self.options = list(layouts), options
        self.answers, self.started = [], []
        self.busy = None
        self.since = 0

    def on_start(self, run):
        self.started.append(run)

    def on_iteration(self, iteration, metrics):
        if self.busy is not None:
            if self.busy.is_alive():
                return
            self.busy, self.since = None, iteration
        if iteration < self.since + 3:
            return
        if not self.layouts:
            self.started[0].request_stop("all layouts were tried")
            return
        words = self.layouts.pop(0)
        self.busy = threading.Thread(target=self._ask, args=(words,))
        self.busy.start()

    def _ask(self, words):
        try:
            folder = self.started[0].folder
            if words.startswith("--set"):  # by the command
                command = [sys.executable, "-m", "gmi_drl", "resize", str(folder), *words.split()]
                self.answers.append(subprocess.run(command, capture_output=True, text=True))
                return
            self.answers.append(gmi_drl.resize(folder, words.split(), **self.options))
        except Exception as error:
            self.answers.append(error)


def resized(path, *layouts, roles=None, **options):
    """Trains, by one layout after another; returns the folder, its metrics, and the answers."""
    asks = Resizing(*layouts, **options)
    try:
        done = gmi_drl.launch(path, view="none", callbacks=[asks], roles=roles, keep_gcs=True)
    finally:
        if asks.busy is not None:
            asks.busy.join()
    assert done.state == "stopped"
    assert len(asks.started) == 1  # for callbacks it is one run
    metrics = metrics_of(done.folder)
    assert [line["iteration"] for line in metrics] == list(range(1, len(metrics) + 1))
    return done.folder, metrics, asks.answers


def steps_of(metrics):
    """Returns the different numbers of steps of iterations, in order."""
    steps = [0, *(line["steps"] for line in metrics)]
    each = [after - before for before, after in itertools.pairwise(steps)]
    return [number for i, number in enumerate(each) if not i or number != each[i - 1]]


@pytest.mark.slow
def test_one_run_by_four_layouts(tmp_path):
    """Samples of an update stay; lineage, checkpoints and a resume know the layout of the time."""
    layouts = (
        TWO,
        "env.num_env=4",
        f"--set layout.gmi_per_gpu=1 --set env.num_env={NUM_ENV}",
    )
    folder, metrics, answers = resized(config(tmp_path), *layouts)
    became = [
        "2 GMIs with 8 environments",
        "2 GMIs with 4 environments",
        "1 GMI with 8 environments",
    ]
    assert [answer.text for answer in answers[:2]] == became[:2]
    assert (answers[2].returncode, answers[2].stderr) == (0, "")
    assert f"done: {became[2]}, after a pause of " in answers[2].stdout
    assert steps_of(metrics) == [HORIZON * NUM_ENV]
    gmis = [len(line["gmi_seconds"]) for line in metrics]
    assert [n for i, n in enumerate(gmis) if not i or n != gmis[i - 1]] == [1, 2, 1]
    assert [entry["layout"] for entry in RunFolder(folder).state()["resizes"]] == became
    with opened(folder / "gcs.sqlite") as store:
        assert sum(1 for _ in PolicyReader(store).chain()) == len(metrics)
    assert not (folder / "resize_requested.json").exists()
    more = f"run.total_steps={metrics[-1]['steps'] + 3 * HORIZON * NUM_ENV}"
    done = gmi_drl.launch(resume=folder, overrides=[more], view="none")
    assert (done.state, done.iteration) == ("finished", len(metrics) + 3)


TELLS = """
from pathlib import Path
from gmi_drl.roles.algorithms.dqn import DQN
class Tells(DQN):  # how many steps it is told
    def before_sampling(self, steps):
        super().before_sampling(steps)
        with Path("told").open("a") as file:
            file.write(f"{steps}\\n")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [
        {"layout__template": "tdg_ex", "layout__gmi_per_gpu": 2},
        {"mode": "async", "hardware__num_gpus": 2},
    ],
    ids=["in turn", "all the time"],
)
def test_agents_explore_by_the_steps_that_were_done_in_rounds_of_all_sizes(
    tmp_path, monkeypatch, how
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(TELLS)
    learns = {
        "class": "own:Tells", "network": [8], "horizon": HORIZON, "batch_size": 16,
        "replay_capacity": 5_000, "replay_start": 64, "updates_per_row": 0.02,
    }  # fmt: skip
    path = config(tmp_path, algorithm=learns, **how)
    _, metrics, (answer,) = resized(path, "env.num_env=12", keep="none")
    assert answer.state == "done", answer
    assert steps_of(metrics) == [HORIZON * NUM_ENV, HORIZON * 12]
    done = {0, *(line["steps"] for line in metrics)}
    told = set(map(int, (tmp_path / "told").read_text().split()))
    assert told <= done
    assert any(steps > HORIZON * NUM_ENV * 4 for steps in told)


def test_what_cannot_be_is_refused_and_the_run_goes_on(tmp_path):
    path = config(tmp_path)
    layouts = (
        "layout.gmi_per_gpu=1", "algorithm.gamma=0.5", "env.num_env=4000", "hardware.cores=[99]",
    )  # fmt: skip
    folder, metrics, answers = resized(path, *layouts)
    texts = [str(answer) for answer in answers]
    for text, part in zip(
        texts,
        ("gmi_per_gpu=1; is what the run has", "gamma=0.5; cannot change while a run trains",
         "env.num_env=4000; 4000 environments", "99"),
        strict=True,
    ):  # fmt: skip
        assert part in text
    assert all(isinstance(answer, gmi_drl.GmiDrlError) for answer in answers)
    assert steps_of(metrics) == [HORIZON * NUM_ENV]
    assert "resizes" not in RunFolder(folder).state()
    with pytest.raises(ResizeError, match=r"does not train.*launch --resume"):
        gmi_drl.resize(folder, [TWO])


@pytest.mark.slow
def test_a_layout_that_does_not_come_up_is_undone(tmp_path):
    path = config(tmp_path)
    folder, metrics, (answer,) = resized(path, TWO, roles={"trainer": bodies.Alone})
    assert isinstance(answer, ResizeError)
    assert "undone" in str(answer)
    assert "only alone" in str(answer)
    assert {len(line["gmi_seconds"]) for line in metrics} == {1}
    assert len(RunFolder(folder).layout().gmis) == 1


class StoppingGang(nullcontext):
    """A gang of which a GMI dies after all were asked to stop."""

    asked_to_stop, is_stopped = True, False

    def __enter__(self):
        return self

    def start(self, method):
        raise GmiDied(0, "trainer", signal=9)

    def records(self):
        return []


@pytest.mark.parametrize("is_new", [False, True])
def test_a_run_that_is_asked_to_stop_goes_on_by_no_other_layout(tmp_path, monkeypatch, is_new):
    with ExitStack() as locks:
        job, _, _ = new_job(config(tmp_path), [], None, tmp_path, locks, resolve=None)
        folder = RunFolder(job.folder)
        resizer = Resizer(folder, job, None, None)
        run = TrainingRun(
            folder=folder, view="none", store=None,
            callbacks=Callbacks([], folder.path, job.config), resizer=resizer, watch=None,
            promise_of=None, cluster=None, notes=(),
        )  # fmt: skip
        gangs = iter([StoppingGang()])
        monkeypatch.setattr(run, "_gang", lambda *args: next(gangs))
        if is_new:
            monkeypatch.setattr(resizer, "_change", _Change(job, (), before=job))
        else:
            monkeypatch.setattr(resizer, "lose", lambda *args: pytest.fail("it looks for a layout"))
        with pytest.raises(GmiDied):
            run.train()


@pytest.mark.slow
def test_gmis_that_are_killed_as_they_start_come_back(tmp_path):
    roles = {"trainer": bodies.KilledAtTheStartOfTwo}
    folder, metrics, (answer,) = resized(config(tmp_path), TWO, roles=roles)
    assert answer.state == "done"
    assert len(RunFolder(folder).state()["restarts"]) == 2
    assert len(metrics[-1]["gmi_seconds"]) == 2


def test_a_resize_that_comes_too_late_leaves_the_evaluation_be(tmp_path):
    settings = {"run__total_steps": 3 * HORIZON * NUM_ENV, "run__eval_episodes": 4}
    endless = {"id": "Pendulum-v1", "num_env": NUM_ENV, "max_episode_steps": 200}
    roles = {"trainer": bodies.ResizedAsItEvaluates}
    done = gmi_drl.launch(config(tmp_path, env=endless, **settings), view="none", roles=roles)
    assert (done.state, done.iteration) == ("finished", 3)
    assert done.eval_episodes == 4
    answer = answer_in(done.folder)
    assert (answer.id, answer.state) == ("late", "refused")
    assert "came to its end first" in answer.text


class StopsMeanwhile(gmi_drl.Callback):
    """Asks for another layout, and for the end of the run while the last iteration ends."""

    def on_start(self, run):
        self.run = run

    def on_iteration(self, iteration, metrics):
        answer = answer_in(self.run.folder)
        if iteration == 3:
            make_request(self.run.folder, ResizeRequest("mine", (TWO,)))
        elif answer is not None and answer.state == "changing":
            self.run.request_stop("enough")


@pytest.mark.slow
def test_a_callback_that_ends_the_run_meanwhile_has_its_way(tmp_path):
    done = gmi_drl.launch(config(tmp_path), view="none", callbacks=[StopsMeanwhile()])
    assert done.state == "stopped"
    assert answer_in(done.folder).state == "refused"
    assert len(RunFolder(done.folder).layout().gmis) == 1
    assert done.iteration == len(metrics_of(done.folder))


def test_a_request_that_does_not_fit_on_the_disk_leaves_nothing_there(tmp_path, monkeypatch):
    def full(path, text, **_):
        path.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space left"):
        make_request(tmp_path, ResizeRequest("mine", (TWO,)))
    assert not list(tmp_path.iterdir())


def test_one_at_a_time_and_nobody_waits_for_ever(tmp_path):
    done = gmi_drl.launch(config(tmp_path, run__total_steps=HORIZON * NUM_ENV), view="none")
    folder = RunFolder(done.folder)
    with folder.held():
        make_request(folder.path, ResizeRequest("another", (TWO,)))
        with pytest.raises(ResizeError, match="another resize is under way"):
            gmi_drl.resize(folder.path, [TWO])
        (folder.path / "resize_requested.json").unlink()
        with pytest.raises(ResizeError, match="has not looked at the request, which is withdrawn"):
            gmi_drl.resize(folder.path, [TWO], timeout_s=0.2)
    assert not (folder.path / "resize_requested.json").exists()


def test_who_asks_need_not_be_allowed_the_devices_of_the_run(tmp_path, monkeypatch):
    cores = sorted(os.sched_getaffinity(0))[:2]
    devices = {"num_gpus": 2, "cores": cores}
    path = config(tmp_path, hardware=devices, run__total_steps=2 * HORIZON * NUM_ENV)
    folder = RunFolder(gmi_drl.launch(path, view="none").folder)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(cores[:1]))
    with folder.held(), pytest.raises(ResizeError, match="has not looked at the request"):
        gmi_drl.resize(folder.path, ["env.num_env=4"], timeout_s=0.2)


def test_a_rule_that_there_is_not_is_told(tmp_path):
    with pytest.raises(ConfigError, match="keep='samples'; must be one of update, gradient_steps"):
        gmi_drl.resize(tmp_path, [TWO], keep="samples")


def test_a_request_that_is_a_folder_keeps_nobody_from_asking(tmp_path):
    (tmp_path / "resize_requested.json").mkdir()
    (tmp_path / "resize_requested.json" / "mine").touch()
    assert request_in(tmp_path) == ResizeRequest("", ())
    withdraw_request(tmp_path)
    assert next(tmp_path.glob("resize_requested.json.folder-*/mine")).exists()
    make_request(tmp_path, ResizeRequest("a", (TWO,)))
    assert request_in(tmp_path) == ResizeRequest("a", (TWO,))


def test_gmis_that_are_begun_anew_see_other_episodes():
    def seeds(**later):
        return [seed_of(1, gmi_id, ENVIRONMENTS, **later) for gmi_id in range(3)]

    known = [*seeds(), *seeds(lives=1), *seeds(resumed=1), *seeds(lives=1, resumed=1)]
    assert len(set(known)) == 12
    assert seeds(resumed=0) == seeds()


@pytest.mark.slow
def test_a_launcher_that_is_killed_leaves_one_of_the_two(tmp_path):
    """Config and layout change together, whenever it is killed."""
    done = gmi_drl.launch(config(tmp_path, run__total_steps=HORIZON * NUM_ENV), view="none")
    folder = RunFolder(done.folder)
    before = load_config(folder.path / "config.yaml")
    other = load_config(folder.path / "config.yaml", ["env.num_env=4"])
    layout = gmi_drl.launch(config(tmp_path, run__total_steps=64, env__num_env=4), view="none")
    layout = RunFolder(layout.folder).layout()
    for dies_at in ("change.json", "config.yaml", "never"):
        if (child := os.fork()) == 0:
            bodies.DyingFolder(folder.path, dies_at).become(other, layout)
            os._exit(0)
        os.waitpid(child, 0)
        folder.finish_change()
        assert folder.layout() == layout
        assert load_config(folder.path / "config.yaml").env.num_env == 4
        folder.become(before, RunFolder(done.folder).layout())
    assert not (folder.path / "change.json").exists()


DQN = {
    "name": "dqn", "network": [8], "horizon": 8, "batch_size": 16, "replay_capacity": 4000,
    "replay_start": 64, "updates_per_row": 0.1,
}  # fmt: skip
IMPALA = {"name": "impala", "network": [8], "horizon": 8}
ON_TWO = {"hardware": {"num_gpus": 2}}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"layout": {"template": "tdg_ex", "gmi_per_gpu": 2}}, "env.num_env=4"),
        ({"algorithm": DQN}, TWO),
        ({"algorithm": DQN | {"replay_save": True}}, TWO),
        ({"mode": "async", "algorithm": IMPALA, **ON_TWO}, "env.num_env=4"),
        (
            {"mode": "async", "algorithm": IMPALA, "experience__capacity": 8, **ON_TWO},
            "experience.batch_segments=2",
        ),
        ({"mode": "async", "algorithm": DQN, **ON_TWO}, "env.num_env=4"),
        ({"algorithm": {"name": "es", "network": [8], "population": 32}}, TWO),
        ({"algorithm": {"network": [8], "recurrent": {"cell": "gru", "size": 8}}}, TWO),
    ],
    ids=["tdg_ex", "replay", "saved replay", "async", "segments", "apex", "es", "recurrent"],
)
def test_every_mode(tmp_path, changes, words):
    folder, metrics, (answer,) = resized(config(tmp_path, **changes), words, keep="none")
    assert not isinstance(answer, Exception), answer
    assert answer.state == "done"
    gmis = RunFolder(folder).layout().gmis
    assert len(metrics[-1]["gmi_seconds"]) == len(gmis)
    assert answer.text.startswith(f"{len(gmis)} GMIs with {gmis[0].num_env or gmis[1].num_env} ")


@pytest.mark.slow
def test_lineage_tells_what_a_replay_holds_of_the_layout_before(tmp_path):
    """A GMI's rounds put half as many rows in from the resize on, into the replay that it has."""
    algorithm = DQN | {"replay_save": True, "replay_capacity": 100_000}
    folder, metrics, (answer,) = resized(config(tmp_path, algorithm=algorithm), TWO)
    assert answer.state == "done"
    (second,) = {line["iteration"] for line in metrics if len(line["gmi_seconds"]) == 2} & {
        line["iteration"] + 1 for line in metrics if len(line["gmi_seconds"]) == 1
    }
    with opened(folder / "gcs.sqlite") as store:
        policies = list(PolicyReader(store).chain())
    assert len(policies) == len(metrics) > second
    for policy in policies:
        oldest = {replay.trainer: replay.oldest for replay in policy.replays}
        wanted = {0: 1} if policy.version.number < second else {0: 1, 1: second}
        assert oldest == wanted


@pytest.mark.slow
def test_serving_and_pieces_are_refused(tmp_path):
    path = config(tmp_path, algorithm={"name": "a2c", "optimizer": "parameter_server",
                                       "normalize_value": False, "reward_scale": 0.1},
                  layout={"template": "parameter_server", "gmi_per_gpu": 2},
                  run__total_steps=4 * HORIZON * NUM_ENV)  # fmt: skip
    done = gmi_drl.launch(path, view="none")
    with RunFolder(done.folder).held(), pytest.raises(ConfigError, match="pieces"):
        gmi_drl.resize(done.folder, ["layout.gmi_per_gpu=3"])


def shrunk(path, role, **options):
    """Trains on two devices of which one is lost; returns the run, and what it is made of."""
    options = {"view": "none", **options}
    done = gmi_drl.launch(path, roles={"trainer": role}, keep_gcs=True, **options)
    assert done.state == "finished"
    metrics = metrics_of(done.folder)
    assert [line["iteration"] for line in metrics] == list(range(1, len(metrics) + 1))
    assert len(metrics) == done.iteration
    (entry,) = RunFolder(done.folder).state()["resizes"]
    assert entry["layout"] == f"1 GMI with {NUM_ENV} environments"
    assert steps_of(metrics) == [2 * HORIZON * NUM_ENV]  # an update keeps its samples
    gmis = [len(line["gmi_seconds"]) for line in metrics]
    with opened(done.folder / "gcs.sqlite") as store:
        assert sum(1 for _ in PolicyReader(store).chain()) == len(metrics)
    assert len(RunFolder(done.folder).layout().topology.devices) == 1
    return done, gmis


def on_two(tmp_path, **changes):
    steps = 10 * 2 * HORIZON * NUM_ENV
    settings = {"run__total_steps": steps, "run__checkpoint_every": 0, **changes}
    return config(tmp_path, hardware__num_gpus=2, **settings)


@pytest.mark.parametrize(
    ("role", "restarts"),
    [
        (bodies.LosesADevice, 3),
        pytest.param(bodies.LosesADevice, 0, marks=pytest.mark.slow),
        pytest.param(bodies.LosesTheFirstDevice, 3, marks=pytest.mark.slow),
    ],
)
def test_a_run_goes_on_without_a_device_that_is_lost(tmp_path, role, restarts):
    """From the last iteration, which a survivor has saved: none is trained twice, or missing."""
    done, gmis = shrunk(on_two(tmp_path, run__max_restarts=restarts), role)
    assert gmis == [2] * 4 + [1] * 6
    (entry,) = RunFolder(done.folder).state()["resizes"]
    assert entry["pause_s"] < 10


@pytest.mark.slow
def test_a_device_that_is_lost_during_a_long_iteration(tmp_path):
    path = on_two(tmp_path, comm__timeout_s=4)
    _, gmis = shrunk(path, bodies.LosesADeviceInALongIteration)
    assert gmis == [2] * 4 + [1] * 6


@pytest.mark.slow
def test_slices_of_a_lost_device_that_cannot_be_given_back_do_not_end_the_run(
    tmp_path, monkeypatch, capsys
):
    release, refused = LayoutSlices.release, []

    def refuses(slices):
        release(slices)
        if not refused:
            refused.append(slices)
            raise SliceError("GPU is lost")

    monkeypatch.setattr(LayoutSlices, "release", refuses)
    _, gmis = shrunk(on_two(tmp_path), bodies.LosesADevice, view="plain")
    assert gmis == [2] * 4 + [1] * 6
    assert "GPU is lost" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("restarts", [0, 3])
def test_where_the_heir_is_killed_as_it_saves_the_last_checkpoint_is_gone_on_from(
    tmp_path, restarts
):
    path = on_two(tmp_path, run__checkpoint_every=3, run__max_restarts=restarts)
    _, gmis = shrunk(path, bodies.LosesItsHeirToo)
    assert gmis == [2] * 3 + [1] * 7


@pytest.mark.slow
def test_a_device_that_is_lost_before_there_is_a_checkpoint(tmp_path):
    begun_s = time.monotonic()
    done, gmis = shrunk(on_two(tmp_path), bodies.LosesItAtOnce)
    assert gmis == [1] * 10
    (entry,) = RunFolder(done.folder).state()["resizes"]
    assert 0 < entry["pause_s"] < time.monotonic() - begun_s


@pytest.mark.slow
def test_a_device_that_is_lost_before_a_resume_has_saved_anything(tmp_path):
    """The run goes on from the checkpoint that the resume has gone back to, and not a later one."""
    path = on_two(tmp_path, run__checkpoint_every=2, run__total_steps=6 * 2 * HORIZON * NUM_ENV)
    folder = gmi_drl.launch(path, view="none", keep_gcs=True).folder
    done = gmi_drl.launch(
        resume=folder / "checkpoints" / "iteration_000002", view="none", keep_gcs=True,
        overrides=[f"run.total_steps={8 * 2 * HORIZON * NUM_ENV}"],
        roles={"trainer": bodies.LosesItAtOnce},
    )  # fmt: skip
    assert (done.state, done.iteration) == ("finished", 8)
    metrics = metrics_of(folder)
    assert [line["iteration"] for line in metrics] == list(range(1, 9))
    assert [len(line["gmi_seconds"]) for line in metrics] == [2] * 2 + [1] * 6


def test_a_run_leaves_cores_that_are_taken_offline(tmp_path, monkeypatch):
    usable = os.sched_getaffinity(0)

    class TakesCores(gmi_drl.Callback):
        def on_iteration(self, iteration, metrics):
            if iteration == 3:
                less = usable - {max(usable)}
                monkeypatch.setattr(os, "sched_getaffinity", lambda pid: less)

    path = on_two(tmp_path, hardware__cores=[min(usable), max(usable)], run__total_steps=10**8)
    done = gmi_drl.launch(path, view="none", callbacks=[TakesCores(), EndsOnOne()])
    assert done.state == "stopped"
    (device,) = RunFolder(done.folder).layout().topology.devices
    assert device.cores == (min(usable),)


class EndsOnOne(gmi_drl.Callback):
    """Ends a run that has trained on one GMI."""

    def on_start(self, run):
        self.run = run

    def on_iteration(self, iteration, metrics):
        if len(metrics["gmi_seconds"]) == 1:
            self.run.request_stop("it has shrunk")


@pytest.mark.parametrize("count", [1, pytest.param(6, marks=pytest.mark.slow)])
def test_a_run_resizes_itself_as_its_note_proposes_and_neither_back_nor_without_end(
    tmp_path, monkeypatch, count
):
    """The noise scale is above the first layouts, and below the others."""
    sides = iter(["above"] * count + ["below"] * 9)

    def take(fit, noise_scale):
        fit.taken = getattr(fit, "taken", 0) + 1
        return next(sides) if fit.taken == 3 else ""

    monkeypatch.setattr(NoiseFit, "take", take)
    most = min(count, 4)
    steps = HORIZON * NUM_ENV * 12 * 2 ** (most + 1)  # a resize may take some iterations to come
    path = config(tmp_path, run__resize="auto", run__total_steps=steps, algorithm__minibatches=2)
    done = gmi_drl.launch(path, view="none")
    folder = RunFolder(done.folder)
    state = folder.state()
    words = [f"above algorithm.horizon={HORIZON * 2 ** (n + 1)}" for n in range(most)]
    assert [entry["proposed"] for entry in state["resizes"]] == words
    horizons = [HORIZON * 2**n for n in range(most + 1)]
    assert steps_of(metrics_of(done.folder)) == [horizon * NUM_ENV for horizon in horizons]
    last = state["noise_notes"][-1]
    assert ("would undo" if count == 1 else "not resize itself again") in last["text"]
    assert load_config(folder.path / "config.yaml").algorithm.horizon == horizons[-1]


@pytest.mark.slow
def test_a_proposal_that_does_not_fit_leaves_the_run_as_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(NoiseFit, "take", lambda fit, noise_scale: "above")
    monkeypatch.setattr(noise_watch, "larger", lambda *args: ("noisy.", ["hardware.cores=[99]"]))
    path = config(tmp_path, run__resize="auto", run__total_steps=2 * HORIZON * NUM_ENV)
    done = gmi_drl.launch(path, view="none")
    state = RunFolder(done.folder).state()
    assert "resizes" not in state
    assert "The run cannot resize itself so: " in state["noise_notes"][0]["text"]


def drifts_once(monkeypatch):
    """Has the speed of a run be found to have drifted by its third iteration."""
    taken = itertools.count()
    monkeypatch.setattr(Drift, "take", lambda *_: Drifted(1e6, 600.0) if next(taken) == 2 else None)


def promise(folder, *ways):
    return Promise(1e6, folder, lambda *_: "", lambda steps_per_s: list(ways))


def test_a_run_whose_speed_has_drifted_resizes_itself_by_its_record_once(
    tmp_path, monkeypatch, capsys
):
    """By the first of what is better that fits; later layouts are held against nothing."""
    drifts_once(monkeypatch)
    looks = []

    def promise_of(config, topology, folder):
        looks.append(config.layout.gmi_per_gpu)
        return promise(tmp_path, "hardware.cores=[99]", f"env.num_env=4 {TWO}")

    path = config(tmp_path, run__resize="auto", run__total_steps=HORIZON * NUM_ENV * 20)
    done = launch(path, view="plain", promise_of=promise_of)
    state = RunFolder(done.folder).state()
    (entry,) = state["resizes"]
    assert entry["proposed"] == f"drift env.num_env=4 {TWO}"
    assert entry["layout"] == "2 GMIs with 4 environments"
    assert looks == [1]
    told = capsys.readouterr().out
    assert f"The run resizes itself by env.num_env=4 {TWO}." in " ".join(told.split())


@pytest.mark.slow
@pytest.mark.parametrize("auto", [True, False])
def test_a_run_whose_speed_has_drifted_stays_as_it_is(tmp_path, monkeypatch, capsys, auto):
    """Where it does not resize itself, or nothing fits."""
    drifts_once(monkeypatch)
    resize, way = ("auto", "hardware.cores=[99]") if auto else ("on_request", TWO)
    path = config(tmp_path, run__resize=resize, run__total_steps=HORIZON * NUM_ENV * 6)
    done = launch(path, view="plain", promise_of=lambda *_: promise(tmp_path, way))
    assert "resizes" not in RunFolder(done.folder).state()
    told = " ".join(capsys.readouterr().out.split())
    assert "Its record is stale from now on: run gmi-drl tune again." in told
    assert ("The run cannot resize itself so: " in told) == auto
