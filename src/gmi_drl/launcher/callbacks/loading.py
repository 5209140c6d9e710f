"""Makes the callbacks that a config names: its loggers, and classes of the user's."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from gmi_drl.placement import Config, Fault
from gmi_drl.placement.faults import install

from .calls import CallbackError

EVENTS: Final = ("on_start", "on_iteration", "on_checkpoint", "on_end")
# The class of each logger that `run.log` may name, the package that it needs, and the extra.
_HERE: Final = "gmi_drl.launcher.callbacks"
LOGGERS: Final = {
    "tensorboard": (f"{_HERE}.tensorboard_log:TensorBoardLog", "tensorboard", ""),
    "wandb": (f"{_HERE}.wandb_log:WandbLog", "wandb", "wandb"),
    "mlflow": (f"{_HERE}.mlflow_log:MlflowLog", "mlflow", "mlflow"),
}


def named_callbacks(config: Config) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the classes of `run.callbacks`, each with its options."""
    for entry in config.run.callbacks:
        if isinstance(entry, str):
            yield entry, {}
        else:
            yield from ((name, options or {}) for name, options in entry.items())


def logger_faults(config: Config) -> list[Fault]:
    """Lists the loggers whose packages are not installed."""
    faults = []
    for name in config.run.log:
        _, package, extra = LOGGERS[name]
        if find_spec(package) is None:
            rule = f"package {package} is not installed"
            command = install(extra) if extra else f"pip install {package}"
            faults.append(Fault("run.log", name, rule, f"Install it: {command}."))
    if config.run.video_every and find_spec("imageio_ffmpeg") is None:
        rule = "package imageio-ffmpeg is not installed"
        remedy = f"Install it: {install('video')}."
        faults.append(Fault("run.video_every", config.run.video_every, rule, remedy))
    return faults


def callback_problems(reference: str, options: dict[str, Any], folder: str) -> list[str]:
    """Lists what is wrong with a class of the user's, without making one.

    Called in a process of its own.
    """
    from gmi_drl.roles.errors import RoleLoadError
    from gmi_drl.roles.loading import load_class

    where = f"run.callbacks={reference!r}"
    try:
        callback_class = load_class(reference, Path(folder), "callback")
    except RoleLoadError as error:
        return [f"{where}; {error}"]
    if not any(callable(getattr(callback_class, event, None)) for event in EVENTS):
        return [
            f"{where}; it has none of {', '.join(EVENTS)}. Write one, or derive it from "
            "gmi_drl.Callback."
        ]
    try:
        inspect.signature(callback_class).bind(**options)
    except (TypeError, ValueError) as error:
        return [f"{where}; it cannot be made with options {options}: {error}. Correct them."]
    return []


def made_callbacks(config: Config, folder: Path | None) -> list[object]:
    """Makes the loggers of a config and its callbacks; CallbackError if a class raises."""
    from gmi_drl.roles.loading import load_class

    callbacks: list[object] = [load_class(LOGGERS[name][0])() for name in config.run.log]
    if config.run.video_every:
        callbacks.append(load_class(f"{_HERE}.video_log:VideoLog")(every=config.run.video_every))
    for reference, options in named_callbacks(config):
        callback_class = load_class(reference, folder, "callback")
        try:
            callbacks.append(callback_class(**options))
        except Exception as error:
            raise CallbackError(
                f"run.callbacks={reference!r}: making it with options {options} raised "
                f"{type(error).__name__}: {error}."
            ) from error
    return callbacks


def check_objects(callbacks: Iterable[object]) -> list[object]:
    """Returns callbacks as `launch` was given them; ValueError for what is none."""
    objects = list(callbacks)
    for item in objects:
        if isinstance(item, type):
            raise ValueError(
                f"launch(callbacks=...): {item.__name__} is a class. Make one: {item.__name__}()."
            )
        if not any(callable(getattr(item, event, None)) for event in EVENTS):
            raise ValueError(
                f"launch(callbacks=...): {item!r} has none of {', '.join(EVENTS)}. Write one, or "
                "derive its class from gmi_drl.Callback."
            )
    return objects
