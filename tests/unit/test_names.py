"""Arguments and results by the model's own names: in places of dims, constants, donations, calls and messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import ops
from tilewright.runtime.errors import DTypeError, IngestError, OptionError, ShapeError

RNG = np.random.default_rng(0)
X, W, B = (RNG.standard_normal(s).astype(np.float32) for s in ((3, 8), (8, 4), (4,)))
TEXT = """
func.func @main(%x: tensor<?x8xf32> {tw.name = "input_ids"}, %n: index {tw.name = "count"}, %y: tensor<?xf32>)
    -> (tensor<?x8xf32> {tw.name = "hidden"}, tensor<?xf32>) {
  return %x, %y : tensor<?x8xf32>, tensor<?xf32>
}
"""


def linear() -> ops.Graph:
    graph = ops.Graph()
    x, w, b = graph.input("x", ["T", 8]), graph.input("w", [8, 4]), graph.input("bias", [4])
    product = ops.matmul(x, w)
    graph.output(product, name="product")
    graph.output(product + b)
    return graph


@pytest.fixture(scope="module")
def fn() -> Any:
    return tw.compile(linear(), {"T": (1, 9)})


def test_inputs_and_results_have_the_names_of_the_model(fn: Any) -> None:
    assert [a.name for a in fn.inputs] == ["x", "w", "bias"] and [a.name for a in fn.outputs] == ["product", "result1"]
    assert "x: f32[T, 8]" in repr(fn) and fn.program.dims[0].at == ("x.0",)


@pytest.mark.parametrize("place", ["T", "x.0", "arg0.0"])
def test_a_dim_is_given_by_name_or_place(place: str) -> None:
    fn = tw.compile(linear(), {place: (1, 9)})
    assert list(fn.dims) == ["T"]


def test_a_dim_known_by_its_place_takes_the_name_of_the_argument() -> None:
    fn = tw.compile(TEXT, {"input_ids.0": (1, 4), "count": (0, 7), "arg2.0": (1, 5)})
    assert list(fn.dims) == ["input_ids_0", "count", "arg2_0"]
    assert [d.at for d in fn.program.dims] == [("input_ids.0",), ("count",), ("arg2.0",)]
    with pytest.raises(ShapeError, match="dim input_ids_0 = 5 is outside"):
        fn(np.zeros((5, 8), np.float32), 1, np.zeros(1, np.float32))
    with pytest.raises(DTypeError, match="argument count: wanted an integer"):
        fn(np.zeros((4, 8), np.float32), 1.5, np.zeros(1, np.float32))


def test_one_name_at_places_of_both_forms() -> None:
    fn = tw.compile(TEXT, {"B": tw.Dim(1, 4, at=("input_ids.0", "arg2.0", "count"))})
    assert list(fn.dims) == ["B"] and fn.program.dims[0].at == ("input_ids.0", "count", "arg2.0")
    with pytest.raises(ShapeError, match=r"B = 2 from input_ids.0 but 3 from count"):
        fn(np.zeros((2, 8), np.float32), 3, np.zeros(2, np.float32))


def test_what_has_no_range_is_listed_by_name() -> None:
    with pytest.raises(IngestError, match=r'(?s)no range is given for input_ids.0, arg2.0.*"input_ids.0": tw.Dim\(1, 128\)'):
        tw.compile(TEXT, {})
    with pytest.raises(IngestError, match=r"input_ids.1 is no dynamic axis"):
        tw.compile(TEXT, {"input_ids.1": (1, 4)})


def test_names_are_used_once() -> None:
    with pytest.raises(IngestError, match="arguments 0 and 2 of @main are both called 'arg2'"):
        tw.compile(TEXT.replace("input_ids", "arg2"), {})


@pytest.mark.parametrize("names", [("w", "bias"), ("arg1", "arg2")])
def test_constants_go_by_name_or_position(names: tuple[str, str]) -> None:
    fn = tw.compile(linear(), {"T": (1, 9)}, constants=dict(zip(names, (W, B), strict=True)))
    np.testing.assert_allclose(fn(X)[1], X @ W + B, rtol=1e-5, atol=1e-6)
    assert [a.name for a in fn.inputs] == ["x"] and [c.name for c in fn.program.constants] == ["w", "bias"]


def test_a_constant_that_is_named_twice() -> None:
    with pytest.raises(OptionError, match="constants name argument w twice, also as 'arg1'"):
        tw.compile(linear(), {"T": (1, 9)}, constants={"w": W, "arg1": W})


@pytest.mark.parametrize("name", ["x", "arg0"])
def test_a_donation_goes_by_name_or_position(name: str) -> None:
    graph = ops.Graph()
    x = graph.input("x", ["T"])
    graph.output(x + 1.0)
    fn = tw.compile(graph, {"T": (1, 9)}, donate=(name,))
    given = np.zeros(4, np.float32)
    assert fn(given) is given
    assert list(fn(x=given)) == [2, 2, 2, 2]


def test_calls_by_name(fn: Any, tmp_path: Path) -> None:
    fn.save(tmp_path / "fn.tw")
    want = fn(X, W, B)
    for function in (fn, tw.load(tmp_path / "fn.tw")):
        for found in (function(x=X, w=W, bias=B), function(X, bias=B, w=W), function(X, W, bias=B, threads=1)):
            np.testing.assert_array_equal(found[1], want[1])
    room = (np.empty_like(want[0]), np.empty_like(want[1]))
    assert fn(X, w=W, bias=B, out=room) is room
    np.testing.assert_array_equal(room[0], want[0])


@pytest.mark.parametrize(("args", "named", "message"), [
    ((X,), {"w": W}, r"wanted 3 arguments \(x: f32\[T, 8\], w: f32\[8, 4\], bias: f32\[4\]\), got 2; pass bias too"),
    ((X, W), {"bais": B}, r"wanted the arguments \(x: .*\), got bais=; call each by its name; perhaps 'bias' is meant"),
    ((X, W, B), {"w": W}, "argument w: wanted one value, got two"),
    ((X, W, B, B), {"q": B}, r"wanted 3 arguments .*, got 5; leave the rest out"),
    ((X, W.T), {"bias": B}, r"argument w, axis 0: wanted extent 8 as in w: f32\[8, 4\]"),
    ((X.astype(np.float64),), {"w": W, "bias": B}, r"argument x: wanted f32 .* convert it with x.astype"),
])  # fmt: skip
def test_a_call_that_does_not_fit(fn: Any, args: tuple[Any, ...], named: dict[str, Any], message: str) -> None:
    with pytest.raises((DTypeError, ShapeError), match=message):
        fn(*args, **named)
