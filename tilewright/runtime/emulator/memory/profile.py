"""Costs of memory accesses that a clock model needs: global sectors and shared-memory wavefronts."""

from __future__ import annotations

import numpy as np

from tilewright.runtime.emulator.machine.lanes import Array

_SECTOR = 32
_BANKS = 32
_BANK_BYTES = 4


def count_sectors(warps: Array, offsets: Array, size: int) -> int:
    """Distinct (warp, 32-byte sector) pairs that accesses of `size` bytes touch."""
    first = offsets // _SECTOR
    keys = (warps[:, None].astype(np.int64) << 40) | (first[:, None] + np.arange(max(1, size // _SECTOR)))
    return len(np.unique(keys))


def count_wavefronts(warps: Array, lanes: Array, offsets: Array, size: int) -> tuple[int, int]:
    """Shared-memory cycles with bank conflicts, and without.

    A warp is served in 1, 2 or 4 phases for accesses of 4, 8 or 16 bytes per lane; in each a bank gives one word per cycle.
    """
    if not len(offsets):
        return 0, 0
    words = max(1, size // _BANK_BYTES)
    phases = warps.astype(np.int64) * words + lanes * words // 32
    word = offsets[:, None] // _BANK_BYTES + np.arange(words)
    keys = np.unique((np.repeat(phases, words) << 40) | word.ravel())
    phase, bank = keys >> 40, keys % _BANKS
    _, counts = np.unique(phase * _BANKS + bank, return_counts=True)
    owner = np.unique(phase * _BANKS + bank) // _BANKS
    order = np.unique(owner, return_inverse=True)[1]
    worst = np.zeros(order.max() + 1, dtype=np.int64)
    np.maximum.at(worst, order, counts)
    return int(worst.sum()), len(worst)
