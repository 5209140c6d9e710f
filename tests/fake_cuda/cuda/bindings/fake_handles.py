"""Handles as cuda-bindings 13 has them: typed, made of an integer, and no integers themselves.

Where a call wants a handle, cuda-bindings takes one or an integer, and refuses all else. It takes a
handle of another kind as well, and hands the driver its address: there that is undefined (but for a
CUgreenCtx where a CUcontext is due, see cuCtxFromGreenCtx), and here refused.
"""


class Handle:
    def __init__(self, init_value=0):
        self._address = _integer(init_value)

    def __int__(self):
        return self._address

    def __eq__(self, other):
        return type(other) is type(self) and int(other) == self._address

    def __hash__(self):
        return hash(self._address)

    def __repr__(self):
        return f"<{type(self).__name__} {self._address:#x}>"

    # No __bool__ and no __index__: a NULL handle is true, and a handle indexes nothing.


class CUdevice(Handle):
    pass


class CUcontext(Handle):
    pass


class CUgreenCtx(Handle):
    pass


class CUdevResourceDesc(Handle):
    pass


class CUstream(Handle):
    pass


class CUevent(Handle):
    pass


class cuuint64_t(Handle):
    def __repr__(self):
        return f"<cuuint64_t {int(self)}>"


def _integer(value):
    if isinstance(value, (int, float, Handle)):
        return int(value)
    raise TypeError("an integer is required")


def address(kind, value):
    """The address that the driver is given where a handle of this kind is due."""
    if isinstance(value, Handle) and not isinstance(value, kind):
        raise TypeError(f"{value!r} where a {kind.__name__} is due: undefined in the real driver")
    return 0 if value is None else _integer(value)
