"""Programs that random search once found wrong, cut down; each names what it is about."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.builder.local_builder import LocalBuilder
from tilewright.compiler.reference import compare, evaluate
from tilewright.runtime.shape import Expr
from tilewright.runtime.target import Target

RNG = np.random.default_rng(9)
Dims = Mapping[str, tuple[int, int]]


def check(model: str | ops.Graph, dims: Dims, *calls: Sequence[np.ndarray | int], **given: object) -> None:
    """Compiled and called; every result is close to the reference, integers equal."""
    text = model if isinstance(model, str) else model.module_text()
    held = given.get("constants", {})
    options = tw.CompileOptions(builder=LocalBuilder(Target.parse("host")))
    fn = tw.compile(text, dims, options=options, **given)  # type: ignore[arg-type]
    for arguments in calls:
        free = [a for i, a in enumerate(arguments) if f"arg{i}" not in held]  # type: ignore[operator]
        results = fn(*free)
        for got, want in zip(results if isinstance(results, tuple) else (results,), evaluate(text, arguments), strict=True):
            assert got.shape == want.shape
            exact = got.dtype.kind in "biu"
            assert np.array_equal(got, want) if exact else compare(got, want).ok()


def f32(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("operation", ["divsi", "divui", "remsi", "remui", "ceildivsi", "floordivsi"])
def test_integer_division_in_the_tail_of_a_vector(operation: str) -> None:
    """Lanes beyond the end hold 0, and so do padded places."""
    g = ops.Graph()
    x, y = g.input("x", ["T"], "i32"), g.input("y", ["T"], "i32")
    g.output(g.pointwise("divide", lambda a, b: a.body.emit(f"arith.{operation} {a.ssa}, {b.ssa} : i32", "i32"), x, y))
    calls = [(RNG.integers(0, 99, n, np.int32), RNG.integers(1, 9, n, np.int32)) for n in (1, 5, 16, 17)]
    check(g, {"T": (1, 40)}, *calls)


def test_insert_slice_with_steps() -> None:
    text = """
    func.func @main(%x: tensor<?x9xf32>, %y: tensor<2x3xf32>) -> tensor<?x9xf32> {
      %r = tensor.insert_slice %y into %x[1, 2] [2, 3] [2, 3] : tensor<2x3xf32> into tensor<?x9xf32>
      return %r : tensor<?x9xf32>
    }"""
    check(text, {"arg0.0": (4, 20)}, *((f32(n, 9), f32(2, 3)) for n in (4, 5, 20)))


SCATTERS = {
    "overlap-add": ("d0, d1", "d0 + d1", ["reduction"] * 2, "M + 4"),
    "diagonal": ("d0", "d0, d0", ["parallel"], "M, M"),
    "column": ("d0", "d0, 2", ["parallel"], "M, 3"),
}


@pytest.mark.parametrize("name", SCATTERS)
def test_results_that_no_loop_indexes_alone(name: str) -> None:
    """What is not written keeps the initial value, and readers are not fused in."""
    source, place, kinds, shape = SCATTERS[name]
    g = ops.Graph()
    x = g.input("x", ["M"] if len(kinds) == 1 else ["M", 5])
    out = g.filled(1, x.dtype, [Expr.parse(d) for d in shape.split(",")])
    made = g.generic([(x, source.split(", "))], (out, place.split(", ")), kinds,
                     lambda _, v, o: v[0] if len(kinds) == 1 else v[0] + o)
    g.output(ops.tanh(made))
    check(g, {"M": (1, 30)}, *((f32(n, 5) if len(kinds) == 2 else f32(n),) for n in (1, 7, 30)))


def test_slice_of_a_scalar_as_a_tensor() -> None:
    """[0:S] of an extent of 1 is no reshape."""
    g = ops.Graph()
    total = ops.sum(g.input("x", ["B"]), keepdims=True)
    g.output(ops.relu(ops.slice(total, [None], [g.dim("S")])))
    check(g, {"B": (1, 9), "S": (0, 1)}, (f32(4), 0), (f32(4), 1))


def test_static_zero_beside_a_dynamic_extent() -> None:
    """The collapse of [B, 0] has a static type that MLIR refuses."""
    g = ops.Graph()
    x = g.input("x", ["B", 3, 4])
    none = ops.slice(x, [None, 1, None], [None, 1, None])
    g.output(ops.relu(none), ops.reshape(none, [0]), ops.concat([none, x], 1))
    check(g, {"B": (1, 9)}, (f32(5, 3, 4),))


def test_unit_axis_between_two_strides() -> None:
    """[B - 3, 1, S]: each pair of axes has one stride, all three have not."""
    g = ops.Graph()
    x = g.input("x", ["B", 17, 33])
    g.output(ops.slice(x, [3, 15, 26], [None, None, g.dim("S") + 26], [1, 3, 1]))
    check(g, {"B": (5, 20), "S": (0, 7)}, (f32(9, 17, 33), 4), (f32(5, 17, 33), 7))


def test_unit_stride_of_an_axis_that_is_always_one() -> None:
    """Of [S, 2, 1] the last axis has stride 1; its group with the middle one has not."""
    g = ops.Graph()
    turned = ops.slice(ops.transpose(g.input("x", ["B", "B", 3]), [1, 0, 2]), [2, 3, 0], [g.dim("S") + 2, 5, 1])
    g.output(turned, turned)
    check(g, {"B": (5, 29), "S": (0, 3)}, (f32(9, 9, 3), 3), (f32(28, 28, 3), 1))


def test_padded_fill_of_dynamic_extent() -> None:
    """The average that leaves padding out divides by the windows of a padded tensor of ones."""
    g = ops.Graph()
    x = g.input("x", ["N", 2, "H", 5])
    g.output(ops.avg_pool2d(x, 2, padding=[(1, 0), (0, 1)], count_include_pad=False))
    check(g, {"N": (1, 3), "H": (2, 12)}, *((f32(n, 2, h, 5),) for n, h in ((1, 2), (3, 11))))


def test_results_of_constants_alone() -> None:
    """A returned value that constants decide is still written into memory of the caller."""
    g = ops.Graph()
    x, w = g.input("x", ["M", 4]), g.input("w", [6, 2, 1])
    g.output(ops.prod(w, 0), x + 1.0)
    check(g, {"M": (1, 9)}, (f32(3, 4), f32(6, 2, 1) * 0 + 1.5), constants={"arg1": np.full((6, 2, 1), 1.5, np.float32)})


def test_rows_of_one_broadcast_factor() -> None:
    """A batched product whose left rows are all the same one: its row loop is in neither operand."""
    g = ops.Graph()
    x, w = g.input("x", [4]), g.input("w", [3, 4, "B"])
    g.output(ops.softmax(ops.batch_matmul(ops.broadcast_to(x, [3, 4, 4]), w)))
    check(g, {"B": (1, 28)}, (f32(4), f32(3, 4, 9)))


def test_functions_may_end_right_after_a_call(tmp_path: Path) -> None:
    g = ops.Graph()
    g.output(ops.relu(g.input("x", ["B", 8])))
    options = tw.CompileOptions(builder=LocalBuilder(Target.parse("host")))
    tw.compile(g, {"B": (1, 40)}, options=options).save(tmp_path / "model.tw")
    x = f32(33, 8)
    for _ in range(200):
        assert tw.load(tmp_path / "model.tw")(x, threads=3).shape == (33, 8)


@pytest.mark.parametrize("depth,queries", [(0, "tensor.empty"), (4, "linalg.fill")])
def test_attention_of_queries_that_nothing_computes(depth: int, queries: str) -> None:
    """Reshapes of the scores move to the queries: an empty tensor or a fill, which is made anew in the other shape."""
    kind, heads = f"tensor<?x?x{depth}xf32>", "tensor<2x?x?x?xf32>"
    made = "" if queries == "tensor.empty" else f"%q = linalg.fill ins(%one : f32) outs(%e : {kind}) -> {kind}"
    scores = "affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>"
    text = f"""
    func.func @main(%k: tensor<2x?x?x{depth}xf32> {{tw.dims = [2, "B", "S", {depth}]}},
                    %v: tensor<2x?x?x5xf32> {{tw.dims = [2, "B", "S", 5]}}) -> tensor<2x?x?x5xf32> {{
      %c1 = arith.constant 1 : index
      %c2 = arith.constant 2 : index
      %zero = arith.constant 0.0 : f32
      %one = arith.constant 1.0 : f32
      %b = tensor.dim %v, %c1 : tensor<2x?x?x5xf32>
      %s = tensor.dim %v, %c2 : tensor<2x?x?x5xf32>
      %bh = arith.muli %b, %c2 : index
      %e = tensor.empty(%bh, %s) : {kind}
      {made}
      %keys = tensor.collapse_shape %k [[0, 1], [2], [3]] : tensor<2x?x?x{depth}xf32> into {kind}
      %values = tensor.collapse_shape %v [[0, 1], [2], [3]] : tensor<2x?x?x5xf32> into tensor<?x?x5xf32>
      %se = tensor.empty(%bh, %s, %s) : tensor<?x?x?xf32>
      %sz = linalg.fill ins(%zero : f32) outs(%se : tensor<?x?x?xf32>) -> tensor<?x?x?xf32>
      %p = linalg.batch_matmul indexing_maps = [affine_map<(b, m, n, k) -> (b, m, k)>, affine_map<(b, m, n, k) -> (b, n, k)>,
        affine_map<(b, m, n, k) -> (b, m, n)>] ins({"%q" if made else "%e"}, %keys : {kind}, {kind})
        outs(%sz : tensor<?x?x?xf32>) -> tensor<?x?x?xf32>
      %x = tensor.expand_shape %p [[0, 1], [2], [3]] output_shape [2, %b, %s, %s] : tensor<?x?x?xf32> into {heads}
      %ne = tensor.empty(%b, %s, %s) : {heads}
      %n = linalg.generic {{indexing_maps = [{scores}, {scores}],
                           iterator_types = ["parallel", "parallel", "parallel", "parallel"]}}
        ins(%x : {heads}) outs(%ne : {heads}) {{
      ^bb0(%a: f32, %o: f32):
        %h = arith.mulf %a, %one : f32
        linalg.yield %h : f32
      }} -> {heads}
      %me = tensor.empty(%b, %s, %s) : {heads}
      %m = linalg.softmax dimension(3) ins(%n : {heads}) outs(%me : {heads}) -> {heads}
      %w = tensor.collapse_shape %m [[0, 1], [2], [3]] : {heads} into tensor<?x?x?xf32>
      %re = tensor.empty(%bh, %s) : tensor<?x?x5xf32>
      %rz = linalg.fill ins(%zero : f32) outs(%re : tensor<?x?x5xf32>) -> tensor<?x?x5xf32>
      %r = linalg.batch_matmul ins(%w, %values : tensor<?x?x?xf32>, tensor<?x?x5xf32>) outs(%rz : tensor<?x?x5xf32>)
        -> tensor<?x?x5xf32>
      %y = tensor.expand_shape %r [[0, 1], [2], [3]] output_shape [2, %b, %s, 5] : tensor<?x?x5xf32> into tensor<2x?x?x5xf32>
      return %y : tensor<2x?x?x5xf32>
    }}"""
    check(text, {"B": (0, 4), "S": (1, 9)}, *((f32(2, b, s, depth), f32(2, b, s, 5)) for b, s in ((0, 3), (2, 5), (1, 1))))


def test_scalars_are_operands_of_named_operations() -> None:
    text = """
    func.func @main(%x: tensor<?x4xf32> {tw.dims = ["N", 4]}, %s: f32) -> (tensor<?x4xf32>, tensor<?xf32>) {
      %c0 = arith.constant 0 : index
      %n = tensor.dim %x, %c0 : tensor<?x4xf32>
      %o = tensor.empty(%n) : tensor<?x4xf32>
      %p = tensor.empty(%n) : tensor<?xf32>
      %e = linalg.exp ins(%s : f32) outs(%o : tensor<?x4xf32>) -> tensor<?x4xf32>
      %a = linalg.add ins(%x, %e : tensor<?x4xf32>, tensor<?x4xf32>) outs(%o : tensor<?x4xf32>) -> tensor<?x4xf32>
      %c = linalg.copy ins(%s : f32) outs(%p : tensor<?xf32>) -> tensor<?xf32>
      return %a, %c : tensor<?x4xf32>, tensor<?xf32>
    }"""
    check(text, {"N": (1, 9)}, (f32(5, 4), np.float32(0.7)), (f32(1, 4), np.float32(-2)))


def test_a_loop_called_a_reduction_that_every_result_walks() -> None:
    text = """
    func.func @main(%x: tensor<?x33xf32> {tw.dims = ["N", 33]}, %w: tensor<33xf32>) -> tensor<33x?xf32> {
      %c0 = arith.constant 0 : index
      %n = tensor.dim %x, %c0 : tensor<?x33xf32>
      %o = tensor.empty(%n) : tensor<33x?xf32>
      %y = linalg.generic {
        indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (j)>, affine_map<(i, j) -> (j, i)>],
        iterator_types = ["parallel", "reduction"]} ins(%x, %w : tensor<?x33xf32>, tensor<33xf32>) outs(%o : tensor<33x?xf32>) {
      ^bb0(%a: f32, %b: f32, %old: f32):
        %r = arith.divf %a, %b : f32
        linalg.yield %r : f32
      } -> tensor<33x?xf32>
      return %y : tensor<33x?xf32>
    }"""
    check(text, {"N": (1, 9)}, *((f32(n, 33), f32(33) + 9) for n in (1, 5)))


def test_text_that_calls_an_argument_bound() -> None:
    """tw.constant is what a compile writes itself, of what is bound in it."""
    g = ops.Graph()
    x, w = g.input("x", ["M", 4]), g.input("w", [4, 6])
    g.output(ops.matmul(x, w))
    text = g.module_text().replace("tensor<4x6xf32> {", "tensor<4x6xf32> {tw.constant, ", 1)
    assert "tw.constant" in text
    check(text, {"M": (1, 9)}, (f32(5, 4), f32(4, 6)))


@pytest.mark.parametrize("other", ["x", "a fill"])
def test_a_tensor_read_element_by_element_and_by_its_loops(other: str) -> None:
    """The body extracts from an operand of its own operation, or from the tensor that its result begins with."""
    captured = "%x" if other == "x" else "%e"
    text = f"""
    func.func @main(%x: tensor<?x4xf32>, %p: tensor<?xi64>) -> tensor<?x4xf32> {{
      %c0 = arith.constant 0 : index
      %one = arith.constant 1.0 : f32
      %s = tensor.dim %x, %c0 : tensor<?x4xf32>
      %n = tensor.empty(%s) : tensor<?x4xf32>
      %e = linalg.fill ins(%one : f32) outs(%n : tensor<?x4xf32>) -> tensor<?x4xf32>
      %r = linalg.generic {{iterator_types = ["parallel", "parallel"],
          indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i)>, affine_map<(i, j) -> (i, j)>]}}
          ins(%x, %p : tensor<?x4xf32>, tensor<?xi64>) outs(%e : tensor<?x4xf32>) {{
        ^bb0(%a: f32, %k: i64, %o: f32):
          %i = arith.index_cast %k : i64 to index
          %j = linalg.index 1 : index
          %y = tensor.extract {captured}[%i, %j] : tensor<?x4xf32>
          %z = arith.addf %a, %y : f32
          linalg.yield %z : f32
      }} -> tensor<?x4xf32>
      return %r : tensor<?x4xf32>
    }}"""
    check(text, {"arg0.0": (1, 9), "arg1.0": (1, 9)}, (f32(5, 4), np.array([4, 0, 3, 3, 1])))


def test_a_sum_of_hundreds_of_single_values() -> None:
    """One kernel, whose last value is computed from one that is computed from another, hundreds deep."""
    count = 240
    arguments = ", ".join(f"%x{n}: tensor<f32>" for n in range(count))
    lines = [f"""%y{n} = linalg.generic {{indexing_maps = [#m, #m, #m], iterator_types = []}}
      ins({f"%y{n - 1}" if n > 1 else "%x0"}, %x{n} : tensor<f32>, tensor<f32>) outs(%e : tensor<f32>) {{
      ^bb0(%a: f32, %b: f32, %o: f32):
        %r = arith.addf %a, %b : f32
        linalg.yield %r : f32
      }} -> tensor<f32>""" for n in range(1, count)]
    text = f"""#m = affine_map<() -> ()>
    func.func @main({arguments}) -> tensor<f32> {{
      %e = tensor.empty() : tensor<f32>
      {" ".join(lines)}
      return %y{count - 1} : tensor<f32>
    }}"""
    check(text, {}, [f32() for _ in range(count)])


def _chosen(x: ops.Tensor, i: int) -> ops.Tensor:
    return ops.where(ops.compare(x, 0.1 * i, "gt"), x - 0.1, x + 0.2)


def _mirrored(x: ops.Tensor, i: int) -> ops.Tensor:
    return (x + ops.flip(x, -1)) * 0.25 + x * 0.5


@pytest.mark.parametrize("images", [False, True])
@pytest.mark.parametrize("step", [_chosen, _mirrored])
def test_chains_that_read_what_they_read_before(step: Callable[[ops.Tensor, int], ops.Tensor], images: bool) -> None:
    """Each value two or three times, so that walks along all paths would not end; behind a convolution, too."""
    g = ops.Graph()
    x = g.input("x", ["B", 4, 6, 8] if images else ["B", 40])
    y = ops.conv2d(x, g.input("w", [4, 4, 3, 3]), padding=1) if images else x
    for i in range(40):
        y = step(y, i)
    g.output(y)
    check(g, {"B": (1, 9)}, [f32(3, 4, 6, 8), f32(4, 4, 3, 3)] if images else [f32(3, 40)])
