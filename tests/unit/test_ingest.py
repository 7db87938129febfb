"""Ingest: how names bind, what is unified, what becomes a check, and what is refused with which words."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.compiler.frontends.ingest import Ingested, ingest
from tilewright.passes.mlir import ir
from tilewright.runtime.errors import IngestError
from tilewright.runtime.shape import Dim

ADD = """
func.func @main(%a: tensor<?x?xf32> {A}, %b: tensor<?x?xf32> {B}) -> tensor<?x?xf32> {
  %0 = linalg.add ins(%a, %b : tensor<?x?xf32>, tensor<?x?xf32>) outs(%a : tensor<?x?xf32>) -> tensor<?x?xf32>
  return %0 : tensor<?x?xf32>
}
"""
MATMUL = """
func.func @main(%a: tensor<?x?xf32>, %b: tensor<?x?xf32>, %c: tensor<?x?xf32>) -> tensor<?x?xf32> {
  %0 = linalg.matmul ins(%a, %b : tensor<?x?xf32>, tensor<?x?xf32>) outs(%c : tensor<?x?xf32>) -> tensor<?x?xf32>
  return %0 : tensor<?x?xf32>
}
"""


def add(a: str = "", b: str = "") -> str:
    return ADD.replace("{A}", f"{{tw.dims = {a}}}" if a else "").replace("{B}", f"{{tw.dims = {b}}}" if b else "")


def function(body: str, arguments: str = "%a: tensor<?xf32>") -> str:
    return f"func.func @main({arguments}) -> tensor<?xf32> {{\n{body}\n  return %a : tensor<?xf32>\n}}"


def dims(result: Ingested) -> dict[str, tuple[str, ...]]:
    return {d.name: d.at for d in result.dims}


def test_names_of_the_attribute_and_unification() -> None:
    result = ingest(add('["B", "S"]'), {"B": (1, 8), "S": Dim(8, 128, multiple_of=8, samples=(16,))})
    assert dims(result) == {"B": ("arg0.0", "arg1.0"), "S": ("arg0.1", "arg1.1")}
    assert [a.dims for a in (*result.inputs, *result.outputs)] == [("B", "S")] * 3
    assert "tw.ranges = {B = [1, 8, 1], S = [8, 128, 8]}" in result.text
    assert result.text.count('tw.dims = ["B", "S"]') == 2
    assert result.dims[1].samples == (16,)


def test_matmul_unifies_k_over_arguments() -> None:
    result = ingest(MATMUL, {"arg0.0": (1, 8), "arg0.1": (1, 9), "arg1.1": (1, 10)})
    assert dims(result) == {
        "arg0_0": ("arg0.0", "arg2.0"),
        "arg0_1": ("arg0.1", "arg1.0"),
        "arg1_1": ("arg1.1", "arg2.1"),
    }


def test_at_and_default_names() -> None:
    result = ingest(add(), {"B": Dim(1, 4, at=("arg1.0",)), "arg1.1": (1, 7)})
    assert dims(result) == {"B": ("arg0.0", "arg1.0"), "arg0_1": ("arg0.1", "arg1.1")}


def test_one_name_for_the_one_dimension() -> None:
    assert dims(ingest(function(""), {"T": (1, 4)})) == {"T": ("arg0.0",)}


def test_scalar_argument_as_a_dimension() -> None:
    text = function("%e = tensor.empty(%n) : tensor<?xf32>", "%a: tensor<?xf32>, %n: index, %k: i64")
    result = ingest(text, {"T": Dim(1, 4, at=("arg0.0",)), "N": Dim(0, 9, at=("arg1",))})
    assert dims(result) == {"T": ("arg0.0",), "N": ("arg1",)}
    assert [a.dims for a in result.inputs] == [("T",), None, None]
    assert "index {tw.dims" in result.text
    assert "i64 {" not in result.text


def test_extents_that_follow_from_others() -> None:
    text = """func.func @main(%a: tensor<?xf32>, %b: tensor<?xf32>, %c: tensor<?xf32>) -> tensor<?xf32> {
      %0 = tensor.concat dim(0) %a, %b : (tensor<?xf32>, tensor<?xf32>) -> tensor<?xf32>
      %1 = linalg.exp ins(%0 : tensor<?xf32>) outs(%c : tensor<?xf32>) -> tensor<?xf32>
      return %1 : tensor<?xf32>
    }"""
    result = ingest(text, {"P": Dim(0, 64, at=("arg0.0",)), "S": Dim(1, 8, at=("arg1.0",))})
    assert [a.dims for a in result.inputs] == [("P",), ("S",), ("P + S",)]


@pytest.mark.parametrize(
    ("text", "given", "words"),
    [
        (
            add('["B", "S"]', '["C", "S"]'),
            {"B": (1, 8), "C": (1, 8), "S": (1, 8)},
            ["linalg.add", ":3:", "B (arg0.0)", "C (arg1.0)"],
        ),
        (add('["B", "S"]', '["B", 64]'), {"B": (1, 8), "S": (1, 8)}, ["S (arg0.1", "64"]),
        (add(), {"B": (1, 8), "S": (1, 8)}, ["arg0.0", "arg0.1, arg1.1", "dynamic_dims={", '"arg0.1": tw.Dim(']),
        (add(), {"arg0.0": (1, 8)}, ["no range is given for arg0.1", "not given", "1..8"]),
        (add('["B", "S"]'), {"B": (1, 8), "S": (1, 8), "X": (1, 2)}, ["X fits no dimension"]),
        (add(), {"arg0.0": (1, 8), "arg1.0": (1, 9), "arg0.1": (1, 2)}, ["arg1.0", "one dimension", "1..9", "1..8"]),
        (add(), {"B": Dim(1, 8, at=("arg7.0",))}, ["arg7.0", "arg0.0, arg0.1, arg1.0, arg1.1"]),
        (add(), {"not a name": (1, 2)}, ["'not a name' is not a dimension name"]),
        (add('["B"]'), {"B": (1, 8)}, ["has 1 entries", "2 axes"]),
        (function("", '%a: tensor<?xf32> {tw.dims = ["T*T"]}'), {"T": (1, 4)}, ["T cannot be read", "arg0.0 = T*T"]),
    ],
)
def test_binding_errors(text: str, given: dict[str, Dim | tuple[int, int]], words: list[str]) -> None:
    with pytest.raises(IngestError) as error:
        ingest(text, given)
    assert all(word in str(error.value) for word in words), str(error.value)


ASSERT = """
  %c0 = arith.constant 0 : index
  %c = arith.constant {N} : index
  %d = tensor.dim %a, %c0 : tensor<?xf32>
  %p = arith.cmpi {P}, %d, %c : index
  cf.assert %p, "the model says so"
"""


def asserting(predicate: str, number: int) -> str:
    return function(ASSERT.replace("{P}", predicate).replace("{N}", str(number)))


def test_asserts_become_facts_and_checks() -> None:
    assert ingest(asserting("sle", 128), {"T": (1, 128)}).checks == ()
    (check,) = ingest(asserting("sle", 64), {"T": (1, 128)}).checks
    assert "the model says so" in check.message
    result = ingest(asserting("sle", 64), {"T": (1, 128)})
    assert "cf.assert" not in result.text
    with pytest.raises(
        IngestError, match=r"the model says so.*:7:3 does not hold for any shape of the range \(T in 1..128\)"
    ):
        ingest(asserting("sgt", 128), {"T": (1, 128)})


@pytest.mark.parametrize("predicate", ["slt", "sle", "sgt", "sge", "eq", "ne", "ult", "uge"])
def test_a_check_is_zero_where_the_assert_holds(predicate: str) -> None:
    from tilewright.runtime.shape import Expr

    holds = {"lt": int.__lt__, "le": int.__le__, "gt": int.__gt__, "ge": int.__ge__, "eq": int.__eq__, "ne": int.__ne__}
    kind = predicate[1:] if predicate not in ("eq", "ne") else predicate
    text = (
        asserting(predicate, 5)
        if predicate != "eq"
        else function(
            ASSERT.replace("{P}", "eq")
            .replace("{N}", "0")
            .replace(
                "%p = arith.cmpi eq, %d, %c",
                "%c2 = arith.constant 2 : index\n%r = arith.remui %d, %c2 : index\n%p = arith.cmpi eq, %r, %c",
            )
        )
    )
    (check,) = ingest(text, {"T": (1, 9)}).checks
    for t in range(1, 10):
        expected = t % 2 == 0 if predicate == "eq" else holds[kind](t, 5)
        assert (Expr.parse(check.expr).evaluate({"T": t}) == 0) == expected


def test_equality_assert_unifies() -> None:
    text = function(
        """  %c0 = arith.constant 0 : index
      %d = tensor.dim %a, %c0 : tensor<?xf32>
      %e = tensor.dim %b, %c0 : tensor<?xf32>
      %p = arith.cmpi eq, %d, %e : index
      cf.assert %p, "mismatched size for broadcast" """,
        "%a: tensor<?xf32>, %b: tensor<?xf32>",
    )
    assert dims(ingest(text, {"T": (1, 4)})) == {"T": ("arg0.0", "arg1.0")}


def test_slices_and_divisions_that_may_not_fit() -> None:
    text = function("%s = tensor.extract_slice %a[4] [8] [1] : tensor<?xf32> to tensor<8xf32>")
    assert ingest(text, {"T": (12, 20)}).checks == ()
    (check,) = ingest(text, {"T": (1, 20)}).checks
    assert "tensor.extract_slice" in check.message
    text = function("""  %c0 = arith.constant 0 : index
      %c12 = arith.constant 12 : index
      %d = tensor.dim %a, %c0 : tensor<?xf32>
      %h = arith.divui %d, %c12 : index
      %e = tensor.expand_shape %a [[0, 1]] output_shape [%h, 12] : tensor<?xf32> into tensor<?x12xf32>""")
    assert len(ingest(text, {"T": (12, 120)}).checks) == 1
    assert ingest(text, {"T": Dim(12, 120, multiple_of=24)}).checks == ()


REFUSED = [
    (
        "%v = tensor.extract %n[] : tensor<i64> %i = arith.index_cast %v : i64 to index\n %e = tensor.empty(%i) : tensor<?xf32>",
        "%a: tensor<?xf32>, %n: tensor<i64>",
        ["tensor.empty", "depends on data", ":3:"],
    ),
    ("%u = tensor.cast %a : tensor<?xf32> to tensor<*xf32>", "%a: tensor<?xf32>", ["tensor.cast", ":2:", "unranked"]),
    (
        "%s = arith.constant 0 : i32\n %l = arith.constant 0.0 : f64\n "
        "%r = linalg.fill_rng_2d ins(%l, %l, %s : f64, f64, i32) "
        "outs(%m : tensor<2x2xf32>) -> tensor<2x2xf32>",
        "%a: tensor<?xf32>, %m: tensor<2x2xf32>",
        ["linalg.fill_rng_2d", ":4:", "random"],
    ),
    (
        '%u = "foo.bar"(%a) : (tensor<?xf32>) -> tensor<?xf32>',
        "%a: tensor<?xf32>",
        ["foo.bar", ":2:", "linalg, tensor"],
    ),
    (
        "%u = scf.forall (%i) in (4) shared_outs(%o = %a) -> (tensor<?xf32>) { scf.forall.in_parallel { } }",
        "%a: tensor<?xf32>",
        ["scf.forall", ":2:", "control flow"],
    ),
    ("%u = tensor.empty() : tensor<4xcomplex<f32>>", "%a: tensor<?xf32>", ["complex<f32>", ":2:", "f32"]),
    ("", "%a: tensor<?xf32>, %b: tensor<4xf32, #other.layout<3>>", ["argument 1", "other.layout", "plain tensors"]),
    ("", "%a: tensor<?xf32>, %b: tensor<4xi12>", ["argument 1", "i12"]),
    ("", "%a: tensor<?xf32>, %b: memref<4xf32>", ["argument 1", "memref<4xf32>"]),
    ("", "%a: tensor<?xf32>, %b: tensor<?x4611686018427387904x4xf32>", ["argument 1", "more than 2**60 elements"]),
    ("%u = tensor.empty() : tensor<0x4611686018427387904x4xf32>", "%a: tensor<?xf32>", ["tensor.empty", ":2:", "2**60"]),
    (
        '%u = "tensor.pad"(%b) <{operandSegmentSizes = array<i32: 1, 0, 0>, static_high = array<i64: 0>, '
        'static_low = array<i64: -9223372036854775808>}> ({\n^bb0(%i: index):\n"tensor.yield"(%f) : (f32) -> ()\n}) '
        ": (tensor<4xf32>) -> tensor<?xf32>",
        "%a: tensor<?xf32>, %b: tensor<4xf32>, %f: f32",
        ["tensor.pad", ":2:", "0 operands for the 1 places in static_low and static_high"],
    ),
]


@pytest.mark.parametrize(
    ("body", "arguments", "words"), REFUSED, ids=lambda v: v[0].strip("%") if isinstance(v, list) else ""
)
def test_refusals_name_operation_and_location(body: str, arguments: str, words: list[str]) -> None:
    with pytest.raises(IngestError) as error:
        ingest(function(body, arguments), {"T": Dim(1, 4, at=("arg0.0",))})
    assert all(word in str(error.value) for word in words), str(error.value)


def test_attributes_of_other_compilers_are_dropped() -> None:
    text = function("%u = arith.addf %a, %a {other.info = #other.tiles<[4, 8]>} : tensor<?xf32>")
    found = ingest("module attributes {other.target = #other.gpu} {" + text + "}", {"T": (1, 4)})
    assert "other" not in found.text and "linalg" in found.text


def test_assert_on_data_is_refused() -> None:
    text = function('%p = tensor.extract %b[] : tensor<i1>\n cf.assert %p, "data"', "%a: tensor<?xf32>, %b: tensor<i1>")
    with pytest.raises(IngestError, match="depends on data"):
        ingest(text, {"T": (1, 4)})


def test_sources(tmp_path: Path) -> None:
    given = {"T": (1, 4)}
    text = function("")
    path = tmp_path / "model.mlir"
    path.write_text(text)
    expected = ingest(text, given)
    assert ingest(path, given) == ingest(str(path), given) == expected
    with ir.Context():
        module = ir.Module.parse(text)
    assert ingest(module, given) == expected
    path.write_text("module {\n  func.func @main() {\n    oops\n  }\n}")
    with pytest.raises(IngestError, match=r'(?s)model\.mlir":3:5.*oops'):
        ingest(path, given)
    with pytest.raises(IngestError, match=r"no model at .*absent\.mlir"):
        ingest(str(tmp_path / "absent.mlir"), given)
    with pytest.raises(IngestError, match="cannot read a model from int"):
        ingest(3, given)


TWO = """
func.func @one(%a: tensor<?xf32>) -> tensor<?xf32> { return %a : tensor<?xf32> }
func.func @main(%a: tensor<?xf32>) -> tensor<?xf32> {
  %0 = call @one(%a) : (tensor<?xf32>) -> tensor<?xf32>
  return %0 : tensor<?xf32>
}
"""


def test_extents_that_contradict_each_other_once_calls_are_inlined() -> None:
    text = """
#rows = affine_map<(d0, d1, d2, d3) -> (d3, d0, d1)>
#columns = affine_map<(d0, d1, d2, d3) -> (d3, d2)>
#all = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2)>
func.func private @other(%x: tensor<?x16x7xf32>, %w: tensor<7x6xf32>, %r: tensor<?x8x6xf32>) -> tensor<?x8x6xf32> {
  %c0 = arith.constant 0 : index
  %b = tensor.dim %x, %c0 : tensor<?x16x7xf32>
  %part = tensor.extract_slice %x[0, 0, 0] [%b, 8, 7] [1, 1, 1] : tensor<?x16x7xf32> to tensor<?x8x7xf32>
  %sum = linalg.generic {indexing_maps = [#rows, #columns, #all],
      iterator_types = ["parallel", "parallel", "parallel", "reduction"]}
      ins(%part, %w : tensor<?x8x7xf32>, tensor<7x6xf32>) outs(%r : tensor<?x8x6xf32>) {
  ^bb0(%p: f32, %q: f32, %acc: f32):
    %pq = arith.mulf %p, %q : f32
    %next = arith.addf %acc, %pq : f32
    linalg.yield %next : f32
  } -> tensor<?x8x6xf32>
  return %sum : tensor<?x8x6xf32>
}
func.func @main(%x: tensor<?x16x7xf32>, %w: tensor<7x6xf32>, %r: tensor<?x8x6xf32>) -> tensor<?x8x6xf32> {
  %s = call @other(%x, %w, %r) : (tensor<?x16x7xf32>, tensor<7x6xf32>, tensor<?x8x6xf32>) -> tensor<?x8x6xf32>
  return %s : tensor<?x8x6xf32>
}
"""
    with pytest.raises(IngestError, match=r"(?s)once their calls are inlined.*correct the model.*dimension"):
        ingest(text, {"T": Dim(1, 64, at=("arg0.0",))})


def test_choice_of_the_function() -> None:
    with pytest.raises(IngestError, match=r"2 public functions \(public: @one, @main\)"):
        ingest(TWO, {"T": (1, 4)})
    with pytest.raises(IngestError, match="no function @three"):
        ingest(TWO, {"T": (1, 4)}, function="three")
    for name in ("one", "main"):
        text = ingest(TWO, {"T": (1, 4)}, function=name).text
        assert text.count("func.func") == 1
        assert "call" not in text
        assert "@main" in text
