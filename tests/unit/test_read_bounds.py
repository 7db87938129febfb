"""Bounds of what operations read and write: proven, left to the call, or refused, at the entrance."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Mapping

import pytest

from tilewright.compiler.dims.conditions import Conditions
from tilewright.compiler.dims.loop_extremes import LoopBox
from tilewright.compiler.frontends.ingest import Ingested, ingest
from tilewright.runtime.errors import IngestError
from tilewright.runtime.extent_bounds import bounds, highest
from tilewright.runtime.shape import Dim, Expr, ShapeRange

Ranges = Mapping[str, tuple[int, int] | Dim]


def generic(place: str, ranges: Ranges, everywhere: bool = False) -> Ingested:
    """out[i] += x[place] over i and k, each of x, taps and out with a dim of its own."""
    return ingest(f"""
      func.func @main(%x: tensor<?xf32> {{tw.dims = ["X"]}}, %w: tensor<?xf32> {{tw.dims = ["K"]}},
                      %o: tensor<?xf32> {{tw.dims = ["O"]}}) -> tensor<?xf32> {{
        %r = linalg.generic {{
          indexing_maps = [affine_map<(i, k) -> ({place})>, affine_map<(i, k) -> (k)>, affine_map<(i, k) -> (i)>],
          iterator_types = ["parallel", "reduction"]}} ins(%x, %w : tensor<?xf32>, tensor<?xf32>) outs(%o : tensor<?xf32>) {{
        ^bb0(%a: f32, %b: f32, %c: f32):
          %m = arith.mulf %a, %b : f32
          %s = arith.addf %c, %m : f32
          linalg.yield %s : f32
        }} -> tensor<?xf32>
        return %r : tensor<?xf32>
      }}""", ranges, everywhere=everywhere)


def holds(model: Ingested, **dims: int) -> bool:
    return all(Expr.parse(c.expr).evaluate(dims) == 0 for c in model.checks)


@pytest.mark.parametrize(
    ("place", "reads"),
    [
        ("i + k", lambda i, k: i + k),
        ("i * 2 + k * 3", lambda i, k: 2 * i + 3 * k),
        ("-i + 9", lambda i, k: 9 - i),
        ("i + k - 2", lambda i, k: i + k - 2),
        ("i floordiv 2 + k", lambda i, k: i // 2 + k),
        ("i mod 3 + k * 3", lambda i, k: i % 3 + 3 * k),
        ("(i + k) floordiv 2", lambda i, k: (i + k) // 2),
        ("-i + k", lambda i, k: k - i),
        ("5", lambda i, k: 5),
        ("i ceildiv 4", lambda i, k: -(-i // 4)),
    ],
)
def test_a_check_is_positive_exactly_where_a_read_leaves_its_tensor(place: str, reads: object) -> None:
    model = generic(place, {"X": (0, 12), "K": (0, 5), "O": (0, 12)})
    assert model.checks
    for x, k, o in itertools.product(range(13), range(6), range(0, 13, 2)):
        inside = all(0 <= reads(i, j) < x for i in range(o) for j in range(k))  # type: ignore[operator]
        assert holds(model, X=x, K=k, O=o) == inside, (x, k, o)


def test_the_message_names_operation_operand_extent_and_place() -> None:
    (check,) = generic("i + k", {"X": (1, 10), "K": (4, 4), "O": (1, 5000)}).checks
    assert re.fullmatch(r'linalg.generic at .*:\d+:\d+ reads element K \+ O - 2 of operand 0 along axis 0, which has X elements',
                        check.message)


def test_reads_that_stay_inside_for_every_shape_are_not_checked() -> None:
    assert not generic("i + k", {"X": (40, 50), "K": (1, 8), "O": (1, 33)}).checks
    assert not generic("-i + 9", {"X": (10, 50), "K": (1, 8), "O": (1, 10)}).checks
    assert not generic("k mod 4", {"X": (4, 9), "K": (1, 8), "O": (1, 10)}).checks


def test_what_holds_in_the_range_alone_is_checked_where_calls_outside_it_run() -> None:
    model = generic("i + k", {"X": (40, 50), "K": (1, 8), "O": (1, 33)}, everywhere=True)
    assert holds(model, X=40, K=8, O=33) and not holds(model, X=3, K=8, O=33)


@pytest.mark.parametrize(
    ("place", "ranges"),
    [
        ("i + k", {"X": (1, 4), "K": (4, 4), "O": (2, 4000)}),
        ("i - 1", {"X": (1, 40), "K": (1, 4), "O": (1, 40)}),
        ("-i", {"X": (1, 40), "K": (1, 4), "O": (2, 40)}),
    ],
)
def test_a_read_that_leaves_its_tensor_for_every_shape_is_refused(place: str, ranges: Ranges) -> None:
    wanted = r"linalg.generic at .* reads element .* of operand 0 along axis 0, which has X elements for any shape of the range"
    with pytest.raises(IngestError, match=wanted):
        generic(place, ranges)


def test_an_empty_loop_reads_nothing() -> None:
    model = generic("i + k", {"X": (0, 4), "K": (0, 4), "O": (2, 4000)})
    assert holds(model, X=0, K=0, O=9) and not holds(model, X=0, K=1, O=9)


WINDOW = """
  func.func @main(%x: tensor<?x?x?x4xf32> {{tw.dims = ["N", "H", "W", 4]}}, %w: {kernel},
                  %o: {result} {{tw.dims = {dims}}}) -> {result} {{
    %r = linalg.{name} {{dilations = dense<{dilation}> : tensor<2xi64>, strides = dense<{stride}> : tensor<2xi64>}}
      ins(%x, %w : tensor<?x?x?x4xf32>, {kernel}) outs(%o : {result}) -> {result}
    return %r : {result}
  }}"""


@pytest.mark.parametrize(
    ("name", "kernel", "result", "dims"),
    [
        ("conv_2d_nhwc_hwcf", "tensor<3x3x4x8xf32>", "tensor<?x?x?x8xf32>", '["N", "P", "Q", 8]'),
        ("depthwise_conv_2d_nhwc_hwc", "tensor<3x3x4xf32>", "tensor<?x?x?x4xf32>", '["N", "P", "Q", 4]'),
        ("pooling_nhwc_sum", "tensor<3x3xf32>", "tensor<?x?x?x4xf32>", '["N", "P", "Q", 4]'),
        ("pooling_nhwc_max", "tensor<3x3xf32>", "tensor<?x?x?x4xf32>", '["N", "P", "Q", 4]'),
    ],
)
@pytest.mark.parametrize(("stride", "dilation"), [(1, 1), (2, 1), (3, 2)])
def test_windows_whose_result_has_extents_of_its_own_are_checked(
    name: str, kernel: str, result: str, dims: str, stride: int, dilation: int
) -> None:
    text = WINDOW.format(name=name, kernel=kernel, result=result, dims=dims, stride=stride, dilation=dilation)
    model = ingest(text, {"N": (1, 4), "H": (1, 30), "W": (1, 30), "P": (1, 30), "Q": (1, 30)})
    for h, p in itertools.product(range(1, 31, 3), range(1, 31, 2)):
        inside = (p - 1) * stride + 2 * dilation < h
        assert holds(model, N=1, H=h, W=30, P=p, Q=1) == inside


@pytest.mark.parametrize(("stride", "pad", "size"), [(1, 0, 3), (2, 1, 3), (2, 3, 7), (3, 2, 5)])
def test_convolutions_that_compute_their_own_extent_are_proven(stride: int, pad: int, size: int) -> None:
    model = ingest(f"""
      func.func @main(%x: tensor<?xf32> {{tw.dims = ["T"]}}, %w: tensor<{size}xf32>) -> tensor<?xf32> {{
        %c0 = arith.constant 0 : index
        %s = arith.constant {stride} : index
        %one = arith.constant 1 : index
        %k = arith.constant {size} : index
        %zero = arith.constant 0.0 : f32
        %p = tensor.pad %x low[{pad}] high[{pad}] {{
        ^bb0(%i: index):
          tensor.yield %zero : f32
        }} : tensor<?xf32> to tensor<?xf32>
        %n = tensor.dim %p, %c0 : tensor<?xf32>
        %room = arith.subi %n, %k : index
        %steps = arith.floordivsi %room, %s : index
        %m = arith.addi %steps, %one : index
        %e = tensor.empty(%m) : tensor<?xf32>
        %f = linalg.fill ins(%zero : f32) outs(%e : tensor<?xf32>) -> tensor<?xf32>
        %r = linalg.generic {{
          indexing_maps = [affine_map<(i, k) -> (i * {stride} + k)>, affine_map<(i, k) -> (k)>, affine_map<(i, k) -> (i)>],
          iterator_types = ["parallel", "reduction"]}} ins(%p, %w : tensor<?xf32>, tensor<{size}xf32>)
          outs(%f : tensor<?xf32>) {{
        ^bb0(%a: f32, %b: f32, %c: f32):
          %d = arith.mulf %a, %b : f32
          %g = arith.addf %c, %d : f32
          linalg.yield %g : f32
        }} -> tensor<?xf32>
        return %r : tensor<?xf32>
      }}""", {"T": (size, 100)})
    assert not model.checks


def extracting(place: str, after: str = "", ranges: Ranges | None = None) -> Ingested:
    """out[i] = x[place], with the number of the loop in %i, an integer of data in %d, dims X and O."""
    return ingest(f"""
      func.func @main(%x: tensor<?xf32> {{tw.dims = ["X"]}}, %o: tensor<?xi32> {{tw.dims = ["O"]}}) -> tensor<?xf32> {{
        %c0 = arith.constant 0 : index
        %c5 = arith.constant 5 : index
        %n = tensor.dim %o, %c0 : tensor<?xi32>
        %z = arith.constant 0.0 : f32
        %e = tensor.empty(%n) : tensor<?xf32>
        %r = linalg.generic {{indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]}}
          ins(%o : tensor<?xi32>) outs(%e : tensor<?xf32>) {{
        ^bb0(%a: i32, %b: f32):
          %i = linalg.index 0 : index
          %d = arith.index_cast %a : i32 to index
          %p = {place} : index
          %v = tensor.extract %x[%p] : tensor<?xf32>
          {after or "linalg.yield %v : f32"}
        }} -> tensor<?xf32>
        return %r : tensor<?xf32>
      }}""", ranges or {"X": (1, 30), "O": (1, 30)})


def test_elements_at_computed_places_are_proven_or_checked() -> None:
    model = extracting("arith.addi %i, %c5")
    assert "minui" not in model.text and "tensor.extract at " in model.checks[0].message
    assert all(holds(model, X=x, O=o) == (o + 5 <= x) for x in range(1, 31) for o in range(1, 31))
    assert not extracting("arith.addi %i, %c5", ranges={"X": (20, 30), "O": (1, 15)}).checks
    assert not extracting("arith.remui %i, %c5", ranges={"X": (5, 30), "O": (1, 15)}).checks


def test_elements_at_places_of_data_are_kept_on_their_axis() -> None:
    model = extracting("arith.addi %d, %c5")
    assert not model.checks and model.text.count("arith.minui") == 1 and "tw.may_be_empty" not in model.text
    assert "tw.may_be_empty" in extracting("arith.addi %d, %c5", ranges={"X": (0, 30), "O": (0, 30)}).text


def test_an_element_that_a_selection_may_leave_out_is_kept_and_not_refused() -> None:
    model = extracting("arith.addi %i, %c5", "%t = arith.cmpi slt, %i, %c5 : index\n %s = arith.select %t, %v, %z : f32\n"
                                             "linalg.yield %s : f32")  # fmt: skip
    assert not model.checks and "arith.minui" in model.text


def test_extents_below_zero_and_divisors_of_zero_are_checked() -> None:
    text = """
      func.func @main(%x: tensor<?xf32> {{tw.dims = ["T"]}}, %y: tensor<?xf32> {{tw.dims = ["U"]}}) -> tensor<?xf32> {{
        %c0 = arith.constant 0 : index
        %c5 = arith.constant 5 : index
        %z = arith.constant 0.0 : f32
        %n = tensor.dim %x, %c0 : tensor<?xf32>
        %u = tensor.dim %y, %c0 : tensor<?xf32>
        %m = {op} : index
        %e = tensor.empty(%m) : tensor<?xf32>
        %f = linalg.fill ins(%z : f32) outs(%e : tensor<?xf32>) -> tensor<?xf32>
        return %f : tensor<?xf32>
      }}"""
    negative = ingest(text.format(op="arith.subi %n, %c5"), {"T": (1, 9), "U": (0, 9)})
    assert [holds(negative, T=t, U=1) for t in (4, 5, 6)] == [False, True, True]
    divided = ingest(text.format(op="arith.divsi %n, %u"), {"T": (1, 9), "U": (0, 9)})
    assert divided.checks[0].message.endswith("divides by U")


def test_a_condition_may_be_taken_for_granted_by_later_ones() -> None:
    conditions = Conditions(ShapeRange((("A", Dim(1, 9)), ("B", Dim(1, 9)))))
    a, b = Expr.dim("A"), Expr.dim("B")
    conditions.note((a - b).maximum(b - a), "A is B")
    conditions.note(a - b, "A is at most B")
    conditions.note(b - a - 3, "B is at most A + 3")
    assert [c.message for c in conditions.checks()] == ["A is B"]
    conditions.note(a - b + 1, "A is below B")
    assert len(conditions.checks()) == 2


def test_bounds_are_exact_for_large_integers() -> None:
    a = Expr.dim("A")
    ranges = {"A": (0, (1 << 62) + 1)}
    assert bounds(a * 2 - (1 << 63), ranges)[1] == 2
    assert highest((a * 4) // 4 + (-a), ranges) == 0
    assert bounds(Expr.dim("B") * Expr.dim("S") - Expr.dim("S") * 2, {"B": (3, 9), "S": (0, 4)}) == (0, 28)


def test_extremes_hold_every_value_and_are_reached_where_they_say_so() -> None:
    """Random sums of loops, quotients and remainders against all iterations."""
    rng = random.Random(4)
    reached = 0
    for _ in range(400):
        counts = {f"%{n}": rng.randint(1, 7) for n in range(rng.randint(1, 3))}
        expr = Expr.of(rng.randint(-4, 4))
        for name in rng.choices(sorted(counts), k=rng.randint(1, 3)):
            loop, by = Expr.dim(name), rng.randint(2, 4)
            term = rng.choice((loop, loop // by, loop % by, (loop + 1) % by, -loop, (loop * 2 + 3) // by))
            expr = expr + term * rng.randint(-2, 3)
        points = itertools.product(*map(range, counts.values()))
        values = [expr.evaluate(dict(zip(counts, point, strict=True))) for point in points]
        dims = {n.replace("%", "N"): Expr.dim(n.replace("%", "N")) for n in counts}
        for sized in (dict.fromkeys(counts), dims):  # extents that are numbers, and dims
            extents = {n: Expr.of(c) if sized is not dims else dims[n.replace("%", "N")] for n, c in counts.items()}
            box = LoopBox(extents, dict.fromkeys(dims, (1, 7)))
            for top, true in ((True, max(values)), (False, min(values))):
                found = box.extreme(expr, top)
                assert found is not None
                value = found.value.evaluate({n.replace("%", "N"): c for n, c in counts.items()})
                assert value == true if found.exact else (value >= true if top else value <= true), (expr, counts, found)
                reached += found.exact
    assert reached > 1000
