"""Family `host_rows`: row reductions and the elementwise work around them, vectors along the columns (or along a row axis).

A row goes through sweeps. A sweep walks the columns with several vector accumulators that join in a fixed order at its end,
so that the bits do not depend on threads. Costly values that a later sweep needs again are stored meanwhile. Reductions in parts
down the rows (passes/analysis/parts.py) are added to as rows pass by; a work unit is then a part, or some columns of all parts.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.passes.analysis.row_program import RowProgram
from tilewright.passes.codegen.host_kernel import Grid, HostKernel
from tilewright.passes.codegen.kernel_frame import KernelFrame
from tilewright.passes.codegen.tiler import Tiler
from tilewright.passes.families.host.host_part_columns import PartColumns, tile_columns
from tilewright.passes.families.host.host_row_columns import RowColumns, product_of
from tilewright.passes.families.host.host_row_lanes import RowLanes, tile_lanes
from tilewright.passes.families.host.host_row_parts import RowParts
from tilewright.passes.families.part_units import tile_parts
from tilewright.passes.families.row_exponents import mark_exponents, mark_maxima, mark_shares, mark_summed
from tilewright.passes.linalg.symbolic import IN_PLACE
from tilewright.passes.spaces.host.host_rows import HostRowsConfig


def emit(kernel: HostKernel, config: HostRowsConfig) -> Grid:
    """The whole kernel; ValueError when the region is no program over rows and columns."""
    mark_exponents(kernel.ops())
    mark_shares(kernel.ops())
    mark_summed(kernel.ops(), kernel.results)
    mark_maxima(kernel.ops(), kernel.results)
    program = RowProgram(kernel.ops(), kernel.results, kernel.shapes, IN_PLACE in kernel.fn.attributes)
    if config.axis == "lane" and program.parts:
        return kernel.build(lambda begin, end, workspace: PartColumns(kernel, program, config).emit(begin, end, workspace))
    if config.axis == "lane":
        return kernel.build(lambda begin, end, workspace: RowLanes(kernel, program, config).emit(begin, end, workspace))
    walker = RowParts if program.parts else RowColumns
    grid = kernel.build(lambda begin, end, workspace: walker(kernel, program, config).emit(begin, end, workspace))
    return replace(grid, joins="one") if program.parts else grid


def tile(frame: KernelFrame, config: HostRowsConfig, tiler: Tiler) -> None:
    """Units of `block` rows; with a row per lane, of some vectors of rows."""
    program = RowProgram(frame.ops(), frame.results, frame.shapes, IN_PLACE in frame.fn.attributes)
    if config.axis == "lane" and program.parts:
        tile_columns(program, config, tiler)
        return
    if config.axis == "lane":
        tile_lanes(frame, program, config, tiler)
        return
    if program.parts:
        tile_parts(program, tiler)
        return
    rows = product_of([program.frame[a] for a in program.rows])
    tiler.loop([rows.ceildiv(config.block)], lambda place: {"rows": tiler.span(place[0], config.block, rows)},
               program.cut({"rows": program.rows}))
