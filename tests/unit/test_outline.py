from __future__ import annotations

import re

import pytest
from unit.graph_models import (
    ADD,
    EXP,
    MAPS,
    SUM,
    R,
    T,
    W,
    X,
    assert_same,
    generic,
    main_ops,
    matmul,
    model,
    run,
    workloads,
)

from tilewright.passes.analysis.canonical_spec import canonical_spec, key_of
from tilewright.passes.dispatch_creation.fuse import Fuse
from tilewright.passes.dispatch_creation.outline import Outline
from tilewright.passes.mlir import functions, ir
from tilewright.passes.pipeline.graph_pipeline import graph_passes
from tilewright.passes.pipeline.pipelines import recover_passes
from tilewright.passes.spaces.workload import Kind
from tilewright.runtime.shape import Expr


def keys(text: str) -> list[str]:
    return sorted(w.key for w in workloads(run(text, graph_passes())).values())


def linear(arguments: str, product: str, rows: str) -> str:
    """x @ w + b for x of rank 3 or 2, bias over the last axis."""
    return f"""{MAPS}func.func @main({arguments}, {W}, %b: tensor<8xf32> {{tw.dims = [8]}}) -> {rows} {{
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %zero = arith.constant 0.0 : f32
{product}}}
"""


RANK2 = linear(
    '%x: tensor<?x8xf32> {tw.dims = ["S", 8]}',
    """  %n = tensor.dim %x, %c0 : tensor<?x8xf32>
  %e = tensor.empty(%n) : tensor<?x8xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<?x8xf32>) -> tensor<?x8xf32>
  %m = linalg.matmul ins(%x, %w : tensor<?x8xf32>, tensor<8x8xf32>) outs(%f : tensor<?x8xf32>) -> tensor<?x8xf32>
"""
    + generic("y", "%m, %b", f"{T}, tensor<8xf32>", "%e", T, ADD, "#id, #col, #id")
    + f"  return %y : {T}\n",
    T,
)
T3 = "tensor<?x?x8xf32>"
RANK3 = linear(
    f'%x: {T3} {{tw.dims = ["B", "S", 8]}}',
    f"""  %n = tensor.dim %x, %c0 : {T3}
  %s = tensor.dim %x, %c1 : {T3}
  %e = tensor.empty(%n, %s) : {T3}
  %f = linalg.fill ins(%zero : f32) outs(%e : {T3}) -> {T3}
  %m = linalg.generic {{indexing_maps = [affine_map<(b, s, n, k) -> (b, s, k)>, affine_map<(b, s, n, k) -> (k, n)>,
      affine_map<(b, s, n, k) -> (b, s, n)>], iterator_types = ["parallel", "parallel", "parallel", "reduction"]}}
      ins(%x, %w : {T3}, tensor<8x8xf32>) outs(%f : {T3}) {{
  ^bb0(%a: f32, %c: f32, %o: f32):
    %p = arith.mulf %a, %c : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  }} -> {T3}
"""
    + generic(
        "y", "%m, %b", f"{T3}, tensor<8xf32>", "%e", T3, ADD, "#id3, affine_map<(d0, d1, d2) -> (d2)>, #id3", "ppp"
    )
    + f"  return %y : {T3}\n",
    T3,
)


def test_batch_and_sequence_share_the_kernel_of_the_sequence() -> None:
    """M = B*S and M = S: one workload, one key, after recovery has named both matmuls."""
    both = [run(text, [*recover_passes(), *graph_passes()]) for text in (RANK2, RANK3)]
    first, second = (next(iter(workloads(text).values())) for text in both)
    assert first.key == second.key
    assert first.dims == ("d0",) and [(loop.role, str(loop.extent)) for loop in first.loops] == [
        ("m", "d0"),
        ("n", "8"),
        ("k", "8"),
    ]
    assert_same(RANK3, both[1], {"B": 2, "S": 3}, {"B": 1, "S": 1})


def test_outline_collapses_contraction_loops_by_itself() -> None:
    found = next(iter(workloads(run(RANK3, [Fuse(), Outline()])).values()))
    assert [(loop.role, str(loop.extent)) for loop in found.loops] == [("m", "d0"), ("n", "8"), ("k", "8")]


def test_key_ignores_names_argument_order_and_ranges() -> None:
    text = model([X, W], matmul("m", "%x") + generic("y", "%m", T, "%e", T, EXP, "#id, #id"), "%y", T)
    renamed = re.sub(r"%(\w+)", r"%other_\1", text).replace('"B"', '"Batch"')
    swapped = text.replace(f"{X}, {W}", f"{W}, {X}")
    ranged = text.replace(f"-> ({T}) {{", f"-> ({T}) attributes {{tw.ranges = {{B = [1, 64, 8]}}}} {{")
    assert ranged != text and swapped != text
    assert keys(text) == keys(renamed) == keys(swapped) == keys(ranged)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("math.exp", "math.tanh"),
        ("8x8xf32", "8x16xf32"),
        ('["B", 8]', '["B", 8], tw.constant'),
    ],
)
def test_key_depends_on_what_is_computed(old: str, new: str) -> None:
    text = model([X, W], matmul("m", "%x") + generic("y", "%m", T, "%e", T, EXP, "#id, #id"), "%y", T)
    changed = text.replace(old, new)
    if "16" in new:
        changed = text.replace("8x8xf32", "8x16xf32").replace("[8, 8]", "[8, 16]").replace(T, "tensor<?x16xf32>")
        changed = changed.replace("%x: tensor<?x16xf32>", f"%x: {T}").replace(
            "ins(%x, %w : tensor<?x16xf32>", f"ins(%x, %w : {T}"
        )
        changed = changed.replace("tensor.dim %x, %c0 : tensor<?x16xf32>", f"tensor.dim %x, %c0 : {T}")
    assert changed != text
    assert keys(text) != keys(changed)


def test_key_has_no_symbol_name() -> None:
    text = run(model([X], generic("y", "%x", T, "%e", T, EXP, "#id, #id"), "%y", T), graph_passes())
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        fn = next(f for f in functions(module) if "tw.key" in f.attributes)
        before = key_of(fn)
        fn.attributes["sym_name"] = ir.StringAttr.get("another")
        assert key_of(fn) == before == workloads(text)["exp"].key
        assert "exp" in str(canonical_spec(fn)) and "another" not in str(canonical_spec(fn))


def test_equal_regions_are_outlined_once() -> None:
    text = model([X, W], matmul("m", "%x") + matmul("n", "%m"), "%n", T)
    after = run(text, graph_passes())
    assert main_ops(after).count("call matmul") == 2 and list(workloads(after)) == ["matmul"]
    assert_same(text, after, {"B": 3})


def test_operands_are_views() -> None:
    """A window and a transposed window are read in place; the unit axis says which stride is 1."""
    body = """  %window = tensor.extract_slice %x[0, 4] [%B, 4] [1, 1] : tensor<?x8xf32> to tensor<?x4xf32>
  %e4 = tensor.empty(%B) : tensor<?x4xf32>
""" + generic("y", "%window", "tensor<?x4xf32>", "%e4", "tensor<?x4xf32>", EXP, "#id, #id")
    text = model([X], body, "%y", "tensor<?x4xf32>")
    after = run(text, graph_passes())
    found = workloads(after)["exp"]
    assert [str(d) for d in found.inputs[0].dims] == ["d0", "4"]  # not collapsed: its rows lie 8 apart
    assert found.inputs[0].unit_axis == 1 and found.inputs[0].stride_axes() == [0]
    assert "tensor.extract_slice" in main_ops(after)
    assert_same(text, after, {"B": 3})


def test_slice_with_step_has_no_unit_axis() -> None:
    body = """  %window = tensor.extract_slice %x[0, 0] [%B, 4] [1, 2] : tensor<?x8xf32> to tensor<?x4xf32>
  %e4 = tensor.empty(%B) : tensor<?x4xf32>
""" + generic("y", "%window", "tensor<?x4xf32>", "%e4", "tensor<?x4xf32>", EXP, "#id, #id")
    text = model([X], body, "%y", "tensor<?x4xf32>")
    after = run(text, graph_passes())
    assert workloads(after)["exp"].inputs[0].unit_axis is None
    assert_same(text, after, {"B": 3})


def test_reshape_that_no_strides_describe_goes_into_the_region() -> None:
    body = """  %window = tensor.extract_slice %x[0, 4] [%B, 4] [1, 1] : tensor<?x8xf32> to tensor<?x4xf32>
  %flat = tensor.collapse_shape %window [[0, 1]] : tensor<?x4xf32> into tensor<?xf32>
  %c4 = arith.constant 4 : index
  %n = arith.muli %B, %c4 : index
  %en = tensor.empty(%n) : tensor<?xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]}
      ins(%flat : tensor<?xf32>) outs(%en : tensor<?xf32>) {
  ^bb0(%a: f32, %o: f32):
    %r = math.exp %a : f32
    linalg.yield %r : f32
  } -> tensor<?xf32>
"""
    text = model([X], body, "%y", R)
    after = run(text, [Fuse(), Outline()])
    assert "tensor.collapse_shape" not in main_ops(after)
    (found,) = workloads(after).values()
    assert "tensor.collapse_shape" in found.ir and set(found.dims) == {"d0", "d1"}
    assert_same(text, after, {"B": 3}, {"B": 1})


def test_results_are_values_of_their_own() -> None:
    body = generic("y", "%x", T, "%e", T, EXP, "#id, #id")
    text = model([X], body, "%x, %y, %y, %f", f"{T}, {T}, {T}, {T}")
    after = run(text, graph_passes())
    assert sum(name.startswith("call") for name in main_ops(after)) == 2, "x is copied where it is read"
    assert sum(len(w.outputs) for w in workloads(after).values()) == 4
    assert_same(text, after, {"B": 3})


def test_scalars_and_dims_are_arguments() -> None:
    body = """  %i = arith.index_cast %B : index to i64
  %count = arith.sitofp %i : i64 to f32
""" + generic(
        "y",
        "%x",
        T,
        "%e",
        T,
        "%p = arith.mulf %a0, %scale : f32\n    %r = arith.divf %p, %count : f32\n    linalg.yield %r : f32",
        "#id, #id",
    )
    text = model([X, "%scale: f32"], body, "%y", T)
    after = run(text, graph_passes())
    (found,) = workloads(after).values()
    assert [s.value for s in found.scalars] == ["f32"] and len(found.dims) == 2  # B*8 walked, B divided by
    assert_same(text, after, {"B": 3})


def test_constant_tensor_is_a_constant_operand() -> None:
    values = ", ".join(f"{i}.0" for i in range(8))
    body = f"  %k = arith.constant dense<[{values}]> : tensor<8xf32>\n" + generic(
        "y", "%x, %k", f"{T}, tensor<8xf32>", "%e", T, ADD, "#id, #col, #id"
    )
    text = model([X], body, "%y", T)
    after = run(text, graph_passes())
    (found,) = workloads(after).values()
    assert [i.constant for i in found.inputs] == [False, True] and "arith.constant" in main_ops(after)
    assert_same(text, after, {"B": 3})


def test_kinds_loops_and_work() -> None:
    body = (
        matmul("m", "%x")
        + generic("s", "%m", T, "%f1", R, SUM, "#id, #row", "pr")
        + generic("t", "%s", R, "%e", T, EXP, "#row, #id")
    )
    found = workloads(run(model([X, W], body, "%t", T), graph_passes()))
    kinds = {w.kind: w for w in found.values()}
    assert set(kinds) == {Kind.CONTRACTION, Kind.ROWS}
    rows, product = kinds[Kind.ROWS], kinds[Kind.CONTRACTION]
    assert [loop.role for loop in rows.loops] == ["row", "col"] and rows.size("col") == Expr.of(8)
    assert product.flops == Expr.dim("d0") * 128 and product.bytes == Expr.dim("d0") * 64 + 256


def test_standalone_module_verifies() -> None:
    found = workloads(run(model([X, W], matmul("m", "%x"), "%m", T), graph_passes()))["matmul"]
    with ir.Context():
        module = ir.Module.parse(found.ir)
        assert module.operation.verify()
        assert [ir.StringAttr(f.attributes["sym_name"]).value for f in functions(module)] == ["workload"]
