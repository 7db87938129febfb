"""Products with weights in few bits of a ring, by Tilewright and by its peers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.ops.codes import planes
from tools.bench.ggml import BLOCK, Ggml

BOOK = 8  # values of a vector of a pool
_Q4_0 = np.dtype([("scale", "<f2"), ("codes", "u1", 16)])
Call = Callable[[np.ndarray], object]


@dataclass(frozen=True)
class Case:
    """weights: in the ring; bits 32 for f32, 0 for `books` pools of `group` vectors, which are added. half: scales of f16."""

    k: int
    n: int
    bits: int
    group: int
    books: int = 1
    half: bool = False
    weights: int = 1

    @staticmethod
    def read(text: str, size: tuple[int, int], ring: int) -> Case:
        """Of a format's text, with as many weights as fill `ring` MiB."""
        if text.startswith("p"):
            entries, _, books = text[1:].partition("x")
            one = Case(*size, 0, int(entries), int(books or 1))
        else:
            bits, _, group = text.rstrip("h").partition("g")
            one = Case(*size, int(bits), int(group or 1), half=text.endswith("h"))
        return replace(one, weights=max(1, -(-ring * (1 << 20) // one.bytes)))

    @property
    def bytes(self) -> int:
        """Of one weight with its scales; without the pool, which all share."""
        if not self.bits:
            return self.k * self.n // BOOK * self.books
        scales = self.n * (self.k // self.group) * (2 if self.half else 4)
        return self.k * self.n * self.bits // 8 + (scales if self.bits < 32 else 0)

    def arrays(self, number: int) -> tuple[list[np.ndarray], np.ndarray]:
        """Codes, of 3, 5, 6 and 7 bits in several tensors, and scales of a weight of the ring."""
        rng = np.random.default_rng(number)
        if not self.bits:
            shape = self.n, self.k // BOOK
            return [rng.integers(0, self.group, shape, dtype=np.uint8) for _ in range(self.books)], np.zeros(0, np.float32)
        return ([rng.integers(0, 256, (self.n, self.k * b // 8), dtype=np.uint8) for b in planes(self.bits)],
                rng.random((self.n, self.k // self.group), dtype=np.float32).astype(np.float16 if self.half else np.float32))

    def f32(self, number: int) -> np.ndarray:
        """[n, k]"""
        return np.random.default_rng(number).random((self.n, self.k), dtype=np.float32)


def ours(case: Case, most: int, threads: int, activations: str = "f32") -> Call:
    """One model of all products, of up to `most` rows. activations: f32, int8, or bits that rows were rounded to beforehand."""
    g = ops.Graph()
    x = g.input("x", ["M", case.k])
    if activations.isdecimal():
        x, _ = ops.round_to_bits(x, int(activations), span=(-4.0, 4.0))
    pools = []
    if not case.bits:
        rng = np.random.default_rng(0)
        pools = [g.constant(rng.integers(-127, 128, (case.group, BOOK), dtype=np.int8)) for _ in range(case.books)]
    for number in range(case.weights):
        if case.bits == 32:
            w = g.constant(case.f32(number))
        elif pools:
            w = ops.decode_pool([g.constant(i) for i in case.arrays(number)[0]], pools, 0.01)
        else:
            codes, scale = case.arrays(number)
            w = ops.decode([g.constant(c) for c in codes], g.constant(scale), bits=case.bits, group=case.group)
        g.output(ops.matmul(x, w, transpose_b=True))
    fn = tw.compile(g, {"M": (1, most)},
                    options={"threads": threads, "activations": "int8" if activations == "int8" else "f32"})
    kept: dict[int, Any] = {}

    def call(x: np.ndarray) -> object:
        if len(x) not in kept:
            outs = [np.empty((len(x), case.n), np.float32) for _ in range(case.weights)]
            kept[len(x)] = outs if case.weights > 1 else outs[0]
        return fn(x, out=kept[len(x)])

    return call


def onnx_runtime(case: Case, threads: int, level: int, *, tables: bool = False) -> Call:
    """The same as MatMulNBits nodes, or MatMul nodes of f32. tables: with its tables of activations (mlas.use_lut_gemm)."""
    import onnx
    import onnxruntime
    from onnx import helper, numpy_helper

    nodes, kept = [], []
    for number in range(case.weights):
        if case.bits == 32:
            kept.append(numpy_helper.from_array(np.ascontiguousarray(case.f32(number).T), f"w{number}"))
            nodes.append(helper.make_node("MatMul", ["x", f"w{number}"], [f"y{number}"]))
            continue
        (codes,), scale = case.arrays(number)
        kept += [numpy_helper.from_array(codes.reshape(case.n, case.k // case.group, -1), f"w{number}"),
                 numpy_helper.from_array(scale, f"s{number}")]
        nodes.append(helper.make_node("MatMulNBits", ["x", f"w{number}", f"s{number}"], [f"y{number}"], domain="com.microsoft",
                                      K=case.k, N=case.n, bits=case.bits, block_size=case.group, accuracy_level=level))
    given = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["M", case.k])
    made = [helper.make_tensor_value_info(f"y{i}", onnx.TensorProto.FLOAT, ["M", case.n]) for i in range(case.weights)]
    domains = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph(nodes, "ring", [given], made, kept), opset_imports=domains, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if tables:
        options.add_session_config_entry("mlas.use_lut_gemm", "1")
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda x: session.run(None, {"x": x})


def torch_bytes(case: Case, threads: int) -> Call:
    """torch's dynamically quantised layers."""
    import torch

    layers = torch.nn.ModuleList(torch.nn.Linear(case.k, case.n, bias=False) for _ in range(case.weights))
    made = torch.ao.quantization.quantize_dynamic(layers, {torch.nn.Linear}, torch.qint8)

    def call(x: np.ndarray) -> object:
        torch.set_num_threads(threads)
        with torch.inference_mode():
            return [layer(torch.from_numpy(x)) for layer in made]

    return call


def llama(case: Case, rows: tuple[int, ...], threads: int, libraries: tuple[Path, str]) -> dict[str, Call]:
    """llama.cpp's products by weights of type Q4_0, in every layout that its CPU backend has for them."""
    backend, weights = Ggml(*libraries, threads), []
    for number in range(case.weights):
        (codes,), scale = case.arrays(number)
        blocks = np.empty((case.n, case.k // BLOCK), _Q4_0)
        blocks["scale"], blocks["codes"] = scale, codes.reshape(case.n, -1, 16)
        weights.append(blocks.view(np.uint8))
    found = dict[str, Call]()
    for layout in (*backend.layouts, backend.plain):
        calls = {count: backend.products(weights, count, layout) for count in rows}
        found[f"llama.cpp Q4_0 {backend.name_of(layout)}"] = lambda x, calls=calls: calls[len(x)](x)  # type: ignore[misc]
    return found
