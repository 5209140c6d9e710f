"""Prints the environments that this machine can run."""

from __future__ import annotations

from typing import Final

from rich.console import Console

from gmi_drl.launcher.view.tables import cut, print_table
from gmi_drl.placement import counted
from gmi_drl.placement.faults import install
from gmi_drl.roles.envs.listing import known_envs, lacking

_SHOWN: Final = 60  # characters of a space


def print_envs(console: Console, text: str) -> int:
    """Prints those whose ids have `text` in them; returns how many can be run.

    With a `text` each is shown with its spaces, or with why it cannot be made. Without one, all are
    listed without spaces, and those that cannot be made are only counted.
    """
    envs = []
    with Console(stderr=True).status("looking at each of them") as status:  # on a terminal alone
        for env in known_envs(text):
            envs.append(env)
            status.update(f"looking at each of them: {env.env_id}")
    runnable = [env for env in envs if not env.fault]
    rows = [[env.env_id, ", ".join(env.adapters)] for env in runnable]
    columns = ["id", "adapters"]
    if text:
        columns += ["observation", "action"]
        for row, env in zip(rows, runnable, strict=True):
            row += [cut(env.observation, _SHOWN), cut(env.action, _SHOWN)]
    if rows:
        print_table(console, counted(len(rows), "environment"), columns, rows)
    broken = [env for env in envs if env.fault]
    for env in broken if text else ():
        print(f"{env.env_id}: {env.fault}")
    if not text:
        print("`gmi-drl envs TEXT` shows what is seen and done in those with TEXT in their ids")
    if broken and not text:
        print(f"{len(broken)} more cannot be made here: `gmi-drl envs TEXT` tells why")
    for extra in lacking():
        print(f"more with {install(extra)}")
    return len(runnable)
