"""Loads the classes of the user's that a config names as `module:Class`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from gmi_drl.placement.faults import closest

from .errors import RoleLoadError


def load_class(reference: str, folder: Path | None = None, kind: str = "role") -> Any:
    """Returns what is behind `module:Class`, also in modules beside the config file (`folder`)."""
    module_name, _, class_name = reference.partition(":")
    if not module_name or not class_name:
        raise RoleLoadError(
            f"{kind} {reference!r}: write it as module:Class, e.g. my_roles:MyTrainer"
        )
    if folder is not None and str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        beside = "" if folder is None else f" ({folder})"
        raise RoleLoadError(
            f"{kind} {reference!r}: importing {module_name} failed with "
            f"{type(error).__name__}: {error}. The module is looked for beside the config file"
            f"{beside} and among the installed packages. Put it there, and install what it imports."
        ) from error
    found = getattr(module, class_name, None)
    if found is None:
        known = [
            name
            for name, value in vars(module).items()
            if isinstance(value, type) and value.__module__.startswith(module_name)
        ]
        near = closest(class_name, known)
        raise RoleLoadError(
            f"{kind} {reference!r}: {module_name} has no {class_name}; its classes: "
            f"{', '.join(known) or 'none'}.{f' Did you mean {near}?' if near else ''}"
        )
    return found


def check_class(found: Any, reference: str, kind: str, base: type, base_path: str) -> None:
    """Raises RoleLoadError unless what is behind `reference` is a `base` that can be made."""
    if not (isinstance(found, type) and issubclass(found, base)):
        raise RoleLoadError(
            f"{kind} {reference!r} is no {base.__name__}. Derive it from {base_path}."
        )
    if missing := getattr(found, "__abstractmethods__", None):
        raise RoleLoadError(f"{kind} {reference!r} lacks {', '.join(sorted(missing))}. Write it.")
