"""Films are made where there is no display."""

import re
import shutil
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import gmi_drl
from gmi_drl.cli.main import main
from gmi_drl.placement.faults import install
from gmi_drl.trained import filming
from gmi_drl.trained.filming import record_video
from gmi_drl.trained.policy import PolicyNotLoaded
from terminals import Terminal
from waits import until

ffmpeg = pytest.importorskip("imageio_ffmpeg")
TESTS = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.timeout(600)


def frames_of(file):
    """Returns the pictures [frames, H, W, 3] of a film."""
    command = [ffmpeg.get_ffmpeg_exe(), "-i", str(file), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    done = subprocess.run(command, capture_output=True, check=True)
    width, height = map(
        int, re.search(r"Video: .* (\d{2,})x(\d{2,})", done.stderr.decode()).groups()
    )
    return np.frombuffer(done.stdout, np.uint8).reshape(-1, height, width, 3)


@pytest.mark.parametrize(
    "task",
    ["ppo", *(pytest.param(name, marks=pytest.mark.slow) for name in ("images", "lstm"))],
)
def test_a_film_has_a_picture_for_each_step(train, task):
    folder = train(task)
    file = record_video(folder, episodes=2, seed=3, max_frames=2000)
    assert file == folder / "report" / "video.mp4"
    frames = frames_of(file)
    assert min(frames[0].shape[:2]) >= 240
    assert any((frames[0] != later).any() for later in frames[1:])  # something moves
    if task == "ppo":  # the same episodes, by the seed of the first
        found = gmi_drl.evaluate(
            folder, episodes=2, num_env=1, seed=3, overrides=["env.adapter=gymnasium"]
        )
        assert len(frames) == sum(found.lengths)


def test_a_robot_is_drawn(train):
    pytest.importorskip("mujoco")
    try:
        file = record_video(train("ant"), max_frames=8)
    except PolicyNotLoaded as error:
        if "apt install" not in str(error):
            raise
        pytest.skip("neither EGL nor OSMesa draws on this machine")
    frames = frames_of(file)
    assert len(frames) == 8
    assert frames[0].std() > 10  # not an empty picture


def test_the_camera_follows_a_robot(train):
    pytest.importorskip("mujoco")
    with closing(filming._drawable(gmi_drl.load_policy(train("ant")))) as env:
        (renderer,) = env._env.get_attr("mujoco_renderer")
        assert renderer.camera_id >= 0  # Gymnasium's own choice stays where the robot began


def test_the_command_says_where_the_film_is(train, tmp_path, capsys):
    file = tmp_path / "cart.mp4"
    assert main(["video", str(train("ppo")), "-o", str(file), "--max-frames", "5"]) == 0
    assert str(file) in capsys.readouterr().out
    assert len(frames_of(file)) == 5
    assert [path.name for path in tmp_path.iterdir()] == ["cart.mp4"]


@pytest.mark.slow
def test_a_terminal_is_shown_how_far_a_film_is(train, tmp_path):
    words = ["video", str(train("ant")), "--max-frames", "40", "-o", str(tmp_path / "film.mp4")]
    terminal = Terminal(200, *words)
    try:
        terminal.until(None)
        assert terminal.process.wait(timeout=60) == 0, terminal.written
    finally:
        terminal.close()
    assert re.search(rb": [24]0 pictures", terminal.written), terminal.written


def test_what_has_no_pictures_is_told(train, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(TESTS))  # where the environment's module lies
    with pytest.raises(PolicyNotLoaded, match="its __init__ take render_mode"):
        record_video(train("structure"), max_frames=5)
    undrawn = ["env.id=bodies_spaces:DrawsNothing-v0"]
    with pytest.raises(PolicyNotLoaded, match=r"^env\.id=.* its render gave None; must be"):
        record_video(train("structure"), max_frames=5, overrides=undrawn)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "checkpoints", "code", "said"),
    [
        ("ShowsShifted", False, 2, "holds no checkpoint"),
        ("DrawnStepRaises", True, 1, "its step raised RuntimeError: no licence file"),
    ],
)
def test_a_fault_gives_each_command_the_same_exit_code(
    train, tmp_path, monkeypatch, capsys, env, checkpoints, code, said
):
    monkeypatch.setenv("PYTHONPATH", str(TESTS))  # where the environment's module lies
    folder = shutil.copytree(train("structure"), tmp_path / "run")
    if not checkpoints:
        shutil.rmtree(folder / "checkpoints")
    for command in ("evaluate", "video", "export"):
        words = [command, str(folder), "--set", f"env.id=bodies_spaces:{env}-v0"]
        assert main(words) == code, words
        assert said in (told := capsys.readouterr().err), words
        assert "apt install" not in told  # another way of drawing would meet it too
    assert not list(folder.glob("report/*.mp4"))


def test_packages_that_are_missing_are_named(train, tmp_path, monkeypatch):
    missing = "raise ModuleNotFoundError(\"No module named 'imageio_ffmpeg'\")"
    (tmp_path / "imageio_ffmpeg.py").write_text(missing)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(PolicyNotLoaded, match=rf"imageio_ffmpeg'\. {re.escape(install('video'))}"):
        record_video(train("ppo"))


def test_an_ffmpeg_that_does_not_run_costs_films_that_need_it(train, tmp_path, monkeypatch):
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", str(tmp_path / "no_such"))
    with pytest.raises(PolicyNotLoaded, match=r"ffmpeg, .* does not run \(.*no_such.*FILE\.gif"):
        record_video(train("ppo"))
    assert record_video(train("ppo"), file=tmp_path / "film.gif", max_frames=6).is_file()


def test_a_gif_of_a_short_episode_has_its_first_picture(train, tmp_path):
    short = ["env.max_episode_steps=2"]
    film = record_video(train("ppo"), file=tmp_path / "film.gif", overrides=short)
    assert film.read_bytes().startswith(b"GIF8")


def test_a_package_that_draws_is_named(train, tmp_path, monkeypatch):
    (tmp_path / "pygame.py").write_text("raise ImportError('not here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(PolicyNotLoaded, match=r"pygame is not installed") as caught:
        record_video(train("ppo"))
    assert install("video") in str(caught.value)
    assert "apt install" not in str(caught.value)


def test_every_way_of_drawing_is_tried_and_packages_are_named(train, monkeypatch):
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    tried = []

    def refuse(module, function, arguments, deadline, variables, *_):
        tried.append((variables["MUJOCO_GL"], arguments[0]["episodes"]))
        return {"not_drawn": "no OpenGL"}

    monkeypatch.setattr(filming, "ask", refuse)
    with pytest.raises(PolicyNotLoaded, match=r"Install .*libegl1.*libosmesa6"):
        record_video(train("ppo"), episodes=3)
    assert tried == [("egl", 3), ("osmesa", 3)]
    monkeypatch.setenv("MUJOCO_GL", "glfw")  # the user's own choice
    with pytest.raises(PolicyNotLoaded, match=r"glfw: no OpenGL.*Unset MUJOCO_GL"):
        record_video(train("ppo"))
    assert tried[2:] == [("glfw", 1)]


def test_two_films_of_one_file_at_once_are_both_whole(train, tmp_path, monkeypatch):
    file, parts = tmp_path / "film.mp4", []

    def film(module, function, arguments, deadline, variables, *_):
        part = Path(arguments[0]["file"])
        parts.append(part)
        part.write_text(f"film {len(parts)}")
        if len(parts) == 1:  # the second one begins and ends while the first is made
            record_video(train("ppo"), file=file)
            assert file.read_text() == "film 2"
            assert part.read_text() == "film 1"
        return {}

    monkeypatch.setattr(filming, "ask", film)
    record_video(train("ppo"), file=file)
    assert file.read_text() == "film 1"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_film_that_is_ended_leaves_nothing(train, tmp_path, number):
    command = [sys.executable, "-m", "gmi_drl", "video", str(train("sac")), "--episodes", "99999"]
    command += ["--max-frames", "9999999", "-o", str(tmp_path / "film.mp4")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        until(lambda: list(tmp_path.glob(".film.*")) or process.poll() is not None, within_s=300)
        assert process.poll() is None
        assert named_by(tmp_path)  # ffmpeg
        process.send_signal(number)
        assert process.communicate(timeout=120)[1] == "interrupted\n"
    assert process.returncode == 130
    assert not list(tmp_path.iterdir())
    assert not named_by(tmp_path)


def named_by(folder):
    """Returns the processes, but for the command itself, whose command line names a folder."""
    lines = (path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists())
    return [line for line in lines if f"{folder}/.film".encode() in line]


def test_small_pictures_are_enlarged_and_sides_are_even():
    small = np.arange(10 * 11 * 3, dtype=np.uint8).reshape(10, 11, 3)
    large = filming._enlarged(small)
    assert large.shape == (240, 264, 3)
    assert (large[::24, ::24] == small).all()
    assert filming._enlarged(np.ones((301, 400, 3))).shape == (302, 400, 3)
    assert filming._enlarged(np.ones((300, 400, 3))).max() == 255
