"""Recurrent layers: steps over a sequence, each of which needs the one before."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.compiler.ops.control import scan
from tilewright.compiler.ops.creation import zeros
from tilewright.compiler.ops.graph import Tensor
from tilewright.compiler.ops.joining import stack
from tilewright.compiler.ops.pointwise import cast, compare, sigmoid, tanh, where
from tilewright.compiler.ops.reshaping import reshape
from tilewright.compiler.ops.slicing import select
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

UNROLLED = 4  # steps of a sequence of fixed length up to which each has code of its own
State = tuple[Tensor, ...]
Function = Callable[[Tensor], Tensor]


def recurrence(
    x: Tensor, state: State, step: Callable[[Tensor, State], State], backwards: bool = False, lengths: Tensor | None = None,
    given: Function | None = None,
) -> tuple[Tensor, State]:
    """step(x[t], state) for each t of x [T, batch, ...], last to first when `backwards`: the first parts of the states in the
    order of t, [T, batch, ...], and the last state. T may be a dim.

    lengths: integers [batch]; beyond the length of its sequence a row gives zeros and its state stays. given: what a step takes
    of x[t], such as its product with weights; also of all of x, [T, batch, ...], where the steps are few.
    """
    count = x.dims[0]
    unrolled = count.constant is not None and 0 < count.constant <= UNROLLED
    if given is not None and unrolled:
        x, given = given(x), None

    def one(at: Expr | int, before: State) -> tuple[Tensor, ...]:
        """The state behind step t, then what is shown of it."""
        own = select(x, 0, at)
        after = step(own if given is None else given(own), before)
        if lengths is None:
            return *after, after[0]
        inside = reshape(compare(cast(lengths, DType.I64), at, "gt"), [x.dims[1], 1])
        after = tuple(where(inside, new, old) for new, old in zip(after, before, strict=True))
        return *after, where(inside, after[0], zeros(x.graph, [], after[0].dtype))

    if unrolled:
        assert count.constant is not None
        found: list[Tensor] = []
        for t in reversed(range(count.constant)) if backwards else range(count.constant):
            *after, shown = one(t, state)
            state = tuple(after)
            found.append(shown)
        return stack(found[::-1] if backwards else found, 0), state
    *last, rows = scan(x.graph, count, lambda i, *before: one(count - 1 - i if backwards else i, before), *state,
                       backwards=backwards)
    return rows, tuple(last)


def lstm_step(
    gates: Sequence[Tensor], cell: Tensor, functions: tuple[Function, Function, Function] | None = None,
    peepholes: Sequence[Tensor] | None = None, coupled: bool = False,
) -> State:  # fmt: skip
    """One step of an LSTM: the hidden state and the cell, from the cell before it. Source: Hochreiter and Schmidhuber 1997, with
    forget gates.

    Args:
        gates: input, forget, cell and output gate before their functions, of input and hidden state together.
        functions: of the gates, of the cell's input, of the cell; default sigmoid, tanh, tanh.
        peepholes: weights of the cell in input, forget and output gate.
        coupled: the forget gate is 1 - the input gate.
    """
    i, f, g, o = gates
    gate, of_input, of_cell = functions or (sigmoid, tanh, tanh)
    if peepholes is not None:
        i, f = i + peepholes[0] * cell, f + peepholes[1] * cell
    i = gate(i)
    kept = (1 - i if coupled else gate(f)) * cell + i * of_input(g)
    o = o if peepholes is None else o + peepholes[2] * kept
    return gate(o) * of_cell(kept), kept


def gru_step(
    update: Tensor, reset: Tensor, new: Function, hidden: Tensor, functions: tuple[Function, Function] | None = None
) -> State:
    """One step of a GRU: the hidden state from the one before it. Source: Cho et al. 2014.

    Args:
        update, reset: the gates before their function.
        new: gives the input of the new state for the reset gate.
        functions: of the gates, of the new state; default sigmoid, tanh.
    """
    gate, of_new = functions or (sigmoid, tanh)
    z, fresh = gate(update), of_new(new(gate(reset)))
    return (fresh + z * (hidden - fresh),)
