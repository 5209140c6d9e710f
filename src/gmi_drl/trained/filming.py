"""Films the policy of a run, on machines without a display too.

MuJoCo chooses how it draws when it is imported, so pictures are made in a process of its own: by
EGL, else by OSMesa, which draws on the CPU.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from gmi_drl.launcher.folder.run_folder import RunFolder
from gmi_drl.launcher.plan.child_process import ChildFailed, ask
from gmi_drl.placement.faults import install

from .policy import PolicyFailed, PolicyNotLoaded, TrainedPolicy, load_all

if TYPE_CHECKING:
    from gmi_drl.roles.envs.gymnasium import GymnasiumVecEnv

FILE: Final = "report/video.mp4"
_DRAWERS: Final = ("egl", "osmesa")  # of MuJoCo, in the order they are tried in
_GIF_EVERY: Final = 3  # pictures of which one is in a gif, which is large
_TELL_EVERY: Final = 20  # pictures
_DEADLINE: Final = timedelta(minutes=30)
_LEAST_PIXELS: Final = 240  # of a picture's shorter side: smaller ones are enlarged


def record_video(
    run: Path | str,
    *,
    checkpoint: int | None = None,
    episodes: int = 1,
    seed: int = 0,
    max_frames: int = 3000,
    file: Path | None = None,
    overrides: Iterable[str] = (),
    progress: Callable[[str], None] | None = None,
) -> Path:
    """Films `episodes` of a run's policy: as mp4, report/video.mp4 in its folder, or as gif.

    The environment is Gymnasium's of that id, whatever adapter the run was trained with. A film
    ends after `max_frames`. PolicyNotLoaded says what is missing; blocks for half an hour at most
    for each way of drawing. `progress` is called now and then with how far it is, as a line.
    """
    folder = RunFolder.existing(Path(run))
    target = (folder.path / FILE if file is None else file).absolute()
    if target.suffix not in (".mp4", ".gif"):
        raise PolicyNotLoaded(f"{target}: its name must end in .mp4 or .gif. Give another.")
    # Removed by this process, as the one that films is killed by Ctrl-C and by the deadline.
    partial = target.with_name(f".{target.stem}.{secrets.token_hex(4)}.part{target.suffix}")
    request = {
        "run": str(Path(run).resolve()),
        "checkpoint": checkpoint,
        "episodes": episodes,
        "seed": seed,
        "max_frames": max_frames,
        "file": str(partial),
        "overrides": list(overrides),
    }
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _film(request, folder.path, progress)
        partial.replace(target)
    except OSError as error:
        raise PolicyNotLoaded(
            f"{target} cannot be written ({error.strerror}). Give another: -o FILE."
        ) from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
    return target


def _film(request: dict[str, Any], run: Path, progress: Callable[[str], None] | None) -> None:
    """Has the film of a `request` made, by the first way of drawing that works."""
    forced = os.environ.get("MUJOCO_GL")
    failures: list[str] = []
    for drawer in [forced] if forced else _DRAWERS:
        variables = {"MUJOCO_GL": drawer, "PYOPENGL_PLATFORM": drawer, "SDL_VIDEODRIVER": "dummy"}
        try:
            answer = ask(__name__, "film_here", [request], _DEADLINE, variables, progress)
        except ChildFailed as failed:
            failures.append(f"{drawer}: {failed}")
            continue
        if fault := answer.get("fault"):
            raise (PolicyNotLoaded if answer.get("is_input", True) else PolicyFailed)(fault)
        if "not_drawn" not in answer:
            return
        failures.append(f"{drawer}: {answer['not_drawn']}")
    remedy = (
        "Unset MUJOCO_GL, which leaves the choice to gmi-drl, or install" if forced else "Install"
    )
    raise PolicyNotLoaded(
        f"{run}: no picture could be drawn ({'; '.join(failures)}). {remedy} what draws "
        "without a display: on Debian or Ubuntu `apt install libegl1 libgl1-mesa-dri`, or "
        "libosmesa6."
    )


def film_here(request: dict[str, Any]) -> dict[str, Any]:
    """Makes the film that is asked for, in this process; returns why there is none, if so.

    `not_drawn`: another way of drawing may do; `fault`: none will, and `is_input` says whether it
    is one of what was asked for, as by default, or of code that was run.
    """
    from gymnasium.error import DependencyNotInstalled

    from gmi_drl.errors import GmiDrlError
    from gmi_drl.roles.envs import EnvError, EnvRaised, EnvSpecError

    file = Path(request["file"])
    try:
        import imageio.v2 as imageio
        import imageio_ffmpeg  # type: ignore[import-untyped]

        if file.suffix == ".mp4":
            imageio_ffmpeg.get_ffmpeg_version()  # which runs it
    except ImportError as error:
        return {"fault": f"{error}. {install('video')}."}
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        return {
            "fault": f"ffmpeg, which writes mp4, does not run ({error}). Leave IMAGEIO_FFMPEG_EXE "
            f"unset and {install('video')}, which brings one; or take a gif: -o FILE.gif."
        }
    try:
        policy = load_all(
            request["run"], checkpoint=request["checkpoint"], overrides=request["overrides"]
        )
        env = _drawable(policy)
    except GmiDrlError as error:
        return {"fault": str(error), "is_input": error.command_exit_code == 2}
    try:
        with closing(env):
            pictures = _pictures(policy, env, request["episodes"], request["seed"])
            film: Any = _writer(imageio, file, env.frames_per_s)
            for number, picture in enumerate(pictures, 1):
                if number % _TELL_EVERY == 0:
                    print(f"{number:,} pictures", file=sys.stderr, flush=True)
                if file.suffix != ".gif":
                    film.append_data(picture)
                elif number % _GIF_EVERY == 1:  # the first, as an episode may have no more
                    film.append_data(_small(picture))
                if number >= request["max_frames"]:
                    break
            film.close()
    except EnvSpecError as error:
        return {"fault": str(error)}
    except EnvRaised as error:  # its render, mostly: OpenGL is not there
        if isinstance(error.__cause__, DependencyNotInstalled):  # a package of Python's
            return {"fault": f"{error.__cause__}, or {install('video')}."}
        return {"not_drawn": str(error)}
    except EnvError as error:  # its reset or step
        return {"fault": str(error), "is_input": False}
    except OSError as error:
        return {"fault": f"{file.parent}: the film cannot be written ({error}). Give -o FILE."}
    return {}


def _drawable(policy: TrainedPolicy) -> GymnasiumVecEnv:
    """Makes one environment that draws itself; EnvSpecError if it does not."""
    from gmi_drl.roles.envs import EnvSpecError, check_env, make_env
    from gmi_drl.roles.envs.adapters import find_spec

    env = policy.origin.config.env
    if env.adapter == "pettingzoo":
        raise EnvSpecError(
            f"env.adapter={env.adapter}: films are of environments of one agent. Make the "
            "environment with render_mode in Python, and act by gmi_drl.load_policy."
        )
    if (spec := find_spec(env.id)) is None:
        raise EnvSpecError(
            f"env.id={env.id!r}: films are of Gymnasium's environments, which it is none of. "
            "Draw it yourself and act by gmi_drl.load_policy, or name one of Gymnasium's with "
            "the same observations and actions: --set env.id=..."
        )
    extra: dict[str, Any] = {"render_mode": "rgb_array"}
    is_of_mujoco = str(spec.entry_point).startswith("gymnasium.envs.mujoco")
    if is_of_mujoco and not {"camera_id", "camera_name"} & env.options.keys():
        extra["camera_name"] = "track"  # one that follows the robot, where the model has it
    options = {**env.options, **extra}
    options.pop("vectorization", None)
    if check_env(env.id, "gymnasium", options, env.wrappers):  # some are of the run's adapter alone
        options = extra
    if faults := check_env(env.id, "gymnasium", options, env.wrappers):
        raise EnvSpecError(
            f"env.id={env.id!r}: a film is of an environment that draws by Gymnasium's "
            f"render_mode='rgb_array' ({faults[0]}) Have its __init__ take render_mode, and "
            "its render() return a picture; or act by gmi_drl.load_policy."
        )
    vec_env: Any = make_env(
        env.id,
        1,
        adapter="gymnasium",
        options=options,
        max_episode_steps=env.max_episode_steps,
        wrappers=env.wrappers,
    )
    return vec_env  # type: ignore[no-any-return]


def _writer(imageio: Any, file: Path, frames_per_s: float) -> Any:
    """Opens a film."""
    if file.suffix == ".gif":
        return imageio.get_writer(file, duration=1000 * _GIF_EVERY / frames_per_s, loop=0)
    return imageio.get_writer(file, fps=frames_per_s, codec="libx264", macro_block_size=2)


def _small(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Returns a picture whose shorter side has 240 to 479 pixels."""
    stride = max(min(picture.shape[:2]) // _LEAST_PIXELS, 1)
    return picture[::stride, ::stride]


def _pictures(
    policy: TrainedPolicy, env: GymnasiumVecEnv, episodes: int, seed: int
) -> Iterator[NDArray[np.uint8]]:
    """Yields what is seen before each step of so many episodes."""
    import torch

    actor, to_env = policy.actor(1), policy.module.to_env
    observation, began = env.reset(seed), torch.ones(1, dtype=torch.bool)
    while episodes > 0:
        yield _enlarged(env.render())
        step = env.step(to_env(actor.act(observation, began)))
        began = step.terminated | step.truncated
        observation = step.observation
        episodes -= int(began)


def _enlarged(picture: NDArray[Any]) -> NDArray[np.uint8]:
    """Returns a picture [H, W, 3] of bytes, of even sides (as the codec wants), large enough."""
    if picture.dtype != np.uint8:
        scale = 1.0 if picture.max() <= 1.0 else 255.0
        picture = (picture * (255.0 / scale)).astype(np.uint8)
    factor = -(-_LEAST_PIXELS // min(picture.shape[:2]))
    if factor > 1:
        picture = picture.repeat(factor, 0).repeat(factor, 1)
    height, width = picture.shape[:2]
    return np.pad(picture, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
