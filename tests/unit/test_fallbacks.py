"""Operators that look like contractions or row reductions and are none to the families: no family is tried in vain."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tilewright as tw
from tilewright.compiler.builder.local_builder import LocalBuilder
from tilewright.runtime.load.function import CompiledFunction
from tilewright.runtime.target import Target

BOOLEAN = """
func.func @main(%a: tensor<?x24xi1>, %b: tensor<24x16xi1>) -> tensor<?x16xi1> {
  %c0 = arith.constant 0 : index
  %false = arith.constant false
  %m = tensor.dim %a, %c0 : tensor<?x24xi1>
  %e = tensor.empty(%m) : tensor<?x16xi1>
  %z = linalg.fill ins(%false : i1) outs(%e : tensor<?x16xi1>) -> tensor<?x16xi1>
  NAMED
  return %r : tensor<?x16xi1>
}"""
NAMED = "%r = linalg.matmul ins(%a, %b : tensor<?x24xi1>, tensor<24x16xi1>) outs(%z : tensor<?x16xi1>) -> tensor<?x16xi1>"
REAL = """
func.func @main(%a: tensor<?x24xf32>, %b: tensor<24x16xf32>) -> tensor<RESULTxf32> {
  %c0 = arith.constant 0 : index
  %zero = arith.constant 0.0 : f32
  %m = tensor.dim %a, %c0 : tensor<?x24xf32>
  %c15 = arith.constant 15 : index
  %more = arith.addi %m, %c15 : index
  %e = tensor.empty(EXTENT) : tensor<RESULTxf32>
  %z = linalg.fill ins(%zero : f32) outs(%e : tensor<RESULTxf32>) -> tensor<RESULTxf32>
  GENERIC
  return %r : tensor<RESULTxf32>
}"""


def generic(element: str, result: str, out: str, kinds: str, body: str) -> str:
    """(m, n, k): a[m, k] and b[k, n] to a result of the map `out`."""
    maps = f"affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (k, n)>, affine_map<(m, n, k) -> ({out})>"
    iterators = ", ".join({"p": '"parallel"', "r": '"reduction"'}[k] for k in kinds)
    return f"""%r = linalg.generic {{indexing_maps = [{maps}], iterator_types = [{iterators}]}}
      ins(%a, %b : tensor<?x24x{element}>, tensor<24x16x{element}>) outs(%z : tensor<{result}x{element}>) {{
    ^bb0(%x: {element}, %y: {element}, %acc: {element}):
      {body}
      linalg.yield %s : {element}
  }} -> tensor<{result}x{element}>"""


def real(body: str, out: str = "m, n", kinds: str = "ppr", result: str = "?x16", extent: str = "%m") -> str:
    made = generic("f32", result, out, kinds, body)
    return REAL.replace("GENERIC", made).replace("RESULT", result).replace("EXTENT", extent)


def compiled(text: str) -> CompiledFunction:
    options = tw.CompileOptions(builder=LocalBuilder(Target.parse("host")))
    return tw.compile(text, {"M": tw.Dim(1, 64, at=["arg0.0"])}, options=options)


def scattered(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """out[m + n] of the product."""
    whole = a @ b
    return np.array([np.trace(whole[:, ::-1], whole.shape[1] - 1 - i) for i in range(sum(whole.shape) - 1)])


PLAIN = "%p = arith.mulf %x, %y : f32\n %s = arith.addf %acc, %p : f32"
CASES: dict[str, tuple[str, Callable[[np.ndarray, np.ndarray], np.ndarray]]] = {
    "exponential-factor": (real("%q = math.exp %x : f32\n %p = arith.mulf %q, %y : f32\n %s = arith.addf %acc, %p : f32"),
                           lambda a, b: np.exp(a) @ b),
    "difference": (real("%d = arith.subf %x, %y : f32\n %p = arith.mulf %d, %d : f32\n %s = arith.addf %acc, %p : f32"),
                   lambda a, b: ((a[:, :, None] - b[None]) ** 2).sum(1)),
    "largest-product": (real("%p = arith.mulf %x, %y : f32\n %s = arith.maximumf %acc, %p : f32"),
                        lambda a, b: (a[:, :, None] * b[None]).max(1).clip(0)),
    "scattered": (real(PLAIN, "m + n", "rrr", "?", "%more"), scattered),
}


@pytest.mark.parametrize("body", ["named", "generic"])
def test_contractions_of_booleans(body: str) -> None:
    made = NAMED if body == "named" else generic("i1", "?x16", "m, n", "ppr",
                                                 "%p = arith.andi %x, %y : i1\n %s = arith.ori %acc, %p : i1")
    fn = compiled(BOOLEAN.replace("NAMED", made))
    assert fn.program.refused == {}
    rng = np.random.default_rng(0)
    a, b = rng.random((7, 24)) < 0.2, rng.random((24, 16)) < 0.2
    assert np.array_equal(fn(a, b), (a.astype(int) @ b.astype(int)) > 0)


@pytest.mark.parametrize("name", CASES)
def test_no_family_is_tried_in_vain(name: str) -> None:
    text, reference = CASES[name]
    fn = compiled(text)
    assert fn.program.refused == {}
    a, b = (np.random.default_rng(1).standard_normal(s).astype(np.float32) for s in ((7, 24), (24, 16)))
    np.testing.assert_allclose(fn(a, b), reference(a.astype(np.float64), b.astype(np.float64)), rtol=1e-4, atol=1e-4)
