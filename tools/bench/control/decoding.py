"""Decoding with a GPT-2 of two layers and a key-value cache that grows: greedy, and with four beams, as each system writes it.

x [T, MODEL] are the position embeddings, one for each token that is made; token 0 begins. The result is the normalised hidden
state of the (best) sequence at each step. e [TOKENS, MODEL] embeds tokens and scores them; a layer has wq, wo, w1 and w2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tilewright.compiler import ops
from tilewright.compiler.ops.scalar_functions import gelu_tanh
from tilewright.runtime.shape import Expr
from tools.bench.operator_spec import Array, Input

MODEL, HEADS, LAYERS, TOKENS, BEAMS = 128, 4, 2, 1000, 4
WIDTH = MODEL // HEADS
NONE = -1e9  # score of a beam that does not exist yet
WEIGHTS: Mapping[str, tuple[int, int]] = {
    "wq": (MODEL, 3 * MODEL), "wo": (MODEL, MODEL), "w1": (MODEL, 4 * MODEL), "w2": (4 * MODEL, MODEL)}


def inputs() -> dict[str, Input]:
    """Operands of both decodings."""
    layers = {f"{n}{layer}": Input(dims, True, 0.08) for layer in range(LAYERS) for n, dims in WEIGHTS.items()}
    return {"x": Input(("T", MODEL)), "e": Input((TOKENS, MODEL), True, 0.5), **layers}


# -- NumPy, the formula in the type of its operands

def decoded(a: Mapping[str, Array], beams: int) -> Array:
    rows, heads = np.empty_like(a["x"]), (beams, -1, HEADS, WIDTH)
    token, score = np.zeros(beams, np.int64), np.array([0.0] + [NONE] * (beams - 1), a["x"].dtype)
    cache = [np.empty((beams, 0, 2 * MODEL), a["x"].dtype) for _ in range(LAYERS)]
    for t, place in enumerate(a["x"]):
        h = a["e"][token] + place
        for n in range(LAYERS):
            q, kv = np.split(_norm(h) @ a[f"wq{n}"], [MODEL], 1)
            cache[n] = np.concatenate([cache[n], kv[:, None]], 1)
            k, v = (c.reshape(heads) for c in np.split(cache[n], 2, 2))
            weights = np.einsum("bhd,bthd->bht", q.reshape(beams, HEADS, WIDTH), k) / np.sqrt(WIDTH).astype(h.dtype)
            weights = np.exp(weights - weights.max(-1, keepdims=True))
            mixed = np.einsum("bht,bthd->bhd", weights / weights.sum(-1, keepdims=True), v).reshape(beams, MODEL)
            h = h + mixed @ a[f"wo{n}"]
            inner = _norm(h) @ a[f"w1{n}"]
            h = h + 0.5 * inner * (1 + np.tanh(0.7978845608 * (inner + 0.044715 * inner**3))) @ a[f"w2{n}"]
        h = _norm(h)
        rows[t], logits = h[0], h @ a["e"].T
        if beams == 1:
            token = logits.argmax(-1)
            continue
        away = logits - logits.max(-1, keepdims=True)
        total = (score[:, None] + away - np.log(np.exp(away).sum(-1, keepdims=True))).reshape(-1)
        best = np.argsort(-total, kind="stable")[:beams]
        score, token = total[best], best % TOKENS
        cache = [c[best // TOKENS] for c in cache]
    return rows


def _norm(x: Array) -> Array:
    away = x - x.mean(-1, keepdims=True)
    return np.asarray(away / np.sqrt((away * away).mean(-1, keepdims=True) + 1e-5))


# -- tw.ops

def graph(a: Mapping[str, ops.Tensor], beams: int) -> ops.Tensor:
    """One call: greedy with caches [1, T, ...]; with beams as `_beam_graph` says."""
    x = a["x"]
    g, steps = x.graph, x.dims[0]
    if beams > 1:
        return _beam_graph(a, beams)
    caches = [g.full([1, steps, 2 * MODEL], 0, "f32") for _ in range(LAYERS)]

    def body(t: Expr, token: ops.Tensor, *caches: ops.Tensor) -> tuple[ops.Tensor, ...]:
        h, logits, kept = step(a, t, token, caches)
        return ops.argmax(logits, -1), *kept, ops.select(h, 0, 0)

    return ops.scan(g, steps, body, g.full([1], 0, "i64"), *caches)[-1]


def _beam_graph(a: Mapping[str, ops.Tensor], beams: int) -> ops.Tensor:
    """Caches [T, beams, ...] stay as they were written: `came` [beams, T] says which beam the token of each place came from, and
    a step gathers what it attends to. So no step moves the caches, as one that gathers the caches of the parents does."""
    x = a["x"]
    g, steps = x.graph, x.dims[0]
    caches = [g.full([steps, beams, 2 * MODEL], 0, "f32") for _ in range(LAYERS)]
    token, score = g.full([beams], 0, "i64"), g.full([beams], NONE, "f32")
    score = ops.select_scatter(score, g.full([], 0, "f32"), 0, 0)
    came, own = g.full([beams, steps], 0, "i64"), ops.arange(g, 0, beams)

    def body(t: Expr, token: ops.Tensor, score: ops.Tensor, came: ops.Tensor, *caches: ops.Tensor) -> tuple[ops.Tensor, ...]:
        kept: list[ops.Tensor] = []
        came = ops.select_scatter(came, own, 1, t)
        places = ops.narrow(came, 1, 0, t + 1) + ops.arange(g, 0, t + 1) * beams

        def keep(cache: ops.Tensor, row: ops.Tensor) -> tuple[ops.Tensor, Expr]:
            kept.append(ops.select_scatter(cache, row, 0, t))
            return ops.gather(ops.reshape(kept[-1], [steps * beams, 2 * MODEL]), places, 0), t + 1

        h, logits = _layers(a, ops.select(x, 0, t), token, caches, keep)
        token, score, parent = best(score, logits)
        return token, score, ops.gather(came, parent, 0), *kept, ops.select(h, 0, 0)

    return ops.scan(g, steps, body, token, score, came, *caches)[-1]


def step(a: Mapping[str, ops.Tensor], t: Expr, token: ops.Tensor, caches: tuple[ops.Tensor, ...]
         ) -> tuple[ops.Tensor, ops.Tensor, list[ops.Tensor]]:
    """Hidden state and scores of the next token, and the caches with this one."""
    kept = []

    def keep(cache: ops.Tensor, row: ops.Tensor) -> tuple[ops.Tensor, Expr]:
        kept.append(ops.select_scatter(cache, row, 1, t))
        return ops.narrow(kept[-1], 1, 0, t + 1), t + 1

    return *_layers(a, ops.select(a["x"], 0, t), token, caches, keep), kept


def grown(a: Mapping[str, ops.Tensor], place: ops.Tensor, token: ops.Tensor, caches: tuple[ops.Tensor, ...]
          ) -> tuple[ops.Tensor, ops.Tensor, list[ops.Tensor]]:
    """The same with caches [beams, L, ...] of the tokens so far, which have one more then."""
    kept = []

    def keep(cache: ops.Tensor, row: ops.Tensor) -> tuple[ops.Tensor, Expr]:
        kept.append(ops.concat([cache, ops.reshape(row, [row.dims[0], 1, 2 * MODEL])], 1))
        return kept[-1], cache.dims[1] + 1

    return *_layers(a, place, token, caches, keep), kept


def _layers(a: Mapping[str, ops.Tensor], place: ops.Tensor, token: ops.Tensor, caches: tuple[ops.Tensor, ...],
            keep: Callable[[ops.Tensor, ops.Tensor], tuple[ops.Tensor, Expr]]) -> tuple[ops.Tensor, ops.Tensor]:
    """Hidden state and scores. keep: a cache with a row, of which attention sees so many."""
    beams, h = token.dims[0], ops.gather(a["e"], token) + place
    for n, cache in enumerate(caches):
        q, kv = ops.split(ops.matmul(ops.layernorm(h), a[f"wq{n}"]), [MODEL, 2 * MODEL], 1)
        seen, length = keep(cache, kv)
        k, v = ops.split(seen, [MODEL, MODEL], 2)
        k, v = (ops.transpose(ops.reshape(c, [beams, length, HEADS, WIDTH]), [0, 2, 1, 3]) for c in (k, v))
        mixed = ops.attention(ops.reshape(q, [beams, HEADS, 1, WIDTH]), k, v)
        h = h + ops.matmul(ops.reshape(mixed, [beams, MODEL]), a[f"wo{n}"])
        inner = ops.matmul(ops.layernorm(h), a[f"w1{n}"])
        h = h + ops.matmul(h.graph.pointwise("gelu_tanh", gelu_tanh, inner), a[f"w2{n}"])
    h = ops.layernorm(h)
    return h, ops.matmul(h, a["e"], transpose_b=True)


def best(score: ops.Tensor, logits: ops.Tensor) -> tuple[ops.Tensor, ops.Tensor, ops.Tensor]:
    """Tokens, scores and parents of the best beams."""
    g = logits.graph
    total = ops.log_softmax(logits) + ops.reshape(score, [BEAMS, 1])
    score, taken = ops.topk(ops.reshape(total, [BEAMS * TOKENS]), BEAMS)
    token = g.pointwise("token", lambda v: v.remainder(TOKENS), taken)
    return token, score, g.pointwise("parent", lambda v: v.floor_divide(TOKENS), taken)


# -- torch

def torch_decoded(torch: Any, a: Mapping[str, Any], beams: int, step: Callable[..., Any] | None = None) -> Any:
    """A loop of Python around `step`, torch_step or what torch.compile made of it."""
    token, score = torch.zeros(beams, dtype=torch.int64), torch.tensor([0.0] + [NONE] * (beams - 1))
    caches = tuple(torch.empty(beams, 0, 2 * MODEL) for _ in range(LAYERS))
    rows = []
    for place in a["x"]:
        token, score, row, caches = (step or torch_step)(torch, a, place, token, score, caches)
        rows.append(row)
    return torch.stack(rows)


def torch_step(torch: Any, a: Mapping[str, Any], place: Any, token: Any, score: Any, caches: tuple[Any, ...]) -> Any:
    functional, beams, kept = torch.nn.functional, len(token), []
    h = a["e"][token] + place
    for n, cache in enumerate(caches):
        q, kv = (functional.layer_norm(h, (MODEL,)) @ a[f"wq{n}"]).split([MODEL, 2 * MODEL], 1)
        cache = torch.cat([cache, kv[:, None]], 1)
        kept.append(cache)
        k, v = (c.view(beams, -1, HEADS, WIDTH).transpose(1, 2) for c in cache.split(MODEL, 2))
        mixed = functional.scaled_dot_product_attention(q.view(beams, HEADS, 1, WIDTH), k, v).reshape(beams, MODEL)
        h = h + mixed @ a[f"wo{n}"]
        h = h + functional.gelu(functional.layer_norm(h, (MODEL,)) @ a[f"w1{n}"], approximate="tanh") @ a[f"w2{n}"]
    h = functional.layer_norm(h, (MODEL,))
    logits = h @ a["e"].t()
    if beams == 1:
        return torch.argmax(logits, -1), score, h[0], tuple(kept)
    score, best = torch.topk((torch.log_softmax(logits, -1) + score[:, None]).view(-1), beams)
    return best % TOKENS, score, h[0], tuple(c[best // TOKENS] for c in kept)


# -- ONNX: Loop, whose caches grow by Concat

def onnx_decoded(g: Any, beams: int, loop: Callable[..., str]) -> str:
    """loop: builds a Loop over the rows of x; see onnx_nodes."""
    from tools.bench.onnx_graph import Graph

    b = Graph("step_")
    place = b.node("Gather", ["x", "step_t"], axis=0)
    h = b.node("Add", [b.node("Gather", ["e", "token"]), place])
    kept = []
    for n in range(LAYERS):
        projected, parts = b.node("MatMul", [_onnx_norm(b, h), f"wq{n}"]), b.integers(MODEL, MODEL, MODEL)
        q, k, v = b.node("Split", [projected, parts], outputs=3, axis=1)
        heads = b.integers(beams, HEADS, 1, WIDTH)
        k, v = (b.node("Concat", [f"{c}{n}", b.node("Reshape", [y, heads])], axis=2) for c, y in (("k", k), ("v", v)))
        kept += [k, v]
        scores = b.node("MatMul", [b.node("Reshape", [q, heads]), b.node("Transpose", [k], perm=[0, 1, 3, 2])])
        weights = b.node("Softmax", [b.node("Mul", [scores, b.number(WIDTH**-0.5)])], axis=-1)
        mixed = b.node("Reshape", [b.node("MatMul", [weights, v]), b.integers(beams, MODEL)])
        h = b.node("Add", [h, b.node("MatMul", [mixed, f"wo{n}"])])
        h = b.node("Add", [h, b.node("MatMul", [_onnx_gelu(b, b.node("MatMul", [_onnx_norm(b, h), f"w1{n}"])), f"w2{n}"])])
    h = _onnx_norm(b, h)
    logits = b.node("MatMul", [h, g.node("Transpose", ["e"], perm=[1, 0])])
    row, score = b.node("Gather", [h, b.value(np.array(0, np.int64))], axis=0), "score"
    if beams == 1:
        token = b.node("ArgMax", [logits], axis=-1, keepdims=0)
    else:
        total = b.node("Add", [b.node("LogSoftmax", [logits], axis=-1), b.node("Unsqueeze", ["score", b.integers(1)])])
        score, best = b.node("TopK", [b.node("Reshape", [total, b.integers(-1)]), b.integers(beams)], outputs=2)
        token, parent = b.node("Mod", [best, b.integers(TOKENS)]), b.node("Div", [best, b.integers(TOKENS)])
        kept = [b.node("Gather", [c, parent], axis=0) for c in kept]
    empty = np.zeros((beams, HEADS, 0, WIDTH), np.float32)
    starts = {"token": (g.value(np.zeros(beams, np.int64)), token),
              "score": (g.value(np.array([0.0] + [NONE] * (beams - 1), np.float32)), score)}
    starts |= {f"{c}{n}": (g.value(empty), kept[2 * n + i]) for n in range(LAYERS) for i, c in enumerate("kv")}
    return loop(g, b, starts, row)


def _onnx_norm(b: Any, x: str) -> str:
    return str(b.node("LayerNormalization", [x, b.value(np.ones(MODEL, np.float32))], axis=-1, epsilon=1e-5))


def _onnx_gelu(b: Any, x: str) -> str:
    cube = b.node("Mul", [b.node("Mul", [x, x]), x])
    inner = b.node("Mul", [b.node("Add", [x, b.node("Mul", [cube, b.number(0.044715)])]), b.number(0.7978845608)])
    return str(b.node("Mul", [b.node("Mul", [x, b.number(0.5)]), b.node("Add", [b.node("Tanh", [inner]), b.number(1)])]))


KINDS: Mapping[str, int] = {"gpt2_greedy": 1, "gpt2_beam": BEAMS}  # beams of each
