"""ResultRing: memory of results that the caller has let go, for the results of later calls on the same stream.

The step after next writes where this one did, so that its launches, and those of whoever reads its result, keep their parameters.
Memory is free again when nobody but the ring holds it; the order of the stream keeps its next writer behind its last reader.
"""

from __future__ import annotations

import math
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

Kept = TypeVar("Kept")
Given = TypeVar("Given")

MOST = 3  # buffers of one size
SIZES = 64  # sizes that are kept, those used last
_SMALLEST = 512  # bytes; sizes above are rounded up by at most an eighth, so that lengths that grow share memory


class ResultRing(Generic[Kept, Given]):
    """Of one stream. Attribute: hits: results that were given memory of an earlier one."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, list[Kept]] = OrderedDict()
        self._lock = threading.Lock()
        self.hits = 0

    def take(self, key: Hashable, made: Callable[[], Kept], is_free: Callable[[Kept], bool], given: Callable[[Kept], Given]
             ) -> Given:
        """A result over memory that is free, the one let go longest ago, or over `made()`.

        key: all that has to be equal for memory to serve again. is_free: does nobody but the ring hold it? given: the result
        over it, which holds it.
        """
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                found = self._kept[key] = []
                if len(self._kept) > SIZES:
                    self._kept.popitem(last=False)
            else:
                self._kept.move_to_end(key)
            for number in range(len(found)):
                if is_free(found[number]):
                    self.hits += 1
                    found.append(found.pop(number))
                    return given(found[-1])
            if len(found) == MOST:
                found.pop(0)
            found.append(made())
            return given(found[-1])


def room(size: int) -> int:
    """Bytes that are taken for a result of so many."""
    step = max(_SMALLEST, 1 << max(0, size.bit_length() - 4))
    return max(1, -(-size // step)) * step


def can_keep(torch: Any) -> bool:
    """Can the ring see whether a tensor's memory is in use?"""
    return hasattr(torch._C, "_storage_Use_Count")


def torch_result(torch: Any, ring: ResultRing[Any, Any], shape: tuple[int, ...], dtype: Any, device: Any) -> Any:
    """A tensor over memory of the ring; use_count counts the tensors over a storage and its Python objects."""
    size = dtype.itemsize
    elements = room(math.prod(shape) * size) // size

    def made() -> tuple[Any, Any]:
        base = torch.empty((elements,), dtype=dtype, device=device)
        return base, base.untyped_storage()

    def is_free(kept: tuple[Any, Any]) -> bool:
        return bool(torch._C._storage_Use_Count(kept[1]._cdata) <= 2)

    strides = [1] * len(shape)
    for axis in range(len(shape) - 1, 0, -1):
        strides[axis - 1] = strides[axis] * max(1, shape[axis])
    return ring.take((dtype, elements), made, is_free, lambda kept: kept[0].as_strided(shape, strides))


def is_unshared(buffer: Any) -> bool:
    """Does nobody hold a buffer but the ring, by its list, and the two calls that ask?"""
    return sys.getrefcount(buffer) <= 3
