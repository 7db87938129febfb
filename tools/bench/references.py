"""Float64 references of every kind of operator."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from tools.bench.control.formulas import FORMULAS
from tools.bench.operator_spec import Array, Operator
from tools.bench.zoo import modules


def reference(operator: Operator, arrays: Mapping[str, Array]) -> Array:
    """The result in float64; KeyError for a kind without a reference."""
    if operator.kind == modules.KIND:
        return modules.reference(operator, arrays)
    wide = {n: a.astype(np.float64) for n, a in arrays.items()}
    return np.asarray(_KINDS[operator.kind](wide, operator.params))


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def layernorm(x: Array, gain: Array, bias: Array) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    return np.asarray(centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * gain + bias)


def rmsnorm(x: Array, gain: Array) -> Array:
    return np.asarray(x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * gain)


def attention(q: Array, k: Array, v: Array, causal: bool = False) -> Array:
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:]) > 0, scores, -np.inf)
    return np.asarray(softmax(scores) @ v)


def erf(x: Array) -> Array:
    from scipy.special import erf as exact

    return np.asarray(exact(x))


def conv_nchw(x: Array, w: Array, stride: int, padding: int) -> Array:
    padded = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    rows, columns = w.shape[2:]
    high = (padded.shape[2] - rows) // stride + 1
    wide = (padded.shape[3] - columns) // stride + 1
    total = np.zeros((x.shape[0], w.shape[0], high * wide))
    for r in range(rows):
        for c in range(columns):
            window = padded[:, :, r : r + stride * high : stride, c : c + stride * wide : stride]
            total += w[:, :, r, c] @ window.reshape(x.shape[0], x.shape[1], -1)
    return total.reshape(x.shape[0], w.shape[0], high, wide)


def _conv(a: Mapping[str, Array], params: Mapping[str, Any]) -> Array:
    if params["layout"] == "nchw":
        return conv_nchw(a["x"], a["w"], params["stride"], params["padding"])
    x, w = a["x"].transpose(0, 3, 1, 2), a["w"].transpose(3, 2, 0, 1)
    return conv_nchw(x, w, params["stride"], params["padding"]).transpose(0, 2, 3, 1)


def _bert_layer(a: Mapping[str, Array], params: Mapping[str, Any]) -> Array:
    batch, length, width = a["x"].shape
    qkv = (a["x"] @ a["w_qkv"] + a["b_qkv"]).reshape(batch, length, 3, int(params["heads"]), -1).transpose(2, 0, 3, 1, 4)
    mixed = attention(*qkv).transpose(0, 2, 1, 3).reshape(batch, length, width)
    first = layernorm(a["x"] + mixed @ a["w_out"] + a["b_out"], a["g_1"], a["n_1"])
    inner = first @ a["w_up"] + a["b_up"]
    inner = inner * 0.5 * (1 + erf(inner / math.sqrt(2)))
    return layernorm(first + inner @ a["w_down"] + a["b_down"], a["g_2"], a["n_2"])


def _resnet_block(a: Mapping[str, Array], params: Mapping[str, Any]) -> Array:
    first = np.maximum(conv_nchw(a["x"], a["w_1"], 1, 1) + a["b_1"][:, None, None], 0)
    second = conv_nchw(first, a["w_2"], 1, 1) + a["b_2"][:, None, None]
    return np.asarray(np.maximum(a["x"] + second, 0))


def _of_nibbles(codes: Array, scale: Array) -> Array:
    """A weight from codes of 4 bits, the first of a byte in its low bits, with a scale for each 32."""
    parts = codes.astype(np.int64)
    values = np.stack([parts & 15, parts >> 4], -1).reshape(len(codes), -1)
    return np.asarray((values - 8) * np.repeat(scale, 32, axis=1))


_KINDS: Mapping[str, Any] = {
    "dense": lambda a, p: a["x"] @ a["w"],
    "dense_nk": lambda a, p: a["x"] @ a["w"].T,
    "dense_pool": lambda a, p: a["x"] @ a["p"][a["w"]].reshape(len(a["w"]), -1).T,
    "dense_codes": lambda a, p: a["x"] @ _of_nibbles(a["w"], a["s"]).T,
    "bmm_nt": lambda a, p: a["q"] @ a["k"].swapaxes(-1, -2),
    "bmm_nn": lambda a, p: a["p"] @ a["v"],
    "softmax": lambda a, p: softmax(a["x"]),
    "layernorm": lambda a, p: layernorm(a["x"], a["g"], a["b"]),
    "rmsnorm": lambda a, p: rmsnorm(a["x"], a["g"]),
    "attention": lambda a, p: attention(a["q"], a["k"], a["v"], bool(p["causal"])),
    "conv": _conv,
    "bert_layer": _bert_layer,
    "resnet_block": _resnet_block,
    **{kind: lambda a, p, formula=formula: formula(a) for kind, formula in FORMULAS.items()},
}
