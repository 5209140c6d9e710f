"""The options of every id (this file imports neither torch nor jax)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gmi_drl.roles.envs.on_device.options import DeviceOptions
from gmi_drl.roles.envs.on_device.tasks import options_with


@dataclass(frozen=True, kw_only=True)
class MjxOptions(DeviceOptions):
    """This adapter adds nothing to a task's options."""

    adapter: ClassVar[str] = "mjx"


OPTIONS = options_with(MjxOptions)
