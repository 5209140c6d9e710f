"""A machine with as many cores as a test needs: those beyond the real ones share them.

Where FAKE_CORES has a number, a process that imports this finds so many cores in `os`, and so do
those that are forked from it. They are called by their numbers from FAKE_FIRST_CORE on, if that is
there: a run that began on them finds them again, whichever the real ones are.
"""

import errno
import os

_get, _set = os.sched_getaffinity, os.sched_setaffinity
_REAL = sorted(_get(0))
_places = {}  # the core that is there, of each that is said to be
_mine = set()  # of this process


def _cores_of(pid):
    return set(_mine) if pid in (0, os.getpid()) else _get(pid)


def _take(pid, cores):
    wanted = _places.keys() & set(cores)
    if not wanted:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    _set(pid, {_places[core] for core in wanted})
    _mine.clear()
    _mine.update(wanted)


def install(count, replace=setattr, first=None):
    """`count` cores from now on, which are returned; a monkeypatch's `replace` ends it."""
    if first is None:
        names = [*_REAL, *range(_REAL[-1] + 1, _REAL[-1] + 1 + count)][:count]
    else:
        names = range(first, first + count)
    _places.clear()
    _places.update((core, _REAL[n % len(_REAL)]) for n, core in enumerate(names))
    _mine.clear()
    _mine.update(names)
    replace(os, "sched_getaffinity", _cores_of)
    replace(os, "sched_setaffinity", _take)
    return tuple(names)


if "FAKE_CORES" in os.environ:
    _first = os.environ.get("FAKE_FIRST_CORE")
    install(int(os.environ["FAKE_CORES"]), first=None if _first is None else int(_first))
