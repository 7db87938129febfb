"""Constants as kernels read them, laid out when one is asked for: while a model is compiled and stored, its weights exist once,
as the arrays that were given, and one of them twice at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from msgspec.structs import replace

from tilewright.runtime.program.artifact import ALIGNMENT, Memory, raw_bytes
from tilewright.runtime.program.program import Constant
from tilewright.runtime.program.stored_indices import may_be_narrow, narrowed
from tilewright.runtime.tensor import DType


@dataclass(frozen=True)
class BoundConstant:
    """A constant operand. argument: which bound argument it is. layout: its packed layout [tile, values side by side, axis of
    columns, other axes], if any. each: are there as many as sequences, each laid out so, one after the other? entries: of the
    pool whose indices it is, 0 where it is none."""

    argument: int
    layout: tuple[int, ...] = ()
    each: bool = False
    entries: int = 0

    def laid_out(self, array: np.ndarray) -> np.ndarray:
        """What is stored of the array of the argument; the array itself where it needs no layout."""
        if not self.layout:
            return array
        if not self.each:
            return packed(array, self.layout)
        first = packed(array[0], self.layout)
        made = _aligned((len(array), *first.shape), array.dtype)
        for number, one in enumerate(array):
            made[number] = packed(one, self.layout)
        return made

    def elements(self, array: np.ndarray) -> int:
        """Of all that is stored of the array."""
        if not self.layout:
            return int(array.size)
        tile, side, axis, *order = self.layout
        counts = [int(array.shape[a + self.each]) for a in (*order, axis)]
        columns = counts.pop()
        rows = prod(counts[:-1]) * -(-counts[-1] // side) * side if counts else 1
        return (len(array) if self.each else 1) * rows * -(-columns // tile) * tile


@dataclass(frozen=True)
class StoredConstants(Mapping[str, Memory]):
    """Memory by digest. sources: the array behind each constant, and how it is laid out."""

    sources: Mapping[str, tuple[np.ndarray, BoundConstant]]

    def __getitem__(self, digest: str) -> Memory:
        """To be read at once: an array that needs no layout is the given one."""
        array, used = self.sources[digest]
        return used.laid_out(array) if used.layout else np.ascontiguousarray(array).reshape(array.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self.sources)

    def __len__(self) -> int:
        return len(self.sources)

    def in_memory(self) -> dict[str, Memory]:
        """All of them, in memory of their own: what the owners of the given arrays do with these no longer matters."""
        found: dict[str, Memory] = {}
        for digest, (array, used) in self.sources.items():
            found[digest] = used.laid_out(array) if used.layout else _copied(array)
        return found


def stored_constants(used: Sequence[BoundConstant], bound: Mapping[int, np.ndarray],
                     names: Sequence[str]) -> tuple[tuple[Constant, ...], StoredConstants]:
    """The constants of a program, in its order.

    Args:
        bound: argument number -> value. names: of the first arguments, the model's.
    """
    infos: list[Constant] = []
    known: dict[str, Constant] = {}  # equal ones are stored alike
    sources: dict[str, tuple[np.ndarray, BoundConstant]] = {}
    for own in used:
        array = bound[own.argument]
        data = own.laid_out(array)
        digest = hashlib.sha256(raw_bytes(data)).hexdigest()
        name = names[own.argument] if own.argument < len(names) else f"arg{own.argument}"
        constant = Constant(name, DType.of(data.dtype), tuple(data.shape), digest)
        if digest in known:
            constant = replace(constant, entries=known[digest].entries, stored=known[digest].stored)
        elif may_be_narrow(own.entries, data.nbytes):
            few = narrowed(data.reshape(-1).view(np.uint8), own.entries)
            constant = replace(constant, entries=own.entries, stored=hashlib.sha256(few.data).hexdigest())
        known[digest] = constant
        infos.append(constant)
        sources[digest] = (array, own)
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
