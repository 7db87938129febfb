"""A process that takes steps of a Llama by one system: JSON requests on standard input, one reply a line on standard output.

    python -m tools.bench.llama.worker SYSTEM THREADS [--models FOLDER]
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tools.bench.harness.serve import Call, serve
from tools.bench.llama.model import Llama, Step, reference
from tools.bench.operator_spec import Array


@dataclass(frozen=True)
class Taken:
    """A step bound to its arguments: a call writes the result and what it adds to the caches."""

    call: Call
    y: Array


def ours(llama: Llama, length: int, threads: int, form: tuple[int, str], kept: Path | None) -> Taken:
    """form: bits of weights, and activations. kept: the file of the compiled model, made where there is none."""
    import tilewright as tw

    bits, activations = form
    if kept is None or not kept.exists():
        fn = tw.compile(Step(llama, bits).model(), {"P": (1, llama.longest - 1)},
                        options={"threads": threads, "activations": activations})
        if kept is not None:
            fn.save(kept)
    else:
        fn = tw.load(str(kept))
    x, caches = arguments(llama, length)
    given = [x, np.array([[length]], np.int64), *(c[:, :length] for c in caches.values())]
    y = np.empty_like(x)
    made = [y, *(c[:, length : length + 1] for c in caches.values())]
    return Taken(lambda: fn(*given, out=made), y)


def onnx_runtime(llama: Llama, length: int, threads: int, form: tuple[int, bool]) -> Taken:
    """form: bits of weights, and whether attention is the operator that has caches of its own."""
    import onnxruntime

    bits, fused = form
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(Step(llama, bits, fused).model().SerializeToString(), options,
                                           providers=["CPUExecutionProvider"])
    x, caches = arguments(llama, length)
    y, binding, kept = np.empty_like(x), session.io_binding(), list[Array]()

    def bind(name: str, value: Array, result: bool = False) -> None:
        (binding.bind_output if result else binding.bind_input)(name, "cpu", 0, value.dtype, value.shape, value.ctypes.data)
        kept.append(value)

    bind("x", x)
    bind("y", y, result=True)
    for name, number in (("last", length), ("all", length + 1)) if fused else ():
        bind(name, np.array([number], np.int32))
    if not fused:
        bind("position", np.array([[length]], np.int64))
    for name, cache in caches.items():
        if fused:
            cache = np.ascontiguousarray(cache.reshape(1, llama.longest, llama.shared, llama.each).transpose(0, 2, 1, 3))
        bind(name, cache if fused else cache[:, :length])
        bind(name.replace("past", "new"), cache if fused else cache[:, length : length + 1], result=True)
    return Taken(lambda: (session.run_with_iobinding(binding), kept), y)


def arguments(llama: Llama, length: int) -> tuple[Array, dict[str, Array]]:
    """x, and caches with so many positions."""
    return np.random.default_rng(0).standard_normal((1, 1, llama.width), dtype=np.float32), dict(llama.past(length))


# name -> the step; of ours the bits of weights and the activations, of ONNX Runtime the bits and whether attention is fused
OURS = {"ours-f32": (32, "f32"), "ours-4": (4, "f32"), "ours-4-int8": (4, "int8")}
PEERS = {"ort-f32": (32, False), "ort-4": (4, False), "ort-4-fused": (4, True)}


def taken(system: str, llama: Llama, length: int, threads: int, models: Path | None = None) -> Taken:
    if system in PEERS:
        return onnx_runtime(llama, length, threads, PEERS[system])
    return ours(llama, length, threads, OURS[system], None if models is None else models / f"{system}-{threads}.tw")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("system", choices=[*OURS, *PEERS])
    parser.add_argument("threads", type=int)
    parser.add_argument("--models", type=Path)
    given = parser.parse_args()

    def prepare(request: dict[str, Any]) -> tuple[Call, dict[str, Any]]:
        llama, length = Llama(**request["llama"]), request["length"]
        found = taken(given.system, llama, length, given.threads, given.models)
        found.call()
        got = found.y.reshape(-1)
        wanted = reference(llama, *arguments(llama, length), length).reshape(-1) if request["check"] else got
        return found.call, {"error": float(np.linalg.norm(got - wanted) / np.linalg.norm(wanted))}

    return serve(given.threads, prepare)


if __name__ == "__main__":
    sys.exit(main())
