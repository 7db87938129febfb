"""Sums down the rows in parts and nothing else: what has work units of columns, and what of parts."""

from __future__ import annotations

from dataclasses import replace

from tilewright.passes.spaces.host.host_rows import why_invalid
from tilewright.passes.spaces.host.host_rows_heuristics import default
from tilewright.passes.spaces.workload import Axis, Kind, Loop, Operand, Workload
from tilewright.runtime.limits import HostLimits
from tilewright.runtime.program.dispatch import DispatchTable
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

AVX512 = HostLimits(64, 32, 48 * 1024, 1024 * 1024, 32 * 1024 * 1024, 2)


def sums_in_parts(outputs: int = 1, reductions: int = 1, step: int = 0, columns: int = 96) -> Workload:
    """Sums down the rows of so many columns, each part over 64 of them. step: of the first axis of a result, by rows."""
    part = Axis((1,), (step,))
    given = Operand(DType("f32"), (Expr.dim("d0"), Expr.of(columns)), 1, axes=(Axis((1,), (1,)), Axis((0,), (1,))))
    made = Operand(DType("f32"), (Expr.dim("d1"), Expr.of(columns)), 1, axes=(part, Axis((0,), (1,))))
    return Workload("k", "part_add", Kind.ROWS, "", ("d0", "d1"), (given,), (made,) * outputs,
                    (Loop("col", Expr.of(columns)), Loop("row", Expr.dim("d0"))), Expr.of(0), Expr.dim("d0") * (4 * columns),
                    part_rows=64, reductions=reductions)


def test_sums_in_parts_alone_have_units_of_columns_while_the_second_cache_holds_them() -> None:
    configs, root = default(sums_in_parts(), AVX512)
    table = DispatchTable("", "part_add", ("d0", "d1"), (), root)
    few, many = (configs[table.select({"d0": rows, "d1": 1}).kernel] for rows in (2730, 2731))
    assert (few.axis, few.block, few.unroll) == ("lane", 64, 4) and many.axis == "column"
    for other in (sums_in_parts(reductions=2), sums_in_parts(step=1)):
        assert {c.axis for c in default(other, AVX512)[0]} == {"column"}
        assert "parts-along-columns" in (why_invalid(few, other, AVX512) or "")
    assert why_invalid(few, sums_in_parts(2, 2), AVX512) is None
    assert "parts-of-rows" in (why_invalid(replace(few, block=32), sums_in_parts(), AVX512) or "")


def picked(columns: int, limits: HostLimits, *rows: int) -> list[tuple[str, int]]:
    configs, root = default(sums_in_parts(columns=columns), limits)
    table = DispatchTable("", "part_add", ("d0", "d1"), (), root)
    chosen = [configs[table.select({"d0": count, "d1": 1}).kernel] for count in rows]
    return [(c.axis, c.unroll if c.axis == "lane" else 0) for c in chosen]


def test_units_are_wider_where_all_threads_get_two_of_them_and_long_rows_have_them_beyond_a_second_cache() -> None:
    near, beyond, parts = ("lane", 8), ("lane", 4), ("column", 0)
    assert picked(512, AVX512, 512, 513) == [near, parts]
    assert picked(496, AVX512, 512) == [beyond]
    assert picked(512, replace(AVX512, threads=3), 512) == [beyond]
    assert picked(3072, AVX512, 85, 86, 341, 342) == [near, near, near, parts]
    assert picked(3072, replace(AVX512, l2=1 << 21), 170, 171, 682, 683) == [near, beyond, beyond, parts]
    assert picked(3056, AVX512, 85, 86) == [near, parts]


def test_elements_with_their_sums_have_units_of_columns_where_parts_are_fewer_than_threads() -> None:
    def both(columns: int = 3072, reductions: int = 1) -> Workload:
        sums = sums_in_parts(columns=columns, reductions=reductions)
        whole = replace(sums.outputs[0], dims=(Expr.dim("d0"), Expr.of(columns)), axes=(Axis((1,), (1,)), Axis((0,), (1,))))
        return replace(sums, outputs=(whole, *sums.outputs))

    def axes(workload: Workload, limits: HostLimits, *rows: int) -> list[str]:
        configs, root = default(workload, limits)
        table = DispatchTable("", "part_add", ("d0", "d1"), (), root)
        return [configs[table.select({"d0": count, "d1": 1}).kernel].axis for count in rows]

    assert axes(both(), AVX512, 1, 2, 128, 129) == ["lane", "lane", "lane", "column"]
    assert axes(both(), replace(AVX512, threads=4), 128, 256, 257) == ["lane", "lane", "column"]
    assert axes(both(), replace(AVX512, threads=48), 2) == ["lane"]
    for workload, limits in ((both(), replace(AVX512, threads=1)), (both(), replace(AVX512, threads=49)), (both(3071), AVX512),
                             (both(reductions=2), AVX512)):
        assert axes(workload, limits, 2) == ["column"]
