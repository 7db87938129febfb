"""ResultRing: memory of results that the caller has let go, for the results of later calls on the same stream.

The step after next writes where this one did, so that its launches, and those of whoever reads its result, keep their parameters.
Memory is free again when nobody but the ring holds it; the order of the stream keeps its next writer behind its last reader.
Memory of torch's goes back to torch's allocator and is asked of it again at once, for only the allocator knows of other streams
that a tensor is used on (`record_stream`); until then the ring keeps others from taking it.
"""

from __future__ import annotations

import math
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

MOST = 3  # buffers of one size
SIZES = 64  # sizes that are kept, those used last
_SMALLEST = 512  # bytes; sizes above are rounded up by at most an eighth, so that lengths that grow share memory


class ResultRing:
    """Of one stream. Attribute: hits: results that were given the memory of an earlier one."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, list[Any]] = OrderedDict()
        self._lock = threading.Lock()
        self.hits = 0

    def buffer(self, size: int, made: Callable[[int], Any]) -> Any:
        """Memory for a result of so many bytes: the first buffer of those that fit and are free, so that as few as can be are
        used, or what `made(bytes)` gives. A buffer is in use while anything but the ring refers to it."""
        taken = room(size)
        with self._lock:
            found = self._of(taken)
            for number in range(len(found)):
                if sys.getrefcount(found[number]) <= _IN_THE_RING:
                    self.hits += 1
                    return found[number]
            found.append(made(taken))
            del found[:-MOST]
            return found[-1]

    def tensor(self, torch: Any, shape: tuple[int, ...], dtype: Any, device: Any) -> Any:
        """A torch tensor of its own, not initialised."""
        size = math.prod(shape) * dtype.itemsize
        taken = room(size)
        with self._lock:
            found = self._of((dtype, taken))
            used = [torch._C._storage_Use_Count(storage._cdata) for storage, _ in found]
            number = next((n for n, count in enumerate(used) if count <= 1), len(found))
            address = found.pop(number)[1] if number < len(found) else None  # back to the allocator
            exact = size == taken  # a call of torch's less
            made = torch.empty(shape if exact else (taken // dtype.itemsize,), dtype=dtype, device=device)
            self.hits += made.data_ptr() == address
            found.insert(number, (made.untyped_storage(), made.data_ptr()))
            del found[:-MOST]
        return made if exact else made.resize_(shape)

    def _of(self, key: Hashable) -> list[Any]:
        """The buffers of a size, which is the one used last now."""
        found = self._kept.setdefault(key, [])
        self._kept.move_to_end(key)
        if len(self._kept) > SIZES:
            self._kept.popitem(last=False)
        return found


_IN_THE_RING = 2  # references to what only its list holds: that one and the question's


def room(size: int) -> int:
    """Bytes that are taken for a result of so many."""
    step = max(_SMALLEST, 1 << max(0, size.bit_length() - 4))
    return max(1, -(-size // step)) * step


def can_keep(torch: Any) -> bool:
    """Can the ring see whether a tensor's memory is in use?"""
    return hasattr(torch._C, "_storage_Use_Count")
