"""Gives packages names whose modules are imported when a name is first asked for (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy(
    package: str, names: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns the `__getattr__` and `__dir__` of a package that offers `names` of its modules.

    `names` has those of each module, whose name is from the package on (`.role.trainer`) or whole.
    `dir` shows what is in `__all__` alone, where there is one, and not what only the file uses.
    """
    homes = {name: module for module, offered in names.items() for name in offered}

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(homes[name], package), name)

    def names_of() -> list[str]:
        namespace = vars(sys.modules[package])
        return sorted({*namespace.get("__all__", namespace), *homes})

    return get, names_of
