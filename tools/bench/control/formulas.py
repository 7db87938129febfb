"""The cases of the suite `control` in NumPy, in the type of their operands: the peer in f32, the reference in f64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from tools.bench.control.decoding import KINDS, decoded
from tools.bench.operator_spec import Array

Operands = Mapping[str, Array]


def running_sum(a: Operands) -> Array:
    return np.cumsum(a["x"], 0, dtype=a["x"].dtype)


def selective_scan(a: Operands) -> Array:
    delta, rate = np.exp(a["d"]), -np.exp(a["a"])
    state, rows = np.zeros_like(rate), np.empty_like(a["x"])
    for t in range(len(rows)):
        state = np.exp(delta[t][:, None] * rate) * state + (delta[t] * a["x"][t])[:, None] * a["b"][t]
        rows[t] = state @ a["c"][t]
    return rows


def lstm(a: Operands) -> Array:
    given = a["x"] @ a["w"].T + (a["b"] + a["s"])
    rows, back = np.empty_like(a["x"]), np.ascontiguousarray(a["r"].T)
    state = cell = np.zeros_like(rows[0])
    for t in range(len(rows)):
        i, f, g, o = np.split(given[t] + state @ back, 4, axis=-1)
        cell = _sigmoid(f) * cell + _sigmoid(i) * np.tanh(g)
        state = rows[t] = _sigmoid(o) * np.tanh(cell)
    return rows


def gru(a: Operands) -> Array:
    given = a["x"] @ a["w"].T + a["b"]
    rows, back = np.empty_like(a["x"]), np.ascontiguousarray(a["r"].T)
    state = np.zeros_like(rows[0])
    for t in range(len(rows)):
        r, z, n = np.split(given[t], 3, axis=-1)
        hr, hz, hn = np.split(state @ back + a["s"], 3, axis=-1)
        z = _sigmoid(z + hz)
        state = rows[t] = (1 - z) * np.tanh(n + _sigmoid(r + hr) * hn) + z * state
    return rows


def greedy(a: Operands) -> Array:
    rows, token = np.empty_like(a["x"]), 0
    state = np.zeros_like(rows[:1])
    for t in range(len(rows)):
        state = np.tanh(state @ a["w"] + a["e"][token] + a["x"][t])
        rows[t], token = state[0], int(np.argmax(state @ a["u"]))
    return rows


def branch(a: Operands) -> Array:
    return np.maximum(a["x"] @ a["w"], 0) if a["x"].sum() > 0 else np.tanh(a["x"])


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


FORMULAS: Mapping[str, Callable[[Operands], Array]] = {
    "running_sum": running_sum, "selective_scan": selective_scan, "lstm": lstm, "gru": gru, "greedy": greedy, "branch": branch,
    **{kind: partial(decoded, beams=beams) for kind, beams in KINDS.items()},
}
