"""Says how an optional part of gmi-drl is installed, as this copy of it is."""

from __future__ import annotations

from pathlib import Path


def install(extra: str, source: Path = Path(__file__)) -> str:
    """Returns the command that adds `extra`: in a clone by its path, elsewhere by name.

    `source` is this file. An editable installation, and a clone that is run without one, keep it
    two folders below the clone's `pyproject.toml`; a wheel does not carry that.
    """
    if (source.resolve().parents[1] / "pyproject.toml").is_file():
        return f"pip install -e '.[{extra}]' in the clone"
    return f"pip install 'gmi-drl[{extra}]'"
