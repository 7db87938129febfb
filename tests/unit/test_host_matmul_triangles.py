"""Products with triangular factors in host_matmul: lower, upper and bands, of rows and of columns, against NumPy; what is zero by
construction is neither read nor multiplied."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_harness import T, empty, guarded, load
from matmul_workloads import LAYOUTS, check, generic, matmul

import tilewright as tw
from tilewright.compiler import ops

pytestmark = pytest.mark.usefixtures("built_here")

CONFIGS = ("host_matmul{mr=4 nv=2 lanes=8 exact-tails=true}", "host_matmul{mr=8 nv=3 pack=panel mc=8}",
           "host_matmul{mr=3 nv=2 lanes=8 mc=6 kc=7 panels=2}", "host_matmul{mr=1 nv=1 lanes=8 pack=panel prefetch=4}",
           "host_matmul{mr=4 nv=2 lanes=8 pack=panel mc=8 kc=16 panels=3 copy-rows=true}",
           "host_matmul{mr=4 nv=2 lanes=8 pack=panel mc=8 exact-tails=true panels=2 copy-rows=true}",
           "host_matmul{mr=2 nv=2 lanes=8 pack=panel mc=4 panels=2}", "host_matmul{mr=1 nv=3 lanes=8 prefetch=4 stream=4}")
SIZES = [(1, 1, 1), (1, 20, 5), (5, 16, 17), (17, 33, 9), (23, 49, 40), (0, 5, 3), (4, 0, 3), (4, 5, 0)]
KINDS = {"lower": "%j <= %i + 0", "upper": "%j >= %i + 0", "below": "%j <= %i + -3", "above": "%j > %i + 2",
         "wide": "%j < %i + 7"}


def masked(t: T, test: str, kept: bool = True) -> str:
    """%t: %a where `test` over its row %i and column %j holds, else 0, or the other way round."""
    left, predicate, right, _, more = test.split()
    name = {"<=": "sle", ">=": "sge", ">": "sgt", "<": "slt"}[predicate]
    chosen = "%x0, %zero" if kept else "%zero, %x0"
    body = f"""%i = linalg.index 0 : index
      %j = linalg.index 1 : index
      %more = arith.constant {more} : index
      %sum = arith.addi {right}, %more : index
      %test = arith.cmpi {name}, {left}, %sum : index
      %zero = arith.constant 0.0 : {t.element}
      %s = arith.select %test, {chosen} : {t.element}
      linalg.yield %s : {t.element}"""
    maps = ["(d0, d1) -> (d0, d1)"] * 2
    return empty("e", t) + "\n" + generic("t", maps, "pp", {"a": t}, ("e", t), body)


def mask(test: str, shape: tuple[int, int]) -> np.ndarray:
    i, j = np.indices(shape)
    left, predicate, right, _, more = test.split()
    assert (left, right) == ("%j", "%i")
    return {"<=": np.less_equal, ">=": np.greater_equal, ">": np.greater, "<": np.less}[predicate](j, i + int(more))


def product(layout: str, test: str, side: int, kept: bool = True) -> tuple[str, list[T], str]:
    """The factor of number `side` is masked; the subscripts of the product."""
    *dims, maps = LAYOUTS[layout]
    both = [T("f32", d) for d in dims]
    c = T("f32", ("N", "M") if layout == "transposed_result" else ("M", "N"))
    text = matmul(both[0], both[1], c, maps, "ppr", dims=("M", "N", "K"))
    name = "ab"[side]
    head, rest = text.split("\n", 1)
    rest = rest.replace(f"%{name} ", "%t ").replace(f"%{name},", "%t,")
    made = masked(both[side], test, kept).replace("%a", f"%{name}")
    return f"{head}\n{made}\n{rest}", [*both, c], maps.replace(" ", "").replace(",", "|")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("config", "layout", "side", "kind"), [
    (CONFIGS[0], "nn", 0, "lower"), (CONFIGS[1], "tt", 0, "upper"), (CONFIGS[2], "nn", 0, "below"),
    (CONFIGS[2], "nn", 1, "above"), (CONFIGS[3], "transposed_result", 0, "wide"), (CONFIGS[4], "nn", 0, "upper"),
    (CONFIGS[4], "tt", 1, "below"), (CONFIGS[5], "nn", 1, "lower"), (CONFIGS[6], "nn", 0, "above")])
def test_triangles(config: str, layout: str, side: int, kind: str) -> None:
    test, kept = KINDS[kind], kind not in ("below", "wide")
    text, (a, b, c), maps = product(layout, test, side, kept)
    subscripts = maps.split("|")

    def wanted(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        both = [x, y]
        both[side] = np.where(mask(test, both[side].shape) == kept, both[side], 0)
        return np.einsum(f"{subscripts[0]},{subscripts[1]}->{subscripts[2]}", *both)

    for m, n, k in SIZES:
        check(text, config, {"a": a, "b": b}, [c], {"M": m, "N": n, "K": k}, wanted)


def test_what_is_zero_is_not_multiplied() -> None:
    """NaN beside the zero half of a lower factor reaches no row that it is not part of."""
    text, _, _ = product("nn", KINDS["lower"], 0)
    n = 24
    a, b = guarded((n, n), np.dtype(np.float32)), guarded((n, n), np.dtype(np.float32))
    a[:], b[:] = 1, 1
    b[16:] = np.nan
    out = guarded((n, n), np.dtype(np.float32))
    load(text, CONFIGS[0], "host")([a, b], {"M": n, "N": n, "K": n}, [out])
    assert np.array_equal(out[:16], np.repeat(np.arange(1, 17), n).reshape(16, n))
    assert np.isnan(out[16:]).all()


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_bands_of_a_model(threads: int, band: tw.CompiledFunction) -> None:
    """One triangle within another, whose diagonal depends on dims of the model."""
    rng = np.random.default_rng(1)
    for n, p in ((1, 3), (6, 5), (70, 33), (150, 64)):
        a, b = rng.standard_normal((n, n)).astype(np.float32), rng.standard_normal((n, p)).astype(np.float32)
        i, j = np.indices((n, n))
        wanted = np.where((j <= i + n - p) & (j >= i - 5), a, 0).astype(np.float64) @ b
        np.testing.assert_allclose(band(a, b, threads=threads), wanted, rtol=1e-5, atol=1e-4)


@pytest.fixture(scope="module")
def band() -> tw.CompiledFunction:
    g = ops.Graph()
    a, b = g.input("a", ["N", "N"]), g.input("b", ["N", "P"])
    g.output(ops.matmul(ops.tril(ops.triu(a, -5), a.dims[0] - b.dims[1]), b))
    return tw.compile(g, {"N": tw.Dim(1, 200), "P": tw.Dim(1, 200)})
