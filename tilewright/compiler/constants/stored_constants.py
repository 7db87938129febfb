"""Constants as kernels read them, laid out when one is asked for: while a model is compiled and stored, its weights exist once,
as the arrays that were given, and one of them twice at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.runtime.program.artifact import ALIGNMENT, Memory, raw_bytes
from tilewright.runtime.program.program import Constant
from tilewright.runtime.tensor import DType


@dataclass(frozen=True)
class StoredConstants(Mapping[str, Memory]):
    """Memory by digest. sources: the array behind each constant, and its layout, which is empty for an array as it is."""

    sources: Mapping[str, tuple[np.ndarray, tuple[int, ...]]]

    def __getitem__(self, digest: str) -> Memory:
        """To be read at once: an array that needs no layout is the given one."""
        array, layout = self.sources[digest]
        return packed(array, layout) if layout else np.ascontiguousarray(array).reshape(array.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self.sources)

    def __len__(self) -> int:
        return len(self.sources)

    def in_memory(self) -> dict[str, Memory]:
        """All of them, in memory of their own: what the owners of the given arrays do with these no longer matters."""
        found: dict[str, Memory] = {}
        for digest, (array, layout) in self.sources.items():
            found[digest] = packed(array, layout) if layout else _copied(array)
        return found


def stored_constants(used: Sequence[tuple[int, tuple[int, ...]]], bound: Mapping[int, np.ndarray],
                     names: Sequence[str]) -> tuple[tuple[Constant, ...], StoredConstants]:
    """The constants of a program, in its order.

    Args:
        used: argument number and layout of each. bound: argument number -> value. names: of the first arguments, the model's.
    """
    infos: list[Constant] = []
    sources: dict[str, tuple[np.ndarray, tuple[int, ...]]] = {}
    for number, layout in used:
        array = bound[number]
        data = packed(array, layout) if layout else array
        digest = hashlib.sha256(raw_bytes(data)).hexdigest()
        name = names[number] if number < len(names) else f"arg{number}"
        infos.append(Constant(name, DType.of(data.dtype), tuple(data.shape), digest))
        sources[digest] = (array, layout)
    return tuple(infos), StoredConstants(sources)


def packed(array: np.ndarray, layout: tuple[int, ...]) -> np.ndarray:
    """[ceil(n / tile)][other axes][tile], columns beyond n are 0; where several values of the last other axis lie side by side,
    [...][tile][side], with 0 beyond the last (passes/dispatch_creation/pack_constants.py)."""
    tile, side, axis, *order = layout
    moved = np.transpose(array, [*order, axis])
    *others, columns = moved.shape
    full, rest = divmod(columns, tile)
    rows = [*others[:-1], -(-others[-1] // side)] if others else []
    made = _aligned([full + (rest > 0), *rows, tile, side], array.dtype)
    for at in range(side):
        source = moved[..., at::side, :] if others else moved
        place = (slice(None), ..., slice(source.shape[-2]), slice(None), at) if others else (slice(None), slice(None), at)
        target = made[place]
        target[:full] = np.moveaxis(source[..., : full * tile].reshape(*source.shape[:-1], full, tile), -2, 0)
        if rest:
            target[full, ..., :rest] = source[..., full * tile :]
    return made if side > 1 else made.reshape(made.shape[:-1])


def _aligned(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """Zeros that begin where a kernel may read them, so that no caller copies them."""
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    room = np.zeros(size + ALIGNMENT, np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    return room[start : start + size].view(dtype).reshape(shape)


def _copied(array: np.ndarray) -> np.ndarray:
    made = _aligned(array.shape, array.dtype)
    made[...] = array
    return made
