"""Convolutions of small networks with filters out of a pool of 64 vectors, against f32 and ONNX Runtime's bytes.

    python -m tools.bench pooled-layers [--threads 1] [--bits 8,4] [--seconds 3] [--json out.jsonl]

The layers are those of ResNet-10 and ResNet-14 on images of 32x32: 3x3 filters of 16, 32 and 64 channels, random weights, one
image, channels last. Systems take turns, call by call; the figure is the least time of a layer. Images are rounded to so many
bits in the same call. ONNX Runtime runs QLinearConv, with a scale for each output, on bytes that are given.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

import tilewright as tw
from tilewright.compiler import ops
from tools.bench import codes, command

LAYERS = ((16, 16, 32, 1), (16, 32, 32, 2), (32, 32, 16, 1), (32, 64, 16, 2), (64, 64, 8, 1))  # channels in, out, pixels, step
ENTRIES, TAPS = 64, 3
Layer = tuple[int, int, int, int]


def ours(layer: Layer, threads: int, bits: int | None, pooled: bool) -> Callable[[np.ndarray], object]:
    """bits: of the image, None for f32."""
    inputs, outputs, size, step = layer
    rng, g = np.random.default_rng(0), ops.Graph()
    x = g.input("x", [1, size, size, inputs])
    image, scale = ops.pad(x, [0, 1, 1, 0], [0, 1, 1, 0]), None
    if bits is not None:
        image, scale = ops.round_to_bits(image, bits, span=(0.0, 4.0))
    if pooled:
        index = g.constant(rng.integers(0, ENTRIES, (outputs, TAPS, TAPS, inputs // 8), dtype=np.uint8))
        pool = g.constant(rng.integers(-127, 128, (ENTRIES, 8)).astype(np.int8))
        w = ops.transpose(ops.decode_pool(index, pool, 0.01), (1, 2, 3, 0))
    else:
        w = g.constant(rng.standard_normal((TAPS, TAPS, inputs, outputs), dtype=np.float32))
    y = ops.conv2d(image, w, layout="nhwc", stride=step)
    g.output(y if scale is None else y * scale)
    fn = tw.compile(g, {}, options={"threads": threads})
    return lambda image: fn(image)


def onnx_runtime(layer: Layer, threads: int) -> Callable[[np.ndarray], object]:
    """QLinearConv of bytes, channels first."""
    import onnx
    import onnxruntime
    from onnx import helper, numpy_helper

    inputs, outputs, size, step = layer
    rng = np.random.default_rng(0)
    filters = rng.integers(-127, 128, (outputs, inputs, TAPS, TAPS)).astype(np.int8)
    kept = {"xs": np.float32(0.02), "xz": np.uint8(0), "w": filters, "ws": np.full(outputs, 0.01, np.float32),
            "wz": np.zeros(outputs, np.int8), "ys": np.float32(0.1), "yz": np.uint8(128)}
    names = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz"]
    node = helper.make_node("QLinearConv", names, ["y"], pads=[1] * 4, strides=[step] * 2)
    given = helper.make_tensor_value_info("x", onnx.TensorProto.UINT8, [1, inputs, size, size])
    made = helper.make_tensor_value_info("y", onnx.TensorProto.UINT8, [1, outputs, size // step, size // step])
    arrays = [numpy_helper.from_array(np.asarray(v), k) for k, v in kept.items()]
    graph = helper.make_graph([node], "layer", [given], [made], arrays)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    bytes_ = rng.integers(0, 256, (1, inputs, size, size), dtype=np.uint8)
    return lambda _: session.run(None, {"x": bytes_})


def main(argv: Sequence[str] | None = None) -> int:
    parser: argparse.ArgumentParser = command.parser("pooled-layers", __doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--bits", default="8,4")
    parser.add_argument("--seconds", type=float, default=3.0, help="of a layer")
    parser.add_argument("--json", type=Path, help="append the records to this file")
    given = parser.parse_args(argv)
    print(f"{'in':>4}{'out':>4}{'size':>5}{'step':>5}  {'system':22}{'us':>9}{'MAC/ns':>8}")
    for layer in LAYERS:
        calls = {f"ours {'pool' if p else 'f32'}": ours(layer, given.threads, None, pooled=p) for p in (False, True)}
        calls |= {f"ours pool {b} bits": ours(layer, given.threads, int(b), pooled=True) for b in given.bits.split(",")}
        calls["onnxruntime bytes"] = onnx_runtime(layer, given.threads)
        x = np.random.default_rng(1).random((1, layer[2], layer[2], layer[0]), dtype=np.float32)
        work = layer[0] * layer[1] * TAPS * TAPS * (layer[2] // layer[3]) ** 2
        for name, seconds in codes.least(calls, x, given.seconds).items():
            record = {"layer": layer, "system": name, "threads": given.threads, "us": round(seconds * 1e6, 2)}
            print(f"{layer[0]:>4}{layer[1]:>4}{layer[2]:>5}{layer[3]:>5}  {name:22}{record['us']:>9}{work / seconds / 1e9:8.1f}",
                  flush=True)
            if given.json is not None:
                with given.json.open("a") as file:
                    file.write(json.dumps(record) + "\n")
    return 0
