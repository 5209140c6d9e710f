"""Makes modules importable that lie in a config's folder: of roles and of environments."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def importable(folder: Path | None) -> Iterator[None]:
    """Lets this process import what is in `folder`, before all else: as GMIs do."""
    if folder is None or str(folder) in sys.path:
        yield
        return
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
