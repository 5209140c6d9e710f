"""Counts references to objects: the holders of each, of all processes, in one place.

A holder is anything hashable: a process that has references, a task whose arguments they are, or
another object in which references were pickled. Sets, unlike counts, are not disturbed by a message
that comes twice, or by a holder that dies without releasing its references. Objects are immutable
and hold only earlier objects, so there are no cycles, and an object without holders is free at
once, with all that it alone held.

As most keys have one holder, and most holders few keys, a single one is stored as it is, and only
the second makes a set.
"""

from __future__ import annotations

from collections.abc import Hashable


class _Many(set[Hashable]):
    """Holds two holders or more; a type of its own, as a holder might itself be a set."""


class ReferenceCounter:
    """Keeps the holders of every object, and the objects of every holder."""

    def __init__(self) -> None:
        self._holders: dict[bytes, Hashable | _Many] = {}
        self._keys: dict[Hashable, bytes | set[bytes]] = {}

    def hold(self, key: bytes, holder: Hashable) -> None:
        """Adds `holder` to the holders of `key`; a second time changes nothing."""
        holders = self._holders.setdefault(key, holder)
        if holders is not holder and holders != holder:
            if isinstance(holders, _Many):
                holders.add(holder)
            else:
                self._holders[key] = _Many((holders, holder))
        keys = self._keys.setdefault(holder, key)
        if keys is not key and keys != key:
            if type(keys) is set:
                keys.add(key)
            else:
                self._keys[holder] = {keys, key}  # type: ignore[arg-type]

    def release(self, key: bytes, holder: Hashable) -> list[bytes]:
        """Takes `holder` from the holders of `key`; returns the keys now free, `key` first.

        Empty if it was no holder.
        """
        keys = self._keys.get(holder)
        if type(keys) is set:
            if key not in keys:
                return []
            keys.remove(key)
            if not keys:
                del self._keys[holder]
        elif keys is None or keys != key:
            return []
        else:
            del self._keys[holder]
        if not self._let_go(key, holder):
            return []
        return self._freed([key]) if key in self._keys else [key]

    def holder_gone(self, holder: Hashable) -> list[bytes]:
        """Releases all keys of `holder`; returns those that are free now."""
        keys = self._keys.pop(holder, None)
        if keys is None:
            return []
        return self._freed([key for key in _each(keys) if self._let_go(key, holder)])

    def held(self, key: bytes) -> bool:
        return key in self._holders

    def keys(self, holder: Hashable) -> list[bytes]:
        """Lists what `holder` holds, in no order."""
        keys = self._keys.get(holder)
        return [] if keys is None else list(_each(keys))

    def _let_go(self, key: bytes, holder: Hashable) -> bool:
        """Takes `holder` from the holders of `key`; returns whether it was the last."""
        holders = self._holders[key]
        if isinstance(holders, _Many):
            holders.discard(holder)
            if len(holders) == 1:
                self._holders[key] = holders.pop()
            return False
        del self._holders[key]
        return True

    def _freed(self, free: list[bytes]) -> list[bytes]:
        """Adds the keys that free keys alone held, and so on."""
        for container in free:  # grows on the way
            keys = self._keys.pop(container, None)
            if keys is not None:
                free.extend(key for key in _each(keys) if self._let_go(key, container))
        return free


def _each(keys: bytes | set[bytes]) -> set[bytes] | tuple[bytes]:
    return keys if isinstance(keys, set) else (keys,)
