"""Names the class of each kind of GMI, and loads those that a config names as `module:Class`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gmi_drl.placement import Config, Layout
from gmi_drl.placement.faults import closest
from gmi_drl.placement.templates import TEMPLATES

from .errors import RoleLoadError

if TYPE_CHECKING:
    from .role.role import DRL_role

Classes = dict[str, "type[DRL_role] | str"]

OUR_CLASSES: Final = frozenset(
    name for template in TEMPLATES.values() for name in template.classes.values()
)


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
    except (Exception, SystemExit) as error:  # a script may end itself where it is imported
        where = "" if folder is None else f" ({folder})"
        raise RoleLoadError(
            f"{kind} {reference!r}: importing {module_name} failed with "
            f"{type(error).__name__}: {error}. The module is looked for beside the config file"
            f"{where} and among the installed packages. Put it there, and install what it imports."
        ) from error
    loaded = getattr(module, class_name, None)
    if loaded is None:
        names = [
            name
            for name, value in vars(module).items()
            if isinstance(value, type) and value.__module__.startswith(module_name)
        ]
        near = closest(class_name, names)
        raise RoleLoadError(
            f"{kind} {reference!r}: {module_name} has no {class_name}; its classes: "
            f"{', '.join(names) or 'none'}.{f' Did you mean {near}?' if near else ''}"
        )
    return loaded


def check_class(found: Any, reference: str, kind: str, base: type, base_path: str) -> None:
    """Raises RoleLoadError unless what is behind `reference` is a `base` that can be made."""
    if not (isinstance(found, type) and issubclass(found, base)):
        raise RoleLoadError(
            f"{kind} {reference!r} is no {base.__name__}. Derive it from {base_path}."
        )
    if missing := getattr(found, "__abstractmethods__", None):
        raise RoleLoadError(f"{kind} {reference!r} lacks {', '.join(sorted(missing))}. Write it.")


@contextmanager
def importable(folder: Path | None) -> Iterator[None]:
    """Lets this process import what is in `folder`, before all else: as GMIs do."""
    if folder is None or str(folder) in sys.path:
        yield
        return
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def classes_of(
    config: Config, layout: Layout, roles: Mapping[str, type[DRL_role]] | None
) -> Classes:
    """Names the class of each kind of GMI, by its last role: `roles`, the config, then ours.

    ValueError for a role that names no class in this template, RoleLoadError for no DRL_role.
    """
    template = TEMPLATES[layout.template]
    naming = template.class_roles
    if unknown := sorted(set(roles or {}) - set(naming)):
        example = ", ".join(f"'{name}': YourRole" for name in naming)
        raise ValueError(
            f"roles={unknown}: template {template.name} runs one class a GMI, named by its "
            f"{' or '.join(naming)}. Pass roles={{{example}}}."
        )
    classes: Classes = dict(template.classes)
    classes |= {name: config.roles[name].class_ for name in naming if name in config.roles}
    if roles:
        from .role.role import check_role  # torch, which a role's class has imported

        classes |= {name: check_role(role, repr(role)) for name, role in roles.items()}
    return classes
