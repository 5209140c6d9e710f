#!/usr/bin/env python3
"""Checks whether the steps of slot.sh can run here, and says what is missing.

    bench/gpu/preflight.py [--dry] --env Ant-v5 --adapter warp

The exit code is 0 if they can, 2 if a package is missing or the environment cannot be made, and 4
if there is no GPU (with --dry CPU cores are enough).
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

MISSING: Final = 2
NO_GPU: Final = 4
_MODULES: Final = (
    "gpu.suite.suite",
    "gpu.suite.cells",
    "gmi_drl.roles.role.trainer",
)  # what cells and GMIs import


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dry", action="store_true", help="on CPU cores")
    parser.add_argument("--env", required=True)
    parser.add_argument("--adapter", required=True)
    options = parser.parse_args(arguments)
    modules = _MODULES if options.dry else (*_MODULES, "pynvml")
    try:
        for module in modules:
            importlib.import_module(module)
    except ImportError as error:
        return _refuse(f"{error}. {_remedy()}", MISSING)
    from gmi_drl.gmi import DiscoveryError, discover
    from gmi_drl.roles.envs import check_env

    if faults := check_env(options.env, options.adapter):
        lines = [*faults, "ENV_ID and ADAPTER of slot.sh go together: ENV_ID=Ant-v5 ADAPTER=warp."]
        return _refuse("\n".join(lines), MISSING)
    if not options.dry:
        try:
            discover(backend="direct")
        except DiscoveryError as error:
            text = f"no GPU here, nothing is measured: {error} SLOT_DRY=1 rehearses on CPU cores."
            return _refuse(text, NO_GPU)
    return 0


def _remedy() -> str:
    """Returns what to do about a module that cannot be imported."""
    pack = Path(os.environ.get("PACK", ""))
    if (pack / "pack" / "manifest.json").is_file():
        target = json.loads((pack / "pack" / "manifest.json").read_text())["target"]
        python = "{}.{}".format(*sys.version_info[:2])
        if target["python"] != python:
            pack_python = target["python"]
            return f"The pack in {pack} is for Python {pack_python}; this is {python}. Set PYTHON."
        return (
            f"The pack in {pack} has it not, nor has this node: build it again with --has-not, and "
            "carry it."
        )
    return "Unpack the pack of this node (slot.sh unpack N), or install it."


def _refuse(text: str, code: int) -> int:
    print(text, file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
