"""How an optional part of gmi-drl is installed, as this copy of it is."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, distribution


def install(extra: str) -> str:
    """The command that adds `extra`: from the clone of an editable installation, else by name."""
    try:
        origin = distribution("gmi-drl").read_text("direct_url.json")
    except PackageNotFoundError:  # run from a clone
        origin = '{"dir_info": {"editable": true}}'
    if json.loads(origin or "{}").get("dir_info", {}).get("editable"):
        return f"pip install -e '.[{extra}]' in the clone"
    return f"pip install 'gmi-drl[{extra}]'"
