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

    One that cannot be made is told of with its reason where it was asked for, else counted.
    """
    found = []
    with Console(stderr=True).status("looking at each of them") as status:  # on a terminal alone
        for one in known_envs(text):
            found.append(one)
            status.update(f"looking at each of them: {one.env_id}")
    there = [one for one in found if not one.fault]
    rows = [
        [one.env_id, ", ".join(one.adapters), cut(one.observation, _SHOWN), cut(one.action, _SHOWN)]
        for one in there
    ]
    if rows:
        columns = ["id", "adapters", "observation", "action"]
        print_table(console, counted(len(rows), "environment"), columns, rows)
    broken = [one for one in found if one.fault]
    for one in broken if text else ():
        print(f"{one.env_id}: {one.fault}")
    if broken and not text:
        print(f"{len(broken)} more cannot be made here: `gmi-drl envs TEXT` tells why")
    for extra in lacking():
        print(f"more with {install(extra)}")
    return len(there)
