"""Transforms said as sums: what is taken for one, and how the host computes them: all sizes and forms, rows that are left, memory
at unreadable pages, values that are no numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fourier_workloads import Case
from kernel_harness import NUMPY, at_edge, guarded, load

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.ops import fourier
from tilewright.passes.analysis.fourier import fourier_of
from tilewright.passes.mlir import functions, ir, new_context, operations
from tilewright.passes.spaces.host.fourier_steps import radices
from tilewright.runtime.shape import Expr

SIZES = (2, 3, 4, 6, 8, 9, 14, 16, 20, 25, 30, 48, 49, 64, 70, 128, 200, 256, 400, 512, 1024, 2048)


def forms(n: int, columns: int = 0) -> list[Case]:
    half = n // 2 + 1
    return [
        Case(n, n, half, both=False, columns=columns),
        Case(n, max(1, n - 3), half, both=False, columns=columns),
        Case(n, n, n, both=False, sign=1, columns=columns),
        Case(n, n, n, columns=columns),
        Case(n, max(1, n - 1), max(1, n - 2), sign=1, columns=columns),
        Case(n, half, n, sign=1, parts=1, columns=columns),
        Case(n, n, n, parts=1, columns=columns),
    ]


def compute(case: Case, config: str, target: str, rows: int, scale: np.ndarray | float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """What the kernel finds, and what NumPy does."""
    kernel, kind = load(case.text(), config, target), np.dtype(NUMPY[case.element])
    shape = (rows, case.given, *((case.columns,) if case.columns else ()))
    given = np.random.default_rng(case.size + rows).standard_normal((1 + case.both, *shape)) * scale
    inputs = [at_edge(g.astype(kind)) for g in given]
    want = case.wanted(inputs[0], inputs[1] if case.both else None)
    out = guarded(want.shape, kind)
    kernel(inputs, {"M": rows}, [out], 3)
    return np.asarray(out), want


def close(got: np.ndarray, want: np.ndarray, element: str = "f32") -> None:
    axes = tuple(range(1, want.ndim))
    bound = (3e-7 if element == "f32" else 1e-15) * np.sqrt(np.square(want).sum(axes, keepdims=True))
    assert np.isfinite(got).all() and (np.abs(got - want) <= 4 * bound + 1e-30).all()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("n", SIZES)
def test_sizes_and_forms(n: int) -> None:
    for case in forms(n):
        for rows in (1, 16, 37):
            close(*compute(case, "generic{lanes=16 chunk=256}", "host", rows))


@pytest.mark.parametrize("target,lanes,element", [("host", 8, "f64"), ("host:x86-64-v2", 4, "f32"), ("host", 1, "f32"),
                                                  ("host", 32, "f32"), ("host:x86-64-v3", 8, "f32")])
def test_lanes_and_types(target: str, lanes: int, element: str) -> None:
    for form in [*forms(20), *forms(64, 5)]:
        case = replace(form, element=element)
        for rows in (1, 2, lanes + 3):
            close(*compute(case, f"generic{{lanes={lanes} chunk=256}}", target, rows), element)


@pytest.mark.parametrize("columns", [1, 16, 33])
@pytest.mark.parametrize("n", [12, 96])
def test_vectors_run_along_an_axis_behind(n: int, columns: int) -> None:
    for case in forms(n, columns):
        close(*compute(case, "generic{lanes=16 chunk=256}", "host", 3))


def test_rows_know_nothing_of_each_other() -> None:
    """Neither the size of the others' values nor that one is no number reaches a row."""
    scale = 10.0 ** (np.arange(37) % 5 * 10 - 20)[:, None]
    for case in forms(64):
        close(*compute(case, "generic{lanes=16 chunk=256}", "host", 37, scale))
        kernel = load(case.text(), "generic{lanes=16 chunk=256}")
        x = np.ones((1 + case.both, 20, case.given), np.float32)
        x[:, 3, 1], x[:, 7, 0] = np.nan, np.inf
        out = np.zeros((20, *((2,) if case.parts == 2 else ()), case.bins), np.float32)
        kernel(list(x), {"M": 20}, [out])
        finite = np.isfinite(out).all(tuple(range(1, out.ndim)))
        assert np.isnan(out[3]).any() and not finite[7] and finite[np.delete(np.arange(20), [3, 7])].all()


def found(text: str) -> list[tuple[int, int]]:
    """Sizes and signs of the transforms of a workload."""
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        block = next(functions(module)).regions[0].blocks[0]
        return [(f.size, f.sign) for op in operations(block) if (f := fourier_of(op)) is not None]


def test_what_is_taken_for_a_transform() -> None:
    for n in (2, 6, 64, 1000):
        for case in (*forms(n), *forms(n, 7)):
            signs = {case.sign} if n > 2 else {-1, 1}
            [(size, sign)] = found(case.text())
            assert size == n and sign in signs, case
    text = Case(64, 64, 64).text()
    for one, other in (("math.cos", "math.sin"), ("constant 4 :", "constant 5 :"), ("constant 256 :", "constant 260 :"),
                       ("arith.mulf %in0", "arith.addf %in0"), ("arith.addf %sum0", "arith.subf %sum0"),
                       ("0.0 : f32", "1.0 : f32"), ("arith.constant 192", "arith.constant 0"),
                       (repr(np.pi / 128), repr(np.pi / 130)), ("arith.muli %nk", "arith.addi %nk")):
        assert one in text and found(text.replace(one, other)) == [], one
    for narrow in ("i64", "f32"):  # a number that cannot hold all turns
        assert found(text.replace(narrow, "i8" if narrow == "i64" else "f16")) == []


def test_elements_and_results_beyond_the_size_come_round_again() -> None:
    """As the definition has them, whatever computes them."""
    given, wanted = Case(12, 15, 7, both=False), Case(12, 12, 14)
    for case in (given, wanted):
        text = case.text()
        kernel = load(text, "generic{lanes=16 chunk=256}")
        x = np.random.default_rng(0).standard_normal((1 + case.both, 3, case.given)).astype(np.float32)
        turns = np.exp(-2j * np.pi * np.outer(np.arange(case.given), np.arange(case.bins)) / case.size)
        want = (x[0] + (1j * x[1] if case.both else 0)) @ turns
        out = guarded((3, 2, case.bins), np.dtype(np.float32))
        kernel(list(x), {"M": 3}, [out])
        np.testing.assert_allclose(out, np.stack([want.real, want.imag], 1), atol=1e-5)


def test_radices_have_the_size_as_their_product() -> None:
    known = [n for n in range(2, 4097) if (r := radices(n)) is not None and np.prod(r) == n]
    smooth = [2**a * 3**b * 5**c * 7**d for a in range(13) for b in range(8) for c in range(6) for d in range(5)]
    assert known == sorted(n for n in smooth if 1 < n <= 4096)
    assert [n for n in (-4, 0, 1, 11, 22, 4374, 8192) if radices(n)] == []


@pytest.mark.usefixtures("built_here")
def test_operators_in_front_and_behind_are_parts_of_the_kernel() -> None:
    """A window in front, a factor and other axes behind; one launch of units of vectors of rows."""
    g = ops.Graph()
    x, w = g.input("x", ["B", 48, 5]), g.input("w", [48])
    with fourier.transforms_as_defined(True):
        moved = ops.transpose(x, (0, 2, 1)) * w
        real, imaginary = fourier.transform(moved, None, Expr.of(48), Expr.of(25), False)
        g.output(fourier.real_inverse(real, imaginary, Expr.of(48)) / 48 + 1.0)
        g.output(ops.transpose(real, (0, 2, 1)))
        g.output(fourier.transform(g.input("y", [30]), None, Expr.of(30), Expr.of(30), True)[1])
    fn = tw.compile(g, {"B": (1, 99)})
    rng = np.random.default_rng(5)
    x, w, y = (rng.standard_normal(s).astype(np.float32) for s in ((21, 48, 5), (48,), (30,)))
    back, half, single = fn(x, w, y)
    want = np.moveaxis(x, 1, 2).astype(np.float64) * w
    np.testing.assert_allclose(back, want + 1, atol=3e-6)
    np.testing.assert_allclose(half, np.moveaxis(np.fft.rfft(want).real, 2, 1), atol=2e-5)
    np.testing.assert_allclose(single, np.fft.ifft(y.astype(np.float64)).imag * 30, atol=1e-5)
