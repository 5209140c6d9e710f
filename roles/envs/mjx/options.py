"""Lists the options of every id, without importing torch or jax."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gmi_drl.roles.envs.on_device.tasks import DeviceOptions, options_with


@dataclass(frozen=True, kw_only=True)
class MjxOptions(DeviceOptions):
    """Adds nothing to a task's options."""

    adapter: ClassVar[str] = "mjx"


OPTIONS = options_with(MjxOptions)
