"""Products of an image of bytes with decoded weights by tiles: 16 pixels times 16 columns, up to 64 bytes each (AMX).

A tile of weights is as many rows as its step along the sum has words, each of a word of 16 columns, as vpdpbusd wants them too.
One or two tiles of pixels meet both halves of 32 columns, four of them one half after the other. Where a strip has no more pixels
than these, weights are multiplied as soon as they are decoded, and few of them are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.passes.codegen.emit import constant, integer_type
from tilewright.passes.codegen.host_kernel import Grid
from tilewright.passes.codegen.index import Index
from tilewright.passes.families.host import tile_registers
from tilewright.passes.families.host.host_pools_decoded import HALVES, WORDS, DecodedEmitter, Step
from tilewright.passes.families.host.tile_registers import LINE
from tilewright.passes.mlir import ir
from tilewright.passes.spaces.host.host_pools import TILE_ROWS, VECTOR

_PIXELS, _WEIGHTS = 4, 6  # first tiles of pixels and of weights, behind those of sums
_AHEAD = 4  # steps that are kept where weights are multiplied at once


@dataclass(frozen=True)
class TilesEmitter(DecodedEmitter):
    """`config.rows` is 16, 32 or 64 pixels."""

    def _areas(self) -> dict[str, int]:
        return {"shapes": WORDS, **super()._areas()}

    @property
    def _tall(self) -> int:
        """Tiles of pixels."""
        return self.config.rows // TILE_ROWS

    @property
    def _runs(self) -> list[tuple[int, ...]]:
        """Halves of the columns that are multiplied at once."""
        return [(half,) for half in range(HALVES)] if self._tall > 2 else [tuple(range(HALVES))]

    @property
    def _is_one(self) -> bool:
        """Are all pixels of a strip one block?"""
        return self._image.pixels <= self.config.rows

    @property
    def _kept(self) -> int:
        return min(self._steps, _AHEAD) if self._is_one else self._steps

    def units(self, begin: Index, end: Index) -> Grid:
        grid = super().units(begin, end)
        tile_registers.release()
        return replace(grid, tiles=True)

    def _fill(self) -> None:
        super()._fill()
        wide, high = self.config.groups * VECTOR, [TILE_ROWS] * _WEIGHTS + [self._step] * HALVES
        shapes = self._memory("shapes", integer_type(8))
        tile_registers.shape(shapes.pointer, [(rows, wide if _PIXELS <= t < _WEIGHTS else LINE) for t, rows in enumerate(high)],
                             shapes.index)

    def _columns(self, at: tuple[Index, Index, Index], zero: ir.Value) -> None:
        if not self._is_one:
            super()._columns(at, zero)
            return
        for halves in self._runs:
            def step(s: Step, sums: Sequence[ir.Value], halves: Sequence[int] = halves) -> list[ir.Value]:
                done = self._decode(at[1] // (HALVES * WORDS), s, sums, halves)
                self._add(Index(0), s, halves)
                return done

            self._clear(halves)
            self._begin(self._along(step, [constant(integer_type(32), 0, WORDS)] * len(halves)), zero, halves)
            self._store(halves)
            self._finish(at, Index(0), halves)

    def _multiply(self, pixel: Index) -> None:
        def step(s: Step, _: Sequence[ir.Value]) -> Sequence[ir.Value]:
            self._add(pixel, s, range(HALVES))
            return ()

        self._clear(range(HALVES))
        self._along(step)
        self._store(range(HALVES))

    def _clear(self, halves: Sequence[int]) -> None:
        for tile in range(self._tall * len(halves)):
            tile_registers.clear(tile)

    def _add(self, pixel: Index, step: Step, halves: Sequence[int]) -> None:
        """Adds the products of a step to the sums of a block of pixels from `pixel` on."""
        weights, pixels = self._memory("weights", integer_type(32)), self._memory("image", integer_type(8))
        base, channels = self._pixels_at(pixel, step), self._image.channels
        for i, half in enumerate(halves):
            tile_registers.load(_WEIGHTS + i, weights.address([self._weights_at(step, half)]), LINE)
        for m in range(self._tall):
            tile = _PIXELS + m % (_WEIGHTS - _PIXELS)
            tile_registers.load(tile, pixels.address([base + m * TILE_ROWS * channels]), channels)
            for i in range(len(halves)):
                tile_registers.multiply_add("tdpbusd", m * len(halves) + i, tile, _WEIGHTS + i)

    def _store(self, halves: Sequence[int]) -> None:
        """The sums: [pixel][column]."""
        sums, wide = self._memory("sums", integer_type(32)), len(halves) * WORDS
        for m in range(self._tall):
            for i in range(len(halves)):
                at = sums.address([Index(m * TILE_ROWS * wide + i * WORDS)])
                tile_registers.store(m * len(halves) + i, at, wide * 4)
