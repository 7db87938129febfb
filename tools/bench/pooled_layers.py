"""Convolutions out of a pool of 64 vectors by bits of their images, against int8 convolutions.

    python -m tools.bench pooled-layers [--threads 1] [--bits 8,6,5,4,3,2] [--rounds 15] [--target host] [--json out.jsonl]

The distinct 3x3 and 1x1 layers of ResNet-10 and ResNet-14 for images of 32 x 32 (whose first layer halves them), one image,
random weights. One compiled model serves all bits; its time is that of rounding the f32 image by its own span and of the
convolution, with f32 results. ONNX Runtime's QLinearConv and torch's quantised convolution (oneDNN) read bytes and write bytes.
Each system is a process of its own; they take turns, and stand still meanwhile.
"""

from __future__ import annotations

import functools
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.compiler import ops
from tools.bench import command
from tools.bench.harness.interleave import Worker, rounds
from tools.bench.harness.serve import Call, serve

ENTRIES, BITS = 64, "8,6,5,4,3,2"
SECONDS = 0.02  # of a turn


@dataclass(frozen=True)
class Layer:
    """size: height and width of the image."""

    channels: int
    filters: int
    size: int
    window: int
    stride: int

    @property
    def out(self) -> int:
        return self.size // self.stride

    def __str__(self) -> str:
        return f"{self.channels}-{self.filters} {self.window}x{self.window}/{self.stride} at {self.size}"


LAYERS = (Layer(64, 64, 16, 3, 1), Layer(64, 128, 16, 3, 2), Layer(64, 128, 16, 1, 2), Layer(128, 128, 8, 3, 1),
          Layer(128, 256, 8, 3, 2), Layer(128, 256, 8, 1, 2), Layer(256, 256, 4, 3, 1))


@functools.cache
def model(layer: Layer, threads: int, target: str) -> tw.CompiledFunction:
    rng, g = np.random.default_rng(0), ops.Graph()
    pool = g.constant(np.clip(np.rint(rng.normal(0, 35, (ENTRIES, 8))), -127, 127).astype(np.int8))
    values, _ = ops.round_to_bits(g.input("x", [1, layer.size, layer.size, layer.channels]), g.dim("A"))
    index = rng.integers(0, ENTRIES, (layer.filters, layer.window, layer.window, layer.channels // 8), dtype=np.uint8)
    w = ops.transpose(ops.decode_pool(g.constant(index), pool, 0.01), (1, 2, 3, 0))
    g.output(ops.conv2d(values, w, layout="nhwc", stride=layer.stride, padding=layer.window // 2))
    return tw.compile(g, {"A": tw.Dim(1, 8)}, target=target, options={"threads": threads})


def ours(layer: Layer, threads: int, bits: int, target: str) -> Call:
    fn = model(layer, threads, target)
    x = np.random.default_rng(1).random((1, layer.size, layer.size, layer.channels), dtype=np.float32)
    return partial(fn, x, bits, out=np.empty((1, layer.out, layer.out, layer.filters), np.float32))


def onnx_runtime(layer: Layer, threads: int) -> Call:
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    rng, k = np.random.default_rng(0), layer.window
    weight = rng.integers(-127, 128, (layer.filters, layer.channels, k, k)).astype(np.int8)
    kept = {"xs": np.float32(0.1), "xz": np.uint8(0), "w": weight, "ws": np.float32(0.1), "wz": np.int8(0), "ys": np.float32(100),
            "yz": np.uint8(128)}
    node = helper.make_node("QLinearConv", ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz"], ["y"], kernel_shape=[k, k],
                            pads=[k // 2] * 4, strides=[layer.stride] * 2)
    shapes = {"x": [1, layer.channels, layer.size, layer.size], "y": [1, layer.filters, layer.out, layer.out]}
    infos = {n: helper.make_tensor_value_info(n, TensorProto.UINT8, s) for n, s in shapes.items()}
    stored = [numpy_helper.from_array(np.asarray(v), n) for n, v in kept.items()]
    graph = helper.make_graph([node], "layer", [infos["x"]], [infos["y"]], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    x, y = rng.integers(0, 256, shapes["x"], dtype=np.uint8), np.empty(shapes["y"], np.uint8)
    binding = session.io_binding()
    binding.bind_input("x", "cpu", 0, x.dtype, x.shape, x.ctypes.data)
    binding.bind_output("y", "cpu", 0, y.dtype, y.shape, y.ctypes.data)
    keep = (x, y)
    return lambda: (session.run_with_iobinding(binding), keep)


def one_dnn(layer: Layer, threads: int) -> Call:
    import torch

    torch.set_num_threads(threads)
    torch.backends.quantized.engine = "onednn"
    made = torch.ao.nn.quantized.Conv2d(layer.channels, layer.filters, layer.window, stride=layer.stride,
                                        padding=layer.window // 2, bias=False)
    weight = torch.randn(layer.filters, layer.channels, layer.window, layer.window)
    made.set_weight_bias(torch.quantize_per_tensor(weight, 0.03, 0, torch.qint8), None)
    made.scale, made.zero_point = 1.0, 64
    image = torch.rand(1, layer.channels, layer.size, layer.size).contiguous(memory_format=torch.channels_last)
    x = torch.quantize_per_tensor(image, 1 / 255, 0, torch.quint8)

    def call() -> object:
        with torch.inference_mode():
            return made(x)

    return call


PEERS = {"onnxruntime": onnx_runtime, "onednn": one_dnn}


def measure(layer: Layer, bits: Sequence[int], threads: int, count: int, target: str) -> dict[str, float]:
    """Microseconds of each system."""
    workers = {name: Worker(name, threads, module="tools.bench.pooled_layers") for name in ("ours", *PEERS)}

    def prepare(name: str, width: int = 0) -> None:
        workers[name].ask(do="prepare", layer=asdict(layer), bits=width, target=target)

    def turn(width: int, seconds: float) -> float:
        prepare("ours", width)
        return workers["ours"].turn(seconds)

    try:
        for peer in PEERS:
            prepare(peer)
        turns = {f"{b} bits": partial(turn, b) for b in bits} | {peer: workers[peer].turn for peer in PEERS}
        found = rounds(turns, count, SECONDS * count)
    finally:
        for worker in workers.values():
            worker.close()
    return {name: round(statistics.median(each) * 1e6, 2) for name, each in found.items()}


def answer(system: str, threads: int) -> int:
    """The process of a system."""

    def prepare(request: dict[str, Any]) -> tuple[Call, dict[str, Any]]:
        layer = Layer(**request["layer"])
        if system in PEERS:
            return PEERS[system](layer, threads), {}
        return ours(layer, threads, request["bits"], request["target"]), {}

    return serve(threads, prepare)


def main(argv: Sequence[str] | None = None) -> int:
    parser = command.parser("pooled-layers", __doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--bits", default=BITS)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--target", default="host", help="of ours, such as host:x86-64-v3 for kernels of AVX2")
    parser.add_argument("--json", type=Path, help="append the records to this file")
    given = parser.parse_args(argv)
    bits = [int(b) for b in given.bits.split(",")]
    for layer in LAYERS:
        found = measure(layer, bits, given.threads, given.rounds, given.target)
        print(f"{layer!s:20} " + "  ".join(f"{name} {us:.1f}" for name, us in found.items()), flush=True)
        command.append(given.json, [asdict(layer) | {"threads": given.threads, "target": given.target, "us": found}])
    return 0


if __name__ == "__main__":
    sys.exit(answer(sys.argv[1], int(sys.argv[2])))
