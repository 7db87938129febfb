"""Recurrent layers: every step of a sequence, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilewright.compiler import ops
from tilewright.compiler.frontends.registry import register
from tilewright.compiler.frontends.torch.context import Context
from tilewright.runtime.shape import Expr

State = tuple[ops.Tensor, ...]
Cell = Callable[[ops.Tensor, State, Sequence[ops.Tensor]], State]  # projected input, state, recurrent weights


def _lstm(projected: ops.Tensor, state: State, weights: Sequence[ops.Tensor]) -> State:
    """Input, forget, cell and output gate side by side."""
    return ops.lstm_step(ops.chunk(projected + _product(state[0], weights), 4, 1), state[1])


def _gru(projected: ops.Tensor, state: State, weights: Sequence[ops.Tensor]) -> State:
    """Reset, update and new gate side by side."""
    own, recurrent = ops.chunk(projected, 3, 1), ops.chunk(_product(state[0], weights), 3, 1)
    return ops.gru_step(own[1] + recurrent[1], own[0] + recurrent[0], lambda reset: own[2] + reset * recurrent[2], state[0])


def _elman(function: Callable[[ops.Tensor], ops.Tensor]) -> Cell:
    return lambda projected, state, weights: (function(projected + _product(state[0], weights)),)


def _product(x: ops.Tensor, weights: Sequence[ops.Tensor]) -> ops.Tensor:
    """x @ weight^T + bias, the bias where there is one."""
    total = ops.matmul(x, weights[0], transpose_b=True)
    return total + weights[1] if len(weights) > 1 else total


def _projecting(cell: Cell, weight: ops.Tensor) -> Cell:
    """The same with a product behind the hidden state (`proj_size`)."""
    def step(projected: ops.Tensor, state: State, weights: Sequence[ops.Tensor]) -> State:
        hidden, *rest = cell(projected, state, weights)
        return ops.matmul(hidden, weight, transpose_b=True), *rest

    return step


def _layer(x: ops.Tensor, state: State, weights: Sequence[ops.Tensor], cell: Cell, backwards: bool) -> tuple[ops.Tensor, State]:
    """One direction of one layer: x [T, B, I] -> [T, B, H], and the last state."""
    own, recurrent = weights[0::2], weights[1::2]
    return ops.recurrence(x, state, lambda t, before: cell(t, before, recurrent), backwards, given=lambda v: _product(v, own))


def _network(context: Context, x: ops.Tensor, states: Sequence[ops.Tensor], weights: Sequence[ops.Tensor], options: Sequence[Any],
             cell: Cell, projects: bool = False) -> list[ops.Tensor]:  # fmt: skip
    """options: has_biases, num_layers, dropout, train, bidirectional, batch_first. projects: each direction of a layer has the
    weight of a projection last."""
    biases, layers, dropout, train, bidirectional, batch_first = options
    if train and dropout:
        context.refuse("dropout between layers makes random numbers", "call model.eval() before the export")
    if x.rank != 3:
        context.refuse("an input without a batch axis", "add one with unsqueeze")
    x = ops.transpose(x, [1, 0, 2]) if batch_first else x
    each = (4 if biases else 2) + projects
    last: list[State] = []
    for layer in range(layers):
        made = []
        for direction in range(2 if bidirectional else 1):
            number = layer * (2 if bidirectional else 1) + direction
            start = tuple(ops.select(s, 0, number) for s in states)
            own = weights[number * each : (number + 1) * each]
            one = _projecting(cell, own[-1]) if projects else cell
            result, state = _layer(x, start, own[:-1] if projects else own, one, direction == 1)
            made.append(result)
            last.append(state)
        x = made[0] if len(made) == 1 else ops.concat(made, 2)
    final = [ops.stack(list(s), 0) for s in zip(*last, strict=True)]
    return [ops.transpose(x, [1, 0, 2]) if batch_first else x, *final]


@register("torch", "aten.lstm.input", "tilewright.lstm.default")
def lstm(
    context: Context, x: ops.Tensor, hx: Sequence[ops.Tensor], params: Sequence[ops.Tensor], *options: Any
) -> list[ops.Tensor]:
    biases, layers, _, _, bidirectional, _ = options
    projects = len(params) > layers * (2 if bidirectional else 1) * (4 if biases else 2)
    return _network(context, x, hx, params, options, _lstm, projects)


@register("torch", "aten.gru.input", "tilewright.gru.default")
def gru(context: Context, x: ops.Tensor, hx: ops.Tensor, params: Sequence[ops.Tensor], *options: Any) -> list[ops.Tensor]:
    return _network(context, x, [hx], params, options, _gru)


@register("torch", "aten.rnn_tanh.input", "aten.rnn_relu.input", "tilewright.rnn_tanh.default", "tilewright.rnn_relu.default")
def rnn(context: Context, x: ops.Tensor, hx: ops.Tensor, params: Sequence[ops.Tensor], *options: Any) -> list[ops.Tensor]:
    return _network(context, x, [hx], params, options, _elman(ops.tanh if "tanh" in context.operator else ops.relu))


def _cell(context: Context, x: ops.Tensor, state: State, weights: Sequence[ops.Tensor | None], cell: Cell) -> State:
    """One step; weights: of the input, of the state, and their biases."""
    own, recurrent = ([w for w in weights[i::2] if w is not None] for i in range(2))
    single = x.rank == 1
    lead = [Expr.of(1)] if single else []
    x, state = ops.reshape(x, [*lead, *x.dims]), tuple(ops.reshape(s, [*lead, *s.dims]) for s in state)
    return tuple(ops.reshape(s, context.shape()) for s in cell(_product(x, own), state, recurrent))


@register("torch", "aten.lstm_cell.default")
def lstm_cell(context: Context, x: ops.Tensor, hx: Sequence[ops.Tensor], *weights: ops.Tensor | None) -> list[ops.Tensor]:
    return list(_cell(context, x, tuple(hx), weights, _lstm))


@register("torch", "aten.gru_cell.default")
def gru_cell(context: Context, x: ops.Tensor, hx: ops.Tensor, *weights: ops.Tensor | None) -> ops.Tensor:
    return _cell(context, x, (hx,), weights, _gru)[0]


@register("torch", "aten.rnn_tanh_cell.default", "aten.rnn_relu_cell.default")
def rnn_cell(context: Context, x: ops.Tensor, hx: ops.Tensor, *weights: ops.Tensor | None) -> ops.Tensor:
    return _cell(context, x, (hx,), weights, _elman(ops.tanh if "tanh" in context.operator else ops.relu))[0]
