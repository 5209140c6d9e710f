"""Takes a run that trains to another layout: other numbers of GMIs and environments, other devices.

The run's own launcher does it (`launcher.start.resizer`); here it is asked to, and waited for.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, Literal, TypeAlias, get_args

from .errors import GmiDrlError
from .launcher.folder.resize_request import (
    ANSWER,
    ResizeAnswer,
    ResizeRequest,
    answer_in,
    make_request,
    withdraw_request,
)
from .launcher.folder.run_folder import RunFolder, is_trained
from .launcher.plan.planning import find_devices
from .launcher.start.jobs import resize_faults
from .placement import ConfigError, Fault, load_config
from .selector.tune.keep import followed

Keep: TypeAlias = Literal["update", "gradient_steps", "none"]
_POLL_S: Final = 0.05


class ResizeError(GmiDrlError, RuntimeError):
    """Says why a run has not become another layout. It goes on as it was, if it did train."""

    command_exit_code = 2


def resize(
    run: Path | str,
    overrides: Iterable[str],
    *,
    keep: Keep = "update",
    timeout_s: float = 300.0,
    say: Callable[[str], object] = lambda text: None,
) -> ResizeAnswer:
    """Takes the run in a folder to another layout at the border of an iteration, and waits for it.

    `overrides` are `section.key=value` strings of `launcher.start.jobs.RESIZABLE`. `keep` names the
    rule by which horizon, minibatches and learning rate follow, where `overrides` do not say them:
    as `tune.keep` has it, with the samples of an update as exactly as they can be. ConfigError
    lists what is wrong with the change, ResizeError says that it was refused or undone, that the
    run has ended, that another resize is under way, or that nothing came of it in `timeout_s`.
    `say` is told how far it is.
    """
    if keep not in get_args(Keep):
        rule, remedy = f"must be one of {', '.join(get_args(Keep))}", "Leave it out for update."
        raise ConfigError([Fault("keep", keep, rule, remedy)], "resize")
    folder = RunFolder.existing(Path(run))
    if not is_trained(folder.path):
        rule, remedy = "it does not train", "Go on with it: gmi-drl launch --resume."
        raise ResizeError(value=folder.path, rule=rule, remedy=remedy)
    all_overrides = list(overrides)
    all_overrides += _derived_overrides(folder, all_overrides, keep)
    request = ResizeRequest(uuid.uuid4().hex, tuple(all_overrides))
    try:
        make_request(folder.path, request)
    except FileExistsError:
        rule, remedy = "another resize is under way", f"Wait for it: {ANSWER} tells how it ends."
        raise ResizeError(value=folder.path, rule=rule, remedy=remedy) from None
    except OSError as error:
        rule = f"nothing can be asked of it ({error.strerror})"
        remedy = "Only who may write to its folder can resize a run."
        raise ResizeError(value=folder.path, rule=rule, remedy=remedy) from error
    return _wait_for_answer(folder.path, request, timeout_s, say)


def _derived_overrides(folder: RunFolder, words: list[str], keep: Keep) -> list[str]:
    """Returns what follows the numbers of a change, as overrides; ConfigError if it cannot be."""
    path = folder.path / "config.yaml"
    before, wanted = load_config(path), load_config(path, words)
    if faults := resize_faults(before, wanted):
        raise ConfigError(faults, "resize")
    names = [word.partition("=")[0].removeprefix("algorithm.") for word in words]
    # Those of the run, of which this process may be allowed to use fewer.
    devices = wanted_devices = folder.layout().topology
    if wanted.hardware != before.hardware:
        wanted_devices = find_devices(wanted)
    return followed(before, devices, wanted, wanted_devices, keep, names)


def _wait_for_answer(
    run: Path, request: ResizeRequest, timeout_s: float, say: Callable[[str], object]
) -> ResizeAnswer:
    deadline_s, last = time.monotonic() + timeout_s, ""
    while True:
        trains = is_trained(run)  # before the answer is looked for, which may be the last
        answer = answer_in(run)
        if answer is not None and answer.id == request.id:
            if answer.state == "done":
                return answer
            if answer.state != "changing":
                raise ResizeError(f"{run}: the resize was {answer.state}: {answer.text}")
            if answer.text != last:
                say(last := answer.text)
        if not trains and not is_trained(run):
            withdraw_request(run)
            raise ResizeError(f"{run}: it came to its end before it could be resized.")
        if time.monotonic() > deadline_s:
            if last == "":
                withdraw_request(run)
            what = "is still at it" if last else "has not looked at the request, which is withdrawn"
            raise ResizeError(
                f"{run}: its launcher {what} after {timeout_s:g} s. An iteration that takes long "
                "is waited for: give a longer --timeout."
            )
        time.sleep(_POLL_S)
