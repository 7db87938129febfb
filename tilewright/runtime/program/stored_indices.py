"""Indices of a pool as they are stored: in as few bits as tell its entries apart.

Bytes below `entries`, a multiple of eight of them, are stored eight by eight: the first in the lowest bits of a number of eight
times so many bits, whose bytes lie with the lowest first. In memory, where kernels read them, indices are bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

_TOGETHER = 8  # indices, whose bits are whole bytes
_LANES = (32, 16, 8)  # bits of a half, a quarter and an eighth of a word
_BLOCK = 1 << 12  # words at a time, which the first-level cache holds
_Bytes = np.ndarray[Any, np.dtype[np.uint8]]
_Words = np.ndarray[Any, np.dtype[np.uint64]]


def index_bits(entries: int) -> int:
    """That an index below so many takes."""
    return max(1, (entries - 1).bit_length())


def is_narrow(entries: int) -> bool:
    """Do indices below so many take fewer bits than a byte has?"""
    return entries > 0 and index_bits(entries) < 8


def may_be_narrow(entries: int, size: int) -> bool:
    """May so many bytes, indices below `entries`, be stored in few bits?"""
    return is_narrow(entries) and size % _TOGETHER == 0


def stored_size(entries: int, size: int) -> int:
    """Bytes that so many indices take in the file."""
    return size // _TOGETHER * index_bits(entries)


def widened_size(entries: int, stored: int) -> int:
    """Indices that so many bytes of the file hold."""
    return stored // index_bits(entries) * _TOGETHER


def narrowed(indices: _Bytes, entries: int) -> _Bytes:
    """What is stored of indices, all of them below `entries`."""
    bits, words = index_bits(entries), indices.view(np.uint64)
    stored = np.empty((len(words), bits), np.uint8)
    for at, room in _blocks(words, np.empty(min(_BLOCK, len(words)), np.uint64)):
        room[:] = words[at]
        for lane in reversed(_LANES):
            low, high = _halves(lane, bits)
            room[:] = room & low | room >> np.uint64(lane - _fields(lane, bits)) & high
        stored[at] = room.view(np.uint8).reshape(-1, _TOGETHER)[:, :bits]
    return stored.reshape(-1)


def widened(stored: _Bytes, entries: int, room: _Bytes) -> None:
    """Writes the indices into a room of theirs. ValueError names one that is beyond the pool."""
    bits, words, largest = index_bits(entries), room.view(np.uint64), 0
    padded = np.concatenate([stored, np.zeros(_TOGETHER, np.uint8)])
    dense = np.ndarray(words.shape, np.dtype("<u8"), padded.data, 0, (bits,))  # each with the next ones' bits above its own
    for at, other in _blocks(words, np.empty(min(_BLOCK, len(words)), np.uint64)):
        here = words[at]
        here[:] = dense[at]
        for lane in _LANES:
            low, high = _halves(lane, bits)
            np.bitwise_and(here, high, out=other)
            np.multiply(other, np.uint64(1 << lane - _fields(lane, bits)), out=other)
            np.bitwise_and(here, low, out=here)
            np.bitwise_or(here, other, out=here)
        largest = max(largest, int(here.view(np.uint8).max()))
    if largest >= entries:
        raise ValueError(f"index {int(np.argmax(room))} is {largest}, beyond its pool of {entries}")


def _blocks(words: _Words, scratch: _Words) -> Iterator[tuple[slice, _Words]]:
    """Parts of the words, each with as many of a scratch."""
    for begin in range(0, len(words), _BLOCK):
        end = min(begin + _BLOCK, len(words))
        yield slice(begin, end), scratch[: end - begin]


def _fields(lane: int, bits: int) -> int:
    """Bits of the indices of a lane."""
    return lane // 8 * bits


def _halves(lane: int, bits: int) -> tuple[np.uint64, np.uint64]:
    """Of indices that lie dense in lanes of twice the width: masks of those of the lower half, and of the upper half."""
    low = sum(((1 << _fields(lane, bits)) - 1) << at for at in range(0, 64, 2 * lane))
    return np.uint64(low), np.uint64(low << _fields(lane, bits))
