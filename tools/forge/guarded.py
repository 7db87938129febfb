"""Arrays between pages that nobody may touch: one byte beyond an end, and the process gets a signal."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np


class GuardedMemory:
    """Memory for arrays that begin where a page begins, or end where one ends. It lives as long as the process."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        self._maps: list[mmap.mmap] = []

    def array(self, like: np.ndarray, at_end: bool) -> np.ndarray:
        """A copy of an array right before, or right behind, a page that nobody may touch."""
        page = mmap.PAGESIZE
        pages = -(-like.nbytes // page)
        memory = mmap.mmap(-1, (pages + 2) * page)
        self._maps.append(memory)
        room = np.frombuffer(memory, np.uint8)
        base = room.ctypes.data
        for guard in (base, base + (pages + 1) * page):
            if self._libc.mprotect(guard, page, 0):
                raise OSError(ctypes.get_errno(), "mprotect")
        start = page + (pages * page - like.nbytes if at_end else 0)
        made = room[start : start + like.nbytes].view(like.dtype).reshape(like.shape)
        made[...] = like
        return made

    def apart(self, like: np.ndarray, gap: int, at_end: bool) -> np.ndarray:
        """A copy whose rows lie `gap` elements apart, as do all axes but the last; the last row ends, or the first begins, at
        such a page. The gaps hold bytes of ones."""
        strides = [1]
        for extent in like.shape[:0:-1]:
            strides.append(strides[-1] * extent + gap)
        strides.reverse()
        span = 1 + sum((extent - 1) * stride for extent, stride in zip(like.shape, strides, strict=True)) if like.size else 0
        room = self.array(np.full(span * like.itemsize, 0xFF, np.uint8).view(like.dtype), at_end)
        made = np.lib.stride_tricks.as_strided(room, like.shape, [s * like.itemsize for s in strides])
        made[...] = like
        return made
