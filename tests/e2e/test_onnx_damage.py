"""Damaged ONNX models: each is imported or refused by a typed error, whatever was done to its bytes or to its graph."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright.compiler.compilation.compilation import Compilation, full_target
from tilewright.compiler.frontends.imported import ImportedModel
from tilewright.runtime.errors import IngestError, TilewrightError

onnx = pytest.importorskip("onnx")
from onnx import helper, numpy_helper  # noqa: E402

NUMBERS = (-1, 0, 1, 2, 7, 2**40, 2**62)
OPERATORS = ("Relu", "Conv", "Gemm", "Slice", "Resize", "LSTM", "Loop", "If", "Pad", "TopK", "Nope", "", "Cast", "Einsum",
             "Expand", "Where", "Split", "Range", "DequantizeLinear")


def model(nodes: list[Any], x: list[Any], y: list[Any], **weights: Any) -> Any:
    tensors = [numpy_helper.from_array(np.asarray(v), n) for n, v in weights.items()]
    infos = [[helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, shape)] for n, shape in (("x", x), ("y", y))]
    return helper.make_model(helper.make_graph(nodes, "g", *infos, tensors), opset_imports=[helper.make_opsetid("", 18)])


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


NODE = helper.make_node
MODELS = (
    model([NODE("MatMul", ["x", "w"], ["a"]), NODE("Add", ["a", "b"], ["c"]), NODE("Softmax", ["c"], ["y"], axis=-1)],
          ["N", 8], ["N", 4], w=ones(8, 4), b=ones(4)),
    model([NODE("Conv", ["x", "w", "b"], ["a"], kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2]),
           NODE("MaxPool", ["a"], ["c"], kernel_shape=[2, 2]), NODE("Flatten", ["c"], ["d"]),
           NODE("Gemm", ["d", "v"], ["y"], transB=1)],
          ["N", 2, 8, 8], ["N", 3], w=ones(4, 2, 3, 3), b=ones(4), v=ones(3, 16)),
    model([NODE("Shape", ["x"], ["s"]), NODE("Gather", ["s", "k"], ["n"]), NODE("Unsqueeze", ["n", "at"], ["u"]),
           NODE("Concat", ["u", "m"], ["sh"], axis=0), NODE("Reshape", ["x", "sh"], ["r"]),
           NODE("Transpose", ["r"], ["t"], perm=[0, 2, 1]), NODE("ReduceSum", ["t", "ax"], ["y"], keepdims=0)],
          ["N", 8], ["N", None], k=np.int64(0), at=np.int64([0]), m=np.int64([2, 4]), ax=np.int64([1])),
)  # fmt: skip


def damaged_bytes(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(changed))
        match rng.randrange(4):
            case 0:
                changed[at] ^= 1 << rng.randrange(8)
            case 1:
                changed[at] = rng.choice((0, 1, 2, 7, 127, 128, 255))
            case 2:
                del changed[at : at + rng.randrange(1, 6)]
            case 3:
                changed[at:at] = rng.randbytes(rng.randrange(1, 4))
    return bytes(changed)


def damaged_graph(given: Any, rng: random.Random) -> Any:
    made = onnx.ModelProto.FromString(given.SerializeToString())
    node, weight = rng.choice(made.graph.node), rng.choice(made.graph.initializer)
    value = rng.choice((*made.graph.input, *made.graph.output)).type.tensor_type
    names = [name for n in made.graph.node for name in (*n.input, *n.output)]
    changes: list[Callable[[], Any]] = [
        lambda: setattr(node, "op_type", rng.choice(OPERATORS)),
        lambda: node.input.__setitem__(rng.randrange(len(node.input)), rng.choice([*names, "", "none"])),
        lambda: weight.dims.__setitem__(slice(None), [rng.choice(NUMBERS) for _ in range(rng.randrange(4))]),
        lambda: setattr(weight, "data_type", rng.randrange(24)),
        lambda: setattr(value, "elem_type", rng.randrange(24)),
        lambda: setattr(rng.choice(value.shape.dim), "dim_value", rng.choice(NUMBERS)),
        lambda: setattr(rng.choice(value.shape.dim), "dim_param", rng.choice(("", "1", "a b", "ﬁ", "x*"))),
    ]
    if node.attribute:
        attribute = rng.choice(node.attribute)
        changes += [lambda: setattr(attribute, "i", rng.choice(NUMBERS)), lambda: setattr(attribute, "type", rng.randrange(14)),
                    lambda: attribute.ints.__setitem__(slice(None), [rng.choice(NUMBERS) for _ in range(rng.randrange(5))])]
    rng.choice(changes)()
    return made


def test_damaged_models_are_imported_or_refused(tmp_path: Any) -> None:
    path, kinds = tmp_path / "m.onnx", set()
    for seed in range(240):
        rng = random.Random(seed)
        base = rng.choice(MODELS)
        given = damaged_graph(base, rng)
        if seed % 2:
            path.write_bytes(damaged_bytes(base.SerializeToString(), rng))
            given = path
        try:
            kinds.add(type(Compilation(given, {"N": (1, 4)}, full_target("host")).model))
        except TilewrightError as error:
            kinds.add(type(error))
    assert {ImportedModel, IngestError} <= kinds


def test_names_that_are_no_text() -> None:
    data = MODELS[0].SerializeToString().replace(b"N", b"\xff")
    with pytest.raises(IngestError, match=r"is damaged: the name b'\\xff' in it is no text in UTF-8"):
        Compilation(onnx.ModelProto.FromString(data), {}, full_target("host")).model  # noqa: B018


def test_a_roi_of_another_length() -> None:
    resize = model([NODE("Resize", ["x", "roi", "scales"], ["y"])], [1, 1, 4, 4], [1, 1, 8, 8], roi=ones(3),
                   scales=np.float32([1, 1, 2, 2]))
    with pytest.raises(IngestError, match="a roi of 3 numbers for 4 axes"):
        Compilation(resize, {}, full_target("host")).model  # noqa: B018
