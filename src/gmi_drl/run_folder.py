"""A run's folder: who writes what, and its one-line state in run.json.

runs/<name>/<time>/   config.yaml  layout.json  plan.json  run.json  metrics.jsonl  tb/
                      checkpoints/  logs/gmi<id>.log  report/curve.png
                      profile/gmi<id>.pt.trace.json.gz, with run.profile
                      layout.yaml, a copy of the layout file that config.yaml names, if it does
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from gmi_drl.placement import Config, Layout
from gmi_drl.placement.yaml_text import write_yaml

_LAYOUT: Final = "layout.yaml"


class RunFolderError(RuntimeError):
    """A run's folder cannot be made, read or resumed."""


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run."""

    path: Path

    @classmethod
    def create(cls, config: Config, layout: Layout, beside: Path) -> RunFolder:
        """A new folder with the resolved config and the layout; RunFolderError if it can't be.

        `beside` is where the config lay, and role modules with it. Its layout file is copied, so
        that the run's config means the same when that is gone, or of another layout.
        """
        base = Path(config.run.folder) / config.run.name
        stamp = time.strftime("%Y-%m-%d_%H-%M-%S")
        try:
            base.mkdir(parents=True, exist_ok=True)
            path = _new_folder(base, stamp)
            for part in ("logs", "checkpoints", "report"):
                (path / part).mkdir()
            folder = cls(path.resolve())
            if config.layout.file is not None:
                text = Path(config.layout.file).read_text(encoding="utf-8")
                folder.write_atomic(_LAYOUT, text)
            folder.write_config(config)
            folder.write_atomic("layout.json", layout.to_json())
            folder.write_atomic("run.json", json.dumps({"config_folder": str(beside)}))
        except OSError as error:
            raise RunFolderError(
                f"run.folder={config.run.folder}: {base} cannot be written "
                f"({error.strerror}). Give a folder you may write to: --set run.folder=..."
            ) from error
        return folder

    @classmethod
    def existing(cls, path: Path) -> RunFolder:
        """The run that `path`, or a checkpoint in it, belongs to."""
        candidates = (path, *path.resolve().parents[:2]) if path.is_dir() else ()
        for candidate in candidates:
            if (candidate / "config.yaml").is_file() and (candidate / "layout.json").is_file():
                return cls(candidate.resolve())
        raise RunFolderError(
            f"{path}: no run is there (a run's folder has config.yaml and layout.json). "
            "`gmi-drl runs` lists them."
        )

    def layout(self) -> Layout:
        """The layout that the run has had from its start."""
        path = self.path / "layout.json"
        try:
            return Layout.from_json(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RunFolderError(
                f"{path} cannot be read ({error}), so the run cannot be resumed. Begin a new run."
            ) from error

    def log(self, gmi_id: int) -> Path:
        return self.path / "logs" / f"gmi{gmi_id}.log"

    def state(self) -> dict[str, Any]:
        """run.json as it stands."""
        path = self.path / "run.json"
        try:
            loaded = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RunFolderError(
                f"{path} cannot be read ({error}), so the run cannot be resumed. Begin a new run."
            ) from error
        if not isinstance(loaded, dict):
            raise RunFolderError(f"{path} is damaged: it holds no object. Begin a new run.")
        return loaded

    def begin(self) -> None:
        """Mark the run as this process's; RunFolderError while another one is at it."""
        state = self.state()
        pid = state.get("pid")
        if state.get("state") == "running" and pid != os.getpid() and launcher_lives(state):
            raise RunFolderError(
                f"{self.path} is being trained by process {pid}. Wait for it, or end it "
                f"(kill {pid}), then resume."
            )
        self.update(state="running", pid=os.getpid(), started=time.time(), error=None)

    def update(self, **changes: Any) -> None:
        """Merge `changes` into run.json."""
        self.write_atomic("run.json", json.dumps(self.state() | changes, indent=1))

    def write_config(self, config: Config) -> None:
        """Write the resolved config; its layout file is the copy that lies beside it."""
        data = config.model_dump(mode="json")
        if config.layout.file is not None and (self.path / _LAYOUT).exists():
            data["layout"]["file"] = _LAYOUT
        self.write_atomic("config.yaml", write_yaml(data))

    def write_atomic(self, name: str, text: str) -> None:
        """Write a file whole or not at all."""
        temporary = self.path / f".{name}.tmp"
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path / name)


def launcher_lives(state: dict[str, Any]) -> bool:
    """Whether the launcher that wrote this run.json still runs.

    A later process with its number, after a reboot or in another container, is not it.
    """
    pid, started = state.get("pid"), state.get("started")
    if not isinstance(pid, int):
        return False
    try:
        begun = float(psutil.Process(pid).create_time())
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True
    return not isinstance(started, (int, float)) or begun <= started + 1.0


def _new_folder(base: Path, stamp: str) -> Path:
    """A folder of this second that nobody else has made."""
    for attempt in range(100):
        path = base / (stamp if attempt == 0 else f"{stamp}-{attempt}")
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path
    raise RunFolderError(f"{base}: a hundred runs began in the second {stamp}.")
