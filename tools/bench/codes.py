"""Products with weights in few bits, by rows of f32 and of bytes, against f32 and ONNX Runtime's MatMulNBits.

    python -m tools.bench codes [--threads 1] [--formats 4g32,2g128,p64] [--rows 1,4,16,64] [--sizes 2048x2048] [--ring 128]
        [--levels 4] [--seconds 8] [--json out.jsonl]

A format p64 is a pool of 64 vectors of eight bytes: by rows of f32, and by rows rounded to whole numbers of 8 and of 4 bits
beforehand; beside f32, ONNX Runtime's 8 bits with a scale for each 32 and 2 bits for each 128, and torch's bytes (dynamic).

Systems take turns, call by call; the figure is the least time of a product. A model multiplies its rows by a ring of weights of
so many MiB, one after the other, so that weights come from memory; --ring 0 keeps one weight, which stays in the caches where it
fits. GB/s counts codes and scales once; "of memory" is its share of what the product of a long vector with itself reads in the
same run.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.ops.codes import planes
from tools.bench import command

FORMATS = ((4, 32), (4, 128), (2, 128), (8, 32))  # bits, values of a group
SIZES = "2048x2048,4096x4096,2048x8192"  # K x N
_ROUNDS, _SECONDS = 7, 8.0
_MEMORY = 1 << 26  # values of f32
_NODES = (2, 4, 8)  # bits of MatMulNBits
Call = Callable[[np.ndarray], object]


@dataclass(frozen=True)
class Case:
    """weights: in the ring; bits 32 for f32, 0 for a pool of `group` vectors."""

    k: int
    n: int
    bits: int
    group: int
    weights: int

    @property
    def bytes(self) -> int:
        """Of one weight with its scales; without the pool, which all share."""
        if not self.bits:
            return self.k * self.n // 8
        return self.k * self.n * self.bits // 8 + (4 * self.n * (self.k // self.group) if self.bits < 32 else 0)

    def arrays(self, number: int) -> tuple[list[np.ndarray], np.ndarray]:
        """Codes, of 3, 5, 6 and 7 bits in several tensors, and scales of a weight of the ring."""
        rng = np.random.default_rng(number)
        if not self.bits:
            return [rng.integers(0, self.group, (self.n, self.k // 8), dtype=np.uint8)], np.zeros(0, np.float32)
        return ([rng.integers(0, 256, (self.n, self.k * b // 8), dtype=np.uint8) for b in planes(self.bits)],
                rng.random((self.n, self.k // self.group), dtype=np.float32))


def ring_of(k: int, n: int, form: tuple[int, int], ring: int) -> Case:
    """A case with as many weights as fill `ring` MiB."""
    one = Case(k, n, *form, 1)
    return Case(k, n, *form, max(1, -(-ring * (1 << 20) // one.bytes)))


def ours(case: Case, rows: int, threads: int, activations: str = "f32") -> Call:
    """One model of all products."""
    g = ops.Graph()
    x = g.input("x", [rows, case.k])
    if activations.isdecimal():
        x, _ = ops.round_to_bits(x, int(activations), span=(-4.0, 4.0))
    pool = None if case.bits else g.constant(np.random.default_rng(0).integers(-127, 128, (case.group, 8), dtype=np.int8))
    for number in range(case.weights):
        if case.bits == 32:
            w = g.constant(np.random.default_rng(number).random((case.n, case.k), dtype=np.float32))
        elif pool is not None:
            w = ops.decode_pool(g.constant(case.arrays(number)[0][0]), pool, 0.01)
        else:
            codes, scale = case.arrays(number)
            w = ops.decode([g.constant(c) for c in codes], g.constant(scale), bits=case.bits, group=case.group)
        g.output(ops.matmul(x, w, transpose_b=True))
    fn = tw.compile(g, {}, options={"threads": threads, "activations": "int8" if activations == "int8" else "f32"})
    outs = [np.empty((rows, case.n), np.float32) for _ in range(case.weights)]
    out: Any = outs if case.weights > 1 else outs[0]
    return lambda x: fn(x, out=out)


def onnx_runtime(case: Case, rows: int, threads: int, level: int) -> Call:
    """The same as MatMulNBits nodes."""
    import onnx
    import onnxruntime
    from onnx import helper

    nodes, kept = [], []
    for number in range(case.weights):
        (codes,), scale = case.arrays(number)
        kept += [onnx.numpy_helper.from_array(codes.reshape(case.n, case.k // case.group, -1), f"w{number}"),
                 onnx.numpy_helper.from_array(scale, f"s{number}")]
        nodes.append(helper.make_node("MatMulNBits", ["x", f"w{number}", f"s{number}"], [f"y{number}"], domain="com.microsoft",
                                      K=case.k, N=case.n, bits=case.bits, block_size=case.group, accuracy_level=level))
    given = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [rows, case.k])
    made = [helper.make_tensor_value_info(f"y{i}", onnx.TensorProto.FLOAT, [rows, case.n]) for i in range(case.weights)]
    domains = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph(nodes, "ring", [given], made, kept), opset_imports=domains, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda x: session.run(None, {"x": x})


def torch_bytes(case: Case, threads: int) -> Call:
    """torch's dynamically quantised layers."""
    import torch

    torch.set_num_threads(threads)
    layers = torch.nn.ModuleList(torch.nn.Linear(case.k, case.n, bias=False) for _ in range(case.weights))
    made = torch.ao.quantization.quantize_dynamic(layers, {torch.nn.Linear}, torch.qint8)

    def call(x: np.ndarray) -> object:
        with torch.inference_mode():
            return [layer(torch.from_numpy(x)) for layer in made]

    return call


def bandwidth(threads: int) -> float:
    """Bytes a second that products of long vectors with themselves read, all threads together."""
    parts = np.array_split(np.ones(_MEMORY, np.float32), threads)
    best = float("inf")
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(_ROUNDS):
            start = time.perf_counter()
            list(pool.map(lambda part: part.dot(part), parts))
            best = min(best, time.perf_counter() - start)
    return _MEMORY * 4 / best


def least(calls: dict[str, Call], x: np.ndarray, seconds: float = _SECONDS) -> dict[str, float]:
    """Seconds of the fastest call of each, in turns."""
    best = dict.fromkeys(calls, float("inf"))
    begin, done = time.perf_counter(), 0
    while done < 3 or (time.perf_counter() - begin < seconds and done < 50 * _ROUNDS):
        for name, call in calls.items():
            start = time.perf_counter()
            call(x)
            best[name] = min(best[name], time.perf_counter() - start)
        done += 1
    return best


def measure(size: tuple[int, int], form: tuple[int, int], rows: int, given: Any, memory: float) -> list[dict[str, object]]:
    """A record for each system."""
    case, plain = (ring_of(*size, f, given.ring) for f in (form, (32, 1)))
    calls = {"ours": ours(case, rows, given.threads), "ours f32": ours(plain, rows, given.threads)}
    kinds = {"ours f32": plain}
    if case.bits:
        calls["ours int8"] = ours(case, rows, given.threads, "int8")
        for level in (int(e) for e in given.levels.split(",") if case.bits in _NODES):
            calls[f"onnxruntime level {level}"] = onnx_runtime(case, rows, given.threads, level)
    else:
        eight, two = (ring_of(*size, f, given.ring) for f in ((8, 32), (2, 128)))
        calls |= {"ours rows of 8 bits": ours(case, rows, given.threads, "8"),
                  "ours rows of 4 bits": ours(case, rows, given.threads, "4"),
                  "onnxruntime 8 bits": onnx_runtime(eight, rows, given.threads, 4),
                  "onnxruntime 2 bits": onnx_runtime(two, rows, given.threads, 4),
                  "torch bytes": torch_bytes(eight, given.threads)}
        kinds |= {"onnxruntime 8 bits": eight, "onnxruntime 2 bits": two, "torch bytes": eight}
    x = np.random.default_rng(rows).standard_normal((rows, size[0]), dtype=np.float32)
    found = []
    for name, seconds in least(calls, x, given.seconds).items():
        of = kinds.get(name, case)
        speed = of.bytes * of.weights / seconds
        found.append({"system": name, "k": case.k, "n": case.n, "bits": form[0], "group": form[1], "rows": rows,
                      "threads": given.threads, "ring": of.weights, "us": round(seconds / of.weights * 1e6, 2),
                      "GB/s": round(speed / 1e9, 2), "of memory": round(speed / memory, 3)})
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = command.parser("codes", __doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rows", default="1,4,16,64")
    parser.add_argument("--sizes", default=SIZES, help="K x N, comma separated")
    parser.add_argument("--formats", default=",".join(f"{b}g{g}" for b, g in FORMATS),
                        help="bits and values of a group; p64: a pool")
    parser.add_argument("--levels", default="4", help="accuracy levels of ONNX Runtime: 4 rounds rows to bytes, 0 does not")
    parser.add_argument("--ring", type=int, default=128, help="MiB of weights")
    parser.add_argument("--seconds", type=float, default=_SECONDS, help="of a product")
    parser.add_argument("--json", type=Path, help="append the records to this file")
    given = parser.parse_args(argv)
    memory = bandwidth(given.threads)
    formats = [(0, int(e[1:])) if e.startswith("p") else (int(e.partition("g")[0]), int(e.partition("g")[2]))
               for e in given.formats.split(",")]
    print(f"memory: {memory / 1e9:.1f} GB/s")
    print(f"{'K x N':14}{'bits':>5}{'group':>6}{'rows':>5}  {'system':22}{'us':>10}{'GB/s':>8}{'of memory':>10}")
    for size in given.sizes.split(","):
        k, n = (int(e) for e in size.split("x"))
        for form in formats:
            for rows in (int(r) for r in given.rows.split(",")):
                for record in measure((k, n), form, rows, given, memory):
                    print(f"{size:14}{form[0]:>5}{form[1]:>6}{rows:>5}  {record['system']:22}{record['us']:>10}"
                          f"{record['GB/s']:>8}{record['of memory']:>10}", flush=True)
                    if given.json is not None:
                        with given.json.open("a") as file:
                            file.write(json.dumps(record) + "\n")
    return 0
