"""Writes, reads and finds checkpoints, which are whole or not there at all.

    checkpoints/iteration_000050/
        shared.pt       policy, optimizer, normalisers, learning rate: the same on every GMI
        gmi0.pt ...     what is one GMI's own: environments, random generators, observations
        manifest.json   format, counters, layout, what the policy is, and size and SHA-256 of
                        every file

Every GMI writes its part into a temporary folder, each file whole or not at all. The first one puts
that folder aside, so that whoever still writes there (an agent that has taken a dead one's place,
and was given its order again) finds it gone; adds the manifest; and one rename makes the checkpoint
exist. Files load with `weights_only=True`.

Where the disk has no room for that, a checkpoint may hold the policy alone: shared.pt without the
optimizer's moments, and no other part (`policy_only` in its manifest).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
from pydantic import BaseModel, NonNegativeInt, ValidationError

from gmi_drl.roles.errors import CheckpointError
from gmi_drl.runtime.cache_files import replace_file

_FORMAT = "gmi-drl checkpoint"
_VERSION = 1
_SEALED = ".sealed"
_DIGEST = ".sha256"
_REMOVED = ".removed.part"
_NAME = re.compile(r"iteration_(\d+)")
_LARGE = 1 << 24  # bytes of a tensor


class _Part(BaseModel, strict=True):
    """Holds what a manifest says of a file."""

    bytes: int
    sha256: str


class _Manifest(BaseModel, strict=True):
    """Holds what is read of a manifest, which may hold more."""

    iteration: NonNegativeInt
    files: dict[str, _Part]
    gmis: list[list[int]] = []  # (id, num_env) of all GMIs
    session: str = ""
    policy_only: bool = False
    policy: dict[str, Any] = {}  # see `description`


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read and found whole."""

    folder: Path
    manifest: dict[str, Any]

    @property
    def policy_only(self) -> bool:
        """Tells that it lacks the optimizer's state and GMIs' parts: there was no room for them."""
        return bool(self.manifest.get("policy_only", False))

    def load(self, name: str) -> Any:
        """Returns one part of it, `shared` or `gmi<id>`; CheckpointError if it is none."""
        return load_file(self.folder / f"{name}.pt", "Use another checkpoint of the run.")


def load_file(path: Path, remedy: str) -> Any:
    """Returns what `save_file` wrote; CheckpointError, which ends with `remedy`, if it is none."""
    try:
        # Mapped and not read: a replay may fill half the memory. It is copied from the file.
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        return _copy_small_tensors(state)
    except Exception as error:  # torch and pickle have many
        first_line, *_ = str(error).splitlines() or [""]
        raise CheckpointError(
            f"{path} cannot be loaded ({type(error).__name__}: {first_line}). {remedy}"
        ) from error


def _copy_small_tensors(state: Any) -> Any:
    """Returns a state with copies of its small tensors, which somebody may keep.

    So a file that was removed does not take room on the disk for as long as the process lives.
    """
    if isinstance(state, torch.Tensor):
        return state.clone() if state.nbytes < _LARGE else state
    if isinstance(state, dict):  # or a Counter, or what a module gives, which have more to them
        for name, value in state.items():
            state[name] = _copy_small_tensors(value)
        return state
    if isinstance(state, list | tuple):
        return type(state)(map(_copy_small_tensors, state))
    return state


def folder_of(checkpoints: Path, iteration: int) -> Path:
    return checkpoints / f"iteration_{iteration:06d}"


def _backup_path(final: Path) -> Path:
    """Returns where a checkpoint is while another one takes its place."""
    return final.with_name(f".{final.name}.old")


def _part_folder(checkpoints: Path, iteration: int, sealed: str = "") -> Path:
    """Returns where parts are written, or with `sealed`, where nobody may write them any more."""
    return checkpoints / f".iteration_{iteration:06d}{sealed}.part"


def begin(checkpoints: Path, iteration: int) -> None:
    """Makes the folder that parts are written into; OSError when that fails.

    Whoever tells others to write calls it first.
    """
    _part_folder(checkpoints, iteration).mkdir(parents=True, exist_ok=True)


def write_part(checkpoints: Path, iteration: int, name: str, state: Any) -> None:
    """Writes one part of a checkpoint that was begun to the disk, whole or not at all.

    OSError when that fails, and when the checkpoint was committed or given up meanwhile. Parts of
    one name have one writer at a time.
    """
    part = _part_folder(checkpoints, iteration) / f"{name}.pt"
    digest = part.with_suffix(_DIGEST)
    digest.unlink(missing_ok=True)  # of an earlier attempt
    digest.write_text(save_file(part, state), encoding="ascii")


def save_file(path: Path, state: Any) -> str:
    """Writes a file whole or not at all, and returns its SHA-256; OSError when that fails."""
    sha256 = ""

    def write(file: IO[bytes]) -> None:
        nonlocal sha256
        sink = _Sink(file)
        torch.save(state, sink)  # type: ignore[arg-type]  # of a file it takes these two
        if sink.error is not None:
            raise sink.error
        sha256 = sink.sha256.hexdigest()

    replace_file(path, write)
    return sha256


class _Sink:
    """Writes what `torch.save` gives into a file at once, as a replay may fill half the memory.

    It hashes that meanwhile, so that who commits need not read what all others have written. It
    keeps the `error` of a full disk, which `torch.save` would turn into a RuntimeError.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.sha256 = file, hashlib.sha256()
        self.error: OSError | None = None

    def write(self, content: bytes | memoryview) -> int:
        if self.error is None:
            try:
                self._file.write(content)
                self.sha256.update(content)
            except OSError as error:
                self.error = error
        return len(content)

    def flush(self) -> None:
        """Does nothing: the file is flushed when all of it is there."""


def commit(checkpoints: Path, iteration: int, manifest: dict[str, Any]) -> Path:
    """Makes the written parts a checkpoint; `prune` then removes those that it replaces."""
    sealed = _part_folder(checkpoints, iteration, _SEALED)
    final = folder_of(checkpoints, iteration)
    _part_folder(checkpoints, iteration).rename(sealed)
    for unfinished in sealed.glob(".*"):  # of a process that was killed, or is too late
        unfinished.unlink()
    files = {
        file.name: {"bytes": file.stat().st_size, "sha256": _take_digest(file)}
        for file in sorted(sealed.glob("*.pt"))
    }
    header = {"format": _FORMAT, "version": _VERSION, "iteration": iteration}
    text = json.dumps({**header, **manifest, "files": files}, indent=1)
    replace_file(sealed / "manifest.json", text)
    _fsync_folder(sealed)
    # A resume from an older checkpoint begins a new line: what the old one wrote at this iteration
    # or later is not this run's any more. It goes only when this checkpoint is whole.
    if final.exists():
        final.rename(_backup_path(final))
    sealed.rename(final)
    _fsync_folder(checkpoints)
    return final


def prune(checkpoints: Path, newest: Path, keep: int) -> str:
    """Removes what checkpoint `newest` replaces; returns why something could not be, or "".

    `keep` whole ones stay, `newest` included, and none that is later. One that holds the policy
    alone goes as soon as a newer one of either kind is there, and replaces no whole one.
    """
    failures = []
    try:
        for folder in _folders_to_remove(checkpoints, newest, keep):
            try:
                _remove(folder)
            except OSError as error:
                failures.append(f"{folder}: {type(error).__name__}: {error}")
    except OSError as error:
        failures.append(f"{checkpoints}: {type(error).__name__}: {error}")
    return "; ".join(failures)


def make_room(checkpoints: Path) -> list[str]:
    """Removes all but the newest checkpoint and the newest complete one; returns what went."""
    removed = []
    with suppress(OSError):
        folders = all_in(checkpoints)
        kept = [*[folder for folder in folders if not _is_policy_only(folder)][-1:], *folders[-1:]]
        for folder in folders:
            if folder not in kept:
                _remove(folder)
                removed.append(folder.name)
    return removed


def _folders_to_remove(checkpoints: Path, newest: Path, keep: int) -> Iterator[Path]:
    folders = all_in(checkpoints)
    position = folders.index(newest)
    partial = [folder for folder in folders[:position] if _is_policy_only(folder)]
    complete = [folder for folder in folders[:position] if folder not in partial]
    for name in os.listdir(checkpoints):
        if name.startswith(".") and name.endswith((".old", _REMOVED)):
            yield checkpoints / name
    yield from folders[position + 1 :]
    yield from partial
    if not _is_policy_only(newest):
        yield from complete[: max(0, len(complete) + 1 - keep)]


def _remove(folder: Path) -> None:
    """Removes a checkpoint; if that is interrupted, what is left is no checkpoint any more."""
    # With the one file descriptor that a listing takes: shutil.rmtree needs more at a time.
    if not folder.name.endswith(_REMOVED):
        folder = folder.rename(folder.with_name(f".{folder.name.strip('.')}{_REMOVED}"))
    for name in os.listdir(folder):
        (folder / name).unlink()
    folder.rmdir()


def _is_policy_only(folder: Path) -> bool:
    try:
        return _manifest_of(folder).get("policy_only") is True
    except CheckpointError:
        return False


def discard(checkpoints: Path, iteration: int) -> None:
    """Removes what a failed attempt left; what was there before it is there again."""
    for sealed in ("", _SEALED):
        shutil.rmtree(_part_folder(checkpoints, iteration, sealed), ignore_errors=True)
    final = folder_of(checkpoints, iteration)
    if not final.exists():
        with suppress(OSError):
            _backup_path(final).rename(final)


def mend(checkpoints: Path) -> None:
    """Undoes a commit that was cut off; after it there are whole checkpoints only."""
    for aside in checkpoints.glob(".*.old"):
        final = checkpoints / aside.name[1:].removesuffix(".old")
        if final.exists():
            shutil.rmtree(aside, ignore_errors=True)
        else:
            aside.rename(final)
    for part in checkpoints.glob(".*.part"):
        shutil.rmtree(part, ignore_errors=True)


def newest(
    checkpoints: Path,
    wanted: Callable[[dict[str, Any]], bool] = lambda manifest: True,
    parts: Collection[str] | None = None,
) -> Checkpoint | None:
    """Returns the newest checkpoint that is not torn, and `wanted` by its manifest, if any is.

    `parts`: see `find`.
    """
    for candidate in reversed(all_in(checkpoints)):
        with suppress(CheckpointError):
            # The manifest comes first, as all other files are read to find out whether it is torn.
            if wanted(_manifest_of(candidate)):
                return _read(candidate, parts)
    return None


def find(folder: Path, parts: Collection[str] | None = None) -> Checkpoint:
    """Returns the newest checkpoint of a run or of a folder of them, or `folder` if it is one.

    `parts`: those that are to be loaded, `shared` or `gmi<id>`; only these are read, to compare
    their SHA-256 (None: all). A part with a replay may fill half the memory.

    Raises CheckpointError if it is torn or foreign, naming the newest good one: going back
    further than the user knows is the user's choice.
    """
    if (folder / "manifest.json").exists():
        return _read(folder, parts)
    subfolder = folder / "checkpoints"
    checkpoints = subfolder if subfolder.is_dir() else folder
    folders = all_in(checkpoints)
    if not folders and not subfolder.is_dir() and not (folder / "config.yaml").is_file():
        return _read(folder, parts)  # which says what it lacks
    if not folders:
        raise CheckpointError(
            f"{folder} holds no checkpoint: nothing of it was saved. Let it train until it has one "
            "(run.checkpoint_every), or launch its config anew."
        )
    try:
        return _read(folders[-1], parts)
    except CheckpointError as error:
        hint = "No older one is good either."
        if (good := newest(checkpoints)) is not None:
            hint = f"The newest good one is {good.folder}: resume with --resume {good.folder}"
        raise CheckpointError(f"{error} {hint}") from None


def iteration_of(folder: Path) -> int:
    """Returns the iteration of the checkpoint that `find` gives, whole or not; 0 if there is none.

    CheckpointError for a manifest that is none of ours.
    """
    if (folder / "manifest.json").exists():
        iteration: int = _manifest_of(folder)["iteration"]
        return iteration
    subfolder = folder / "checkpoints"
    folders = all_in(subfolder if subfolder.is_dir() else folder)
    match = _NAME.fullmatch(folders[-1].name) if folders else None
    return int(match[1]) if match else 0


def _read(folder: Path, parts: Collection[str] | None) -> Checkpoint:
    """Returns a checkpoint whose manifest is ours and whose files are what the manifest says."""
    manifest = _manifest_of(folder)
    match = _NAME.fullmatch(folder.name)
    if match and int(match[1]) != manifest["iteration"]:
        raise CheckpointError(
            f"{folder} holds iteration {manifest['iteration']}, and its name is of another: it was "
            f"renamed, or copied over. Call it {folder_of(folder.parent, manifest['iteration'])}, "
            "or remove it."
        )
    if "shared.pt" not in manifest["files"]:
        raise CheckpointError(f"{folder} is torn: manifest.json names no shared.pt.")
    for name, expected in manifest["files"].items():
        file, sha256 = folder / name, expected["sha256"]
        try:
            size = file.stat().st_size
            if size == expected["bytes"] and (parts is None or file.stem in parts):
                sha256 = _sha256(file)
        except FileNotFoundError:
            raise CheckpointError(f"{folder} is torn: {name} is missing.") from None
        except OSError as error:
            raise CheckpointError(f"{folder} is torn: {name} cannot be read ({error}).") from None
        if size != expected["bytes"]:
            raise CheckpointError(
                f"{folder} is torn: {name} has {size} bytes, should have {expected['bytes']}."
            )
        if sha256 != expected["sha256"]:
            raise CheckpointError(f"{folder} is torn: {name} does not match its SHA-256.")
    return Checkpoint(folder, manifest)


def _manifest_of(folder: Path) -> dict[str, Any]:
    """Returns the manifest, if it is one of ours; CheckpointError otherwise."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{folder} is no checkpoint: it has no manifest.json.") from None
    except (ValueError, OSError, RecursionError) as error:
        raise CheckpointError(f"{folder} is torn: manifest.json: {error}.") from None
    if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
        raise CheckpointError(f"{folder} is foreign: its manifest is not a {_FORMAT}'s.")
    if manifest.get("version") != _VERSION:
        raise CheckpointError(
            f"{folder} has checkpoint version {manifest.get('version')}; this gmi-drl reads "
            f"{_VERSION}. Resume with the release that wrote it."
        )
    try:
        _Manifest.model_validate(manifest)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        field = ".".join(map(str, fault["loc"]))
        raise CheckpointError(
            f"{folder} is torn: manifest.json: {field}: {fault['msg']}. Use another checkpoint of "
            "the run."
        ) from None
    return manifest


def all_in(checkpoints: Path) -> list[Path]:
    """Returns the folders of a run's checkpoints, whole or not, by iteration.

    Folders under other names, such as copies that a user made, are left out.
    """
    # Not glob: it takes a folder that cannot be listed for an empty one.
    names = os.listdir(checkpoints) if checkpoints.is_dir() else []
    folders = [checkpoints / name for name in names if _NAME.fullmatch(name)]
    return sorted(filter(Path.is_dir, folders), key=lambda path: (len(path.name), path.name))


def _take_digest(part: Path) -> str:
    """Returns the SHA-256 of a part as its writer has left it beside it, and removes that.

    It is computed where the writer did not come to that.
    """
    digest = part.with_suffix(_DIGEST)
    text = digest.read_text(encoding="ascii") if digest.exists() else ""
    digest.unlink(missing_ok=True)
    return text if len(text) == hashlib.sha256().digest_size * 2 else _sha256(part)


def _sha256(file: Path) -> str:
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
