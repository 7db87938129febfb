"""Constants: bound at compile time, folded, packed in panels, lowered in precision."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.compiler.builder.local_builder import LocalBuilder
from tilewright.compiler.constants.bind_constants import as_constant
from tilewright.compiler.constants.stored_constants import packed
from tilewright.runtime.errors import DTypeError
from tilewright.runtime.target import Target

rng = np.random.default_rng(0)
DENSE = """
func.func @main(%x: tensor<?x64xf32> {{tw.dims = ["M", 64]}}, %w: tensor<{w}> {{tw.dims = [{dims}]}}) -> tensor<?x{n}xf32> {{
  %c0 = arith.constant 0 : index
  %zero = arith.constant 0.0 : f32
  %m = tensor.dim %x, %c0 : tensor<?x64xf32>
  %empty = tensor.empty(%m) : tensor<?x{n}xf32>
  %init = linalg.fill ins(%zero : f32) outs(%empty : tensor<?x{n}xf32>) -> tensor<?x{n}xf32>
  %y = linalg.matmul {maps} ins(%x, %w : tensor<?x64xf32>, tensor<{w}>) outs(%init : tensor<?x{n}xf32>) -> tensor<?x{n}xf32>
  return %y : tensor<?x{n}xf32>
}}
"""
NT = ("indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>]")


def compile_(text: str, constants: dict[str, np.ndarray], **options: object) -> tw.CompiledFunction:  # type: ignore[name-defined]
    options["builder"] = LocalBuilder(Target.parse("host"))
    return tw.compile(text, {"M": (0, 40)}, constants=constants, options=tw.CompileOptions(**options))  # type: ignore[arg-type]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("n", [48, 96, 100, 7])
@pytest.mark.parametrize("transposed", [False, True])
def test_bound_weights_give_the_product(n: int, transposed: bool) -> None:
    w = rng.standard_normal((n, 64) if transposed else (64, n)).astype(np.float32)
    shape = f"{n}x64xf32" if transposed else f"64x{n}xf32"
    dims = f"{n}, 64" if transposed else f"64, {n}"
    fn = compile_(DENSE.format(w=shape, dims=dims, n=n, maps=NT if transposed else ""), {"arg1": w})
    assert len(fn.inputs) == 1
    for m in (0, 1, 8, 9, 40):
        x = rng.standard_normal((m, 64)).astype(np.float32)
        np.testing.assert_allclose(fn(x), x @ (w.T if transposed else w), rtol=2e-5, atol=2e-5)


def test_wide_weights_are_stored_in_panels() -> None:
    w = rng.standard_normal((64, 100)).astype(np.float32)
    fn = compile_(DENSE.format(w="64x100xf32", dims="64, 100", n=100, maps=""), {"arg1": w})
    (constant,) = fn.program.constants
    tile = constant.shape[-1]
    assert constant.shape == (-(-100 // tile), 64, tile)


def test_packed_puts_columns_in_panels_and_pads_with_zeros() -> None:
    w = np.arange(12, dtype=np.float32).reshape(2, 6)
    made = packed(w, (4, 1, 1, 0))
    assert made.shape == (2, 2, 4)
    np.testing.assert_array_equal(made[0], w[:, :4])
    np.testing.assert_array_equal(made[1], np.pad(w[:, 4:], ((0, 0), (0, 2))))


def test_packed_puts_pairs_of_rows_side_by_side() -> None:
    w = np.arange(30, dtype=np.float32).reshape(5, 6)
    made = packed(w, (4, 2, 1, 0))
    assert made.shape == (2, 3, 4, 2)
    for k in range(6):
        for n in range(8):
            assert made[n // 4, k // 2, n % 4, k % 2] == (w[k, n] if k < 5 and n < 6 else 0)


@pytest.mark.parametrize(("precision", "error"), [("bf16", 8e-3), ("f16", 1e-3)])
def test_lower_precision_rounds_weights_once(precision: str, error: float) -> None:
    w = rng.standard_normal((64, 96)).astype(np.float32)
    x = rng.standard_normal((9, 64)).astype(np.float32)
    fn = compile_(DENSE.format(w="64x96xf32", dims="64, 96", n=96, maps=""), {"arg1": w}, precision=precision)
    assert {c.dtype.value for c in fn.program.constants} == {precision}
    want = x.astype(np.float64) @ w
    assert np.linalg.norm(fn(x) - want) / np.linalg.norm(want) < error


def test_tf32_is_refused_on_the_host() -> None:
    with pytest.raises(tw.errors.OptionError, match="tf32"):
        compile_(DENSE.format(w="64x96xf32", dims="64, 96", n=96, maps=""), {}, precision="tf32")


def test_work_on_constants_alone_runs_at_compile_time() -> None:
    text = """
    func.func @main(%x: tensor<?xf32> {tw.dims = ["M"]}, %g: tensor<1xf32> {tw.dims = [1]}) -> tensor<?xf32> {
      %two = arith.constant dense<[2.0, 3.0]> : tensor<2xf32>
      %c0 = arith.constant 0 : index
      %m = tensor.dim %x, %c0 : tensor<?xf32>
      %one = tensor.empty() : tensor<1xf32>
      %h = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i + 1)>, affine_map<(i) -> (i)>],
          iterator_types = ["parallel"]} ins(%g, %two : tensor<1xf32>, tensor<2xf32>) outs(%one : tensor<1xf32>) {
      ^bb0(%a: f32, %b: f32, %o: f32):
        %r = arith.mulf %a, %b : f32
        %e = math.exp %r : f32
        linalg.yield %e : f32
      } -> tensor<1xf32>
      %empty = tensor.empty(%m) : tensor<?xf32>
      %y = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (0)>, affine_map<(i) -> (i)>],
          iterator_types = ["parallel"]} ins(%x, %h : tensor<?xf32>, tensor<1xf32>) outs(%empty : tensor<?xf32>) {
      ^bb0(%a: f32, %b: f32, %o: f32):
        %r = arith.addf %a, %b : f32
        linalg.yield %r : f32
      } -> tensor<?xf32>
      return %y : tensor<?xf32>
    }"""
    fn = compile_(text, {"arg1": np.array([0.5], np.float32)})
    assert len(fn.program.calls) == 1
    np.testing.assert_allclose(fn(np.zeros(3, np.float32)), np.full(3, np.exp(1.5)), rtol=1e-6)


def test_a_parameter_is_bound_by_its_value_and_a_mask_refused() -> None:
    torch = pytest.importorskip("torch")
    weight = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3))
    np.testing.assert_array_equal(as_constant("w", weight), np.arange(6, dtype="f4").reshape(2, 3))
    with pytest.raises(DTypeError, match="masked array"):
        as_constant("w", np.ma.masked_array(np.zeros(3), mask=[0, 1, 0]))
