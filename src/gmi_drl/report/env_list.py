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

    Those that were asked for are told of with their spaces, or why they cannot be made; of all
    there are these are counted, and no space is known.
    """
    found = []
    with Console(stderr=True).status("looking at each of them") as status:  # on a terminal alone
        for one in known_envs(text):
            found.append(one)
            status.update(f"looking at each of them: {one.env_id}")
    there = [one for one in found if not one.fault]
    rows = [[one.env_id, ", ".join(one.adapters)] for one in there]
    columns = ["id", "adapters"]
    if text:
        columns += ["observation", "action"]
        for row, one in zip(rows, there, strict=True):
            row += [cut(one.observation, _SHOWN), cut(one.action, _SHOWN)]
    if rows:
        print_table(console, counted(len(rows), "environment"), columns, rows)
    broken = [one for one in found if one.fault]
    for one in broken if text else ():
        print(f"{one.env_id}: {one.fault}")
    if not text:
        print("`gmi-drl envs TEXT` shows what is seen and done in those with TEXT in their ids")
    if broken and not text:
        print(f"{len(broken)} more cannot be made here: `gmi-drl envs TEXT` tells why")
    for extra in lacking():
        print(f"more with {install(extra)}")
    return len(there)
