"""Reshapes, slices, joins and pads of symbolic extents: compiled, at several shapes, against NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.ops_harness import Checks, Given
from tilewright.compiler import ops
from tilewright.runtime.errors import OptionError, ShapeError
from tilewright.runtime.shape import Expr

pytestmark = pytest.mark.usefixtures("built_here")

Array = np.ndarray[Any, Any]
SHAPES = [{"B": 1, "S": 1}, {"B": 3, "S": 16}, {"B": 2, "S": 7}, {"B": 4, "S": 0}]


def make() -> Checks:
    return Checks({"x": Given(["B", "S", 6]), "i": Given(["S", "B"], "i32"), "m": Given(["B", "S"], "i1")},
                  {"B": (1, 8), "S": (0, 32)})


def test_shapes_of_the_same_elements() -> None:
    checks = make()
    x, i, (b, s) = checks["x"], checks["i"], checks["m"].dims

    def add(name: str, got: ops.Tensor, want: Callable[[Array, int, int], Array], source: str = "x") -> None:
        checks.add(name, got, lambda v, d: want(v[source], d["B"], d["S"]))

    add("merge", ops.reshape(x, [b * s, 6]) + 1, lambda x, b, s: x.reshape(b * s, 6) + 1)
    add("no common grouping", ops.reshape(x, [s * 3, b * 2]), lambda x, b, s: x.reshape(s * 3, b * 2))
    add("split and merge", ops.reshape(x, [b, 3, s, 2]) * 2, lambda x, b, s: x.reshape(b, 3, s, 2) * 2)
    add("minus one", ops.reshape(x, [b, -1, 2]), lambda x, b, s: x.reshape(b, s * 3, 2))
    add("minus one behind", ops.reshape(i, [-1]), lambda i, b, s: i.reshape(-1), "i")
    add("squeeze", ops.squeeze(ops.unsqueeze(x, [0, -1])), lambda x, b, s: x)
    add("unsqueeze", ops.unsqueeze(x, [1, 3]) + 1, lambda x, b, s: x[:, None, :, None] + 1)
    add("flatten", ops.flatten(x, 1), lambda x, b, s: x.reshape(b, s * 6))
    add("flatten all", ops.flatten(i), lambda i, b, s: i.reshape(-1), "i")
    add("unflatten", ops.unflatten(ops.flatten(x), 0, [-1, 3]), lambda x, b, s: x.reshape(-1, 3))
    add("swap", ops.swap_axes(x, 0, -1), lambda x, b, s: x.swapaxes(0, -1))
    add("move", ops.move_axes(x, [0, 1], [-1, 0]), lambda x, b, s: np.moveaxis(x, [0, 1], [-1, 0]))
    add("rank 0", ops.reshape(ops.sum(x), [1, 1]) * 0 + 1, lambda x, b, s: np.ones((1, 1), "f4"))
    add("merge after transpose", ops.reshape(ops.transpose(x, (1, 0, 2)), [s, b * 6]),
        lambda x, b, s: x.transpose(1, 0, 2).reshape(s, b * 6))
    checks.run(SHAPES)


def test_slices_follow_python() -> None:
    checks = make()
    x, s = checks["x"], checks["x"].dims[1]
    windows: list[tuple[Any, Any, int]] = [
        (None, None, 1), (1, None, 1), (-3, None, 1), (None, -2, 1), (2, 5, 1), (5, 2, 1), (0, 1 << 62, 1), (1, None, 3),
        (-5, -1, 2), (None, None, -1), (None, None, -2),
        (-2, None, -1), (5, 1, -1), (3, -100, -2), (s - 1, None, 1), (None, s // 2, 1),
        (s // 2, s, 2), (-s, None, 1), (s, None, -1), (100, None, 1), (s - 3, None, 1), (None, s - 3, 1),
    ]

    def value(place: Any, d: Mapping[str, int]) -> int | None:
        return place.evaluate(d) if isinstance(place, Expr) else place

    for begin, end, step in windows:
        checks.add(f"[{begin}:{end}:{step}]", ops.slice_axis(x, 1, begin, end, step),
                   lambda v, d, b=begin, e=end, s=step: v["x"][:, value(b, d):value(e, d):s])
    checks.add("several axes", ops.slice(x, (0, None, 5), (None, None, 1), (1, -2, -1)), lambda v, d: v["x"][:, ::-2, 5:1:-1])
    checks.add("select", ops.select(x, -1, 4), lambda v, d: v["x"][:, :, 4])
    checks.add("select from the end", ops.select(x, 0, -1) + 1, lambda v, d: v["x"][-1] + 1)
    checks.add("select an expression", ops.select(x, 0, checks["x"].dims[0] - 1), lambda v, d: v["x"][-1])
    checks.add("narrow", ops.narrow(x, 1, s // 3, s // 2), lambda v, d: v["x"][:, d["S"] // 3:d["S"] // 3 + d["S"] // 2])
    for n, part in enumerate(ops.split(x, [1, 2, 3], -1) + ops.split(x, 4, 2)):
        places = [(0, 1), (1, 3), (3, 6), (0, 4), (4, 6)][n]
        checks.add(f"split {n}", part, lambda v, d, p=places: v["x"][..., p[0]:p[1]])
    checks.add("split by expressions", ops.split(x, [s // 4, s - s // 4], 1)[1], lambda v, d: v["x"][:, d["S"] // 4:])
    for n, part in enumerate(ops.chunk(x, 3, 1)):
        checks.add(f"chunk {n}", part, lambda v, d, n=n: v["x"][:, n * -(-d["S"] // 3):(n + 1) * -(-d["S"] // 3)])
    for n, part in enumerate(ops.unbind(x, -1)[:2]):
        checks.add(f"unbind {n}", part, lambda v, d, n=n: v["x"][..., n])
    checks.add("flip", ops.flip(x, [1, -1]), lambda v, d: v["x"][:, ::-1, ::-1])
    checks.add("flip i1", ops.flip(checks["m"], 0), lambda v, d: v["m"][::-1])
    checks.add("roll", ops.roll(x, [2, -5], [1, 2]), lambda v, d: np.roll(v["x"], [2, -5], [1, 2]))
    checks.add("roll by an extent", ops.roll(checks["i"], s // 2, 0), lambda v, d: np.roll(v["i"], d["S"] // 2, 0))
    checks.add("roll all", ops.roll(checks["i"], 3), lambda v, d: np.roll(v["i"], 3))
    checks.run(SHAPES)


def test_joins_repeats_and_pads() -> None:
    checks = make()
    x, i, m, (b, s) = checks["x"], checks["i"], checks["m"], checks["m"].dims
    g = checks.graph
    checks.add("concat", ops.concat([x, x * 2, ops.zeros(g, [b, 0, 6])], 1), lambda v, d: np.concatenate([v["x"], v["x"] * 2], 1))
    checks.add("concat promotes", ops.concat([i, ops.transpose(m)]), lambda v, d: np.concatenate([v["i"], v["m"].T.astype("i4")]))
    checks.add("concat of nothing", ops.concat([ops.zeros(g, [0, 3]), ops.zeros(g, [0, 3])]), lambda v, d: np.zeros((0, 3), "f4"))
    checks.add("stack", ops.stack([m, m], -1), lambda v, d: np.stack([v["m"]] * 2, -1))
    checks.add("broadcast", ops.broadcast_to(ops.unsqueeze(m, 1), [2, b, 3, -1]), lambda v, d: np.broadcast_to(
        v["m"][:, None], (2, d["B"], 3, d["S"])))
    checks.add("tile", ops.tile(i, [2, 1, 3]), lambda v, d: np.tile(v["i"], (2, 1, 3)))
    checks.add("tile by an extent", ops.tile(i, [b, 2]), lambda v, d: np.tile(v["i"], (d["B"], 2)))
    checks.add("repeat", ops.repeat(i, 3, 0), lambda v, d: np.repeat(v["i"], 3, 0))
    checks.add("pad", ops.pad(x, [0, s, 1], [b, 0, 2], 1.5),
               lambda v, d: np.pad(v["x"], ((0, d["B"]), (d["S"], 0), (1, 2)), constant_values=1.5))
    checks.add("pad i1", ops.pad(m, [0, 1], [0, 2], True), lambda v, d: np.pad(v["m"], ((0, 0), (1, 2)), constant_values=True))
    checks.add("crop and pad", ops.pad(x, [0, 2, -1], [0, 0, -2], 3.0),
               lambda v, d: np.pad(v["x"][..., 1:-2], ((0, 0), (2, 0), (0, 0)), constant_values=3))
    checks.run(SHAPES)


@pytest.mark.parametrize("count,computed", [(33, False), (300, False), (40, True)])
def test_many_are_joined(count: int, computed: bool) -> None:
    """More than a kernel has loops for; `computed` on the way."""
    g = ops.Graph()
    parts = [g.input(f"x{i}", ["B", 3]) for i in range(count)]
    g.output(ops.stack([ops.relu(x) for x in parts] if computed else parts, 1))
    fn = tw.compile(g, {"B": (1, 64)})
    for batch in (1, 37):
        arrays = [np.random.default_rng(i).standard_normal((batch, 3)).astype("f4") for i in range(count)]
        want = np.stack(arrays, 1)
        np.testing.assert_array_equal(fn(*arrays), np.maximum(want, 0) if computed else want)


def test_many_are_joined_on_gpus() -> None:
    """Built, not run."""
    g = ops.Graph()
    g.output(ops.stack([g.input(f"x{i}", ["B", 3]) for i in range(100)], 1))
    tw.compile(g, {"B": (1, 64)}, "cuda:sm_80")


def test_mirrored_pads() -> None:
    checks = Checks({"x": Given(["B", "S"]), "i": Given(["S", 5], "i64")}, {"B": (2, 8), "S": (3, 32)})
    x, i, s = checks["x"], checks["i"], checks["x"].dims[1]
    for ours, theirs in (("reflect", "reflect"), ("replicate", "edge"), ("circular", "wrap")):
        checks.add(ours, ops.pad(x, [1, 2], [0, 1], mode=ours), lambda v, d, m=theirs: np.pad(v["x"], ((1, 0), (2, 1)), mode=m))
        checks.add(f"{ours} by an extent", ops.pad(i, [s - 1, 0], [s // 2, 0], mode=ours),
                   lambda v, d, m=theirs: np.pad(v["i"], ((d["S"] - 1, d["S"] // 2), (0, 0)), mode=m))
    for ours, theirs in (("reflect", "reflect"), ("replicate", "edge")):  # about the ends of the whole
        checks.add(f"{ours} and crop", ops.pad(i, [0, -1], [0, 3], mode=ours),
                   lambda v, d, m=theirs: np.pad(v["i"], ((0, 0), (0, 3)), mode=m)[:, 1:])
    checks.add("circular and crop", ops.pad(i, [0, -1], [0, 3], mode="circular"),
               lambda v, d: np.pad(v["i"][:, 1:], ((0, 0), (0, 3)), mode="wrap"))
    checks.run([{"B": 2, "S": 3}, {"B": 5, "S": 12}])


def test_an_operand_is_aligned_axis_by_axis() -> None:
    x = ops.Graph().input("x", ["B", 4])
    with pytest.raises(ShapeError, match=r"on\(1,\): wanted an axis of the result for each axis of \[B, 4\]"):
        x.on(1)


def test_extents_restated_and_checked() -> None:
    g = ops.Graph()
    x = g.input("x", ["S", 4])
    s = x.dims[0]
    halves = ops.slice_axis(x, 0, None, s // 2 * 2)
    g.output(ops.with_dims(halves, [s, 4]) + x, ops.reshape(halves, [s // 2, 8]), ops.reshape(x, [s // 2, 2, 4]))
    fn = tw.compile(g, {"S": (0, 16)})
    for n in (0, 2, 6):
        a = np.arange(4 * n, dtype="f4").reshape(n, 4)
        for got, want in zip(fn(a), (a + a, a.reshape(-1, 8), a.reshape(n // 2, 2, 4)), strict=True):
            np.testing.assert_array_equal(got, want)
    with pytest.raises(ShapeError, match="S = 3"):
        fn(np.zeros((3, 4), "f4"))


def test_extents_stated_to_be_equal() -> None:
    g = ops.Graph()
    x, y = g.input("x", ["S", "T", 3]), g.input("y", ["U"])
    g.output(ops.squeeze(ops.with_dims(ops.slice_axis(x, 1, None, 1), ["S", 1, 3]), 1) * 2, y)
    with pytest.raises(ShapeError, match=r"reshape: \[S, T, 3\] has 3\*S\*T elements, \[U, 2, 3\] has 6\*U"):
        ops.reshape(x, ["U", 2, 3])
    g.output(ops.reshape(x, ["U", 2, 3], assume_equal=True))
    fn = tw.compile(g, {"S": (1, 4), "T": (0, 8), "U": (0, 16)})
    a = np.random.default_rng(0).standard_normal((2, 3, 3)).astype("f4")
    first, _, last = fn(a, np.zeros(3, "f4"))
    np.testing.assert_array_equal(first, a[:, 0] * 2)
    np.testing.assert_array_equal(last, a.reshape(3, 2, 3))
    with pytest.raises(ShapeError, match="3\\*S\\*T"):
        fn(a, np.zeros(4, "f4"))
    with pytest.raises(ShapeError, match="with_dims: axis 1"):
        fn(a[:, :0], np.zeros(0, "f4"))


@pytest.mark.parametrize(("build", "error", "words"), [
    (lambda x: ops.squeeze(x, 0), ShapeError, "axis 0 of .* has extent B, not 1"),
    (lambda x: ops.unsqueeze(x, [0, 0]), ShapeError, "wanted different ones"),
    (lambda x: ops.flatten(x, 2, 1), ShapeError, "axes 2 to 1"),
    (lambda x: ops.unflatten(x, 0, [-1, -1]), OptionError, "more than one extent open"),
    (lambda x: ops.with_dims(x, ["B"]), ShapeError, "1 extents for a tensor of rank 3"),
    (lambda x: ops.with_dims(x, ["B", "S", 7]), ShapeError, "6 against 7"),
    (lambda x: ops.slice(x, [0] * 3, [None] * 3, [0] * 3), OptionError, "other than 0"),
    (lambda x: ops.slice_axis(x, 0, step=0), OptionError, "a step of 0"),
    (lambda x: ops.split(x, 2, 0), ShapeError, "no fixed extent"),
    (lambda x: ops.split(x, [2, 3], 2), ShapeError, "5 against 6"),
    (lambda x: ops.chunk(x, 0, 2), OptionError, "0 parts"),
    (lambda x: ops.unbind(x, 0), ShapeError, "no fixed extent"),
    (lambda x: ops.roll(x, [1, 2], [0]), OptionError, "2 shifts for 1 axes"),
    (lambda x: ops.move_axes(x, [0, 0], [1, 2]), OptionError, "as many different ones"),
    (lambda x: ops.concat([]), OptionError, "at least one"),
    (lambda x: ops.stack([x], 5), ShapeError, "axis 5 of a result of rank 4"),
    (lambda x: ops.pad(x, [1] * 3, [1] * 3, mode="mirror"), OptionError, "unknown mode 'mirror'"),
])
def test_mistakes_are_named(build: Callable[[ops.Tensor], Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        build(ops.Graph().input("x", ["B", "S", 6]))
