"""Recurrent layers: every step of a sequence, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tilewright.compiler import ops
from tilewright.compiler.frontends.onnx.context import Context, operator
from tilewright.compiler.ops import pointwise, scalar_functions
from tilewright.compiler.ops.body import Scalar
from tilewright.runtime.shape import Expr

_Activation = Callable[[Scalar], Scalar]
_ACTIVATIONS: dict[str, _Activation] = {
    "relu": pointwise.scalar_relu,
    "sigmoid": pointwise.scalar_sigmoid,
    "softsign": lambda v: v / (scalar_functions.absolute(v) + 1),
    "tanh": lambda v: v.math("tanh"),
}


@dataclass(frozen=True)
class _Layer:
    """One direction. x: [steps, batch, inputs]; weights: [gates * hidden, inputs]; recurrent: [gates * hidden, hidden]; bias: of
    the gates of the input, then of the recurrent product."""

    context: Context
    x: ops.Tensor
    weights: ops.Tensor
    recurrent: ops.Tensor
    bias: ops.Tensor | None
    hidden: Expr
    lengths: ops.Tensor | None
    activations: Sequence[_Activation]
    peepholes: ops.Tensor | None = None

    @property
    def batch(self) -> Expr:
        return self.x.dims[1]

    def given(self, x: ops.Tensor) -> ops.Tensor:
        """[..., gates * hidden]: the gates of what a step, or all of them, take of the input [..., inputs]."""
        gates = ops.matmul(x, self.weights, transpose_b=True)
        return gates if self.bias is None else gates + ops.narrow(self.bias, 0, 0, self.weights.dims[0])

    def gate(self, gates: ops.Tensor, number: int) -> ops.Tensor:
        """[batch, hidden] of one gate; of a bias or peepholes [hidden]."""
        return ops.narrow(gates, -1, self.hidden * number, self.hidden)

    def biased(self, v: ops.Tensor, first: int, count: int = 1) -> ops.Tensor:
        """v with the bias of some gates; those of the recurrent product come after those of the input."""
        return v if self.bias is None else v + ops.narrow(self.bias, 0, self.hidden * first, self.hidden * count)

    def times(self, h: ops.Tensor, first: int = 0, count: int | None = None) -> ops.Tensor:
        """h times the recurrent weights of some gates."""
        weights = self.recurrent if count is None else ops.narrow(self.recurrent, 0, self.hidden * first, self.hidden * count)
        return ops.matmul(h, weights, transpose_b=True)

    def function(self, number: int) -> Callable[[ops.Tensor], ops.Tensor]:
        """An activation function, of clipped values on request."""
        clip = self.context.attribute("clip", 0.0)
        function = self.activations[number]

        def scalar(v: Scalar) -> Scalar:
            return function(v.maximum(-clip).minimum(clip) if clip else v)

        return lambda x: x.graph.pointwise(self.context.node.op_type, scalar, x)


_State = tuple[ops.Tensor, ...]
_Cell = Callable[[_Layer, ops.Tensor, _State], _State]  # the gates' inputs at a step [batch, gates * hidden], the state before


@operator("RNN")
def rnn(context: Context, x: ops.Tensor, w: ops.Tensor, r: ops.Tensor, *rest: ops.Tensor | None) -> list[ops.Tensor]:
    def cell(layer: _Layer, gates: ops.Tensor, state: _State) -> _State:
        return (layer.function(0)(layer.biased(gates + layer.times(state[0]), 1)),)

    return _recurrent(context, (x, w, r, *rest), cell, ["tanh"], 1)


@operator("GRU")
def gru(context: Context, x: ops.Tensor, w: ops.Tensor, r: ops.Tensor, *rest: ops.Tensor | None) -> list[ops.Tensor]:
    """Gates z, r, h."""
    after = bool(context.attribute("linear_before_reset", 0))

    def cell(layer: _Layer, gates: ops.Tensor, state: _State) -> _State:
        h = state[0]
        both = layer.biased(ops.narrow(gates, -1, 0, layer.hidden * 2) + layer.times(h, 0, 2), 3, 2)

        def new(reset: ops.Tensor) -> ops.Tensor:
            if after:
                return layer.gate(gates, 2) + reset * layer.biased(layer.times(h, 2, 1), 5)
            return layer.gate(gates, 2) + layer.biased(layer.times(reset * h, 2, 1), 5)

        return ops.gru_step(layer.gate(both, 0), layer.gate(both, 1), new, h, (layer.function(0), layer.function(1)))

    return _recurrent(context, (x, w, r, *rest), cell, ["sigmoid", "tanh"], 1)


@operator("LSTM")
def lstm(context: Context, x: ops.Tensor, w: ops.Tensor, r: ops.Tensor, *rest: ops.Tensor | None) -> list[ops.Tensor]:
    """Gates i, o, f, c; peepholes i, o, f."""
    coupled = bool(context.attribute("input_forget", 0))

    def cell(layer: _Layer, gates: ops.Tensor, state: _State) -> _State:
        total = layer.biased(gates + layer.times(state[0]), 4, 4)
        sides = [layer.gate(total, n) for n in (0, 2, 3, 1)]
        peepholes = None if layer.peepholes is None else [layer.gate(layer.peepholes, n) for n in (0, 2, 1)]
        functions = layer.function(0), layer.function(1), layer.function(2)
        return ops.lstm_step(sides, state[1], functions, peepholes, coupled)

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
        outputs, state = ops.recurrence(layer.x, state, partial(cell, layer), backward, layer.lengths, layer.given)
        found.append(outputs)
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
    return _Layer(
        context,
        x,
        ops.select(w, 0, number),
        ops.select(r, 0, number),
        own,
        hidden,
        lengths,
        [_ACTIVATIONS[n] for n in names],
        None if peepholes is None else ops.select(peepholes, 0, number),
    )
