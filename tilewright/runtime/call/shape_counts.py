"""ShapeCounts: how often a function was called at which dims, in a table of bounded size that native code fills.

Words of 8 bytes: slots less one, calls that found no slot, then the slots: calls, and the dims in the order of the program.
`compiler/host/count_shapes.py` emits the code that counts; a caller without it counts here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tilewright.runtime.errors import OptionError
from tilewright.runtime.fork_safe_lock import ForkSafeLock

COUNTS = "tw_counts"  # symbol of the binder: the address of the table, null while nothing is counted
HEAD_WORDS, MASK, OTHERS = 2, 0, 1
PROBES = 8  # slots that a shape may take
SHAPES = 4096  # slots where nothing is said
_MOST = 1 << 24
_SPREAD = 0x9E3779B97F4A7C15  # odd, 2^64 over the golden ratio (Knuth, TAOCP 3, 6.4)


def multipliers(count: int) -> list[int]:
    """A factor of each dim, by which the sum of products is spread over the slots; the upper half of the bits counts."""
    return [pow(_SPREAD, i + 1, 1 << 64) for i in range(count)]


class ShapeCounts:
    """Counts of one function. Counting holds the interpreter's lock, or this object's own, so none is lost.

    Args:
        dims: how many the program has. shapes: that are told apart, at least; rounded up to a power of two.
    Raises:
        OptionError: `shapes` is no such number.
    """

    def __init__(self, dims: int, shapes: int = SHAPES) -> None:
        if isinstance(shapes, bool) or not isinstance(shapes, int) or not 1 <= shapes <= _MOST:
            raise OptionError(f"shapes={shapes!r}: wanted an integer from 1 to {_MOST}; leave it out for {SHAPES}")
        slots = 1 << (shapes - 1).bit_length()
        self._dims = dims
        self._words = np.zeros(HEAD_WORDS + slots * (1 + dims), np.int64)
        self._words[MASK] = slots - 1
        self._own: dict[tuple[int, ...], int] = {}
        self._own_others = 0
        self._lock = ForkSafeLock()

    @property
    def address(self) -> int:
        """Of the table, for native code; it lives as long as this object."""
        return int(self._words.ctypes.data)

    def add(self, dims: Sequence[int]) -> None:
        """Count a call that no native code took."""
        key = tuple(dims)
        with self._lock.of_process():
            if key in self._own or len(self._own) <= int(self._words[MASK]):
                self._own[key] = self._own.get(key, 0) + 1
            else:
                self._own_others += 1

    def read(self) -> tuple[Mapping[tuple[int, ...], int], int]:
        """Calls by dims, the most frequent first, and the calls at shapes that found no slot."""
        words = self._words.copy()
        found: dict[tuple[int, ...], int] = {}
        slots = words[HEAD_WORDS:].reshape(-1, 1 + self._dims)
        for calls, *dims in slots[slots[:, 0] > 0].tolist():
            found[tuple(dims)] = calls
        with self._lock.of_process():
            own, others = dict(self._own), self._own_others
        for key, calls in own.items():
            found[key] = found.get(key, 0) + calls
        return dict(sorted(found.items(), key=lambda item: (-item[1], item[0]))), int(words[OTHERS]) + others
