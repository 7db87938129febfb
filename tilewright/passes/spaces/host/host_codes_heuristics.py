"""What `host_codes` runs untuned: decoding in registers for few rows, to a panel for many. MLIR-free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.passes.spaces.host import host_matmul_heuristics
from tilewright.passes.spaces.host.host_block import register_block
from tilewright.passes.spaces.host.host_codes import Format, HostCodesConfig, extents_of, plain, why_invalid
from tilewright.passes.spaces.host.host_matmul import prepacked
from tilewright.passes.spaces.threshold import threshold
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import HostLimits
from tilewright.runtime.program.dispatch import Leaf, Node, switch
from tilewright.runtime.shape import Expr

_BUSY = "not kept: blocks of 4, 6 and 8 rows beside panels at 8 and 16 rows of 2048 x 2048 on a busy CPU with AVX-512"
_XEON = "xeon-avx512.md: beside the fastest kernel of each algorithm"
# units of columns that are decoded at least, where there are as many: 3 units of 11 panels leave one of two threads idle for a
# third of the time (codes of 2 bits, 64 rows, 2048 x 2048: two threads 1.12 times as fast as one; AVX-512); one thread takes the
# same time, within 2 %, with 1, 2, 4, 8 and 11 panels
_UNITS = 8


@dataclass(frozen=True)
class Thresholds:
    """The break-even number of rows."""

    few_rows: int = threshold(4, unit="rows, up to which a block of as many decodes the columns in registers",
                              operator="codes_u4g32_768x768", results=_BUSY)
    tall_rows: int = threshold(6, unit="rows of such a block where registers are many",
                               operator="codes_u4g32_768x768", results=_XEON)
    long_group: int = threshold(128, unit="values with one scale, from which blocks of two vectors do in place of those of one",
                                operator="codes_u4g32_768x768", results=_XEON)
    long_rows: int = threshold(16, unit="rows, up to which these do for codes of up to 2 bits", operator="codes_u4g32_768x768",
                               results=_XEON)
    one_vector: int = threshold(8, unit="rows of a block of one vector, which does for more rows than those",
                                operator="codes_u4g32_768x768", results=_XEON)
    some_rows: int = threshold(12, unit="rows, up to which tall blocks do for codes of up to 4 bits of one tensor",
                               operator="codes_u4g32_768x768", results=_XEON)
    dot_rows: int = threshold(4, unit="rows of a block of integers", operator="codes_u4g32_768x768", results=_BUSY)
    dot_chunk: int = threshold(32, unit="rows of bytes in the workspace", operator="codes_u4g32_768x768", results=_BUSY)


def default(workload: Workload, limits: HostLimits,
            thresholds: Thresholds = Thresholds()) -> tuple[tuple[TileConfig, ...], Node]:
    """One row; two; a few, in blocks; many, from panels that are decoded once."""
    extents, lanes, tile = extents_of(workload), limits.lanes(4), prepacked(workload)
    dotted = _dotted(workload, limits, thresholds)
    if dotted:
        return _by_rows(extents.rows, dotted[:-1], dotted[-1][1])
    most, nv = register_block(extents.columns.constant, lanes, limits)
    nv = next(n for n in (nv, 3, 2, 1) if tile % (n * lanes) == 0)
    form, tall, at = Format.of(workload), limits.vector_registers >= 32, thresholds
    assert form is not None
    block = HostCodesConfig(at.tall_rows if tall else at.few_rows, nv, lanes, exact_tails=True)
    one = HostCodesConfig(at.one_vector, 1, lanes, exact_tails=True)
    two = replace(one, nv=2) if tall and tile % (2 * lanes) == 0 else one
    wide = one if form.planes == 1 and 0 < form.group < at.long_group else two
    cases = [(1, HostCodesConfig(1, nv, lanes)), (2, HostCodesConfig(2, nv, lanes))]
    cases += [(block.mr, block)] if form.planes == 1 or two == one else []
    cases.append((at.one_vector, wide))
    if wide != one and form.bits <= 2:
        cases.append((at.long_rows, wide))
    elif tall and form.planes == 1 and form.bits <= 4:
        cases.append((at.some_rows, block))
    cases = [(rows, _by_table(config, workload, limits)) for rows, config in cases]
    found = [(rows, config) for rows, config in cases if why_invalid(config, workload, limits) is None]
    if any(c.table for _, c in found):  # two rows by a block with a table of values rather than without
        found = [(rows, c) for rows, c in found if c.table or rows != 2]
    many = _by_table(_decoded(workload, limits, (most, nv, lanes)), workload, limits)
    return _by_rows(extents.rows, found, many)


def _by_rows(rows: Expr, few: Sequence[tuple[int, HostCodesConfig]],
             many: HostCodesConfig) -> tuple[tuple[TileConfig, ...], Node]:
    """The first of the few whose rows suffice, else the other."""
    if rows.constant is not None:
        return (next((c for most, c in few if rows.constant <= most), many),), Leaf(0)
    configs = tuple(dict.fromkeys((*(c for _, c in few), many)))
    leaves: list[tuple[int, Node]] = [(most, Leaf(configs.index(c))) for most, c in few]
    return configs, switch(str(rows), leaves, Leaf(configs.index(many)))


def _dotted(workload: Workload, limits: HostLimits, thresholds: Thresholds) -> list[tuple[int, HostCodesConfig]]:
    """Rows of bytes as integers: of one row, of two, of more, each with the rows up to which it serves; none where they are no
    bytes."""
    lanes, tile, found = limits.lanes(4), prepacked(workload), list[tuple[int, HostCodesConfig]]()
    for most, heights in ((1, (1,)), (2, (2,)), (0, range(thresholds.dot_rows, 2, -1))):
        tried = (HostCodesConfig(mr, nv, lanes, dot=limits.byte_products, mc=thresholds.dot_chunk // mr * mr, exact_tails=True)
                 for mr in heights for nv in (4, 3, 2, 1) if tile % (nv * lanes) == 0)
        config = next((c for c in tried if why_invalid(c, workload, limits) is None), None)
        if config is None:
            return []
        found.append((most, config))
    return found


def _by_table(config: HostCodesConfig, workload: Workload, limits: HostLimits) -> HostCodesConfig:
    """With the values of codes in a register, where that is possible: one instruction in place of two."""
    found = replace(config, table=True)
    return found if why_invalid(found, workload, limits) is None else config


def _decoded(workload: Workload, limits: HostLimits, block: tuple[int, int, int]) -> HostCodesConfig:
    """As `host_matmul` copies columns that are computed, in blocks of its prepacked panels."""
    mr, nv, lanes = block
    alike = host_matmul_heuristics.default(plain(workload), limits)[0][-1]
    chunk = getattr(alike, "mc", 0) // mr * mr
    panels, columns = getattr(alike, "panels", 1), extents_of(workload).columns.constant
    if columns is not None:
        panels = max(1, min(panels, columns // (nv * lanes * _UNITS)))
    config = HostCodesConfig(mr, nv, lanes, decode=True, mc=chunk or 16 * mr, kc=getattr(alike, "kc", 0), panels=panels,
                             exact_tails=True)
    if why_invalid(config, workload, limits) is None:
        return config
    return replace(config, kc=0, panels=1, mc=mr * 8)
