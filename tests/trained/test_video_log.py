"""A run films its checkpoints while it trains, and TensorBoard shows the films."""

import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest
import yaml

import gmi_drl
from gmi_drl.launcher.callbacks import video_log
from gmi_drl.launcher.callbacks.callback import EndedRun, StartedRun
from gmi_drl.launcher.callbacks.video_log import VideoError, VideoLog
from waits import until

pytest.importorskip("imageio_ffmpeg")

pytestmark = [pytest.mark.usefixtures("warm"), pytest.mark.timeout(600)]


def config_in(folder, **run):
    config = {
        "version": 1,
        "run": {
            "folder": str(folder), "total_steps": 1024, "eval_episodes": 0, "checkpoint_every": 2,
            "video_every": 2, **run,
        },
        "env": {"id": "CartPole-v1", "num_env": 4},
        "algorithm": {"network": [8], "horizon": 32},
        "hardware": {"backend": "cpu", "num_gpus": 1},
    }  # fmt: skip
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.mark.slow
def test_films_are_kept_and_shown_by_tensorboard(tmp_path):
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    folder = gmi_drl.launch(config_in(tmp_path), view="none").folder
    films = sorted(path.name for path in (folder / "report" / "videos").glob("*.gif"))
    assert films[-1] == "iteration_000008.gif"  # the last checkpoint always is
    assert not list((folder / "checkpoints").glob(".*"))
    shown = []
    for events in (folder / "tb").glob("*.video"):
        read = accumulators.EventAccumulator(str(events))
        read.Reload()
        shown += read.Images("video/greedy")
    assert sorted(image.step for image in shown) == [int(name[10:16]) for name in films]
    assert all(image.encoded_image_string.startswith(b"GIF8") for image in shown)


@pytest.mark.slow
def test_a_film_that_fails_is_told_and_the_last_one_is_made_all_the_same(tmp_path, monkeypatch):
    folder = gmi_drl.launch(config_in(tmp_path, video_every=0), view="none").folder
    newest = max((folder / "checkpoints").iterdir())
    log = VideoLog(every=1)
    log.on_start(StartedRun(folder, None, None, False, lambda why: None))
    (newest / "shared.pt").rename(newest / "away")
    log.on_checkpoint(newest)
    with pytest.raises(
        VideoError, match=r"no film of iteration 8: .*is torn: shared\.pt is missing"
    ):
        log._await()
    (newest / "away").rename(newest / "shared.pt")
    log.on_checkpoint(newest)  # another one comes before it was due
    log.on_end(EndedRun("finished"))
    assert (folder / "report" / "videos" / "iteration_000008.gif").is_file()


@contextmanager
def hanging(folder, monkeypatch, longest_s, ignores=signal.SIGUSR1):
    """Yields a log, and the process that its films are made by, which makes none.

    `ignores`: the signal that it does not end by.
    """
    (folder / "checkpoints" / "iteration_000003").mkdir(parents=True)
    log = VideoLog(every=1)
    log.on_start(StartedRun(folder, None, None, False, lambda why: None))
    code = (
        f"import signal, time; signal.signal({int(ignores)}, signal.SIG_IGN); "
        "print('ready', flush=True); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    monkeypatch.setattr(video_log.subprocess, "Popen", lambda *args, **options: process)
    monkeypatch.setattr(video_log.os, "killpg", lambda pid, number: process.send_signal(number))
    monkeypatch.setattr(video_log, "_LONGEST_S", longest_s)
    try:
        yield log, process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_film_that_hangs_is_ended(tmp_path, monkeypatch):
    with hanging(tmp_path, monkeypatch, 0.0) as (log, process):
        log.on_checkpoint(tmp_path / "checkpoints" / "iteration_000001")  # dropped by now
        assert log._film is None
        assert not (tmp_path / "checkpoints" / ".filmed").exists()
        log.on_checkpoint(tmp_path / "checkpoints" / "iteration_000003")
        with pytest.raises(VideoError, match="given up"):
            log._await()
        assert process.returncode == -signal.SIGTERM
        assert not (tmp_path / "checkpoints" / ".filmed").exists()


def test_a_film_that_does_not_end_by_itself_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(video_log, "_END_S", 0.1)
    with hanging(tmp_path, monkeypatch, 5.0, ignores=signal.SIGTERM) as (log, process):
        log.on_checkpoint(tmp_path / "checkpoints" / "iteration_000003")
        log.on_end(EndedRun("stopped"))
        assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("state", ["stopped", "failed"])
def test_a_run_that_is_stopped_waits_for_no_film(tmp_path, monkeypatch, state):
    with hanging(tmp_path, monkeypatch, 5.0) as (log, process):
        log.on_checkpoint(tmp_path / "checkpoints" / "iteration_000003")
        log.on_end(EndedRun(state))
        assert process.returncode == -signal.SIGTERM
        assert not (tmp_path / "checkpoints" / ".filmed").exists()


@pytest.mark.slow
def test_an_interrupted_launch_leaves_no_film_being_made(tmp_path):
    path = config_in(tmp_path, total_steps=10_000_000, checkpoint_every=1)
    process = subprocess.Popen(
        [sys.executable, "-m", "gmi_drl", "launch", str(path), "--quiet"], cwd=tmp_path
    )
    log = "run/*/report/videos/films.log"
    until(lambda: [*tmp_path.glob(log)] or process.poll() is not None, "a film", 300)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(300) == 130
    assert not list(tmp_path.glob("run/*/checkpoints/.filmed"))
