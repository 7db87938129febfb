"""A step of decoding of a Llama as an ONNX graph: rms norms, rotary positions, queries that share heads of keys, SwiGLU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tools.bench.onnx_graph import CONTRIB, Graph
from tools.bench.operator_spec import Array

_OPSET, _IR = 23, 11
_EPSILON = 1e-5
_BASE = 10000.0
_MIDDLE = 8  # of codes of 4 bits


@dataclass(frozen=True)
class Llama:
    """The layers without embedding and head. Caches have room for `longest` positions.

    group: values of k that share a scale of codes of 4 bits.
    """

    layers: int = 2
    width: int = 2048
    inner: int = 5632
    heads: int = 32
    shared: int = 4
    longest: int = 1024
    group: int = 32

    @property
    def each(self) -> int:
        """Features of a head."""
        return self.width // self.heads

    @property
    def kept(self) -> int:
        """Features of a cache of keys or values."""
        return self.shared * self.each

    @property
    def weights(self) -> dict[str, tuple[int, int]]:
        """Of a layer, inputs and outputs of each."""
        w, i, s = self.width, self.inner, self.kept
        return {"q": (w, w), "k": (w, s), "v": (w, s), "o": (w, w), "gate": (w, i), "up": (w, i), "down": (i, w)}

    @property
    def values(self) -> int:
        """Of all weights."""
        return self.layers * sum(k * n for k, n in self.weights.values())

    @cached_property
    def angles(self) -> tuple[Array, Array]:
        """Cosines and sines, [longest, each / 2]."""
        steps = np.arange(self.longest)[:, None] / _BASE ** (np.arange(0, self.each, 2) / self.each)
        return np.cos(steps).astype(np.float32), np.sin(steps).astype(np.float32)

    def codes(self, layer: int, name: str) -> tuple[Array, Array]:
        """A weight as codes [n, k / 2], the even value of k in the low bits, and scales [n, k / group]."""
        k, n = self.weights[name]
        rng = np.random.default_rng((layer, sorted(self.weights).index(name)))
        spread = 1 / (4.6 * np.sqrt(k))
        return (rng.integers(0, 256, (n, k // 2), dtype=np.uint8),
                ((rng.random((n, k // self.group)) + 0.5) * spread).astype(np.float32))

    def plain(self, layer: int, name: str) -> Array:
        """The same weight in f32, [k, n]."""
        codes, scales = self.codes(layer, name)
        whole = np.stack([codes & 15, codes >> 4], -1).reshape(len(codes), -1).astype(np.float32) - _MIDDLE
        return np.ascontiguousarray((whole * np.repeat(scales, self.group, 1)).T)

    def norm(self, layer: int, number: int) -> Array:
        return np.random.default_rng((layer, 100 + number)).uniform(0.5, 1.5, self.width).astype(np.float32)

    def past(self, length: int) -> Iterator[tuple[str, Array]]:
        """Caches of so many positions by their inputs' names, each in a buffer of `longest`, [1, longest, kept]."""
        for layer in range(self.layers):
            for number, kind in enumerate("kv"):
                rng = np.random.default_rng((layer, 200 + number))
                cache = np.zeros((1, self.longest, self.kept), np.float32)
                cache[:, :length] = rng.standard_normal((1, length, self.kept), dtype=np.float32)
                yield f"past_{kind}{layer}", cache


@dataclass(frozen=True)
class Step:
    """The graph of a step: x [1, 1, width] and its position -> y [1, 1, width] and the keys and values to remember.

    bits: 32 for weights of f32, 4 for MatMulNBits of accuracy level 4. fused: with com.microsoft.GroupQueryAttention, whose
    caches [1, shared, longest, each] are also its results, over products q, k and v in one; else with Attention over all
    positions joined.
    """

    llama: Llama
    bits: int = 4
    fused: bool = False

    def model(self) -> Any:
        import onnx
        from onnx import helper, numpy_helper

        g, it = Graph(), self.llama
        cosines, sines = (g.value(a) for a in it.angles)
        x, total = "x", "x"
        results = dict[str, str]()
        for layer in range(it.layers):
            x = self._norm(g, x) if layer == 0 else x
            mixed = (self._grouped if self.fused else self._attention)(g, x, layer, (cosines, sines), results)
            x, total = self._skipped(g, self._product(g, mixed, layer, "o"), total, it.norm(layer, 1))
            gate, up = (self._product(g, x, layer, n) for n in ("gate", "up"))
            turned = g.node("Mul", [gate, g.node("Sigmoid", [gate])])
            down = self._product(g, g.node("Mul", [turned, up]), layer, "down")
            x, total = self._skipped(g, down, total, it.norm(layer + 1, 0))
        results = {"y": x, **results}
        f32, i64, i32 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.INT32
        cache: list[Any] = [1, it.shared, it.longest, it.each] if self.fused else [1, "P", it.kept]
        given: list[tuple[str, Any, list[Any]]] = [("x", f32, [1, 1, it.width])]
        given += [("last", i32, [1]), ("all", i32, [1])] if self.fused else [("position", i64, [1, 1])]
        given += [(name, f32, cache) for name, _ in it.past(0)]
        made = cache if self.fused else [1, 1, it.kept]
        nodes = [*g.nodes, *(helper.make_node("Identity", [v], [n]) for n, v in results.items() if n != v)]
        graph = helper.make_graph(
            nodes, "step", [helper.make_tensor_value_info(*i) for i in given],
            [helper.make_tensor_value_info(n, f32, [1, 1, it.width] if n == "y" else made) for n in results],
            [numpy_helper.from_array(a, n) for n, a in g.initializers.items()])
        domains = [helper.make_opsetid("", _OPSET), helper.make_opsetid(CONTRIB, 1)]
        return helper.make_model(graph, opset_imports=domains, ir_version=_IR)

    def _norm(self, g: Graph, x: str) -> str:
        found: str = g.node("SimplifiedLayerNormalization", [x, g.value(self.llama.norm(0, 0))], axis=-1, epsilon=_EPSILON)
        return found

    def _skipped(self, g: Graph, x: str, total: str, scale: Array) -> tuple[str, str]:
        """The norm of a sum, and the sum."""
        outputs = g.node("SkipSimplifiedLayerNormalization", [x, total, g.value(scale)], CONTRIB, outputs=4, epsilon=_EPSILON)
        g.nodes[-1].output[1] = g.nodes[-1].output[2] = ""
        return outputs[0], outputs[3]

    def _product(self, g: Graph, x: str, layer: int, *names: str) -> str:
        """x by weights side by side."""
        it = self.llama
        if self.bits == 32:
            found: str = g.node("MatMul", [x, g.value(np.concatenate([it.plain(layer, n) for n in names], 1))])
            return found
        stored = [it.codes(layer, n) for n in names]
        codes, scales = (np.concatenate(s) for s in zip(*stored, strict=True))
        n, k = len(codes), codes.shape[1] * 2
        given = [x, g.value(codes.reshape(n, k // it.group, -1)), g.value(scales)]
        found = g.node("MatMulNBits", given, CONTRIB, K=k, N=n, bits=4, block_size=it.group, accuracy_level=4)
        return found

    def _attention(self, g: Graph, x: str, layer: int, angles: tuple[str, str], results: dict[str, str]) -> str:
        it = self.llama
        q, k, v = (self._product(g, x, layer, n) for n in "qkv")
        q = g.node("RotaryEmbedding", [q, "position", *angles], CONTRIB, num_heads=it.heads)
        k = g.node("RotaryEmbedding", [k, "position", *angles], CONTRIB, num_heads=it.shared)
        every = [g.node("Concat", [f"past_{n}{layer}", new], axis=1) for n, new in (("k", k), ("v", v))]
        results |= {f"new_k{layer}": k, f"new_v{layer}": v}
        found: str = g.node("Attention", [q, *every], q_num_heads=it.heads, kv_num_heads=it.shared)
        return found

    def _grouped(self, g: Graph, x: str, layer: int, angles: tuple[str, str], results: dict[str, str]) -> str:
        it = self.llama
        given = [self._product(g, x, layer, *"qkv"), "", "", f"past_k{layer}", f"past_v{layer}", "last", "all", *angles]
        mixed, keys, values = g.node("GroupQueryAttention", given, CONTRIB, outputs=3, num_heads=it.heads,
                                     kv_num_heads=it.shared, do_rotary=1)
        results |= {f"new_k{layer}": keys, f"new_v{layer}": values}
        return str(mixed)


def reference(llama: Llama, x: Array, caches: Mapping[str, Array], length: int) -> Array:
    """y of a step behind so many positions, in float64."""
    value = x.astype(np.float64).reshape(1, llama.width)
    out = _normed(value, llama.norm(0, 0))
    for layer in range(llama.layers):
        plain = {n: llama.plain(layer, n).astype(np.float64) for n in llama.weights}
        q, k = (_turned(out @ plain[n], llama, length) for n in "qk")
        keys, values = (np.concatenate([caches[f"past_{n}{layer}"][0, :length], new]).reshape(length + 1, llama.shared, -1)
                        for n, new in (("k", k), ("v", out @ plain["v"])))
        heads = q.reshape(llama.shared, -1, llama.each)
        weights = np.exp(np.einsum("ghd,tgd->ght", heads, keys) / np.sqrt(llama.each))
        mixed = np.einsum("ght,tgd->ghd", weights / weights.sum(-1, keepdims=True), values)
        value = value + mixed.reshape(1, -1) @ plain["o"]
        out = _normed(value, llama.norm(layer, 1))
        gate = out @ plain["gate"]
        value = value + (gate / (1 + np.exp(-gate)) * (out @ plain["up"])) @ plain["down"]
        out = _normed(value, llama.norm(layer + 1, 0))
    return out


def _normed(x: Array, scale: Array) -> Array:
    return np.asarray(x / np.sqrt((x * x).mean() + _EPSILON) * scale)


def _turned(x: Array, llama: Llama, position: int) -> Array:
    """Heads of features turned by the angles of a position."""
    cosine, sine = (a[position].astype(np.float64) for a in llama.angles)
    first, second = np.split(x.reshape(-1, llama.each), 2, 1)
    return np.concatenate([first * cosine - second * sine, first * sine + second * cosine], 1).reshape(1, -1)
