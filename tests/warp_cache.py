"""Importing this keeps warp's compiled kernels where warp keeps them by itself.

Tests have a cache folder of their own, in which a session would compile them anew: 25 seconds and
more. Import it at the top of a test file: what tests are collected from runs before they are given
that folder.
"""

import os
from pathlib import Path

_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
os.environ.setdefault("WARP_CACHE_PATH", str(_CACHE / "warp"))
