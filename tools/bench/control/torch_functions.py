"""The cases of the suite `control` in torch: its operators where it has them, else loops of Python; for torch.compile loops are
`scan` and the branch is `cond`, so that nothing is unrolled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tools.bench.control.decoding import KINDS, torch_decoded

Operands = Mapping[str, Any]
Function = Callable[[Any, Operands], Any]


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


def selective_scan_as_scan(torch: Any, a: Operands) -> Any:
    from torch._higher_order_ops import scan

    delta, rate = torch.exp(a["d"]), -torch.exp(a["a"])

    def step(state: Any, given: Any) -> tuple[Any, Any]:
        d, x, b, c = given
        state = torch.exp(d[:, None] * rate) * state + (d * x)[:, None] * b
        return state, (state * c).sum(-1)

    return scan(step, torch.zeros_like(rate), (delta, a["x"], a["b"], a["c"]))[1]


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
# torch.compile unrolls gru, five minutes for 128 steps; lstm it leaves to torch's operator.
COMPILED: Mapping[str, Function] = {
    "running_sum": running_sum, "selective_scan": selective_scan_as_scan, "lstm": lstm, "greedy": greedy_as_scan,
    "branch": branch_as_cond,
}
