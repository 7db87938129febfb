"""Which shapes stay on one thread: what is little work."""

from __future__ import annotations

import dataclasses

import pytest
from matmul_workloads import described

from tilewright.passes.spaces.threads import effort, one_thread_when_small
from tilewright.passes.spaces.workload import Kind, Loop, Operand, Workload
from tilewright.runtime.program.dispatch import Leaf, Split, select
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

T = Expr.dim("T")


def batched(rows: Expr, columns: Expr, depth: int) -> Workload:
    """12 products of [rows, depth] and [depth, columns]."""
    size = {"b": Expr.of(12), "m": rows, "n": columns, "k": Expr.of(depth)}
    bytes_ = (rows * depth + columns * depth + rows * columns) * (12 * 4)
    return dataclasses.replace(described("T", depth, "T"), dims=("T",), loops=tuple(Loop(r, e) for r, e in size.items()),
                               flops=rows * columns * (2 * 12 * depth), bytes=bytes_)


def rows(columns: Expr, dtype: DType = DType.F32, transcendentals: int = 0) -> Workload:
    """Rows [T, columns] read and written."""
    operand = Operand(dtype, (T, columns), 1)
    return dataclasses.replace(
        described("T", 64, 64), kind=Kind.ROWS, transcendentals=transcendentals, dims=("T",),
        loops=(Loop("row", T), Loop("col", columns)),
        inputs=(operand,), outputs=(operand,), flops=T * columns * 5, bytes=T * columns * (2 * dtype.bytes),
    )  # fmt: skip


def test_columns_of_a_contraction_fill_whole_vectors() -> None:
    work = effort(batched(T, T, 64))
    assert work.evaluate({"T": 17}) - work.evaluate({"T": 16}) > work.evaluate({"T": 16}) - work.evaluate({"T": 15})
    assert work.evaluate({"T": 1}) >= 12 * 16 * 64 * 2 * 2


def test_work_grows_with_exponentials_and_narrow_elements() -> None:
    plain = effort(rows(Expr.of(768)))
    curved = effort(rows(Expr.of(768), transcendentals=1))
    narrow = effort(rows(Expr.of(768), DType.BF16))
    at = {"T": 8}
    assert plain.evaluate(at) == 8 * 768 * 2 * 4 * 6
    assert curved.evaluate(at) > 2 * plain.evaluate(at)
    assert narrow.evaluate(at) > plain.evaluate(at)


@pytest.mark.parametrize(("workload", "small", "large"), [
    (batched(T, T, 64), 1, 16), (rows(Expr.of(768)), 5, 48), (rows(Expr.of(16), transcendentals=1), 64, 512),
])
def test_little_work_stays_on_one_thread(workload: Workload, small: int, large: int) -> None:
    tree = one_thread_when_small(Split("T", 20, Leaf(0), Leaf(1)), workload)
    assert select(tree, {"T": small}).threads == 1
    assert select(tree, {"T": large}).threads == 0
    assert {select(tree, {"T": t}).kernel for t in (small, large)} <= {0, 1}


def test_work_that_does_not_vary_needs_no_test() -> None:
    fixed = dataclasses.replace(rows(Expr.of(768)), flops=Expr.of(10), bytes=Expr.of(10), loops=(Loop("row", Expr.of(1)),))
    assert one_thread_when_small(Leaf(0), fixed) == Leaf(0, 1)
    much = dataclasses.replace(batched(T, T, 64), bytes=Expr.of(10**7))
    assert one_thread_when_small(Leaf(0), much) == Leaf(0)


@pytest.mark.parametrize(("workload", "alone", "shared"), [
    (rows(Expr.of(768)), 5, 6), (batched(T, T, 64), 2, 3),
])
def test_where_more_threads_begin(workload: Workload, alone: int, shared: int) -> None:
    """The break-even size, by shape: a threshold that moves by a quarter moves these."""
    tree = one_thread_when_small(Leaf(0), workload)
    assert [select(tree, {"T": t}).threads for t in (alone, shared)] == [1, 0]
