"""Recurrent layers over a fixed number of steps, which are unrolled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright.compiler import ops
from tilewright.compiler.frontends.onnx.context import Context, operator
from tilewright.compiler.ops import pointwise, scalar_functions
from tilewright.compiler.ops.body import Scalar
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

_MOST_STEPS = 128
_Activation = Callable[[Scalar], Scalar]
_ACTIVATIONS: dict[str, _Activation] = {
    "relu": pointwise.scalar_relu,
    "sigmoid": pointwise.scalar_sigmoid,
    "softsign": lambda v: v / (scalar_functions.absolute(v) + 1),
    "tanh": lambda v: v.math("tanh"),
}


@dataclass(frozen=True)
class _Layer:
    """One direction. x: [steps, batch, gates * hidden], already multiplied; recurrent: [gates * hidden, hidden]."""

    context: Context
    x: ops.Tensor
    recurrent: ops.Tensor
    bias: ops.Tensor | None
    hidden: Expr
    lengths: ops.Tensor | None
    activations: Sequence[_Activation]
    peepholes: ops.Tensor | None = None

    @property
    def batch(self) -> Expr:
        return self.x.dims[1]

    def step(self, t: int) -> ops.Tensor:
        """The gates' inputs at a step, [batch, gates * hidden]."""
        return ops.select(self.x, 0, t)

    def gate(self, gates: ops.Tensor, number: int) -> ops.Tensor:
        """[batch, hidden] of one gate; of a bias or peepholes [hidden]."""
        return ops.narrow(gates, -1, self.hidden * number, self.hidden)

    def times(self, h: ops.Tensor, first: int = 0, count: int | None = None) -> ops.Tensor:
        """h times the recurrent weights of some gates."""
        weights = self.recurrent if count is None else ops.narrow(self.recurrent, 0, self.hidden * first, self.hidden * count)
        return ops.matmul(h, weights, transpose_b=True)

    def apply(self, number: int, x: ops.Tensor) -> ops.Tensor:
        clip = self.context.attribute("clip", 0.0)
        function = self.activations[number]

        def scalar(v: Scalar) -> Scalar:
            return function(v.maximum(-clip).minimum(clip) if clip else v)

        return x.graph.pointwise(self.context.node.op_type, scalar, x)


_State = tuple[ops.Tensor, ...]
_Cell = Callable[[_Layer, int, _State], _State]


@operator("RNN")
def rnn(context: Context, x: ops.Tensor, w: ops.Tensor, r: ops.Tensor, *rest: ops.Tensor | None) -> list[ops.Tensor]:
    def cell(layer: _Layer, t: int, state: _State) -> _State:
        total = ops.add(layer.step(t), layer.times(state[0]))
        if layer.bias is not None:
            total = ops.add(total, layer.gate(layer.bias, 1))
        return (layer.apply(0, total),)

    return _recurrent(context, (x, w, r, *rest), cell, ["tanh"], 1)


@operator("GRU")
def gru(context: Context, x: ops.Tensor, w: ops.Tensor, r: ops.Tensor, *rest: ops.Tensor | None) -> list[ops.Tensor]:
    """Gates z, r, h."""
    after = bool(context.attribute("linear_before_reset", 0))

    def biased(layer: _Layer, v: ops.Tensor, gate: int, count: int = 1) -> ops.Tensor:
        return v if layer.bias is None else ops.add(v, ops.narrow(layer.bias, 0, layer.hidden * (3 + gate), layer.hidden * count))

    def cell(layer: _Layer, t: int, state: _State) -> _State:
        h, gates = state[0], layer.step(t)
        both = biased(layer, ops.add(ops.narrow(gates, -1, 0, layer.hidden * 2), layer.times(h, 0, 2)), 0, 2)
        z, reset = (layer.apply(0, layer.gate(both, i)) for i in (0, 1))
        if after:
            inner = ops.multiply(reset, biased(layer, layer.times(h, 2, 1), 2))
        else:
            inner = biased(layer, layer.times(ops.multiply(reset, h), 2, 1), 2)
        fresh = layer.apply(1, ops.add(layer.gate(gates, 2), inner))
        return (context.graph.pointwise("GRU", lambda a, b, c: (1 - a) * b + a * c, z, fresh, h),)

    return _recurrent(context, (x, w, r, *rest), cell, ["sigmoid", "tanh"], 1)


@operator("LSTM")
def lstm(context: Context, x: ops.Tensor, w: ops.Tensor, r: ops.Tensor, *rest: ops.Tensor | None) -> list[ops.Tensor]:
    """Gates i, o, f, c."""
    coupled = bool(context.attribute("input_forget", 0))

    def seen(layer: _Layer, gate: ops.Tensor, number: int, cell: ops.Tensor) -> ops.Tensor:
        if layer.peepholes is None:
            return gate
        return ops.add(gate, ops.multiply(layer.gate(layer.peepholes, number), cell))

    def cell(layer: _Layer, t: int, state: _State) -> _State:
        h, c = state
        gates = ops.add(layer.step(t), layer.times(h))
        if layer.bias is not None:
            gates = ops.add(gates, ops.narrow(layer.bias, 0, layer.hidden * 4, layer.hidden * 4))
        i = layer.apply(0, seen(layer, layer.gate(gates, 0), 0, c))
        f = 1 - i if coupled else layer.apply(0, seen(layer, layer.gate(gates, 2), 2, c))
        fresh = layer.apply(1, layer.gate(gates, 3))
        c = ops.add(ops.multiply(f, c), ops.multiply(i, fresh))
        o = layer.apply(0, seen(layer, layer.gate(gates, 1), 1, c))
        return ops.multiply(o, layer.apply(2, c)), c

    return _recurrent(context, (x, w, r, *rest), cell, ["sigmoid", "tanh", "tanh"], 2)


def _recurrent(
    context: Context, inputs: Sequence[ops.Tensor | None], cell: _Cell, functions: Sequence[str], states: int
) -> list[ops.Tensor]:
    """Y [steps, directions, batch, hidden] and the last states [directions, batch, hidden], or batch first with layout=1."""
    x, w, r, bias, lengths = (inputs[i] if i < len(inputs) else None for i in range(5))
    rest = [inputs[i] if i < len(inputs) else None for i in range(5, 8)]
    assert x is not None and w is not None and r is not None
    batch_first = bool(context.attribute("layout", 0))
    x = ops.swap_axes(x, 0, 1) if batch_first else x
    steps = x.dims[0].constant
    context.require(
        steps is not None and steps <= _MOST_STEPS,
        f"control flow is not compiled yet, and {x.dims[0]} steps are not unrolled",
        f"Make the number of steps an integer of at most {_MOST_STEPS}",
    )
    starts = [ops.swap_axes(s, 0, 1) if batch_first and s is not None else s for s in rest[:states]]
    direction = context.attribute("direction", "forward")
    ways = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[direction]
    names = [
        a.decode().lower() if isinstance(a, bytes) else a.lower()
        for a in context.attribute("activations", list(functions) * len(ways))
    ]
    context.require(all(n in _ACTIVATIONS for n in names), f"activations {', '.join(names)}", f"Use {', '.join(_ACTIVATIONS)}")
    found, last = [], []
    for d, backward in enumerate(ways):
        layer = _layer(
            context,
            d,
            (x, w, r, bias, lengths, rest[2] if states == 2 else None),
            names[d * len(functions) : (d + 1) * len(functions)],
        )
        state = tuple(
            ops.select(s, 0, d) if s is not None else ops.zeros(context.graph, [layer.batch, layer.hidden], x.dtype)
            for s in starts
        )
        outputs, state = _unrolled(layer, cell, state, range(steps or 0), backward)
        found.append(ops.stack(outputs, 0))
        last.append(state)
    results = [ops.stack(found, 1), *(ops.stack([s[i] for s in last], 0) for i in range(states))]
    if not batch_first:
        return results
    return [ops.transpose(results[0], [2, 0, 1, 3]), *(ops.swap_axes(s, 0, 1) for s in results[1:])]


def _layer(context: Context, number: int, inputs: Sequence[ops.Tensor | None], names: Sequence[str]) -> _Layer:
    x, w, r, bias, lengths, peepholes = inputs
    assert x is not None and w is not None and r is not None
    hidden = r.dims[-1]
    own = None if bias is None else ops.select(bias, 0, number)
    gates = ops.matmul(x, ops.select(w, 0, number), transpose_b=True)
    if own is not None:
        gates = ops.add(gates, ops.narrow(own, 0, 0, w.dims[1]))
    return _Layer(
        context,
        gates,
        ops.select(r, 0, number),
        own,
        hidden,
        lengths,
        [_ACTIVATIONS[n] for n in names],
        None if peepholes is None else ops.select(peepholes, 0, number),
    )


def _unrolled(layer: _Layer, cell: _Cell, state: _State, steps: range, backward: bool) -> tuple[list[ops.Tensor], _State]:
    """Outputs in the order of the steps, and the last state. Beyond a sequence's length outputs are 0 and the state stays."""
    outputs: list[ops.Tensor] = []
    graph = layer.context.graph
    for t in reversed(steps) if backward else steps:
        after = cell(layer, t, state)
        if layer.lengths is None:
            state, shown = after, after[0]
        else:
            inside = ops.reshape(ops.compare(ops.cast(layer.lengths, DType.I64), t, "gt"), [layer.batch, 1])
            state = tuple(ops.where(inside, new, old) for new, old in zip(after, state, strict=True))
            shown = ops.where(inside, after[0], ops.zeros(graph, [], after[0].dtype))
        outputs.append(shown)
    return (outputs[::-1] if backward else outputs), state
