"""Products of groups of rows against a loop over the groups in float64, and counts of bins against NumPy and PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.compiler import ops
from tilewright.runtime.errors import DTypeError, IngestError, OptionError, ShapeError

pytestmark = pytest.mark.usefixtures("built_here")

GROUPS, DEPTH, COLUMNS, MOST = 5, 24, 40, 303
COUNTS: dict[str, Sequence[int]] = {
    "no rows": (0, 0, 0, 0, 0), "one row": (0, 0, 1, 0, 0), "a row each": (1, 1, 1, 1, 1), "even": (16, 16, 16, 16, 16),
    "uneven": (1, 33, 0, 17, 2), "the first takes all": (97, 0, 0, 0, 0), "the last takes all": (0, 0, 0, 0, 97),
    "many": (60, 61, 59, 57, 63),
}  # fmt: skip


def grouped(dtype: str = "f32", constant: bool = True, transposed: bool = False, offsets: str = "i64", columns: int = COLUMNS,
            depth: int = DEPTH) -> Any:  # fmt: skip
    """A compiled product of S rows, and its weights as [groups, depth, columns]."""
    g = ops.Graph(ranges={"S": (0, MOST)})
    each = (columns, depth) if transposed else (depth, columns)
    x, w = g.input("x", ["S", depth], dtype), g.input("w", [GROUPS, *each], dtype)
    ends = g.input("ends", [GROUPS], offsets)
    g.output(ops.grouped_matmul(x, ops.transpose(w, [0, 2, 1]) if transposed else w, ends))
    weights = np.random.default_rng(3).standard_normal(tuple(d.constant or 0 for d in w.dims)).astype(x.dtype.numpy)
    fn = tw.compile(g, {"S": (0, MOST)}, constants={"w": weights} if constant else None, options=tw.CompileOptions(threads=2))
    products = [c for c in fn.explain(S=70).calls if c.family == "host_matmul"]
    assert [c.workload for c in products] == ["gather_batch_matmul"]  # weights are read where they lie
    if constant:  # and once for neighbours that have one in common
        assert "columns-outer=true" in str(products[0].config)
    return (lambda a, e: fn(a, e)) if constant else (lambda a, e: fn(a, weights, e)), \
        weights.transpose(0, 2, 1) if transposed else weights


def expected(x: Any, w: Any, ends: Any) -> Any:
    found, low = np.zeros((len(x), w.shape[2])), 0
    for group, end in enumerate(ends):
        found[low:end] = x[low:end].astype(np.float64) @ w[group].astype(np.float64)
        low = end
    return found


@pytest.mark.parametrize(("form", "tail"), [
    ({}, 0), ({"constant": False}, 3), ({"transposed": True, "offsets": "i32"}, 0), ({"dtype": "bf16"}, 3),
    ({"dtype": "bf16", "transposed": True}, 0), ({"columns": 150}, 2),
    ({"dtype": "bf16", "depth": 64, "columns": 150, "transposed": True}, 2),
    ({"constant": False, "transposed": True, "columns": 150}, 0),
])  # fmt: skip
def test_rows_meet_the_weight_of_their_group(form: dict[str, Any], tail: int) -> None:
    fn, weights = grouped(**form)
    rng, tolerance = np.random.default_rng(1), 1e-2 if form.get("dtype") == "bf16" else 2e-5
    for name, counts in COUNTS.items():
        ends = np.cumsum(counts).astype(form.get("offsets", "i64").replace("i", "int"))
        x = rng.standard_normal((int(ends[-1]) + tail, weights.shape[1])).astype(weights.dtype)
        if tail:
            x[ends[-1]:] = np.nan  # rows of no group, which no other may read
        found, wanted = fn(x, ends).astype(np.float64), expected(x, weights, ends)
        np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance * 5, err_msg=name)
        assert not found[ends[-1]:].any()


def test_rows_with_a_weight_each_read_it_where_it_lies() -> None:
    g = ops.Graph(ranges={"S": (1, 50)})
    x, w, at = g.input("x", ["S", DEPTH]), g.input("w", [GROUPS, 150, DEPTH]), g.input("at", ["S"], "i64")
    g.output(ops.einsum("sk,snk->sn", x, ops.gather(w, at)))
    rng = np.random.default_rng(4)
    weights = rng.standard_normal((GROUPS, 150, DEPTH)).astype(np.float32)
    fn = tw.compile(g, {"S": (1, 50)}, constants={"w": weights})
    assert len(fn.explain(S=9).calls) == 1
    for rows in (1, 9, 50):
        a, places = rng.standard_normal((rows, DEPTH)).astype(np.float32), rng.integers(0, GROUPS, rows)
        wanted = np.einsum("sk,snk->sn", a.astype(np.float64), weights[places].astype(np.float64))
        np.testing.assert_allclose(fn(a, places), wanted, rtol=2e-5, atol=2e-5)


def test_offsets_that_fall_or_are_no_rows_read_nothing_else() -> None:
    fn, _ = grouped()
    x = np.ones((7, DEPTH), np.float32)
    for ends in ((5, 3, 7, 1, 7), (-4, 2, 900, 900, 900), (1 << 40, 0, 0, 0, 0)):
        assert np.isfinite(fn(x, np.array(ends))).all()  # values are not specified


@pytest.mark.parametrize(("shapes", "kinds", "error", "said"), [
    (([4, 3], [2, 5, 6], [2]), ("f32", "f32", "i64"), ShapeError, "the summed extents"),
    (([4, 5], [2, 5, 6], [3]), ("f32", "f32", "i64"), ShapeError, "the groups of the weight and the offsets"),
    (([4, 5, 1], [2, 5, 6], [2]), ("f32", "f32", "i64"), ShapeError, "x has rank 3"),
    (([4, 5], [2, 5, 6], [2]), ("f32", "bf16", "i64"), DTypeError, "bf16"),
    (([4, 5], [2, 5, 6], [2]), ("f32", "f32", "f32"), DTypeError, "integer indices"),
])  # fmt: skip
def test_what_does_not_fit_is_refused(shapes: Any, kinds: Any, error: Any, said: str) -> None:
    g = ops.Graph()
    given = [g.input(f"t{i}", s, k) for i, (s, k) in enumerate(zip(shapes, kinds, strict=True))]
    with pytest.raises(error, match=said):
        ops.grouped_matmul(*given)


def test_counts_of_bins() -> None:
    g = ops.Graph(ranges={"N": (0, 99)})
    x, n = g.input("x", ["N"]), g.input("n", ["N"], "i32")
    g.output(ops.histogram(x, 7, (-1, 2.5)), ops.histogram(x, 4), ops.histogram(n, 6, (-3, 3)))
    fn, rng = tw.compile(g, {"N": (0, 99)}), np.random.default_rng(2)
    for values in (rng.standard_normal(99), np.array([-1, 2.5, 2.49, 0, 9, -9]), np.full(3, 2.0), np.zeros(0)):
        a = values.astype(np.float32)
        whole = rng.integers(-5, 6, len(a)).astype(np.int32)
        least, most = (a.min(), a.max()) if len(a) else (0, 0)
        if least == most:
            least, most = least - 1, most + 1
        wanted = [np.histogram(a, 7, (-1, 2.5)), np.histogram(a, 4, (least, most)), np.histogram(whole, 6, (-3, 3))]
        for found, (count, _) in zip(fn(a, whole), wanted, strict=True):
            np.testing.assert_array_equal(found, count)
    assert fn(np.array([np.nan, 0.0, np.inf], np.float32), np.zeros(3, np.int32))[0].sum() == 1


@pytest.mark.parametrize(("bins", "span"), [(0, (0, 1)), (3, (2, 1)), (3, (0, float("inf"))), (3, (float("nan"), 1))])
def test_bins_that_are_none_are_refused(bins: int, span: tuple[float, float]) -> None:
    with pytest.raises(OptionError, match="wanted at least one, and finite ends"):
        ops.histogram(ops.Graph().input("x", [3]), bins, span)


def test_pytorch_forms() -> None:
    torch = pytest.importorskip("torch")
    product = torch.nn.functional.grouped_mm

    class Model(torch.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.pair = torch.nn.Bilinear(5, 3, 4)

        def forward(self, x: Any, w: Any, ends: Any) -> Any:
            a, b = x.bfloat16(), w.bfloat16()  # the only type that exports of grouped_mm have
            return (product(a, b, offs=ends), product(b.mT, a.t(), offs=ends), product(b, b.mT),
                    torch.histc(x, 6), torch.histc(x, 5, -1, 1), torch.histc(x, 5, 2, 2), self.pair(x[:, :5], x[:, 5:8]))

    def given(rows: int) -> tuple[Any, ...]:
        generator = torch.Generator().manual_seed(rows)
        ends = torch.tensor([4, 4, rows], dtype=torch.int32)
        return torch.randn(rows, 16, generator=generator), torch.randn(3, 16, 8, generator=generator), ends

    model = Model().eval()
    compiled = tw.compile(model, args=given(12), dynamic_shapes=({0: 4 * torch.export.Dim("quarter", min=1, max=16)}, {}, {}))
    for rows in (4, 12, 64):
        for found, wanted in zip(compiled(*given(rows)), model(*given(rows)), strict=True):
            torch.testing.assert_close(found, wanted, **({"rtol": 2e-5, "atol": 2e-5} if wanted.dtype == torch.float32 else {}))


def test_groups_of_the_summed_axis_are_refused() -> None:
    torch = pytest.importorskip("torch")

    class Model(torch.nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: Any, ends: Any) -> Any:
            return torch.nn.functional.grouped_mm(x.t(), x, offs=ends)  # a matrix for each part of the rows

    with pytest.raises(IngestError, match=r"aten\._grouped_mm.*gradients of weights"):
        tw.compile(Model().eval(), args=(torch.rand(8, 16).bfloat16(), torch.tensor([4, 8], dtype=torch.int32)))
