"""Finds out whether hosts have the same modules of the user's beside their configs."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from gmi_drl.placement import Config

_REFERENCE: Final = re.compile(r"([A-Za-z_][\w.]*):.+")  # module:Class, or module:Env-v0


def digests_of(config: Config, folder: Path | None) -> dict[str, str]:
    """Returns the SHA-256 of each file of `folder` that is a module named by the config, by name.

    But for those of callbacks, which run in the launching program alone.
    """
    if folder is None:
        return {}
    digests = {}
    for text in _strings(config.model_dump(mode="json", exclude={"run"})):
        if reference := _REFERENCE.fullmatch(text):
            stem = reference[1].replace(".", "/")
            for name in (f"{stem}.py", f"{stem}/__init__.py"):
                with suppress(OSError):  # of a module that is installed there is none
                    digests[name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    return digests


def other_files(wanted: Mapping[str, str], folder: Path | None) -> list[str]:
    """Lists the files of `wanted`, by their digests, that are others in `folder`, or not there."""
    others = []
    for name, digest in wanted.items():
        try:
            assert folder is not None
            found = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        except OSError:
            found = ""
        if found != digest:
            others.append(name)
    return others


def _strings(value: Any) -> Iterator[str]:
    """Yields all texts in settings, keys too: a wrapper with options is one."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, one in value.items():
            yield key
            yield from _strings(one)
    elif isinstance(value, list):
        for one in value:
            yield from _strings(one)
