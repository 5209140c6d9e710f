"""torch's sharing of device memory by CUDA IPC, in one process and in the host's memory.

Written to torch 2.11: torch/csrc/StorageSharing.cpp, CudaIPCTypes.h, and how
torch/multiprocessing/reductions.py uses them. An export is 8 values. With it comes a counter, 1 at
first, in a file that both processes map: whoever opens the export takes 1 off when the last tensor
of it goes, or `_release_ipc_counter_cuda` does. The memory of a sender that has gone is only free
when its counter is 0; as it has no sign, one that was released too often never is.
"""

import ctypes
import os
import weakref

import torch

from fake_streams import Late

_HANDLE_BYTES = 64
_OWN_INDEX = 3  # of the device, as its sender counts; a receiver may see it by another one


class FakeIpc(Late):
    def __init__(self, monkeypatch):
        super().__init__()
        self._file = b"/torch_%d_1" % os.getpid()
        self._counters, self._lives = [], 0
        self._exported = {}  # by handle: the storage
        self._received = weakref.WeakSet()
        for name in ("_share_cuda_", "_new_shared_cuda", "_release_ipc_counter_cuda"):
            monkeypatch.setattr(torch.UntypedStorage, name, self._method(name))
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: self.current)
        monkeypatch.setattr(torch.cuda, "Event", _Events(self))

    @property
    def held(self):
        """How many exports are in use: their memory stays when their sender goes."""
        return sum(counter % (1 << 64) > 0 for counter in self._counters)

    def kill(self):
        """Ends the processes of both ends: nothing is released, and what was exported has gone."""
        self._counters = [0] * len(self._counters)
        self._exported.clear()
        self._lives += 1

    def kill_receiver(self):
        """Ends the receiver's process, which releases nothing any more."""
        self._lives += 1

    def _method(self, name):
        if name == "_share_cuda_":
            return lambda storage: self._share(storage)
        return staticmethod(self._open if name == "_new_shared_cuda" else self._release)

    def _share(self, storage):
        if storage in self._received:
            raise RuntimeError(
                "Attempted to send CUDA tensor received from another process; this is not "
                "currently supported. Consider cloning before sending."
            )
        self._counters.append(1)
        event = self.event(interprocess=True)
        event.record()  # torch's own: what is queued so far has filled the memory
        place = len(self._counters) - 1
        handle = b"%064d" % place
        self._exported[handle] = storage
        return (
            _OWN_INDEX, handle, storage.nbytes(), 0, self._file, place, event.ipc_handle(), True
        )  # fmt: skip

    def _open(self, *given):
        if len(given) != 8:
            raise RuntimeError("tuple of 8 items expected")
        kinds = (int, bytes, int, int, bytes, int, bytes, bool)
        if [type(value) for value in given] != list(kinds):
            raise TypeError(
                "_new_shared in CUDA mode received an invalid combination of arguments: (int "
                "device, bytes handle, int storage_size_bytes, int storage_offset_bytes, bytes "
                "_ref_counter, int _ref_counter_offset, bytes event_handle, bool "
                "event_sync_required)"
            )
        device, handle, nbytes, offset, file, place, event, wait = given
        if device != 0:
            raise RuntimeError("CUDA error: invalid device ordinal")
        if handle not in self._exported or len(handle) != _HANDLE_BYTES:
            raise RuntimeError("CUDA error: invalid argument")
        if wait:
            self.opened(device, event).wait()
        storage = self._exported[handle]
        # What torch maps is another storage of the same memory, which is noticed when it goes.
        kind = type("Mapped", (ctypes.c_char * nbytes,), {})
        mapped = kind.from_address(storage.data_ptr() + offset)
        mapped.kept = storage
        weakref.finalize(mapped, self._unmap, self._lives, self.current, file, place)
        made = torch.frombuffer(mapped, dtype=torch.uint8).untyped_storage()
        self._received.add(made)
        return made

    def _unmap(self, lives, stream, file, place):
        if lives == self._lives:
            stream.synchronize()
            self._release(file, place)

    def _release(self, file, place):
        if type(file) is not bytes or type(place) is not int:
            raise TypeError("_release_ipc_counter in CUDA mode: (bytes, int)")
        if file == self._file:  # of one that is gone there is nothing to say
            self._counters[place] -= 1


class _Events:
    """torch.cuda.Event."""

    def __init__(self, device):
        self._device = device

    def __call__(self, *args, **options):
        return self._device.event(*args, **options)

    def from_ipc_handle(self, device, handle):
        return self._device.opened(device, handle)
