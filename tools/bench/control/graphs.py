"""The cases of the suite `control` as `tw.ops` writes them: every step in a loop, nothing moved out of it by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from tilewright.compiler import ops
from tilewright.runtime.shape import Expr
from tools.bench.control import decoding

Operands = Mapping[str, ops.Tensor]


def running_sum(a: Operands) -> ops.Tensor:
    x = a["x"]

    def body(t: Expr, total: ops.Tensor) -> tuple[ops.Tensor, ...]:
        total = total + ops.select(x, 0, t)
        return total, total

    return ops.scan(x.graph, x.dims[0], body, _zeros(x, 1))[-1]


def selective_scan(a: Operands) -> ops.Tensor:
    x, rate = a["x"], -ops.exp(a["a"])
    whole = rate.dims

    def body(t: Expr, state: ops.Tensor) -> tuple[ops.Tensor, ...]:
        delta = ops.exp(ops.select(a["d"], 0, t))
        b, c = (ops.broadcast_to(ops.select(a[n], 0, t), whole) for n in "bc")
        decay = ops.exp(_down(delta, whole) * rate)
        state = decay * state + _down(delta * ops.select(x, 0, t), whole) * b
        return state, ops.sum(state * c, -1)

    return ops.scan(x.graph, x.dims[0], body, x.graph.full(list(whole), 0, "f32"))[-1]


def lstm(a: Operands) -> ops.Tensor:
    x = a["x"]

    def body(t: Expr, state: ops.Tensor, cell: ops.Tensor) -> tuple[ops.Tensor, ...]:
        gates = _product(ops.select(x, 0, t), a["w"], a["b"]) + _product(state, a["r"], a["s"])
        i, f, g, o = _parts(gates, 4)
        cell = ops.sigmoid(f) * cell + ops.sigmoid(i) * ops.tanh(g)
        state = ops.sigmoid(o) * ops.tanh(cell)
        return state, cell, state

    return ops.scan(x.graph, x.dims[0], body, _zeros(x, 1), _zeros(x, 1))[-1]


def gru(a: Operands) -> ops.Tensor:
    x = a["x"]

    def body(t: Expr, state: ops.Tensor) -> tuple[ops.Tensor, ...]:
        r, z, n = _parts(_product(ops.select(x, 0, t), a["w"], a["b"]), 3)
        hr, hz, hn = _parts(_product(state, a["r"], a["s"]), 3)
        z = ops.sigmoid(z + hz)
        new = ops.tanh(n + ops.sigmoid(r + hr) * hn)
        state = new + z * (state - new)
        return state, state

    return ops.scan(x.graph, x.dims[0], body, _zeros(x, 1))[-1]


def greedy(a: Operands) -> ops.Tensor:
    x, width = a["x"], a["x"].dims[1]

    def body(t: Expr, state: ops.Tensor, token: ops.Tensor) -> tuple[ops.Tensor, ...]:
        given = ops.gather(a["e"], token) + ops.select(x, 0, t)
        state = ops.tanh(ops.matmul(state, a["w"]) + given)
        return state, ops.argmax(ops.matmul(state, a["u"]), -1), ops.reshape(state, [width])

    start = (x.graph.full([1, width], 0, "f32"), x.graph.full([1], 0, "i64"))
    return ops.scan(x.graph, x.dims[0], body, *start)[-1]


def branch(a: Operands) -> ops.Tensor:
    x, w = a["x"], a["w"]
    positive = ops.compare(ops.sum(x), x.graph.full([], 0, "f32"), "gt")
    return ops.cond(positive, lambda v: ops.relu(ops.matmul(v, w)), ops.tanh, x)[0]


def _parts(x: ops.Tensor, count: int) -> list[ops.Tensor]:
    return ops.split(x, [x.dims[-1] // count] * count, -1)


def _zeros(x: ops.Tensor, first: int) -> ops.Tensor:
    return x.graph.full(list(x.dims[first:]), 0, "f32")


def _down(x: ops.Tensor, whole: tuple[Expr, ...]) -> ops.Tensor:
    return ops.broadcast_to(ops.reshape(x, [whole[0], 1]), whole)


def _product(x: ops.Tensor, w: ops.Tensor, bias: ops.Tensor) -> ops.Tensor:
    return ops.matmul(x, w, transpose_b=True) + bias


GRAPHS: Mapping[str, Callable[[Operands], ops.Tensor]] = {
    "running_sum": running_sum, "selective_scan": selective_scan, "lstm": lstm, "gru": gru, "greedy": greedy, "branch": branch,
    **{kind: partial(decoding.graph, beams=beams) for kind, beams in decoding.KINDS.items()},
}
