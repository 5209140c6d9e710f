"""Imported by a process that makes leases, it puts them where only its test session is."""

import os
from pathlib import Path

from gmi_drl.gmi import lease

lease._BASE = Path(os.environ["XDG_RUNTIME_DIR"])
