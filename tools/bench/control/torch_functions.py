"""The cases of the suite `control` in torch: its operators where it has them, else loops of Python; for torch.compile the branch
is `cond` and loops are `scan`, so that nothing is unrolled, but for the selective scan.

Of that torch 2.14 compiles no `scan` (DataDependentOutputException); 64 steps unrolled take it a minute, a thousand far too long.
A loop of Python around 64 unrolled steps was faster than its `associative_scan` at 64, 256 and 1024 steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from tools.bench.control.decoding import KINDS, torch_decoded

Operands = Mapping[str, Any]
Function = Callable[[Any, Operands], Any]
UNROLLED = 64  # steps of the selective scan that are compiled at once


def eager(torch: Any) -> Mapping[str, Callable[[Operands, Any, Any], Callable[[], Any]]]:
    """Kind -> what makes its call, for torch as it is."""
    return {kind: _later(torch, function) for kind, function in _EAGER.items()}


def _later(torch: Any, function: Function) -> Callable[[Operands, Any, Any], Callable[[], Any]]:
    return lambda operands, _out, _params: lambda: function(torch, operands)


def running_sum(torch: Any, a: Operands) -> Any:
    return torch.cumsum(a["x"], 0)


def lstm(torch: Any, a: Operands) -> Any:
    start = torch.zeros(1, *a["x"].shape[1:])
    return torch.lstm(a["x"], [start, start], [a["w"], a["r"], a["b"], a["s"]], True, 1, 0.0, False, False, False)[0]


def gru(torch: Any, a: Operands) -> Any:
    start = torch.zeros(1, *a["x"].shape[1:])
    return torch.gru(a["x"], start, [a["w"], a["r"], a["b"], a["s"]], True, 1, 0.0, False, False, False)[0]


def selective_scan(torch: Any, a: Operands) -> Any:
    delta, rate = torch.exp(a["d"]), -torch.exp(a["a"])
    state, rows = torch.zeros_like(rate), []
    for d, x, b, c in zip(delta, a["x"], a["b"], a["c"], strict=True):
        state = torch.exp(d[:, None] * rate) * state + (d * x)[:, None] * b
        rows.append(state @ c)
    return torch.stack(rows)


def greedy(torch: Any, a: Operands) -> Any:
    state, token, rows = torch.zeros(1, a["x"].shape[1]), torch.zeros(1, dtype=torch.int64), []
    for x in a["x"]:
        state = torch.tanh(state @ a["w"] + a["e"][token] + x)
        token = torch.argmax(state @ a["u"], -1)
        rows.append(state)
    return torch.cat(rows)


def branch(torch: Any, a: Operands) -> Any:
    return torch.relu(a["x"] @ a["w"]) if bool(a["x"].sum() > 0) else torch.tanh(a["x"])


def scan_piece(torch: Any, state: Any, rate: Any, given: Sequence[Any]) -> tuple[Any, Any]:
    """The steps of a piece, unrolled: the state behind them, and their rows."""
    delta, rows = torch.exp(given[0]), []
    for t in range(len(delta)):
        state = torch.exp(delta[t][:, None] * rate) * state + (delta[t] * given[1][t])[:, None] * given[2][t]
        rows.append((state * given[3][t]).sum(-1))
    return state, torch.stack(rows)


def selective_scan_in_pieces(torch: Any, a: Operands, piece: Callable[..., tuple[Any, Any]]) -> Any:
    """piece: what torch.compile made of `scan_piece`."""
    rate, found = -torch.exp(a["a"]), []
    state = torch.zeros_like(rate)
    for given in zip(*(a[n].split(UNROLLED) for n in "dxbc"), strict=True):
        state, rows = piece(torch, state, rate, given)
        found.append(rows)
    return torch.cat(found)


def greedy_as_scan(torch: Any, a: Operands) -> Any:
    from torch._higher_order_ops import scan

    def step(known: Any, x: Any) -> tuple[Any, Any]:
        state, token = known
        state = torch.tanh(state @ a["w"] + a["e"][token] + x)
        return (state, torch.argmax(state @ a["u"], -1)), state[0].clone()

    start = torch.zeros(1, a["x"].shape[1]), torch.zeros(1, dtype=torch.int64)
    return scan(step, start, a["x"])[1]


def branch_as_cond(torch: Any, a: Operands) -> Any:
    return torch.cond(a["x"].sum() > 0, lambda x, w: torch.relu(x @ w), lambda x, w: torch.tanh(x), (a["x"], a["w"]))


_EAGER: Mapping[str, Function] = {
    "running_sum": running_sum, "selective_scan": selective_scan, "lstm": lstm, "gru": gru, "greedy": greedy, "branch": branch,
    **{kind: partial(torch_decoded, beams=beams) for kind, beams in KINDS.items()},
}
# torch.compile unrolls gru, five minutes for 128 steps; lstm it leaves to torch's operator, which is measured without it.
COMPILED: Mapping[str, Function] = {
    "running_sum": running_sum, "greedy": greedy_as_scan, "branch": branch_as_cond,
}
