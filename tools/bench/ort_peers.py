"""ONNX Runtime: a graph per operator with weights as initializers, operands and results bound to fixed memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tools.bench.control.onnx_nodes import CONTROL
from tools.bench.onnx_graph import CONTRIB, Graph
from tools.bench.operator_spec import Array, Extent, Operator, Shape
from tools.bench.peers import Bound, UnsupportedError

_NHWC_TO_NCHW = (0, 3, 1, 2)


class _Ort:
    """Subclasses list the kinds they build."""

    def __init__(self, threads: int) -> None:
        import onnxruntime

        onnxruntime.set_default_logger_severity(3)
        self._threads = threads
        self._session: Any = None
        self._operator: Operator | None = None

    def version(self) -> str:
        import onnxruntime

        return f"onnxruntime {onnxruntime.__version__}"

    def kinds(self) -> Mapping[str, Callable[[Graph, Mapping[str, Any]], str]]:
        raise UnsupportedError

    def prepare(self, operator: Operator, constants: Mapping[str, Array]) -> None:
        import onnxruntime

        if operator.kind not in self.kinds() or operator.dtype != "f32" or operator.level:
            raise UnsupportedError(operator.name)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self._threads
        options.inter_op_num_threads = 1
        model = self._model(operator, constants).SerializeToString()
        self._operator = operator
        self._session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    def bind(self, shape: Shape, arguments: Mapping[str, Array], output: Array) -> Bound:
        session, binding, operator = self._session, self._session.io_binding(), self._operator
        assert operator
        values = {n: self.given(operator, a) for n, a in arguments.items()}
        result = self.given(operator, output)
        for name, array in values.items():
            binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        binding.bind_output("y", "cpu", 0, result.dtype, result.shape, result.ctypes.data)
        run = session.run_with_iobinding
        keep = (values, result)
        return Bound(lambda: run(binding), lambda: self.taken(operator, keep[1]))

    def given(self, operator: Operator, array: Array) -> Array:
        """An operand in the layout that this system takes."""
        if operator.kind == "conv" and operator.params["layout"] == "nhwc":
            return np.ascontiguousarray(array.transpose(_NHWC_TO_NCHW))
        return array

    def taken(self, operator: Operator, array: Array) -> Array:
        """A result in the operator's layout."""
        if operator.kind == "conv" and operator.params["layout"] == "nhwc":
            return np.ascontiguousarray(array.transpose(0, 2, 3, 1))
        return array

    def dims(self, operator: Operator, dims: tuple[Extent, ...]) -> list[Extent]:
        if operator.kind == "conv" and operator.params["layout"] == "nhwc":
            return [dims[i] for i in _NHWC_TO_NCHW]
        return list(dims)

    def _model(self, operator: Operator, constants: Mapping[str, Array]) -> Any:
        from onnx import TensorProto, helper, numpy_helper

        def info(name: str, dims: tuple[Extent, ...]) -> Any:
            return helper.make_tensor_value_info(name, TensorProto.FLOAT, self.dims(operator, dims))

        graph = Graph()
        last = self.kinds()[operator.kind](graph, operator.params)
        graph.nodes[-1].output[list(graph.nodes[-1].output).index(last)] = "y"
        weights = dict(constants)
        if operator.kind == "conv" and operator.params["layout"] == "nhwc":
            weights["w"] = np.ascontiguousarray(weights["w"].transpose(3, 2, 0, 1))
        stored = [numpy_helper.from_array(np.asarray(v), n) for n, v in {**weights, **graph.initializers}.items()]
        inputs = [info(n, i.dims) for n, i in operator.inputs.items() if not i.constant]
        made = helper.make_graph(graph.nodes, operator.name, inputs, [info("y", operator.output)], stored)
        model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid(CONTRIB, 1)])
        model.ir_version = 8
        return model


class Plain(_Ort):
    """Operators of the ONNX standard; what the runtime fuses, it fuses.

    A convolution in NHWC runs on operands in NCHW, the only layout that the CPU provider computes f32 convolutions in.
    """

    def kinds(self) -> Mapping[str, Callable[[Graph, Mapping[str, Any]], str]]:
        return {
            "dense": lambda g, p: g.node("MatMul", ["x", "w"]),
            "dense_nk": lambda g, p: g.node("Gemm", ["x", "w"], transB=1),
            "bmm_nt": lambda g, p: g.node("MatMul", ["q", g.node("Transpose", ["k"], perm=[0, 2, 1])]),
            "bmm_nn": lambda g, p: g.node("MatMul", ["p", "v"]),
            "softmax": lambda g, p: g.node("Softmax", ["x"], axis=-1),
            "layernorm": lambda g, p: g.node("LayerNormalization", ["x", "g", "b"], axis=-1, epsilon=1e-5),
            "rmsnorm": lambda g, p: g.node("SimplifiedLayerNormalization", ["x", "g"], axis=-1, epsilon=1e-6),
            "attention": _attention,
            "conv": lambda g, p: g.node("Conv", ["x", "w"], pads=[p["padding"]] * 4, strides=[p["stride"]] * 2),
            "bert_layer": _bert_layer,
            "resnet_block": _resnet_block,
            **CONTROL,
        }


class Fused(_Ort):
    """The contributed transformer operators that ONNX Runtime's own model optimizer puts in place."""

    def kinds(self) -> Mapping[str, Callable[[Graph, Mapping[str, Any]], str]]:
        return {"attention": _multi_head, "bert_layer": _bert_layer_fused}

    def given(self, operator: Operator, array: Array) -> Array:
        """[1, H, T, D] as [1, T, H * D], the layout of MultiHeadAttention."""
        if operator.kind != "attention":
            return array
        return np.ascontiguousarray(array.transpose(0, 2, 1, 3)).reshape(1, array.shape[2], -1)

    def taken(self, operator: Operator, array: Array) -> Array:
        if operator.kind != "attention":
            return array
        return array.reshape(*array.shape[:2], int(operator.output[1]), -1).transpose(0, 2, 1, 3)

    def dims(self, operator: Operator, dims: tuple[Extent, ...]) -> list[Extent]:
        if operator.kind != "attention":
            return list(dims)
        return [dims[0], dims[2], int(dims[1]) * int(dims[3])]


def _attention(g: Graph, params: Mapping[str, Any]) -> str:
    if params["causal"]:
        raise UnsupportedError("causal attention")
    scores = g.node("MatMul", ["q", g.node("Transpose", ["k"], perm=[0, 1, 3, 2])])
    weights = g.node("Softmax", [g.node("Mul", [scores, g.number(0.125)])], axis=-1)
    return str(g.node("MatMul", [weights, "v"]))


def _multi_head(g: Graph, params: Mapping[str, Any]) -> str:
    return str(g.node("MultiHeadAttention", ["q", "k", "v"], CONTRIB, num_heads=12, unidirectional=int(params["causal"])))


def _bert_layer(g: Graph, params: Mapping[str, Any]) -> str:
    heads = int(params["heads"])
    split = g.integers(0, 0, heads, 64)
    projected = g.node("Add", [g.node("MatMul", ["x", "w_qkv"]), "b_qkv"])
    parts = g.node("Split", [projected, g.integers(768, 768, 768)], outputs=3, axis=-1)
    orders = ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
    q, k, v = (g.node("Transpose", [g.node("Reshape", [t, split])], perm=o) for t, o in zip(parts, orders, strict=True))
    weights = g.node("Softmax", [g.node("Mul", [g.node("MatMul", [q, k]), g.number(0.125)])], axis=-1)
    mixed = g.node("Transpose", [g.node("MatMul", [weights, v])], perm=[0, 2, 1, 3])
    mixed = g.node("Reshape", [mixed, g.integers(0, 0, 768)])
    attended = g.node("Add", [g.node("MatMul", [mixed, "w_out"]), "b_out"])
    first = g.node("LayerNormalization", [g.node("Add", ["x", attended]), "g_1", "n_1"], axis=-1, epsilon=1e-5)
    inner = g.node("Add", [g.node("MatMul", [first, "w_up"]), "b_up"])
    erf = g.node("Erf", [g.node("Div", [inner, g.number(math.sqrt(2))])])
    gelu = g.node("Mul", [g.node("Mul", [inner, g.node("Add", [erf, g.number(1)])]), g.number(0.5)])
    down = g.node("Add", [g.node("MatMul", [gelu, "w_down"]), "b_down"])
    return str(g.node("LayerNormalization", [g.node("Add", [first, down]), "g_2", "n_2"], axis=-1, epsilon=1e-5))


def _bert_layer_fused(g: Graph, params: Mapping[str, Any]) -> str:
    mixed = g.node("Attention", ["x", "w_qkv", "b_qkv"], CONTRIB, num_heads=int(params["heads"]))
    attended = g.node("MatMul", [mixed, "w_out"])
    first = g.node("SkipLayerNormalization", ["x", attended, "g_1", "n_1", "b_out"], CONTRIB, epsilon=1e-5)
    inner = g.node("BiasGelu", [g.node("MatMul", [first, "w_up"]), "b_up"], CONTRIB)
    down = g.node("MatMul", [inner, "w_down"])
    return str(g.node("SkipLayerNormalization", [first, down, "g_2", "n_2", "b_down"], CONTRIB, epsilon=1e-5))


def _resnet_block(g: Graph, params: Mapping[str, Any]) -> str:
    first = g.node("Relu", [g.node("Conv", ["x", "w_1", "b_1"], pads=[1] * 4)])
    second = g.node("Conv", [first, "w_2", "b_2"], pads=[1] * 4)
    return str(g.node("Relu", [g.node("Add", ["x", second])]))
