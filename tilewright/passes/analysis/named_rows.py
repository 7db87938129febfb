"""Rows that data name: a lookup whose last axes are those of its table, as of a cache in pages, or one that beams share."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.passes.linalg.structured import looked_up
from tilewright.passes.linalg.symbolic import integer
from tilewright.passes.mlir import ir, maps_of, owner, position

SHOWN = ("tensor.cast", "tensor.extract_slice", "tensor.expand_shape")  # views, behind which a row stays a row


@dataclass(frozen=True)
class NamedRows:
    """table: what is looked up. axes: for each of its axes the axis of the result that it runs along, None where data name the
    place; the last one runs along one."""

    table: ir.Value
    axes: tuple[int | None, ...]

    @staticmethod
    def of(op: ir.Operation | None) -> NamedRows | None:
        """None of anything but a lookup of rows."""
        lookup = None if op is None else looked_up(op)
        if op is None or lookup is None:
            return None
        loops = [position(e) for e in maps_of(op)[-1].results]
        axes = tuple(_axis(owner(v), loops) for v in list(lookup.operands)[1:])
        if not axes or axes[-1] is None or None not in axes:
            return None
        return NamedRows(lookup.operands[0], axes)


def _axis(op: ir.Operation | None, loops: list[int | None]) -> int | None:
    """The axis of the result that a coordinate is."""
    if op is None or op.name != "linalg.index":
        return None
    loop = integer(op.attributes["dim"])
    return loops.index(loop) if loop in loops else None


def shown_by(value: ir.Value) -> ir.Value:
    """What a value shows, behind views and lookups of rows."""
    while (op := owner(value)) is not None:
        named = NamedRows.of(op)
        if named is None and op.name not in SHOWN:
            break
        value = op.operands[0] if named is None else named.table
    return value
