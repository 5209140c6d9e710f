"""Has one GMI compile the kernels of environments when they are first used; others wait.

Adapter warp compiles when a batch is made, mjx at its first `reset`, both for half a minute and
more, into caches that all processes of a user share. GMIs that start together would all do the same
work. So the first to come compiles alone, and the others when it has: from the cache, at the same
time. That is so for each task and number of environments, as kernels may be compiled for them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from gmi_drl.roles.graphs import ONE_AT_A_TIME
from gmi_drl.runtime.cache_files import locked

from .adapters import ADAPTERS

COMPILES: Final = frozenset(name for name, adapter in ADAPTERS.items() if adapter.compiles)
AT_RESET: Final = frozenset(n for n, adapter in ADAPTERS.items() if adapter.compiles == "reset")
_TIMEOUT: Final = timedelta(minutes=10)


@contextmanager
def first_alone(
    path: Path, timeout: timedelta = _TIMEOUT, on_first: Callable[[], object] = lambda: None
) -> Iterator[None]:
    """Runs the body alone until it has ended well for the first time, in any process or thread.

    `path` is a file that all who take part, of one user, agree on; it exists once a body has ended
    well. Waits while another is in its body, `timeout` at most: then both run. One that is killed,
    or raises, lets the next in. `on_first` is called before a body that is alone.
    """
    if not path.exists():
        with locked(path.with_name(f"{path.name}.lock"), timeout) as lock:
            if lock.held and not path.exists():
                on_first()
                yield
                path.touch()
                return
    yield


@contextmanager
def compiling(
    folder: Path | None, what: str, on_gpu: bool, on_first: Callable[[], object]
) -> Iterator[None]:
    """Surrounds what compiles `what`, among GMIs that have the same `folder`; None: it is alone.

    Environments on a GPU wait for all of it meanwhile, which would break off what another GMI that
    is a thread of this process captures.
    """
    alone: AbstractContextManager[None] = nullcontext()
    if folder is not None:  # `what` may hold a path
        name = re.sub(r"[^\w.-]", "_", what)[-100:]
        alone = first_alone(folder / f"compiled-{name}", on_first=on_first)
    in_turn: AbstractContextManager[Any] = ONE_AT_A_TIME if on_gpu else nullcontext()
    with alone, in_turn:
        yield
