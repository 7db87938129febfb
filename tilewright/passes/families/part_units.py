"""Work units of rows that are reduced in parts: one part each."""

from __future__ import annotations

from tilewright.passes.analysis.row_program import RowProgram
from tilewright.passes.codegen.index import Index
from tilewright.passes.codegen.tiler import Part, Tiler
from tilewright.passes.mlir import owner


def tile_parts(program: RowProgram, tiler: Tiler) -> None:
    """Units of one part: so many steps of the first row loop, with all of the others."""
    axis, size = program.rows[0], program.part_rows
    extent = program.frame[axis]

    def parts(place: list[Index]) -> dict[str, Part]:
        return {"rows": tiler.span(place[0], size, extent), "part": Part(place[0])}

    cut = {value: {"part" if owner(value) in program.parts else "rows": (where.index(axis),)}
           for value, where in zip(program.results, program.result_places, strict=True)}
    tiler.loop([extent.ceildiv(size)], parts, cut)
