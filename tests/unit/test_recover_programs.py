"""The recover passes keep the meaning of programs that are built to tempt them."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.compiler.frontends.ingest import ingest
from tilewright.compiler.reference import evaluate
from tilewright.passes.base import PassPipeline
from tilewright.passes.mlir import ir
from tilewright.passes.pipeline.pipelines import recover_passes
from tilewright.runtime.shape import Dim, Expr

HEAD = """
#id3 = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
"""

PROGRAMS = {
    "linear with transposed weights, bias as init": """
  func.func @main(%a: tensor<?x?x8xf32>, %w: tensor<6x8xf32>, %b: tensor<6xf32>) -> tensor<?x?x6xf32> {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %m = tensor.dim %a, %c0 : tensor<?x?x8xf32>
    %n = tensor.dim %a, %c1 : tensor<?x?x8xf32>
    %e = tensor.empty() : tensor<8x6xf32>
    %t = linalg.transpose ins(%w : tensor<6x8xf32>) outs(%e : tensor<8x6xf32>) permutation = [1, 0]
    %f = tensor.empty(%m) : tensor<?x8x6xf32>
    %r = linalg.broadcast ins(%t : tensor<8x6xf32>) outs(%f : tensor<?x8x6xf32>) dimensions = [0]
    %g = tensor.empty(%m, %n) : tensor<?x?x6xf32>
    %i = linalg.broadcast ins(%b : tensor<6xf32>) outs(%g : tensor<?x?x6xf32>) dimensions = [0, 1]
    %c = linalg.batch_matmul
      ins(%a, %r : tensor<?x?x8xf32>, tensor<?x8x6xf32>) outs(%i : tensor<?x?x6xf32>) -> tensor<?x?x6xf32>
    return %c : tensor<?x?x6xf32>
  }""",
    "attention whose keys are slices of a cache": """
  func.func @main(%q: tensor<?x4x8xf32>, %k: tensor<?x4x8xf32>, %n: tensor<?x4x8xf32>) -> tensor<4x?x?xf32> {
    %c0 = arith.constant 0 : index
    %zero = arith.constant 0.0 : f32
    %s = tensor.dim %q, %c0 : tensor<?x4x8xf32>
    %all = tensor.concat dim(0) %k, %n : (tensor<?x4x8xf32>, tensor<?x4x8xf32>) -> tensor<?x4x8xf32>
    %t = tensor.dim %all, %c0 : tensor<?x4x8xf32>
    %e = tensor.empty(%s) : tensor<4x?x8xf32>
    %qt = linalg.transpose ins(%q : tensor<?x4x8xf32>) outs(%e : tensor<4x?x8xf32>) permutation = [1, 0, 2]
    %f = tensor.empty(%t) : tensor<4x8x?xf32>
    %kt = linalg.transpose ins(%all : tensor<?x4x8xf32>) outs(%f : tensor<4x8x?xf32>) permutation = [1, 2, 0]
    %g = tensor.empty(%s, %t) : tensor<4x?x?xf32>
    %h = linalg.fill ins(%zero : f32) outs(%g : tensor<4x?x?xf32>) -> tensor<4x?x?xf32>
    %c = linalg.batch_matmul
      ins(%qt, %kt : tensor<4x?x8xf32>, tensor<4x8x?xf32>) outs(%h : tensor<4x?x?xf32>) -> tensor<4x?x?xf32>
    return %c : tensor<4x?x?xf32>
  }""",
    "a transpose before a row reduction and after an elementwise op": """
  func.func @main(%a: tensor<?x?xf32>, %z: tensor<?xf32>) -> (tensor<?xf32>, tensor<?x?xf32>) {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %m = tensor.dim %a, %c0 : tensor<?x?xf32>
    %n = tensor.dim %a, %c1 : tensor<?x?xf32>
    %e = tensor.empty(%n, %m) : tensor<?x?xf32>
    %t = linalg.transpose ins(%a : tensor<?x?xf32>) outs(%e : tensor<?x?xf32>) permutation = [1, 0]
    %x = linalg.exp ins(%t : tensor<?x?xf32>) outs(%e : tensor<?x?xf32>) -> tensor<?x?xf32>
    %r = linalg.reduce { arith.addf } ins(%x : tensor<?x?xf32>) outs(%z : tensor<?xf32>) dimensions = [1]
    %f = tensor.empty(%m, %n) : tensor<?x?xf32>
    %u = linalg.transpose ins(%x : tensor<?x?xf32>) outs(%f : tensor<?x?xf32>) permutation = [1, 0]
    return %r, %u : tensor<?xf32>, tensor<?x?xf32>
  }""",
    "slices that must not be merged, rows numbered by linalg.index": """
  func.func @main(%a: tensor<?x6x8xf32>) -> (tensor<?x8xf32>, tensor<?x6x1x8xf32>) {
    %c0 = arith.constant 0 : index
    %c3 = arith.constant 3 : index
    %c8 = arith.constant 8 : index
    %m = tensor.dim %a, %c0 : tensor<?x6x8xf32>
    %s = tensor.extract_slice %a[0, 1, 0] [%m, 3, 8] [1, 2, 1] : tensor<?x6x8xf32> to tensor<?x3x8xf32>
    %e = tensor.empty(%m) : tensor<?x3x8xf32>
    %x = linalg.generic {indexing_maps = [#id3, #id3], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%s : tensor<?x3x8xf32>) outs(%e : tensor<?x3x8xf32>) { ^bb0(%u: f32, %v: f32):
        %i = linalg.index 1 : index
        %j = arith.index_cast %i : index to i64
        %k = arith.sitofp %j : i64 to f32
        %w = arith.addf %u, %k : f32
        linalg.yield %w : f32 } -> tensor<?x3x8xf32>
    %rows = arith.muli %m, %c3 : index
    %shape = tensor.from_elements %rows, %c8 : tensor<2xindex>
    %r = tensor.reshape %x(%shape) : (tensor<?x3x8xf32>, tensor<2xindex>) -> tensor<?x8xf32>
    %o = tensor.expand_shape %a [[0], [1], [2, 3]] output_shape [%m, 6, 1, 8]
      : tensor<?x6x8xf32> into tensor<?x6x1x8xf32>
    %g = tensor.empty(%m) : tensor<?x6x1x8xf32>
    %h = linalg.exp ins(%o : tensor<?x6x1x8xf32>) outs(%g : tensor<?x6x1x8xf32>) -> tensor<?x6x1x8xf32>
    return %r, %h : tensor<?x8xf32>, tensor<?x6x1x8xf32>
  }""",
    "grouped heads: keys repeated over a group, then collapsed": """
  func.func @main(%q: tensor<?x6x?x4xf32>, %k: tensor<?x2x4x?xf32>) -> tensor<?x6x?x?xf32> {
    %c0 = arith.constant 0 : index
    %c2 = arith.constant 2 : index
    %c3 = arith.constant 3 : index
    %c6 = arith.constant 6 : index
    %zero = arith.constant 0.0 : f32
    %b = tensor.dim %q, %c0 : tensor<?x6x?x4xf32>
    %s = tensor.dim %q, %c2 : tensor<?x6x?x4xf32>
    %t = tensor.dim %k, %c3 : tensor<?x2x4x?xf32>
    %e = tensor.empty(%b, %t) : tensor<?x2x3x4x?xf32>
    %r = linalg.broadcast ins(%k : tensor<?x2x4x?xf32>) outs(%e : tensor<?x2x3x4x?xf32>) dimensions = [2]
    %kc = tensor.collapse_shape %r [[0, 1, 2], [3], [4]] : tensor<?x2x3x4x?xf32> into tensor<?x4x?xf32>
    %qc = tensor.collapse_shape %q [[0, 1], [2], [3]] : tensor<?x6x?x4xf32> into tensor<?x?x4xf32>
    %bh = arith.muli %b, %c6 : index
    %f = tensor.empty(%bh, %s, %t) : tensor<?x?x?xf32>
    %z = linalg.fill ins(%zero : f32) outs(%f : tensor<?x?x?xf32>) -> tensor<?x?x?xf32>
    %c = linalg.batch_matmul
      ins(%qc, %kc : tensor<?x?x4xf32>, tensor<?x4x?xf32>) outs(%z : tensor<?x?x?xf32>) -> tensor<?x?x?xf32>
    %o = tensor.expand_shape %c [[0, 1], [2], [3]] output_shape [%b, 6, %s, %t]
      : tensor<?x?x?xf32> into tensor<?x6x?x?xf32>
    return %o : tensor<?x6x?x?xf32>
  }""",
    "an accumulator that is read by a product is no contraction": """
  func.func @main(%a: tensor<?x?x4xf32>, %b: tensor<4x5xf32>, %z: tensor<?x?x5xf32>) -> tensor<?x?x5xf32> {
    %r = linalg.generic {indexing_maps = [affine_map<(i, j, n, k) -> (i, j, k)>, affine_map<(i, j, n, k) -> (k, n)>,
        affine_map<(i, j, n, k) -> (i, j, n)>], iterator_types = ["parallel", "parallel", "parallel", "reduction"]}
      ins(%a, %b : tensor<?x?x4xf32>, tensor<4x5xf32>) outs(%z : tensor<?x?x5xf32>) { ^bb0(%x: f32, %y: f32, %o: f32):
        %s = arith.addf %x, %y : f32
        %m = arith.mulf %s, %o : f32
        linalg.yield %m : f32 } -> tensor<?x?x5xf32>
    return %r : tensor<?x?x5xf32>
  }""",
    "unit batch, unit rows, a rank-0 result and a matrix-vector product": """
  func.func @main(%a: tensor<1x?x1xf32>, %v: tensor<?xf32>, %z: tensor<f32>)
    -> (tensor<1x1xf32>, tensor<f32>, tensor<1x?x1xf32>) {
    %c1 = arith.constant 1 : index
    %zero = arith.constant 0.0 : f32
    %n = tensor.dim %a, %c1 : tensor<1x?x1xf32>
    %r = tensor.collapse_shape %a [[0], [1, 2]] : tensor<1x?x1xf32> into tensor<1x?xf32>
    %c = tensor.expand_shape %v [[0, 1]] output_shape [%n, 1] : tensor<?xf32> into tensor<?x1xf32>
    %e = tensor.empty() : tensor<1x1xf32>
    %f = linalg.fill ins(%zero : f32) outs(%e : tensor<1x1xf32>) -> tensor<1x1xf32>
    %m = linalg.matmul ins(%r, %c : tensor<1x?xf32>, tensor<?x1xf32>) outs(%f : tensor<1x1xf32>) -> tensor<1x1xf32>
    %d = linalg.dot ins(%v, %v : tensor<?xf32>, tensor<?xf32>) outs(%z : tensor<f32>) -> tensor<f32>
    %g = tensor.empty(%n) : tensor<1x?x1xf32>
    %x = linalg.exp ins(%a : tensor<1x?x1xf32>) outs(%g : tensor<1x?x1xf32>) -> tensor<1x?x1xf32>
    return %m, %d, %x : tensor<1x1xf32>, tensor<f32>, tensor<1x?x1xf32>
  }""",
    "grouped convolution through a five-dimensional view, then flattened": """
  func.func @main(%a: tensor<?x6x5x5xf32>, %w: tensor<2x4x3x3x3xf32>, %l: tensor<72x7xf32>) -> tensor<?x7xf32> {
    %c0 = arith.constant 0 : index
    %c72 = arith.constant 72 : index
    %zero = arith.constant 0.0 : f32
    %n = tensor.dim %a, %c0 : tensor<?x6x5x5xf32>
    %x = tensor.expand_shape %a [[0], [1, 2], [3], [4]] output_shape [%n, 2, 3, 5, 5]
      : tensor<?x6x5x5xf32> into tensor<?x2x3x5x5xf32>
    %e = tensor.empty(%n) : tensor<?x2x4x3x3xf32>
    %f = linalg.fill ins(%zero : f32) outs(%e : tensor<?x2x4x3x3xf32>) -> tensor<?x2x4x3x3xf32>
    %c = linalg.conv_2d_ngchw_gfchw {dilations = dense<1> : tensor<2xi64>, strides = dense<1> : tensor<2xi64>}
      ins(%x, %w
      : tensor<?x2x3x5x5xf32>, tensor<2x4x3x3x3xf32>) outs(%f : tensor<?x2x4x3x3xf32>) -> tensor<?x2x4x3x3xf32>
    %shape = tensor.from_elements %n, %c72 : tensor<2xindex>
    %r = tensor.reshape %c(%shape) : (tensor<?x2x4x3x3xf32>, tensor<2xindex>) -> tensor<?x72xf32>
    %g = tensor.empty(%n) : tensor<?x7xf32>
    %h = linalg.fill ins(%zero : f32) outs(%g : tensor<?x7xf32>) -> tensor<?x7xf32>
    %o = linalg.matmul ins(%r, %l : tensor<?x72xf32>, tensor<72x7xf32>) outs(%h : tensor<?x7xf32>) -> tensor<?x7xf32>
    return %o : tensor<?x7xf32>
  }""",
    "embedding: rows gathered by index, positions added, a causal mask": """
  func.func @main(%ids: tensor<?x?xi64>, %table: tensor<11x4xf32>, %pos: tensor<16x4xf32>) -> tensor<?x?x4xf32> {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %b = tensor.dim %ids, %c0 : tensor<?x?xi64>
    %s = tensor.dim %ids, %c1 : tensor<?x?xi64>
    %e = tensor.empty(%b, %s) : tensor<?x?x4xf32>
    %x = linalg.generic {indexing_maps = [affine_map<(i, j, k) -> (i, j)>, #id3],
        iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%ids : tensor<?x?xi64>) outs(%e : tensor<?x?x4xf32>) { ^bb0(%id: i64, %o: f32):
        %n = arith.constant 11 : i64
        %m = arith.remui %id, %n : i64
        %i = arith.index_cast %m : i64 to index
        %k = linalg.index 2 : index
        %v = tensor.extract %table[%i, %k] : tensor<11x4xf32>
        linalg.yield %v : f32 } -> tensor<?x?x4xf32>
    %p = tensor.extract_slice %pos[0, 0] [%s, 4] [1, 1] : tensor<16x4xf32> to tensor<?x4xf32>
    %y = linalg.generic {indexing_maps = [#id3, affine_map<(i, j, k) -> (j, k)>, #id3],
        iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%x, %p : tensor<?x?x4xf32>, tensor<?x4xf32>) outs(%e : tensor<?x?x4xf32>) { ^bb0(%u: f32, %v: f32, %o: f32):
        %i = linalg.index 0 : index
        %j = linalg.index 1 : index
        %t = arith.cmpi sge, %i, %j : index
        %w = arith.addf %u, %v : f32
        %z = arith.select %t, %w, %u : f32
        linalg.yield %z : f32 } -> tensor<?x?x4xf32>
    return %y : tensor<?x?x4xf32>
  }""",
}
SIZES = (1, 2, 3)


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_computes_the_same(name: str) -> None:
    text = HEAD + PROGRAMS[name]
    model = ingest(text, every_dim(text))
    with ir.Context():
        after = str(PassPipeline(recover_passes()).run(ir.Module.parse(model.text)))
    for size in SIZES:
        point = {d.name: size + i for i, d in enumerate(model.dims)}
        rng = np.random.default_rng(size)
        inputs = [
            rng.integers(0, 11, shape) if a.dtype.value == "i64" else rng.standard_normal(shape).astype(np.float32)
            for a in model.inputs
            for shape in [[Expr.parse(d).evaluate(point) for d in a.dims or ()]]
        ]
        for wanted, got in zip(evaluate(model.text, inputs), evaluate(after, inputs), strict=True):
            assert got.shape == wanted.shape
            np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-6)


def test_repeated_heads_are_no_copy() -> None:
    text = HEAD + PROGRAMS["grouped heads: keys repeated over a group, then collapsed"]
    with ir.Context():
        after = str(PassPipeline(recover_passes()).run(ir.Module.parse(ingest(text, every_dim(text)).text)))
    assert "linalg.broadcast" not in after
    assert after.count("linalg.generic") == 1


def every_dim(text: str) -> dict[str, Dim | tuple[int, int]]:
    """A range for each dim class that ingest lists as missing."""
    import re

    from tilewright.runtime.errors import IngestError

    with pytest.raises(IngestError) as error:
        ingest(text, {"_unknown": (1, 2), "_other": (1, 2)})
    listed = re.findall(r'"(arg[\d.]+)": tw\.Dim', str(error.value))
    return dict.fromkeys(listed, (1, 16))
