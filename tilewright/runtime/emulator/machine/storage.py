"""Memory of the emulated device: bytes with a shadow that says which were written, and the global address space.

Generic addresses: global memory is mapped at its own addresses, the shared, local and parameter windows lie above it.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

import numpy as np

from tilewright.runtime.emulator.machine.findings import EmulatorError
from tilewright.runtime.emulator.machine.lanes import Array

GLOBAL_BASE = 0x1_0000_0000
LOCAL_WINDOW = 0x7C00_0000_0000
PARAM_WINDOW = 0x7D00_0000_0000
SHARED_WINDOW = 0x7E00_0000_0000
SHARED_BASE = 0x400
"""Address of a block's first byte of shared memory within the shared space."""
LOCAL_BASE = 0x10
PARAM_BASE = 0x0
_GAP = 1 << 30
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
        bad = shadow != full
        return ~bad.any(axis=1) if np.count_nonzero(bad) else None

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
    """Allocations far apart in the address space, so that an access beyond one never falls into another.

    Addresses are of the device, never of the host. The bytes lie densely in one storage; `locate` maps addresses to them.
    """

    def __init__(self, capacity: int = 1 << 36) -> None:
        super().__init__(1 << 20)
        self.capacity = capacity
        self._used = 0
        self._next = GLOBAL_BASE
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._shifts: list[int] = []
        self._tables: tuple[Array, Array, Array] | None = None
        self._spare: dict[int, list[tuple[int, int]]] = {}

    @property
    def used(self) -> int:
        """Bytes of all allocations there ever were together."""
        return self._used

    def allocate(self, size: int) -> int:
        """Address of `size` fresh bytes, aligned to 256. Raises EmulatorError past the capacity."""
        room = _room(size)
        spare = self._spare.get(room)
        if spare:
            address, shift = spare.pop(0)
            self.valid[address - shift : address - shift + room] = 0
        else:
            if self._used + room > self.capacity or self._next + room > LOCAL_WINDOW:
                held = f"{self.capacity} bytes, of which {self._used} are in use"
                raise EmulatorError(f"emulated memory holds {held}; {size} more are wanted")
            self._grow(self._used + room)
            address, shift = self._next, self._next - self._used
            self._used += room
            self._next += -(-room // _GAP) * _GAP + _GAP
        at = bisect_right(self._starts, address)
        self._starts.insert(at, address)
        self._ends.insert(at, address + size)
        self._shifts.insert(at, shift)
        self._tables = None
        return address

    def _grow(self, size: int) -> None:
        if size <= len(self.data):
            return
        room = max(size, 2 * len(self.data))
        room = -(-room // 4096) * 4096
        try:
            data, valid = np.zeros(room, dtype=np.uint8), np.zeros(room, dtype=np.uint8)
        except MemoryError as error:
            raise EmulatorError(f"emulated memory cannot grow to {room} bytes: this machine has not enough") from error
        data[: self._used], valid[: self._used] = self.data[: self._used], self.valid[: self._used]
        self._take(data, valid)

    def _index(self, address: int) -> int:
        """The allocation that starts at `address`."""
        at = bisect_right(self._starts, address) - 1
        if at < 0 or self._starts[at] != address:
            raise EmulatorError(f"0x{address:x} is not the start of an allocation")
        return at

    def free(self, address: int) -> None:
        """Give an allocation back. Its place is reused only by an allocation of the same size, rounded to 256 bytes."""
        at = self._index(address)
        self._spare.setdefault(_room(self._ends[at] - address), []).append((address, self._shifts[at]))
        del self._starts[at], self._ends[at], self._shifts[at]
        self._tables = None

    def size_of(self, address: int) -> int:
        """Bytes of the allocation that starts at `address`."""
        return self._ends[self._index(address)] - address

    def locate(self, addresses: Array, size: int) -> tuple[Array, Array | None]:
        """Offsets into the storage, and whether [address, address + size) lies in one allocation, None when all do."""
        if not len(addresses):
            return addresses, None
        at = bisect_right(self._starts, int(addresses.min())) - 1
        if at >= 0 and int(addresses.max()) + size <= self._ends[at]:
            return addresses - self._shifts[at], None
        if not self._starts:
            return addresses, np.zeros(len(addresses), dtype=bool)
        if self._tables is None:
            self._tables = np.array(self._starts), np.array(self._ends), np.array(self._shifts)
        starts, ends, shifts = self._tables
        index = np.searchsorted(starts, addresses, side="right") - 1
        chosen = np.maximum(index, 0)
        ok = (index >= 0) & (addresses + size <= ends[chosen])
        return addresses - shifts[chosen], None if ok.all() else ok

    def nearest(self, address: int) -> str:
        """Where an address lies, for a message."""
        at = bisect_right(self._starts, address) - 1
        if at < 0:
            return "no allocation lies below it"
        start, end = self._starts[at], self._ends[at]
        if address < end:
            return f"{address - start} bytes into an allocation of {end - start}"
        if at + 1 < len(self._starts) and self._starts[at + 1] - address < address - end:
            following = self._starts[at + 1]
            return f"{following - address} bytes before an allocation of {self._ends[at + 1] - following} at 0x{following:x}"
        return f"{address - end} bytes past the end of an allocation of {end - start} at 0x{start:x}"

    def _span(self, address: int, size: int) -> slice:
        if not size:
            return slice(0, 0)
        offsets, inside = self.locate(np.array([address]), size)
        if inside is not None:
            raise EmulatorError(f"copy of {size} bytes at 0x{address:x} leaves its allocation: {self.nearest(address)}")
        return slice(int(offsets[0]), int(offsets[0]) + size)

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


def _room(size: int) -> int:
    return -(-max(size, 1) // _GRANULE) * _GRANULE
