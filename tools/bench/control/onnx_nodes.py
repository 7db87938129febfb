"""The cases of the suite `control` as ONNX: an operator where there is one, else Scan (a Loop whose rows are cut and joined)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from tools.bench.control.decoding import KINDS, onnx_decoded
from tools.bench.onnx_graph import Graph

Build = Callable[[Graph, Mapping[str, Any]], str]


def running_sum(g: Graph, _: Mapping[str, Any]) -> str:
    return str(g.node("CumSum", ["x", g.integers(0)]))


def selective_scan(g: Graph, _: Mapping[str, Any]) -> str:
    rate = g.node("Neg", [g.node("Exp", ["a"])])
    step = Graph("step_")
    column = step.integers(1)
    decay = step.node("Exp", [step.node("Mul", [step.node("Unsqueeze", ["d_t", column]), rate])])
    given = step.node("Mul", [step.node("Unsqueeze", [step.node("Mul", ["d_t", "x_t"]), column]), "b_t"])
    state = step.node("Add", [step.node("Mul", [decay, "h"]), given])
    row = step.node("MatMul", [state, "c_t"])
    start = g.node("Mul", [rate, g.number(0)])
    return _scan(g, step, {"h": (start, state)}, {"d_t": g.node("Exp", ["d"]), "x_t": "x", "b_t": "b", "c_t": "c"}, row)


def greedy(g: Graph, _: Mapping[str, Any]) -> str:
    step = Graph("step_")
    given = step.node("Add", [step.node("Gather", ["e", "token"]), "x_t"])
    state = step.node("Tanh", [step.node("Add", [step.node("MatMul", ["h", "w"]), given])])
    token = step.node("ArgMax", [step.node("MatMul", [state, "u"])], axis=-1, keepdims=0)
    row = step.node("Squeeze", [state, step.integers(0)])
    first = g.node("Gather", ["e", g.integers(0)], axis=0)
    starts = {"h": (g.node("Mul", [first, g.number(0)]), state), "token": (g.integers(0), token)}
    return _scan(g, step, starts, {"x_t": "x"}, row)


def lstm(g: Graph, params: Mapping[str, Any]) -> str:
    return _layer(g, "LSTM", (0, 3, 1, 2), hidden_size=params["width"])  # its gates are input, output, forget, cell


def gru(g: Graph, params: Mapping[str, Any]) -> str:
    return _layer(g, "GRU", (1, 0, 2), hidden_size=params["width"], linear_before_reset=1)  # update, reset, hidden


def branch(g: Graph, _: Mapping[str, Any]) -> str:
    then, otherwise = Graph("then_"), Graph("else_")
    product = then.node("Relu", [then.node("MatMul", ["x", "w"])])
    elements = otherwise.node("Tanh", ["x"])
    positive = g.node("Greater", [g.node("ReduceSum", ["x"], keepdims=0), g.number(0)])
    return str(g.node("If", [positive], then_branch=_nested(then, "then", [], [product]),
                      else_branch=_nested(otherwise, "else", [], [elements])))


def _layer(g: Graph, kind: str, order: Sequence[int], **attributes: Any) -> str:
    """A recurrent layer. order: where torch has each gate of ONNX."""
    gates, first = len(order), g.integers(0)

    def sorted_(name: str) -> Any:
        parts = g.node("Split", [name], outputs=gates, axis=0)
        return g.node("Concat", [parts[i] for i in order], axis=0)

    biases = g.node("Concat", [sorted_("b"), sorted_("s")], axis=0)
    operands = [g.node("Unsqueeze", [v, first]) for v in (sorted_("w"), sorted_("r"), biases)]
    whole = g.node(kind, ["x", *operands], **attributes)  # [T, 1, B, width]
    return str(g.node("Squeeze", [whole, g.integers(1)]))


def _scan(g: Graph, step: Graph, states: Mapping[str, tuple[str, str]], rows: Mapping[str, str], row: str) -> str:
    """states: name in the body -> what it starts from, what it goes on with; rows: name in the body -> what it is cut from."""
    ends = [step.node("Identity", [after]) for _, after in states.values()]
    body = _nested(step, "step", [*states, *rows], [*ends, row])
    starts = [start for start, _ in states.values()]
    return str(g.node("Scan", [*starts, *rows.values()], outputs=len(states) + 1, body=body, num_scan_inputs=len(rows))[-1])


def _decoded(g: Graph, _: Mapping[str, Any], beams: int) -> str:
    return onnx_decoded(g, beams, _loop)


def _loop(g: Graph, step: Graph, states: Mapping[str, tuple[str, str]], row: str) -> str:
    """A Loop over the rows of x, whose number is `step_t`; states as those of _scan."""
    ends = [step.node("Identity", [v]) for v in ("step_go", *(after for _, after in states.values()))]
    body = _nested(step, "step", ["step_t", "step_go", *states], [*ends, step.node("Identity", [row])])
    kinds = {"step_t": 7, "token": 7, "step_go": 9}  # of TensorProto: INT64, BOOL
    for value, name in zip((*body.input, *body.output), (*("step_t", "step_go"), *states, "step_go", *states), strict=False):
        value.type.tensor_type.elem_type = kinds.get(name, 1)
        if name in ("step_t", "step_go"):
            value.type.tensor_type.shape.SetInParent()  # of rank 0
    count = g.node("Gather", [g.node("Shape", ["x"]), g.value(np.array(0, np.int64))], axis=0)
    starts = [start for start, _ in states.values()]
    return str(g.node("Loop", [count, "", *starts], outputs=len(states) + 1, body=body)[-1])


def _nested(graph: Graph, name: str, inputs: Sequence[str], outputs: Sequence[str]) -> Any:
    from onnx import TensorProto, helper, numpy_helper

    def info(given: str) -> Any:
        return helper.make_tensor_value_info(given, TensorProto.INT64 if given in _INTEGERS else TensorProto.FLOAT, None)

    integral = {n.output[0] for n in graph.nodes if n.op_type == "ArgMax"}
    integral |= {n.output[0] for n in graph.nodes if n.op_type == "Identity" and n.input[0] in integral}
    results = [helper.make_tensor_value_info(o, TensorProto.INT64 if o in integral else TensorProto.FLOAT, None) for o in outputs]
    stored = [numpy_helper.from_array(np.asarray(v), n) for n, v in graph.initializers.items()]
    return helper.make_graph(graph.nodes, name, [info(i) for i in inputs], results, stored)


_INTEGERS = {"token"}
CONTROL: Mapping[str, Build] = {
    "running_sum": running_sum, "selective_scan": selective_scan, "lstm": lstm, "gru": gru, "greedy": greedy, "branch": branch,
    **{kind: partial(_decoded, beams=beams) for kind, beams in KINDS.items()},
}
