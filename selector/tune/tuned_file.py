"""Writes what tuning found: a config that launches as it is, its layout file, and a report.

tuned.yaml          the keys that the user gave, and what was found, in the schema's order
tuned.layout.yaml   where GMIs of a device get different shares of it
tuned.report/       tuning.png, tuning.svg, record.jsonl
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gmi_drl.launcher.plan.user_modules import modules_beside
from gmi_drl.placement import Config
from gmi_drl.placement.config.yaml_text import write_yaml
from gmi_drl.runtime.cache_files import replace_file
from gmi_drl.selector.errors import OutputError

DEFAULT_NAME: Final = "tuned.yaml"
# The first three lines: by them our own files are known, whose they are, and who has edited them.
_FIRST: Final = "# Made by gmi-drl tune"
_OF: Final = "# of: "
_DIGEST: Final = "# digest of what follows: "


@dataclass(frozen=True)
class TunedFile:
    """Says where the tuned config goes, and what lies beside it."""

    path: Path
    source: Path | None = None  # the config that is tuned, if it is a file
    given: bool = True  # whether the path was; else it is the default

    @classmethod
    def of(cls, source: Path | None, output: Path | None) -> TunedFile:
        """Returns the file to write: `output`, or tuned.yaml in the folder of the config."""
        folder = source.parent if source is not None else Path()
        return cls(output or folder / DEFAULT_NAME, source, output is not None)

    @property
    def layout(self) -> Path:
        """Returns the layout file, where the shares of GMIs differ."""
        return self.path.with_name(f"{self.path.stem}.layout.yaml")

    @property
    def report(self) -> Path:
        """Returns the folder of the report."""
        return self.path.with_name(f"{self.path.stem}.report")

    def write(self, config: Config, layout: str | None, head: Sequence[str]) -> None:
        """Writes the config under the comment `head`, and its layout file; OutputError if not."""
        data = config.model_dump(mode="json", exclude_unset=True)
        if config.layout.file is not None:
            data["layout"] = {"file": self.layout.name}
        filled = [  # paths and commands stay whole
            textwrap.fill(
                line, 100, initial_indent="# ", subsequent_indent="#   ", break_on_hyphens=False,
                break_long_words=False,
            )
            for line in head
        ]  # fmt: skip
        body = "\n".join([*filled, write_yaml(data)])
        top = [_FIRST, f"{_OF}{self._source_name}", f"{_DIGEST}{_digest(body)}"]
        try:
            if layout is not None:
                replace_file(self.layout, layout)
            replace_file(self.path, "\n".join([*top, body]))
        except OSError as error:
            raise OutputError(f"{self.path} cannot be written ({error.strerror}).") from error

    def refuse(self, config: Config) -> None:
        """Raises OutputError where the files cannot be there, before anything is measured."""
        shown = f"-o {self.path}" if self.given else str(self.path)
        if problem := self._path_problem() or self._module_problem(config):
            raise OutputError(f"{shown}: {problem}.")
        try:
            present = self.path.read_text(encoding="utf-8") if self.path.exists() else None
            with tempfile.TemporaryFile(dir=self.path.absolute().parent):
                pass
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "what is there is not UTF-8"
            raise OutputError(f"{shown}: it cannot be written ({why}). Give another.") from None
        if present is not None and (problem := self._present_problem(present)):
            raise OutputError(f"{shown}: {problem}. Move it away, or give another: -o FILE.")

    @property
    def _source_name(self) -> str:
        """Returns the config that is tuned, as the tuned one names it: seen from there."""
        if self.source is None:
            return "a config given in Python"
        return os.path.relpath(self.source.resolve(), self.path.absolute().parent.resolve())

    def _present_problem(self, text: str) -> str:
        """Says why the file that is there, with this text, is not to be replaced."""
        first_line, source_line, digest_line, body = (text.split("\n", 3) + [""] * 3)[:4]
        if first_line != _FIRST:
            return "it is there, and tuning has not made it"
        if source_line != f"{_OF}{self._source_name}":
            return f"it is there, and was made of another config ({source_line.removeprefix(_OF)})"
        if digest_line != f"{_DIGEST}{_digest(body)}":
            return "it is there, and was edited since tuning made it"
        return ""

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
        """Says that modules which lie beside the config would not be found from the tuned one."""
        folder = self.source.parent if self.source is not None else Path()
        modules = modules_beside(config, folder)
        if not modules or self.path.resolve().parent == folder.resolve():
            return ""
        module_text = f"{modules[0].name}, which lies beside it and is looked for there"
        return f"the config names {module_text}. Give a file in {folder.resolve()}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
