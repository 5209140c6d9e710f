"""DRL_role, the class users subclass (GMI-DRL, listing 1), and how one is found by its name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from gmi_drl.roles.errors import RoleLoadError
from gmi_drl.roles.loading import check_class, load_class

from .manager import GMI_manager

if TYPE_CHECKING:
    from gmi_drl.comm import Group


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

    @cached_property
    def group(self) -> Group:
        """Returns the group of GMIs that this one reduces with."""
        return self.mgr.get_group(self.GMI_id, self.GMI_id)

    @abstractmethod
    def GMI_run(self, **params: Any) -> Any:
        """Runs the role; its result reaches the launcher. `params` are the config's."""

    def GMI_collective(self, data: Any) -> Any:
        """Returns the mean of `data` over the GMIs of this role's group, in place; collective."""
        return self.mgr.allreduce(data, self.group)

    def GMI_send(self, data: Any, dst_GMI_id: int) -> None:
        """Sends `data` to another GMI; waits for it only when its mailbox is full."""
        self.mgr.send(data, dst_GMI_id)

    def GMI_recv(self, src_GMI_id: int) -> Any:
        """Returns the next data that GMI `src_GMI_id` sent here; waits for it."""
        return self.mgr.recv(src_GMI_id)


def load_role(role: type[DRL_role] | str, folder: Path | None = None) -> type[DRL_role]:
    """Returns a role, or the one behind `module:Class` (see `load_class`), if it can be run."""
    if isinstance(role, str):
        return check_role(load_class(role, folder), role)
    return check_role(role, role.__qualname__)


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
