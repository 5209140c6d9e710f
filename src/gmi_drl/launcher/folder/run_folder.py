"""Makes, reads and locks a run's folder, and keeps its one-line state in run.json.

runs/<name>/<time>/   config.yaml  layout.json  plan.json  run.json  metrics.jsonl  tb/
                      checkpoints/  logs/gmi<id>.log  report/curve.png
                      profile/gmi<id>.pt.trace.json.gz, with run.profile
                      layout.yaml, a copy of the layout file that config.yaml names, if it does
"""

from __future__ import annotations

import errno
import json
import os
import shlex
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from gmi_drl import runtime
from gmi_drl.errors import GmiDrlError
from gmi_drl.placement import Config, Fault, Layout
from gmi_drl.placement.config.yaml_text import write_yaml
from gmi_drl.runtime import shared_lock
from gmi_drl.runtime.cache_files import replace_file
from gmi_drl.runtime.errors import truncate
from gmi_drl.runtime.gcs.database import set_aside

METRICS: Final = "metrics.jsonl"
EVALUATION: Final = "report/eval.json"  # by `gmi-drl evaluate`
LAYOUT: Final = "layout.yaml"
_CHANGE: Final = "change.json"  # another config and layout, while they are written
_NO_LOCKS: Final = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
_BLOCK_BYTES: Final = 512  # in which stat counts
_TAILS_BYTES: Final = (2**16, 2**20)  # of a file of metrics; a line of many GMIs may be long
_ENDING_S: Final = 10.0  # how long the processes of a killed launch may take to end


class RunFolderError(GmiDrlError, RuntimeError):
    """Says why a run's folder cannot be made, read or resumed."""

    command_exit_code = 2


@dataclass(frozen=True)
class RunFolder:
    """Is the folder of one run."""

    path: Path

    @classmethod
    def create(cls, config: Config, layout: Layout, import_path: Path) -> RunFolder:
        """Makes a new folder with the resolved config and the layout.

        `import_path` is where the config lay, and role modules with it. Its layout file is copied,
        so that the config means the same when that is gone, or of another layout.
        """
        base = Path(config.run.folder) / config.run.name
        try:
            path = new_folder(base)
            for part in ("logs", "checkpoints", "report"):
                (path / part).mkdir()
            folder = cls(path.resolve())
            if config.layout.file is not None:
                text = Path(config.layout.file).read_text(encoding="utf-8")
                folder.write_atomic(LAYOUT, text)
            folder.write_config(config)
            folder.write_atomic("layout.json", layout.to_json())
            fields = {"env": config.env.id, "seed": config.run.seed, "state": "running"}
            fields |= {"config_folder": str(import_path), "started": time.time()}
            folder.write_atomic("run.json", json.dumps(fields))
        except OSError as error:
            rule = f"{base} cannot be written ({error.strerror})"
            remedy = "Give a folder you may write to: --set run.folder=..."
            where = f"run.folder={config.run.folder}"
            raise RunFolderError(value=where, rule=rule, remedy=remedy) from error
        return folder

    @classmethod
    def existing(cls, path: Path) -> RunFolder:
        """Finds the run that `path`, or a checkpoint in it, belongs to."""
        candidates = (path, *path.resolve().parents[:2]) if path.is_dir() else ()
        for candidate in candidates:
            if (candidate / "config.yaml").is_file() and (candidate / "layout.json").is_file():
                return cls(candidate.resolve())
        rule = "no run is there (a run's folder has config.yaml and layout.json)"
        raise RunFolderError(value=path, rule=rule, remedy="`gmi-drl runs` lists them.")

    def layout(self) -> Layout:
        """Reads the layout of the run."""
        path = self.path / "layout.json"
        try:
            return Layout.from_json(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise _unreadable(path, error) from error

    def import_path(self) -> Path:
        """Returns where the config lay that the run began with, and modules that it names."""
        return Path(str(self.state().get("config_folder", Path.cwd())))

    def state(self) -> dict[str, Any]:
        """Reads run.json as it stands."""
        path = self.path / "run.json"
        try:
            loaded = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise _unreadable(path, error) from error
        if not isinstance(loaded, dict):
            raise RunFolderError(f"{path} is damaged: it holds no object. Begin a new run.")
        return loaded

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keeps others from training this run while the block runs; RunFolderError if one does.

        The run's GMIs hold the same lock (`lock_of`): they keep others out if this process dies and
        they do not. What a killed launch leaves gets some seconds to end.
        """
        path = lock_of(self.path)
        deadline_s = time.monotonic() + _ENDING_S
        try:
            while (lock := shared_lock.begin(path)) is None:
                holders = shared_lock.holders(path)
                if self.state().get("pid") in holders or time.monotonic() > deadline_s:
                    raise RunFolderError(self._held_by(holders))
                time.sleep(0.05)  # such a lock cannot be waited for until a deadline
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise RunFolderError(
                    f"{path} cannot be opened for writing ({error.strerror}), and who trains a run "
                    "writes to its folder. Copy the run to where you may, and resume the copy."
                ) from error
            warnings.warn(
                f"{path}: its file system has no locks ({error.strerror}), so that nothing keeps "
                "two launches from training this run at once. See that only one does, or put "
                "run.folder on a file system with locks (fcntl).",
                stacklevel=2,
            )
            lock = None
        try:
            yield
        finally:
            if lock is not None:
                shared_lock.release(lock)

    def _held_by(self, holders: list[int]) -> str:
        """Says who trains this run, and what to do about it."""
        pid = self.state().get("pid")
        if pid in holders:
            by, remedy = f"being trained by process {pid}", f"Wait for it, or end it (kill {pid})"
        elif holders:
            pids = " ".join(map(str, holders))
            by = f"still held by process {pids}, of a launch that is gone"
            remedy = f"End what is left of it (kill -9 {pids})"
        else:
            by = "being trained by processes of another container, host or user"
            remedy = "Wait for them, or end them there"
        return f"{self.path} is {by}. {remedy}, then resume."

    def update(self, **changes: Any) -> None:
        """Merges `changes` into run.json; on a full disk, in the room that it has already."""
        text = json.dumps(self.state() | changes, indent=1)
        try:
            self.write_atomic("run.json", text)
        except OSError as error:
            if error.errno not in _NO_ROOM or not _write_over(self.path / "run.json", text):
                raise

    def entries(self, key: str) -> list[dict[str, Any]]:
        """Reads a list in run.json, such as that of restarts; what is damaged counts as none."""
        with suppress(RunFolderError):
            entries = self.state().get(key)
            if isinstance(entries, list):
                return [entry for entry in entries if isinstance(entry, dict)]
        return []

    def add_entry(self, key: str, **entry: Any) -> None:
        """Adds an entry to a list in run.json, with the time.

        Where that cannot be done it is left out: training is worth more than its log.
        """
        with suppress(OSError, RunFolderError, TypeError):  # a role may report what is no JSON
            self.update(**{key: [*self.entries(key), entry | {"time": time.time()}]})

    def write_config(self, config: Config) -> None:
        """Writes the resolved config; its layout file is the copy that lies beside it."""
        data = config.model_dump(mode="json")
        if config.layout.file is not None and (self.path / LAYOUT).exists():
            data["layout"]["file"] = LAYOUT
        self.write_atomic("config.yaml", write_yaml(data))

    def become(self, config: Config, layout: Layout, plan: str = "") -> None:
        """Writes another config and layout, both or neither: `finish_change` mends a cut.

        And the plan of the reduction, if there is one.
        """
        if config.layout.file is not None:
            raise ValueError("a run whose layout is a file keeps it")
        change = {"config": config.model_dump(mode="json"), "layout": layout.to_json()}
        self.write_atomic(_CHANGE, json.dumps(change))
        self.finish_change()
        if plan:
            self.write_plan(plan)

    def write_plan(self, plan: str) -> None:
        """Writes how gradients are reduced."""
        self.write_atomic("plan.json", plan)

    def finish_change(self) -> None:
        """Ends what `become` began, if its process was killed. Only for who trains the run."""
        path = self.path / _CHANGE
        try:
            change = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            raise _unreadable(path, error) from error
        self.write_atomic("config.yaml", write_yaml(change["config"]))
        with open(self.path / "layout.json", "r+", encoding="utf-8") as file:
            file.write(change["layout"])  # in place: GMIs hold the lock of this very file
            file.truncate()
            file.flush()
            os.fsync(file.fileno())
        path.unlink()

    def write_atomic(self, name: str, text: str) -> None:
        """Writes a file whole or not at all."""
        replace_file(self.path / name, text)


def _write_over(path: Path, text: str) -> bool:
    """Writes over a file in the blocks that it has; False if they are too few, or there are none.

    Unlike `write_atomic`, a crash of the machine in the middle of it leaves a damaged file.
    """
    content = text.encode()
    with suppress(OSError), open(path, "r+b", buffering=0) as file:
        stat = os.fstat(file.fileno())
        if len(content) <= stat.st_blocks * _BLOCK_BYTES:
            file.write(content.ljust(stat.st_size))  # spaces may follow JSON
            os.fsync(file.fileno())
            return True
    return False


def _unreadable(path: Path, error: Exception) -> RunFolderError:
    return RunFolderError(
        f"{path} cannot be read ({error}), and the run cannot be used without it. Begin a new run."
    )


def metrics_in(text: bytes) -> list[dict[str, Any]]:
    """Returns the iterations in (the end of) a file of metrics, without torn or damaged lines."""
    iterations = []
    for line in text.splitlines():
        with suppress(ValueError, RecursionError):
            if isinstance(metrics := json.loads(line), dict):
                iterations.append(metrics)
    return iterations


def last_metrics(path: Path) -> dict[str, Any]:
    """Reads the last whole line of a file of metrics, and not all of it; empty if there is none."""
    with suppress(OSError):
        if path.is_file():  # a pipe would never end
            with open(path, "rb") as file:
                return last_metrics_in(file)
    return {}


def last_metrics_in(file: BinaryIO) -> dict[str, Any]:
    """Reads the last whole line of an open file of metrics; empty if there is none."""
    size = file.seek(0, os.SEEK_END)
    for tail in _TAILS_BYTES:
        file.seek(max(0, size - tail))
        for line in reversed(file.read().splitlines()):
            if metrics := metrics_in(line):
                return metrics[0]
    return {}


def lock_of(folder: Path) -> Path:
    """Names the file that whoever trains a run locks: it exists from start to end."""
    return folder / "layout.json"


def is_trained(folder: Path) -> bool:
    """Says whether a launch is at a run now, which run.json calls running. Takes no lock."""
    try:
        return shared_lock.is_held(lock_of(folder))
    except FileNotFoundError:
        return False
    except OSError:  # a file system without locks, or another user's: run.json is all there is
        return True


def resume_command(folder: Path) -> str:
    """Returns what to type to go on with a run; "" where it has no checkpoint to go on from."""
    if not any((folder / "checkpoints").glob("iteration_*")):
        return ""
    return f"gmi-drl launch --resume {shlex.quote(str(folder))}"


def folder_faults(config: Config) -> list[Fault]:
    """Lists why no run can be written to `run.folder`, as far as a look at its folders tells."""
    base = (Path(config.run.folder) / config.run.name).absolute()
    there = next(str(path) for path in (base, *base.parents) if os.path.exists(path))
    if os.path.isdir(there) and os.access(there, os.W_OK | os.X_OK):
        return []
    remedy = "Give a folder you may write to."
    return [Fault("run.folder", config.run.folder, f"{there} cannot be written to", remedy)]


def new_folder(base: Path) -> Path:
    """Makes a folder in `base`, called by the time, that nobody else has made.

    Those may read it who may read the folder that `base` is in, and only its owner may write to it.
    What is not there yet is made for its owner alone.
    """
    base.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    mode = 0o700 | base.parent.stat().st_mode & 0o055
    base.mkdir(mode, exist_ok=True)
    stamp = time.strftime("%Y-%m-%d_%H-%M-%S")
    for attempt in range(100):
        path = base / (stamp if attempt == 0 else f"{stamp}-{attempt:02d}")
        try:
            path.mkdir(mode)
        except FileExistsError:
            continue
        return path
    raise RunFolderError(f"{base}: a hundred of them began in the second {stamp}.")


def keep_gcs_in(path: Path) -> bool:
    """Records who ran what in the run's folder; what an earlier session left damaged is kept.

    Tells whether it is recorded there.
    """
    try:
        try:
            runtime.keep_gcs(path)
        except runtime.DamagedStoreError as error:
            aside = set_aside(path)
            runtime.keep_gcs(path)
            warnings.warn(f"{path}: damaged ({error.reason}). It is kept as {aside.name}, and a "
                          "new record of who ran what was begun.", stacklevel=3)  # fmt: skip
    except runtime.GcsError as error:
        warnings.warn(f"{path.parent}: who ran what is not kept ({error})", stacklevel=3)
        return False
    return True


def outcome_of(error: BaseException) -> dict[str, Any]:
    """Returns what run.json says of a run that `error` has ended."""
    outcome = {"state": "failed", "finished": time.time(), "error": truncate(str(error))}
    if isinstance(error, KeyboardInterrupt):
        outcome |= {"state": "stopped", "error": "ended before it could finish"}
    return outcome


def note_end(folder: RunFolder, **changes: Any) -> None:
    """Writes down how a run ended; a full disk costs that, and not the run."""
    try:
        folder.update(**changes)
    except OSError as error:
        text = f"run.json does not say how the run ended ({error}). Free some space."
        warnings.warn(f"{folder.path}: {text}", stacklevel=3)


def number_in(known: Mapping[str, Any], key: str) -> float:
    """Reads a number of run.json, which may be damaged; 0 if it is none."""
    value = known.get(key)
    return float(value) if isinstance(value, (int, float)) and abs(value) < 1e18 else 0.0
