"""What tuning writes: a config that launches as it is, its layout file, and a folder of pictures.

tuned.yaml          the keys that the user gave, and what was found, in the schema's order
tuned.layout.yaml   where GMIs of a device get different shares of it
tuned.report/       tuning.png, tuning.svg, record.jsonl
"""

from __future__ import annotations

import os
import tempfile
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gmi_drl.placement import Config
from gmi_drl.placement.yaml_text import write_yaml
from gmi_drl.selector.errors import OutputError
from gmi_drl.selector.identity import modules_beside

DEFAULT_NAME: Final = "tuned.yaml"
_FIRST: Final = "# Made by gmi-drl tune"  # of the first line, by which our own files are known


@dataclass(frozen=True)
class TunedFile:
    """Where the tuned config goes, and what lies beside it."""

    path: Path
    source: Path | None = None  # the config that is tuned, if it is a file
    given: bool = True  # whether the path was; else it is the default

    @classmethod
    def of(cls, source: Path | None, output: Path | None) -> TunedFile:
        """The file to write: `output`, or tuned.yaml in the folder of the config."""
        folder = source.parent if source is not None else Path()
        return cls(output or folder / DEFAULT_NAME, source, output is not None)

    @property
    def layout(self) -> Path:
        """The layout file, where the shares of GMIs differ."""
        return self.path.with_name(f"{self.path.stem}.layout.yaml")

    @property
    def report(self) -> Path:
        """The folder of the report."""
        return self.path.with_name(f"{self.path.stem}.report")

    def write(self, config: Config, layout: str | None, head: Sequence[str]) -> None:
        """Writes the config, and the layout's text if it needs one; OutputError if that fails.

        `head`: lines of the comment at the top. The config's layout file, if any, is `layout`.
        """
        data = config.model_dump(mode="json", exclude_unset=True)
        if config.layout.file is not None:
            data["layout"] = {"file": self.layout.name}
        comment = "\n".join([_FIRST, *map(_comment, head)])
        text = write_yaml(data)
        try:
            if layout is not None:
                _write(self.layout, layout)
            _write(self.path, f"{comment}\n{text}")
        except OSError as error:
            raise OutputError(f"{self.path} cannot be written ({error.strerror}).") from error

    def refuse(self, config: Config) -> None:
        """OutputError says why the files cannot be there, before anything is measured for them."""
        shown = f"-o {self.path}" if self.given else str(self.path)
        if problem := self._path_problem() or self._module_problem(config):
            raise OutputError(f"{shown}: {problem}.")
        try:
            ours = not self.path.exists() or self.path.read_text(encoding="utf-8").startswith(
                _FIRST
            )
            with tempfile.TemporaryFile(dir=self.path.absolute().parent):
                pass
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "what is there is not UTF-8"
            raise OutputError(f"{shown}: it cannot be written ({why}). Give another.") from None
        if not ours:
            raise OutputError(
                f"{shown}: it is there, and tuning has not made it. Move it away, or give another: "
                "-o FILE."
            )

    def _path_problem(self) -> str:
        if self.path.suffix not in (".yaml", ".yml"):
            return f"a config is a YAML file. Call it {self.path.name}.yaml"
        if self.path.is_dir():
            return "it is a folder. Give a file"
        if self.source is not None and self.path.resolve() == self.source.resolve():
            return "it is the config that is tuned. Give another: -o FILE"
        if self.report.exists() and not self.report.is_dir():
            return f"the report goes into a folder {self.report}, and a file has that name"
        return ""

    def _module_problem(self, config: Config) -> str:
        """Modules are looked for beside the config: one elsewhere would not find them."""
        folder = self.source.parent if self.source is not None else Path()
        modules = modules_beside(config, folder)
        if not modules or self.path.resolve().parent == folder.resolve():
            return ""
        return (
            f"the config names {modules[0].name}, which lies beside it and is looked for there. "
            f"Give a file in {folder.resolve()}"
        )


def _comment(line: str) -> str:
    return textwrap.fill(line, 100, initial_indent="# ", subsequent_indent="#   ")


def _write(path: Path, text: str) -> None:
    """Writes a file of the user's whole or not at all."""
    unfinished = path.with_name(f".{path.name}.tmp")
    with open(unfinished, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
