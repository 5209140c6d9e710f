"""DRL_role, the class users subclass (GMI-DRL, listing 1), and how one is found by its name."""

from __future__ import annotations

import importlib
import sys
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

from gmi_drl.placement.faults import closest
from gmi_drl.roles.errors import RoleLoadError

from .manager import GMI_manager


class DRL_role(ABC):
    """One role in one GMI: a simulator, an agent, a trainer, or all of them.

    Subclass it, write `GMI_run`, and name the class in the config (`roles: {trainer:
    "my_module:MyTrainer"}`) or pass it to `gmi_drl.launch(roles={"trainer": MyTrainer})`.
    """

    # Whether a GMI of this role that dies is built and run again, while the others go on. True
    # asks for a GMI_run that handles GroupReformed: see docs/recovery.md.
    recoverable: ClassVar[bool] = False
    # Whether GMI_run calls `mgr.await_set_up` when its environments are made. The other GMIs wait
    # for that before they meet any by `comm.timeout_s`; one of a class that does not is set up when
    # GMI_run is called.
    says_set_up: ClassVar[bool] = False

    def __init__(self, GMI_id: int, role: str, gpu_id: int) -> None:
        self.GMI_id = GMI_id
        self.role = role
        self.gpu_id = gpu_id
        self.mgr = GMI_manager.add_GMI(GMI_id)
        self.mgr.set_GPU(GMI_id, gpu_id)
        self.group = self.mgr.get_group(GMI_id, GMI_id)

    @abstractmethod
    def GMI_run(self, **params: Any) -> Any:
        """The role's main routine; its result reaches the launcher. `params` are the config's."""

    def GMI_collective(self, data: Any) -> Any:
        """The mean of `data` over the GMIs of this role's group, in place; collective."""
        return self.mgr.allreduce(data, self.group)

    def GMI_send(self, data: Any, dst_GMI_id: int) -> None:
        """Send `data` to another GMI; waits for it only when its mailbox is full."""
        self.mgr.send(data, dst_GMI_id)

    def GMI_recv(self, src_GMI_id: int) -> Any:
        """Wait for the next data that GMI `src_GMI_id` sent here."""
        return self.mgr.recv(src_GMI_id)


def load_role(role: type[DRL_role] | str, folder: Path | None = None) -> type[DRL_role]:
    """Returns a role, or the one behind `module:Class` (see `load_class`), if it can be run."""
    if isinstance(role, str):
        return check_role(load_class(role, folder), role)
    return check_role(role, role.__qualname__)


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
        beside = "" if folder is None else f"beside the config file ({folder}) and "
        raise RoleLoadError(
            f"{kind} {reference!r}: importing {module_name} failed with "
            f"{type(error).__name__}: {error}. The module is looked for {beside}among the "
            "installed packages."
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


def check_role(role: Any, reference: str) -> type[DRL_role]:
    """Returns `role` if it is a DRL_role that can be run; RoleLoadError otherwise."""
    check_class(role, reference, "role", DRL_role, "gmi_drl.DRL_role")
    capturable = getattr(role, "capturable_loss", False)
    if not isinstance(capturable, bool):
        raise RoleLoadError(
            f"role {reference!r}: capturable_loss={capturable!r}; must be True or False, whether "
            "its loss may be captured as a CUDA graph. Leave it out for False."
        )
    stats = getattr(role, "loss_stats", ())
    if not isinstance(stats, tuple):
        raise RoleLoadError(
            f"role {reference!r}: loss_stats={stats!r}; must be a tuple of names, such as "
            "('penalty',). Correct it."
        )
    kind: type[DRL_role] = role
    return kind
