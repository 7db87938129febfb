"""Attentions as graphs: the workload that each becomes, its kernels on guarded arrays, and NumPy's results in float64."""

from __future__ import annotations

import functools

import numpy as np
from kernel_harness import NUMPY, at_edge, guarded, load

import tilewright.compiler.ops as ops
from tilewright.compiler.frontends.ingest import ingest
from tilewright.passes.base import PassPipeline
from tilewright.passes.dispatch_creation.outline import workloads_of
from tilewright.passes.mlir import ir
from tilewright.passes.pipeline.graph_pipeline import graph_passes
from tilewright.passes.pipeline.pipelines import recover_passes
from tilewright.passes.spaces.workload import Kind, Workload

TOLERANCE = {"f32": 2e-6, "f16": 2e-3, "bf16": 1.6e-2}
SHAPES = [(1, 1, 1), (1, 5, 5), (2, 7, 16), (1, 8, 48), (1, 13, 49), (1, 17, 97), (1, 3, 144), (1, 24, 31), (0, 3, 3), (1, 0, 4),
          (1, 9, 0), (1, 19, 7)]


def graph(kind: str, heads: int = 2, depth: int = 16, columns: int = 16, dtype: str = "f32") -> ops.Graph:
    g = ops.Graph()
    if kind == "merged":
        x = g.input("x", ["B", "S", 3 * heads * depth])
        parts = [ops.slice(x, (None, None, i * heads * depth), (None, None, (i + 1) * heads * depth)) for i in range(3)]
        split = [ops.transpose(ops.reshape(p, (x.dims[0], x.dims[1], heads, depth)), (0, 2, 1, 3)) for p in parts]
        g.output(ops.transpose(ops.attention(*split), (0, 2, 1, 3)))
        return g
    q, k = (g.input(n, ["B", heads, size, depth], dtype) for n, size in (("q", "S"), ("k", "T")))
    v = g.input("v", ["B", heads, "T", columns], dtype)
    if kind in ("seen", "added"):
        g.output(ops.attention(q, k, v, scale=0.25, mask=g.input("mask", ["S", "T"], "i1" if kind == "seen" else dtype)))
    elif kind in ("mask", "row_mask"):
        mask = g.input("mask", ["B", 1, 1, "T"] if kind == "mask" else ["S", "T"])
        scores = ops.batch_matmul(q, k, transpose_b=True)
        g.output(ops.batch_matmul(ops.cast(ops.softmax(ops.add(ops.multiply(scores, 0.25), mask)), v.dtype), v))
    else:
        g.output(ops.attention(q, k, v, causal=kind == "causal", scale=0.25))
    return g


def compiled(g: ops.Graph) -> list[Workload]:
    ingested = ingest(g, dict.fromkeys(g.dims, (0, 4096)))
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(ingested.text)
        PassPipeline([*recover_passes(), *graph_passes()]).run(module)
        return list(workloads_of(module).values())


@functools.cache
def fused(kind: str, heads: int = 2, depth: int = 16, columns: int = 16, dtype: str = "f32") -> Workload:
    (workload,) = compiled(graph(kind, heads, depth, columns, dtype))
    assert workload.kind is Kind.ATTENTION
    return workload


def reference(q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool, mask: np.ndarray | None) -> np.ndarray:
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    scores = np.einsum("bhmk,bhnk->bhmn", q, k) * 0.25
    queries, keys = scores.shape[-2:]
    if mask is not None:
        scores = scores + mask
    if causal:
        scores = np.where(np.arange(keys) <= np.arange(queries)[:, None] + keys - queries, scores, -np.inf)
    if not keys:
        return np.zeros((*scores.shape[:-1], v.shape[-1]))
    with np.errstate(invalid="ignore"):
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return weights / weights.sum(-1, keepdims=True) @ v


def seen_as(array: np.ndarray, axes: tuple[int, ...], rank: int) -> np.ndarray:
    """Without the axes that are statically 1 (all others are in `axes`), the first two merged when there is one too many."""
    shape = [array.shape[a] for a in axes] if rank < array.ndim else list(array.shape)
    if len(shape) > rank:
        shape[:2] = [shape[0] * shape[1]]
    return array.reshape(shape)


def run(w: Workload, config: str, arrays: list[np.ndarray], causal_shift: int = 0, parts: int = 1,
        target: str = "host") -> np.ndarray:
    """The one result, from operands seen in the extents that the workload has them in."""
    dims = dict.fromkeys(w.dims, causal_shift)
    seen = []
    for operand, array in zip(w.inputs, arrays, strict=True):
        static = [a for a in range(array.ndim) if not (array.ndim == 4 and a and array.shape[a] == 1 and a != 2)]
        if array.ndim == 4 and array.shape[1:3] == (1, 1) and len(operand.dims) == 2:
            static = [0, 3]
        array = seen_as(array, tuple(static), len(operand.dims))
        dims |= {e.symbol: n for e, n in zip(operand.dims, array.shape, strict=True) if e.symbol}
        seen.append(at_edge(array))
    out = guarded(tuple(e.evaluate(dims) for e in w.outputs[0].dims), np.dtype(NUMPY[w.outputs[0].dtype.value]))
    load(w.ir, config, target)(seen, dims, [out], parts)
    return out


def check(kind: str, config: str, batch: int, queries: int, keys: int, heads: int = 2, depth: int = 16, columns: int = 16,
          dtype: str = "f32", target: str = "host") -> None:
    w = fused(kind, heads, depth, columns, dtype)
    rng = np.random.default_rng(queries * 100 + keys)
    shapes = ((batch, heads, queries, depth), (batch, heads, keys, depth), (batch, heads, keys, columns))
    q, k, v = (rng.standard_normal(s).astype(NUMPY[dtype]) for s in shapes)
    mask = None
    arrays = [q, k, v]
    if kind in ("mask", "row_mask"):
        mask = rng.standard_normal((batch, 1, 1, keys) if kind == "mask" else (queries, keys)).astype(np.float32)
        mask[rng.random(mask.shape) < 0.3] = -1e9
        if kind == "row_mask" and queries > 1 and keys:
            mask[1] = -np.inf
        arrays.insert(2, mask)
    got = run(w, config, arrays, keys - queries, target=target).astype(np.float64)
    want = reference(q, k, v, kind == "causal", mask).reshape(got.shape)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    assert np.abs(np.nan_to_num(got - want)).max(initial=0) <= TOLERANCE[dtype], (kind, config, queries, keys)


def masks(queries: int, keys: int) -> dict[str, np.ndarray]:
    """Which keys queries see: causal, in a window, before a tail of pads, behind pads, with holes, all, and not in some rows."""
    i, j = np.arange(queries)[:, None], np.arange(keys)
    rng = np.random.default_rng(queries + keys)
    every = (j >= 0) & (i >= 0)
    found = {"causal": j <= i, "window": (j <= i) & (j > i - 5), "tail": every & (j < keys // 2),
             "pads": every & (j >= keys // 3), "holes": rng.random((queries, keys)) < 0.1, "all": every}
    found["blind"] = found["window"] & (i % 7 != 3)
    return found
