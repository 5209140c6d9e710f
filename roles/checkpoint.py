"""Checkpoints: whole or not at all.

    checkpoints/iteration_000050/
        shared.pt       policy, optimizer, normalisers, learning rate: the same on every GMI
        gmi0.pt ...     what is one GMI's own: environments, random generators, observations
        manifest.json   format, counters, layout, and size and SHA-256 of every file

Every GMI writes its part into a temporary folder, each file whole or not at all. The first one puts
that folder aside, so that whoever still writes there (an agent that has taken a dead one's place,
and was given its order again) finds it gone; adds the manifest; and one rename makes the checkpoint
exist. Files load with `weights_only=True`.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .errors import CheckpointError

_FORMAT = "gmi-drl checkpoint"
_VERSION = 1


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read and found whole."""

    folder: Path
    manifest: dict[str, Any]

    def load(self, name: str) -> Any:
        """One part of it, `shared` or `gmi<id>`."""
        return torch.load(self.folder / f"{name}.pt", map_location="cpu", weights_only=True)


def folder_of(checkpoints: Path, iteration: int) -> Path:
    return checkpoints / f"iteration_{iteration:06d}"


def _part_folder(checkpoints: Path, iteration: int) -> Path:
    return checkpoints / f".iteration_{iteration:06d}.part"


def _sealed_folder(checkpoints: Path, iteration: int) -> Path:
    """Where the parts are from when nobody may write them any more."""
    return checkpoints / f".iteration_{iteration:06d}.sealed.part"


def begin(checkpoints: Path, iteration: int) -> None:
    """Make the folder that parts are written into; OSError when that fails.

    Before anybody is told to write, by all who tell others.
    """
    _part_folder(checkpoints, iteration).mkdir(parents=True, exist_ok=True)


def write_part(checkpoints: Path, iteration: int, name: str, state: Any) -> None:
    """Write one part of a checkpoint that was begun to the disk, whole or not at all.

    OSError when that fails, and when the checkpoint was committed or given up meanwhile. Parts of
    one name have one writer at a time.
    """
    folder = _part_folder(checkpoints, iteration)
    serialized = io.BytesIO()  # torch.save turns a full disk into a RuntimeError of its own
    torch.save(state, serialized)
    unfinished = folder / f"{name}.tmp"
    with open(unfinished, "wb") as file:
        file.write(serialized.getbuffer())
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(folder / f"{name}.pt")


def commit(checkpoints: Path, iteration: int, manifest: dict[str, Any], keep: int) -> Path:
    """Make the written parts a checkpoint; of those before it `keep` - 1 stay, later ones go."""
    sealed, final = _sealed_folder(checkpoints, iteration), folder_of(checkpoints, iteration)
    _part_folder(checkpoints, iteration).rename(sealed)
    for unfinished in sealed.glob("*.tmp"):  # of a process that was killed, or is too late
        unfinished.unlink()
    files = {
        file.name: {"bytes": file.stat().st_size, "sha256": _sha256(file)}
        for file in sorted(sealed.glob("*.pt"))
    }
    text = json.dumps(
        {
            "format": _FORMAT,
            "version": _VERSION,
            "iteration": iteration,
            **manifest,
            "files": files,
        },
        indent=1,
    )
    with open(sealed / "manifest.json", "w", encoding="utf-8") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    _fsync_folder(sealed)
    # A resume from an older checkpoint begins a new line: what the old one wrote at this iteration
    # or later is not this run's any more. It goes only when this checkpoint is whole.
    aside = checkpoints / f".{final.name}.old"
    if final.exists():
        final.rename(aside)
    sealed.rename(final)
    _fsync_folder(checkpoints)
    found = _all(checkpoints)
    mine = found.index(final)
    for old in [aside, *found[: max(0, mine + 1 - keep)], *found[mine + 1 :]]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def discard(checkpoints: Path, iteration: int) -> None:
    """Remove what a failed attempt left."""
    for folder in (_part_folder(checkpoints, iteration), _sealed_folder(checkpoints, iteration)):
        shutil.rmtree(folder, ignore_errors=True)


def mend(checkpoints: Path) -> None:
    """Undo a commit that was cut off; after it there are whole checkpoints only."""
    for aside in checkpoints.glob(".*.old"):
        final = checkpoints / aside.name[1:].removesuffix(".old")
        if final.exists():
            shutil.rmtree(aside, ignore_errors=True)
        else:
            aside.rename(final)
    for part in checkpoints.glob(".*.part"):
        shutil.rmtree(part, ignore_errors=True)


def newest_of(checkpoints: Path, session: str) -> Path | None:
    """The newest whole checkpoint that was written in `session`, if there is one."""
    for candidate in reversed(_all(checkpoints)):
        try:
            if _read(candidate).manifest.get("session") == session:
                return candidate
        except CheckpointError:
            continue
    return None


def find(folder: Path) -> Checkpoint:
    """The newest checkpoint of a run's folder, or the very one that `folder` is.

    Raises CheckpointError if it is torn or foreign, naming the newest good one: going back
    further than the user knows is the user's choice.
    """
    if (folder / "manifest.json").exists() or not (folder / "checkpoints").is_dir():
        return _read(folder)
    found = _all(folder / "checkpoints")
    if not found:
        raise CheckpointError(f"{folder} holds no checkpoint; start it anew without --resume.")
    newest, *older = reversed(found)
    try:
        return _read(newest)
    except CheckpointError as error:
        for candidate in older:
            try:
                good = _read(candidate)
            except CheckpointError:
                continue
            raise CheckpointError(
                f"{error} The newest good one is {good.folder}: resume with --resume {good.folder}"
            ) from None
        raise CheckpointError(f"{error} No older one is good either.") from None


def _read(folder: Path) -> Checkpoint:
    """A checkpoint whose manifest is ours and whose files are what the manifest says."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{folder} is no checkpoint: it has no manifest.json.") from None
    except (ValueError, OSError) as error:
        raise CheckpointError(f"{folder} is torn: manifest.json: {error}.") from None
    if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
        raise CheckpointError(f"{folder} is foreign: its manifest is not a {_FORMAT}'s.")
    if manifest.get("version") != _VERSION:
        raise CheckpointError(
            f"{folder} has checkpoint version {manifest.get('version')}; this gmi-drl reads "
            f"{_VERSION}. Resume with the release that wrote it."
        )
    for name, wanted in manifest["files"].items():
        file = folder / name
        if not file.exists():
            raise CheckpointError(f"{folder} is torn: {name} is missing.")
        if file.stat().st_size != wanted["bytes"]:
            size = file.stat().st_size
            raise CheckpointError(
                f"{folder} is torn: {name} has {size} bytes, should have {wanted['bytes']}."
            )
        if _sha256(file) != wanted["sha256"]:
            raise CheckpointError(f"{folder} is torn: {name} does not match its SHA-256.")
    return Checkpoint(folder, manifest)


def _all(checkpoints: Path) -> list[Path]:
    found = [path for path in checkpoints.glob("iteration_*") if path.is_dir()]
    return sorted(found, key=lambda path: (len(path.name), path.name))


def _sha256(file: Path) -> str:
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
