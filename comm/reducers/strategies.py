"""Tables the strategies of reduction: the classes that move the numbers, and what they need.

A new one is a file and a line here, its shapes in `placement.reduction`, its stages in `plan`.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, Final

from gmi_drl.placement.reduction import Strategy


@dataclass(frozen=True)
class ReducerClasses:
    """The classes of one strategy's buckets, as module:class.

    The class for a GPU is made with a bucket of the host, through which it gathers and broadcasts,
    and with its device.
    """

    on_host: str
    on_gpu: str
    rings: bool = False  # over gloo or NCCL, which meet in a folder
    ipc: bool = False  # in GPU memory that processes share

    def load(self, on_gpu: bool) -> Any:
        """Imports the class, and torch with it."""
        module, _, name = (self.on_gpu if on_gpu else self.on_host).partition(":")
        return getattr(importlib.import_module(module, __package__), name)


REDUCERS: Final[dict[Strategy, ReducerClasses]] = {
    "local": ReducerClasses(".local:LocalReducer", ".local:LocalReducer"),
    "mpr": ReducerClasses(".mpr:MprReducer", ".staged:StagedReducer"),
    "mrr": ReducerClasses(".mrr:MrrReducer", ".mrr:DeviceMrr", rings=True),
    "har": ReducerClasses(".har:HarReducer", ".har:DeviceHar", rings=True),
    "ipc": ReducerClasses(".mpr:MprReducer", ".ipc:IpcReducer", ipc=True),
}
