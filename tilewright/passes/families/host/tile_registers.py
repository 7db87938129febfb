"""The tile registers of AMX: their shapes, and the instructions on them."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.passes.codegen.emit import Memory, constant, effect, integer_type
from tilewright.passes.codegen.index import Index
from tilewright.passes.mlir import ir

LINE = 64  # bytes of a row of a tile, at most, and of their shapes
COUNT = 8
_NAME = "llvm.x86."


def shape(at: ir.Value, tiles: Sequence[tuple[int, int]], index: ir.Type) -> None:
    """Gives the tiles rows and bytes of a row, by LINE bytes from the pointer `at` on."""
    byte = integer_type(8)
    shapes = Memory(at, byte, (Index(LINE),), (Index(1),), index)
    shapes.store(constant(byte, 0, LINE), [Index.ramp(0, LINE)])
    shapes.store(constant(byte, 1), [Index(0)])  # the palette
    for tile, (rows, wide) in enumerate(tiles):
        shapes.store(constant(byte, wide), [Index(16 + 2 * tile)])
        shapes.store(constant(byte, rows), [Index(48 + tile)])
    effect(_NAME + "ldtilecfg", [shapes.address([Index(0)])])


def release() -> None:
    """No tile is used any more."""
    effect(_NAME + "tilerelease", [])


def clear(tile: int) -> None:
    effect(_NAME + "tilezero", [_number(tile)])


def load(tile: int, at: ir.Value, apart: Index | int) -> None:
    """From rows that begin so many bytes apart."""
    effect(_NAME + "tileloadd64", [_number(tile), at, Index(apart).value(integer_type(64))])


def store(tile: int, at: ir.Value, apart: Index | int) -> None:
    """To rows that begin so many bytes apart."""
    effect(_NAME + "tilestored64", [_number(tile), at, Index(apart).value(integer_type(64))])


def multiply_add(instruction: str, sums: int, rows: int, columns: int) -> None:
    """instruction: tdpbusd and its kin, tdpbf16ps."""
    effect(_NAME + instruction, [_number(sums), _number(rows), _number(columns)])


def _number(tile: int) -> ir.Value:
    return constant(integer_type(8), tile)
