"""A run's folder: who writes what, and its one-line state in run.json.

runs/<name>/<time>/   config.yaml  layout.json  run.json  metrics.jsonl  tb/  checkpoints/
                      logs/gmi<id>.log  report/curve.png
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from gmi_drl.placement import Config, Layout


class RunFolderError(RuntimeError):
    """A run's folder cannot be made, read or resumed."""


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run."""

    path: Path

    @classmethod
    def create(cls, config: Config, layout: Layout) -> RunFolder:
        """A new folder with the resolved config and the layout; RunFolderError if it can't be."""
        base = Path(config.run.folder) / config.run.name
        stamp = time.strftime("%Y-%m-%d_%H-%M-%S")
        try:
            base.mkdir(parents=True, exist_ok=True)
            path = _new_folder(base, stamp)
            for part in ("logs", "checkpoints", "report"):
                (path / part).mkdir()
            folder = cls(path.resolve())
            folder.write_atomic("config.yaml", yaml.safe_dump(config.model_dump(mode="json")))
            folder.write_atomic("layout.json", layout.to_json())
        except OSError as error:
            raise RunFolderError(
                f"run.folder={config.run.folder}: {base} cannot be written "
                f"({error.strerror}). Give a folder you may write to: --set run.folder=..."
            ) from error
        return folder

    @classmethod
    def existing(cls, path: Path) -> RunFolder:
        """The run that `path`, or a checkpoint in it, belongs to."""
        for candidate in (path, *path.resolve().parents[:2]):
            if (candidate / "config.yaml").is_file() and (candidate / "layout.json").is_file():
                return cls(candidate.resolve())
        raise RunFolderError(
            f"--resume {path}: no run is there (a run's folder has config.yaml and layout.json). "
            "`gmi-drl runs` lists them."
        )

    def log(self, gmi_id: int) -> Path:
        return self.path / "logs" / f"gmi{gmi_id}.log"

    def state(self) -> dict[str, Any]:
        """run.json as it stands."""
        loaded: dict[str, Any] = json.loads((self.path / "run.json").read_text(encoding="utf-8"))
        return loaded

    def begin(self) -> None:
        """Mark the run as this process's; RunFolderError while another one is at it."""
        state = self.state()
        pid = int(state.get("pid", 0))
        if state.get("state") == "running" and pid != os.getpid() and psutil.pid_exists(pid):
            raise RunFolderError(
                f"{self.path} is being trained by process {pid}. Wait for it, or end it "
                f"(kill {pid}), then resume."
            )
        self.update(state="running", pid=os.getpid(), started=time.time(), error=None)

    def update(self, **changes: Any) -> None:
        """Merge `changes` into run.json."""
        state = self.state() if (self.path / "run.json").exists() else {}
        self.write_atomic("run.json", json.dumps(state | changes, indent=1))

    def write_atomic(self, name: str, text: str) -> None:
        """Write a file whole or not at all."""
        temporary = self.path / f".{name}.tmp"
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path / name)


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
