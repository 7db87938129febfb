"""Memory of the emulated device: bytes with a shadow that says which were written, and the global address space.

Generic addresses: global memory is mapped at its own addresses, the shared, local and parameter windows lie above it.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

import numpy as np

from runtime.emulator.findings import EmulatorError
from runtime.emulator.formats import Array

GLOBAL_BASE = 0x1000_0000
LOCAL_WINDOW = 0x7C00_0000_0000
PARAM_WINDOW = 0x7D00_0000_0000
SHARED_WINDOW = 0x7E00_0000_0000
SHARED_BASE = 0x400
"""Address of a block's first byte of shared memory within the shared space."""
LOCAL_BASE = 0x10
PARAM_BASE = 0x0
_GUARD = 4096
_GRANULE = 256
_WORDS: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}


class Storage:
    """Bytes and their shadow (1: written). Offsets are bytes from the start and aligned to the access's size."""

    def __init__(self, size: int) -> None:
        room = -(-max(size, 64) // 64) * 64
        self.size = size
        self._take(np.zeros(room, dtype=np.uint8), np.zeros(room, dtype=np.uint8))

    def _take(self, data: Array, valid: Array) -> None:
        self.data, self.valid = data, valid
        self._data_words = {n: data.view(t) for n, t in _WORDS.items()}
        self._valid_words = {n: valid.view(t) for n, t in _WORDS.items()}

    def gather(self, offsets: Array, width: int, count: int) -> Array:
        """[lane, element] unsigned words of `width` bytes, `count` neighbours from each offset."""
        return self._gather(self._data_words, offsets, width, count)

    def written(self, offsets: Array, size: int) -> Array | None:
        """For each offset whether all `size` bytes were written; None when all were."""
        shadow = self._gather(self._valid_words, offsets, min(size, 8), max(1, size // 8))
        full = int.from_bytes(b"\1" * min(size, 8), "little")
        good = shadow == full
        return None if good.all() else np.asarray(good.all(axis=1))

    @staticmethod
    def _gather(words: dict[int, Array], offsets: Array, width: int, count: int) -> Array:
        total = width * count
        if total <= 16:
            taken = words[total][offsets // total]
            return np.asarray(taken.view(f"u{width}").reshape(-1, count))
        rows = words[16].reshape(-1, 1)[offsets[:, None] // 16 + np.arange(total // 16)]
        return np.ascontiguousarray(rows).view(f"u{width}").reshape(-1, count)

    def scatter(self, offsets: Array, values: Array) -> None:
        """Write [lane, element] unsigned words; of several lanes at one offset the last wins."""
        width, count = values.dtype.itemsize, values.shape[1]
        total = width * count
        packed = np.ascontiguousarray(values)
        if total <= 16:
            self._data_words[total][offsets // total] = packed.view(_WORDS[total])[:, 0]
            ones = np.frombuffer(b"\1" * total, dtype=_WORDS[total])[0]
            self._valid_words[total][offsets // total] = ones
            return
        index = offsets[:, None] // 16 + np.arange(total // 16)
        self._data_words[16][index] = packed.view(np.complex128)
        self._valid_words[16][index] = np.frombuffer(b"\1" * 16, dtype=np.complex128)[0]


class LocalMemory(Storage):
    """`size` bytes per lane; lane i begins at i * stride."""

    def __init__(self, lanes: int, size: int) -> None:
        self.stride = -(-size // 16) * 16
        super().__init__(lanes * self.stride)
        self.size = size


class GlobalMemory(Storage):
    """Allocations with guard gaps between them. Addresses are of the device, never of the host."""

    def __init__(self, capacity: int = 1 << 36) -> None:
        super().__init__(1 << 20)
        self.capacity = capacity
        self._top = 0
        self._sizes: dict[int, int] = {}
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._tables: tuple[Array, Array] | None = None
        self._spare: dict[int, list[int]] = {}

    def allocate(self, size: int) -> int:
        """Address of `size` fresh bytes, aligned to 256. Raises EmulatorError past the capacity."""
        room = -(-max(size, 1) // _GRANULE) * _GRANULE
        spare = self._spare.get(room)
        if spare:
            offset = spare.pop(0)
            self.valid[offset : offset + room] = 0
        else:
            offset = self._top
            if offset + room + _GUARD > self.capacity:
                raise EmulatorError(f"emulated memory holds {self.capacity} bytes; {size} more are wanted, {offset} are in use")
            self._grow(offset + room + _GUARD)
            self._top = offset + room + _GUARD
        at = bisect_right(self._starts, offset)
        self._starts.insert(at, offset)
        self._ends.insert(at, offset + size)
        self._sizes[offset] = size
        self._tables = None
        return GLOBAL_BASE + offset

    def _grow(self, size: int) -> None:
        if size <= len(self.data):
            return
        room = max(size, 2 * len(self.data))
        room = -(-room // 4096) * 4096
        data, valid = np.zeros(room, dtype=np.uint8), np.zeros(room, dtype=np.uint8)
        data[: self._top], valid[: self._top] = self.data[: self._top], self.valid[: self._top]
        self._take(data, valid)

    def free(self, address: int) -> None:
        """Give an allocation back. Memory of one size is reused only by an allocation of the same size."""
        offset = address - GLOBAL_BASE
        size = self._sizes.pop(offset, None)
        if size is None:
            raise EmulatorError(f"free of 0x{address:x}, which is not the start of an allocation")
        at = bisect_right(self._starts, offset) - 1
        del self._starts[at], self._ends[at]
        self._tables = None
        self._spare.setdefault(-(-max(size, 1) // _GRANULE) * _GRANULE, []).append(offset)

    def size_of(self, address: int) -> int:
        """Bytes of the allocation that starts at `address`."""
        return self._sizes[address - GLOBAL_BASE]

    def inside(self, offsets: Array, size: int) -> Array | None:
        """Whether [offset, offset + size) lies in one allocation, per lane; None when all do."""
        if not len(offsets):
            return None
        low = int(offsets.min())
        at = bisect_right(self._starts, low) - 1
        if at >= 0 and int(offsets.max()) + size <= self._ends[at]:
            return None
        if not self._starts:
            return np.zeros(len(offsets), dtype=bool)
        if self._tables is None:
            self._tables = np.array(self._starts), np.array(self._ends)
        starts, ends = self._tables
        index = np.searchsorted(starts, offsets, side="right") - 1
        ok = (index >= 0) & (offsets + size <= ends[np.maximum(index, 0)])
        return None if ok.all() else ok

    def nearest(self, address: int) -> str:
        """Where an address lies, for a message."""
        offset = address - GLOBAL_BASE
        at = bisect_right(self._starts, offset) - 1
        if at < 0:
            return "no allocation lies below it"
        start, end = self._starts[at], self._ends[at]
        if offset < end:
            return f"{offset - start} bytes into an allocation of {end - start}"
        return f"{offset - end} bytes past the end of an allocation of {end - start} at 0x{start + GLOBAL_BASE:x}"

    def _span(self, address: int, size: int) -> slice:
        offset = address - GLOBAL_BASE
        if size and self.inside(np.array([offset]), size) is not None:
            raise EmulatorError(f"copy of {size} bytes at 0x{address:x} leaves its allocation: {self.nearest(address)}")
        return slice(offset, offset + size)

    def write(self, address: int, data: bytes | Array) -> None:
        """Copy bytes or an array in."""
        raw = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        span = self._span(address, raw.size)
        self.data[span] = raw
        self.valid[span] = 1

    def read(self, address: int, size: int) -> tuple[Array, Array]:
        """Copies of `size` bytes and of their shadow."""
        span = self._span(address, size)
        return self.data[span].copy(), self.valid[span].copy()
