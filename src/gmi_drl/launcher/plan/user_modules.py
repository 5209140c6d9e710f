"""Finds the user's own modules beside a config, and tells whether two folders have the same."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from gmi_drl.placement import Config

_RUN_SECTIONS: Final = ("env", "multi_agent", "algorithm", "roles", "search")  # sections


def modules_beside(
    config: Config, folder: Path, sections: Collection[str] = ("run", *_RUN_SECTIONS)
) -> list[Path]:
    """Returns the modules that these sections name and that lie in a folder: files, or packages."""
    texts = _texts(config.model_dump(mode="json", include=set(sections)))
    names = [config.env.id, *(text for text in texts if ":" in text)]
    modules = dict.fromkeys(name.partition(":")[0] for name in names)
    paths = (_file_of(name.split("."), folder) for name in modules)
    return list(dict.fromkeys(path for path in paths if path is not None))


def digests_beside(config: Config, folder: Path) -> dict[str, str]:
    """Returns the SHA-256 of each file of the modules in a folder that what runs is made of.

    By their names relative to it. Callbacks run in the launching program alone, and are no part.
    """
    digests: dict[str, str] = {}
    for path in modules_beside(config, folder, _RUN_SECTIONS):
        files = sorted(path.parent.rglob("*.py")) if path.name == "__init__.py" else [path]
        digests |= {file.relative_to(folder).as_posix(): digest_of_file(file) for file in files}
    return digests


def other_files(wanted: Mapping[str, str], folder: Path | None) -> list[str]:
    """Lists the files of `wanted`, by their digests, that are others in `folder`, or not there."""
    return [
        name
        for name, digest in wanted.items()
        if folder is None or digest_of_file(folder / name) != digest
    ]


def digest_of_file(path: Path) -> str:
    """Returns the SHA-256 of a file's content, or `unreadable`."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return "unreadable"


def _file_of(parts: list[str], folder: Path) -> Path | None:
    """Returns where a module or its package lies; None: elsewhere, or it is no module's name."""
    if not all(part.isidentifier() for part in parts):
        return None
    names = (f"{parts[0]}.py", f"{parts[0]}/__init__.py", "/".join(parts) + ".py")
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _texts(value: Any) -> Iterator[str]:
    """Yields all texts within what a config says, keys too: a wrapper with options is one."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from (*_texts(key), *_texts(inner))
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)
