"""Whether the role classes that a config names can be had. Asked in a process of its own.

Importing a user's module may import torch, print, or never return: none of that reaches the caller.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from .in_child import ChildFailed, ask

if TYPE_CHECKING:
    from gmi_drl.placement import Config

_DEADLINE = timedelta(seconds=60)


def role_faults(config: Config, folder: Path, deadline: timedelta = _DEADLINE) -> list[str]:
    """Why roles of the config cannot be loaded; modules beside the config file are in `folder`."""
    faults = []
    for name, role in config.roles.items():
        if problem := _problem(role.class_, folder, deadline):
            faults.append(role_fault(name, role.class_, problem))
    return faults


def role_fault(name: str, reference: str, problem: str) -> str:
    """The fault of a role whose class has a problem."""
    return f"roles.{name}={reference!r}; {problem}"


def _problem(reference: str, folder: Path, deadline: timedelta) -> str:
    """What is wrong with one class, or nothing."""
    try:
        return str(ask(__name__, [reference, str(folder)], deadline))
    except ChildFailed as failed:
        if failed.late:
            return (
                f"importing it has not ended after {deadline.total_seconds():g} s. "
                'Put what it runs under `if __name__ == "__main__":`.'
            )
        return f"importing it ended the process ({failed}). Try to import it in Python."


def answer(reference: str, folder: str) -> str:
    """What is wrong with one class, asked in the child."""
    from gmi_drl.roles import RoleLoadError, load_role

    try:
        load_role(reference, Path(folder))
    except RoleLoadError as error:
        return str(error)
    return ""
