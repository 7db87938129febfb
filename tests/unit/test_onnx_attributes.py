"""Attributes and operands at the ends of what ONNX allows, each as a model of one node, against NumPy or ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import tilewright as tw

onnx = pytest.importorskip("onnx")

from onnx import helper, numpy_helper  # noqa: E402

pytestmark = pytest.mark.usefixtures("built_here")

MOST = 2**63 - 1  # what exporters write for "to the end", or "the first one alone"
FLOAT, INTEGER = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64


def run(name: str, inputs: str, kinds: Mapping[str, Any], given: Mapping[str, Any], weights: Mapping[str, Any],
        element: int = FLOAT, **attributes: Any) -> Any:
    """The results of a node. kinds: axes of each input; dims are 1 to 9."""
    names = inputs.split()
    node = helper.make_node(name, ["" if n == "-" else n for n in names], ["y"], **attributes)
    infos = [helper.make_tensor_value_info(n, element, axes) for n, axes in kinds.items()]
    tensors = [numpy_helper.from_array(np.asarray(a), n) for n, a in weights.items()]
    graph = helper.make_graph([node], "g", infos, [helper.make_tensor_value_info("y", element, None)], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    dims = {d for axes in kinds.values() for d in axes if isinstance(d, str)}
    return tw.compile(model, dict.fromkeys(dims, (1, 9)))(**given)


@pytest.mark.parametrize(("begin", "end", "step"), [(0, 9, MOST), (2, 5, MOST), (-1, -MOST, -MOST), (8, MOST, 2**62), (1, 5, 3)])
def test_steps_beyond_the_axis(begin: int, end: int, step: int) -> None:
    bounds = {"s": np.int64([begin]), "e": np.int64([end]), "a": np.int64([-1]), "p": np.int64([step])}
    for n in (1, 4, 9):
        x = np.arange(4 * n, dtype=np.float32).reshape(4, n)
        found = run("Slice", "x s e a p", {"x": [4, "N"]}, {"x": x}, bounds)
        np.testing.assert_array_equal(found, x[:, begin:end:step])


def test_the_sign_of_nan_is_nan() -> None:
    x = np.float32([np.nan, -np.inf, -0.0, 3.0])
    np.testing.assert_array_equal(run("Sign", "x", {"x": ["N"]}, {"x": x}, {}), [np.nan, -1, 0, 1])
    whole = np.int64([-5, 0, 7])
    np.testing.assert_array_equal(run("Sign", "x", {"x": ["N"]}, {"x": whole}, {}, INTEGER), [-1, 0, 1])


@pytest.mark.parametrize("name", ["ReduceSum", "ReduceMin", "ReduceL1"])
def test_axes_of_which_none_would_mean_none(name: str) -> None:
    x = np.float32([[1, -2, 3], [-4, 5, 6]])
    wanted = {"ReduceSum": [[2], [7]], "ReduceMin": [[-2], [-4]], "ReduceL1": [[6], [15]]}[name]
    found = run(name, "x a", {"x": ["N", 3]}, {"x": x}, {"a": np.int64([-1])}, noop_with_empty_axes=1)
    np.testing.assert_array_equal(found, wanted)


def test_no_axes_and_no_summand() -> None:
    """What an attribute would say of operands that are not there."""
    x = np.float32([[1, -2, 3], [-4, 5, 6]])
    none = {"a": np.empty(0, np.int64)}
    np.testing.assert_array_equal(run("ReduceMax", "x a", {"x": ["N", 3]}, {"x": x}, none, noop_with_empty_axes=1, keepdims=0), x)
    found = run("Gemm", "x w", {"x": ["N", 3]}, {"x": x}, {"w": np.ones((3, 1), np.float32)}, alpha=0.5, beta=2.0)
    np.testing.assert_array_equal(found, [[1], [3.5]])
