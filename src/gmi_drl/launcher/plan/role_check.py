"""Checks the classes that a config names, of roles and of the algorithm, in a process of its own.

Importing a user's module may import torch, print, or never return: none of that reaches the caller.
"""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from gmi_drl.placement import Config, ConfigError, CustomAlgorithmConfig, load_config, settings_of
from gmi_drl.placement.config.algorithms import mode_faults

from .in_child import ChildFailed, ask

if TYPE_CHECKING:
    from gmi_drl.placement import AlgorithmConfig

_DEADLINE = timedelta(seconds=60)


def role_faults(config: Config, folder: Path, deadline: timedelta = _DEADLINE) -> list[str]:
    """Lists why roles of the config cannot be loaded; modules beside its file are in `folder`."""
    faults = []
    for name, role in config.roles.items():
        try:
            problem = str(ask(__name__, ["role", role.class_, str(folder)], deadline))
        except ChildFailed as failed:
            problem = _importing(failed, deadline)
        if problem:
            faults.append(role_fault(name, role.class_, problem))
    return faults


def algorithm_faults(config: Config, folder: Path, deadline: timedelta = _DEADLINE) -> list[str]:
    """Lists what is wrong with an algorithm of the user's: its class, and the settings it has."""
    if not isinstance(config.algorithm, CustomAlgorithmConfig):
        return []
    text = json.dumps(config.model_dump(mode="json"))
    try:
        return list(ask(__name__, ["algorithm", text, str(folder)], deadline))
    except ChildFailed as failed:
        return [f"algorithm.class={config.algorithm.class_!r}; {_importing(failed, deadline)}"]


def role_fault(name: str, reference: str, problem: str) -> str:
    """Returns the fault of a role whose class has a problem."""
    return f"roles.{name}={reference!r}; {problem}"


def _importing(failed: ChildFailed, deadline: timedelta) -> str:
    if failed.late:
        return (
            f"importing it has not ended after {deadline.total_seconds():g} s. "
            'Put what it runs under `if __name__ == "__main__":`.'
        )
    return f"importing it ended the process ({failed}). Try to import it in Python."


# In the child -------------------------------------------------------------------------------------


def answer(kind: str, text: str, folder: str) -> str | list[str]:
    """Returns what is wrong with a role class (its reference), or the algorithm of a config."""
    if kind == "role":
        return role_problem(text, folder)
    return checked_settings(load_config(json.loads(text)), folder)[1]


def role_problem(reference: str, folder: str) -> str:
    """Returns what is wrong with the class of a role; "" if nothing is."""
    from gmi_drl.roles import RoleLoadError, load_role

    try:
        load_role(reference, Path(folder))
    except RoleLoadError as error:
        return str(error)
    return ""


def checked_settings(config: Config, folder: str) -> tuple[AlgorithmConfig, list[str]]:
    """Returns the settings of the algorithm, as its class has them, and what is wrong with them."""
    from gmi_drl.roles import RoleLoadError
    from gmi_drl.roles.role.role import load_class

    section = config.algorithm
    if not isinstance(section, CustomAlgorithmConfig):
        return section, []
    try:
        settings = settings_of(load_class(section.class_, Path(folder), "algorithm"), section)
    except RoleLoadError as error:
        return section, [f"algorithm.class={section.class_!r}; {error}"]
    except ConfigError as error:
        return section, [str(fault) for fault in error.faults]
    return settings, [str(fault) for fault in mode_faults(settings, config.mode)]
