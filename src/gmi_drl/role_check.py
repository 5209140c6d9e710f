"""Whether the role classes that a config names can be had. Asked in a process of its own.

Importing a user's module may import torch, print, or never return: none of that reaches the caller.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gmi_drl.placement import Config

_DEADLINE = timedelta(seconds=60)


def role_faults(config: Config, folder: Path, deadline: timedelta = _DEADLINE) -> list[str]:
    """Why roles of the config cannot be loaded; modules beside the config file are in `folder`."""
    faults = []
    for name, role in config.roles.items():
        problem = _problem(role.class_, folder, deadline)
        if problem:
            faults.append(f"roles.{name}={role.class_!r}; {problem}")
    return faults


def _problem(reference: str, folder: Path, deadline: timedelta) -> str:
    """What is wrong with one class, or nothing."""
    reading, writing = os.pipe()
    with os.fdopen(reading, encoding="utf-8") as answer:
        try:
            ended = subprocess.run(
                [sys.executable, "-m", __name__, str(writing), reference, str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=[writing],
                timeout=deadline.total_seconds(),
                check=False,
            )
        except subprocess.TimeoutExpired:
            return (
                f"importing it has not ended after {deadline.total_seconds():g} s. "
                'Put what it runs under `if __name__ == "__main__":`.'
            )
        finally:
            os.close(writing)
        text = answer.read()
    if not text:
        last = ended.stderr.decode(errors="replace").strip().splitlines()[-1:]
        return f"importing it ended the process ({' '.join(last)}). Try to import it in Python."
    return str(json.loads(text))


def _main(writing: int, reference: str, folder: str) -> None:
    from gmi_drl.roles import RoleLoadError, load_role

    try:
        load_role(reference, Path(folder))
        problem = ""
    except RoleLoadError as error:
        problem = str(error)
    with os.fdopen(writing, "w", encoding="utf-8") as answer:
        json.dump(problem, answer)


if __name__ == "__main__":
    _main(int(sys.argv[1]), *sys.argv[2:])
