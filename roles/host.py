"""What runs in a GMI process: it joins the group, builds the role, and lets it run.

The launcher names these classes, so nothing heavy is imported at the top.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gmi_drl.placement import Config, Layout

if TYPE_CHECKING:
    from gmi_drl.comm import GroupSpec

    from .role import DRL_role


@dataclass(frozen=True)
class Job:
    """What all GMIs of a run are told."""

    layout: Layout
    config: Config
    group: GroupSpec
    sockets: Path  # the run's private folder for ipc sockets
    folder: Path | None  # the run's folder
    resume: Path | None  # the checkpoint, or the run's folder, to continue from
    role: type[DRL_role] | str  # the class that runs a GMI, or module:Class
    role_folder: Path | None  # where role modules lie: beside the config file
    session: str = ""  # names this launch among those of the folder


class GmiHost:
    """The actor of one GMI."""

    def __init__(self, gmi_id: int, job: Job) -> None:
        from .role import check_role, load_role

        self._gmi_id, self._job = gmi_id, job
        role = job.role
        self._role = (
            load_role(role, job.role_folder)
            if isinstance(role, str)
            else check_role(role, role.__qualname__)
        )

    def run(self) -> Any:
        """Build the role and run it to its end; returns what GMI_run returns.

        When the process dies the runtime calls this again, in a new one: everything that is needed
        is in the job, and the group knows that this GMI had joined before.
        """
        import torch

        from gmi_drl.comm import Mailbox

        from .manager import GMI_manager, GmiContext

        job, spec = self._job, self._job.layout.gmi(self._gmi_id)
        timeout = timedelta(seconds=job.config.comm.timeout_s)
        on_gpu = job.layout.topology.devices[spec.gpu_id].kind == "gpu"
        group = job.group.join(self._gmi_id, timeout)
        mailbox = Mailbox(job.sockets, self._gmi_id, timeout=timeout)
        context = GmiContext(
            self._gmi_id,
            job.layout,
            job.config,
            group,
            mailbox,
            job.folder,
            job.resume,
            torch.device("cuda" if on_gpu else "cpu"),
            job.session,
        )
        GMI_manager.bind(context)
        torch.use_deterministic_algorithms(job.config.run.deterministic)
        torch.manual_seed(job.config.run.seed + self._gmi_id + (group.joined << 32))
        try:
            role = self._role(self._gmi_id, "+".join(spec.roles), spec.gpu_id)
            params = self._params(spec.roles)
            return role.GMI_run(**params)
        finally:
            mailbox.close()
            group.close()  # who still waits for this GMI learns that it will not come
            GMI_manager.bind(None)

    def _params(self, roles: tuple[str, ...]) -> dict[str, Any]:
        named = self._job.config.roles
        return {
            key: value
            for role in roles
            if role in named
            for key, value in named[role].params.items()
        }
