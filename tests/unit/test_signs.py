"""What is known of signs, and that nothing else is."""

from __future__ import annotations

import pytest

from tilewright.passes.analysis.canonical_spec import key_of
from tilewright.passes.analysis.signs import NONPOSITIVE, Sign, Signs
from tilewright.passes.mlir import ir, walk

ABOVE, BELOW, ANY, ZERO = Sign(below=False), Sign(above=False), Sign(), Sign(False, False)

CASES = {
    "%y = math.exp %x : f32": ABOVE,
    "%y = math.sin %x : f32": ANY,
    "%y = arith.mulf %x, %x : f32": ABOVE,
    "%y = arith.mulf %x, %z : f32": ANY,
    "%a = arith.mulf %x, %minus : f32\n %y = arith.mulf %a, %x : f32": BELOW,
    "%a = arith.mulf %x, %z : f32\n %b = arith.mulf %z, %x : f32\n %y = arith.mulf %a, %b : f32": ABOVE,
    "%a = arith.mulf %x, %z : f32\n %y = arith.mulf %a, %x : f32": ANY,
    "%a = math.absf %x : f32\n %b = math.exp %z : f32\n %n = arith.negf %b : f32\n %y = arith.mulf %a, %n : f32": BELOW,
    "%a = math.absf %x : f32\n %b = math.exp %z : f32\n %y = arith.addf %a, %b : f32": ABOVE,
    "%a = math.absf %x : f32\n %b = math.exp %z : f32\n %y = arith.subf %a, %b : f32": ANY,
    "%a = math.absf %x : f32\n %y = arith.subf %c0, %a : f32": BELOW,
    "%y = arith.mulf %x, %c0 : f32": ZERO,
    "%y = arith.maximumf %x, %c0 : f32": ABOVE,
    "%y = arith.minimumf %x, %c0 : f32": BELOW,
    "%y = arith.maximumf %x, %minus : f32": ANY,
    "%a = math.absf %x : f32\n %y = arith.minimumf %a, %z : f32": ANY,
    "%a = math.absf %x : f32\n %y = arith.divf %a, %minus : f32": BELOW,
    "%a = math.absf %x : f32\n %b = math.absf %z : f32\n %y = arith.divf %a, %b : f32": ANY,  # by -0 it is -inf
    "%a = math.absf %x : f32\n %b = math.exp %z : f32\n %d = arith.addf %b, %one : f32\n %y = arith.divf %a, %d : f32": ABOVE,
    "%a = math.exp %x : f32\n %y = math.log1p %a : f32": ABOVE,
    "%a = math.exp %x : f32\n %b = arith.addf %one, %a : f32\n %y = math.log %b : f32": ABOVE,
    "%a = math.exp %x : f32\n %y = math.log %a : f32": ANY,
    # softplus, and what only looks like it
    "%t = arith.cmpf ogt, %x, %c20 : f32\n %a = math.exp %x : f32\n %b = math.log1p %a : f32\n"
    " %y = arith.select %t, %x, %b : f32": ABOVE,
    "%s = arith.mulf %x, %c20 : f32\n %t = arith.cmpf ogt, %s, %c20 : f32\n %a = math.absf %x : f32\n"
    " %y = arith.select %t, %x, %a : f32": ABOVE,
    "%s = arith.mulf %x, %minus : f32\n %t = arith.cmpf ogt, %s, %c20 : f32\n %a = math.absf %x : f32\n"
    " %y = arith.select %t, %x, %a : f32": ANY,
    "%t = arith.cmpf olt, %x, %c0 : f32\n %y = arith.select %t, %c0, %x : f32": ABOVE,
    "%t = arith.cmpf ogt, %x, %minus : f32\n %y = arith.select %t, %x, %c0 : f32": ANY,
    "%t = arith.cmpf une, %x, %c0 : f32\n %y = arith.select %t, %x, %c0 : f32": ANY,
}

HEAD = """
func.func @main(%p: tensor<4xf32>, %q: tensor<4xf32>) -> tensor<4xf32> {
  %c0 = arith.constant 0.0 : f32
  %one = arith.constant 1.0 : f32
  %c20 = arith.constant 20.0 : f32
  %minus = arith.constant -2.0 : f32
  %empty = tensor.empty() : tensor<4xf32>
  %made = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%p, %q : tensor<4xf32>, tensor<4xf32>) outs(%empty : tensor<4xf32>) {
  ^bb0(%x: f32, %z: f32, %out: f32):
    BODY
    linalg.yield %y : f32
  } -> tensor<4xf32>
  return %made : tensor<4xf32>
}"""  # noqa: E501


@pytest.mark.parametrize("body", CASES)
def test_sign(body: str) -> None:
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(HEAD.replace("BODY", body))
        made = next(op for op in walk(module.operation) if op.name == "linalg.generic")
        assert Signs().of(made.results[0]) == CASES[body]


def test_sums_and_arguments_have_no_sign() -> None:
    """What a reduction starts with may be of another sign than what it adds."""
    text = """
    func.func @main(%x: tensor<4xf32>, %start: tensor<f32>) -> tensor<f32> {
      %sum = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> ()>], iterator_types = ["reduction"]} ins(%x : tensor<4xf32>) outs(%start : tensor<f32>) {
      ^bb0(%in: f32, %out: f32):
        %e = math.exp %in : f32
        %s = arith.addf %e, %out : f32
        linalg.yield %s : f32
      } -> tensor<f32>
      return %sum : tensor<f32>
    }"""  # noqa: E501
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        made = next(op for op in walk(module.operation) if op.name == "linalg.generic")
        assert Signs().of(made.results[0]) == Signs().of(made.operands[0]) == ANY


def test_a_chain_without_end_is_followed_some_way_only() -> None:
    body = "\n".join(["%v0 = math.absf %x : f32", *(f"%v{n + 1} = math.tanh %v{n} : f32" for n in range(3000)),
                      "%y = math.tanh %v3000 : f32"])
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(HEAD.replace("BODY", body))
        made = next(op for op in walk(module.operation) if op.name == "linalg.generic")
        assert Signs().of(made.results[0]) == ANY


def test_workloads_that_differ_in_what_is_known_share_no_kernel() -> None:
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(HEAD.replace("BODY", "%y = math.exp %x : f32"))
        fn = module.body.operations[0].operation
        before = key_of(fn)
        next(op for op in walk(fn) if op.name == "math.exp").attributes[NONPOSITIVE] = ir.UnitAttr.get()
        assert key_of(fn) != before
