"""What MLIR leaves undefined has one meaning here: the reference's, on every target, and no operand stops the process."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from e2e.random_check import call_guarded
from kernel_harness import at_edge

import tilewright as tw
from tilewright.compiler.builder.local_builder import LocalBuilder
from tilewright.compiler.reference import evaluate
from tilewright.runtime.load.function import CompiledFunction
from tilewright.runtime.target import Target

TARGETS = ("host", "host:x86-64-v3")
INTEGERS = ("divsi", "remsi", "floordivsi", "ceildivsi", "divui", "remui", "ceildivui", "shli", "shrsi", "shrui")


def compiled(text: str, target: str, ranges: dict[str, tuple[int, int]]) -> CompiledFunction:
    return tw.compile(text, ranges, target=target, options=tw.CompileOptions(builder=LocalBuilder(Target.parse(target))))


def elementwise(body: str, inputs: Sequence[str], results: Sequence[str]) -> str:
    """A generic over one axis with the scalars %a0, %a1, ... that yields %r0, %r1, ..."""
    tensors = [f"tensor<?x{t}>" for t in inputs]
    outs = [f"tensor<?x{t}>" for t in results]
    maps = ", ".join(["affine_map<(i) -> (i)>"] * (len(inputs) + len(results)))
    arguments = [*(f"%a{n}: {t}" for n, t in enumerate(inputs)), *(f"%o{n}: {t}" for n, t in enumerate(results))]
    made = "\n".join(f"%e{n} = tensor.empty(%n) : {t}" for n, t in enumerate(outs))
    return f"""
      func.func @main({", ".join(f'%x{n}: {t} {{tw.dims = ["T"]}}' for n, t in enumerate(tensors))}) -> ({", ".join(outs)}) {{
        %c0 = arith.constant 0 : index
        %n = tensor.dim %x0, %c0 : {tensors[0]}
        {made}
        %r:{len(outs)} = linalg.generic {{indexing_maps = [{maps}], iterator_types = ["parallel"]}}
          ins({", ".join(f"%x{n}" for n in range(len(inputs)))} : {", ".join(tensors)})
          outs({", ".join(f"%e{n}" for n in range(len(outs)))} : {", ".join(outs)}) {{
        ^bb0({", ".join(arguments)}):
          {body}
          linalg.yield {", ".join(f"%r{n}" for n in range(len(results)))} : {", ".join(results)}
        }} -> ({", ".join(outs)})
        return {", ".join(f"%r#{n}" for n in range(len(outs)))} : {", ".join(outs)}
      }}"""


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", ["i8", "i32", "i64"])
def test_integers(kind: str, target: str) -> None:
    info = np.iinfo(kind.replace("i", "int"))
    special = [info.min, info.min + 1, -7, -1, 0, 1, 5, info.max]
    counts = [-1, 0, 1, -2, 3, info.bits - 1, info.bits, info.bits + 3, 100, info.min, info.max]
    x, y = (np.array(v, info.dtype) for v in zip(*((a, b) for a in special for b in counts), strict=True))
    body = "\n".join(f"%r{n} = arith.{op} %a0, %a1 : {kind}" for n, op in enumerate(INTEGERS))
    text = elementwise(body, [kind] * 2, [kind] * len(INTEGERS))
    fn = compiled(text, target, {"T": (1, 100)})
    for size in (x.size, 3):
        for op, got, want in zip(INTEGERS, fn(x[:size], y[:size]), evaluate(text, [x[:size], y[:size]]), strict=True):
            np.testing.assert_array_equal(got, want, op)


@pytest.mark.parametrize("target", TARGETS)
def test_floats_to_integers(target: str) -> None:
    special = [np.nan, np.inf, -np.inf, 3e9, -3e9, 300.7, -1.5, -0.9, 1e20, -1e20, 2.0**31, -(2.0**31), 2.0**63, 255.5, 0]
    x = np.array(special, "f4")
    casts = [(op, t) for op in ("fptosi", "fptoui") for t in ("i8", "i16", "i32", "i64")]
    body = "\n".join(f"%r{n} = arith.{op} %a0 : f32 to {t}" for n, (op, t) in enumerate(casts))
    text = elementwise(body, ["f32"], [t for _, t in casts])
    wanted = evaluate(text, [x])
    assert wanted[2][0] == wanted[2][3] == np.iinfo(np.int32).min and wanted[7][12] == np.iinfo(np.int64).min
    for cast, got, want in zip(casts, compiled(text, target, {"T": (1, 100)})(x), wanted, strict=True):
        np.testing.assert_array_equal(got, want, str(cast))


@pytest.mark.parametrize("target", TARGETS)
def test_a_gather_stays_in_its_tensor(target: str) -> None:
    """Outside the axis it reads the last element, along each axis for itself; of an empty axis zero."""
    text = """
      func.func @main(%x: tensor<?x5xf32> {tw.dims = ["X", 5]}, %d: tensor<?xi64> {tw.dims = ["N"]}) -> tensor<?x4xf32> {
        %c0 = arith.constant 0 : index
        %n = tensor.dim %d, %c0 : tensor<?xi64>
        %e = tensor.empty(%n) : tensor<?x4xf32>
        %r = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i)>, affine_map<(i, j) -> (i, j)>],
                             iterator_types = ["parallel", "parallel"]} ins(%d : tensor<?xi64>) outs(%e : tensor<?x4xf32>) {
        ^bb0(%a: i64, %b: f32):
          %j = linalg.index 1 : index
          %i = arith.index_cast %a : i64 to index
          %s = arith.addi %i, %j : index
          %v = tensor.extract %x[%i, %s] : tensor<?x5xf32>
          linalg.yield %v : f32
        } -> tensor<?x4xf32>
        return %r : tensor<?x4xf32>
      }"""
    fn = compiled(text, target, {"X": (0, 9), "N": (1, 50)})
    places = at_edge(np.array([0, 3, 4, -1, 1 << 40, -(1 << 62), 2] * 3, np.int64))
    for rows in (0, 1, 4):
        for front in (False, True):
            x = at_edge(np.arange(1, 5 * rows + 1, dtype=np.float32).reshape(rows, 5), front)
            (got,) = call_guarded(fn, [x, places], front, 1) or ()
            at = np.where((places >= 0) & (places < rows), places, rows - 1)
            columns = places[:, None] + np.arange(4)
            columns = np.where((columns >= 0) & (columns < 5), columns, 4)
            np.testing.assert_array_equal(got, x[at[:, None], columns] if rows else np.zeros((places.size, 4)))
