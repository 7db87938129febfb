"""Flips bits in the entries of a cache, kernels and whole models, and compiles again: what was damaged is made anew."""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path
from unittest import mock

import numpy as np

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.builder.worker_builder import WorkerBuilder
from tilewright.runtime import knobs
from tilewright.runtime.target import Target

REBUILT, UNTOLD, WRONG = "rebuilt", "untold", "wrong"


def flip_bits(folder: Path, count: int, rng: random.Random) -> Counter[str]:
    """What came of each flip. rebuilt: the entry was replaced and results are right. untold: it is as it was left.

    folder: of the cache.
    """
    found: Counter[str] = Counter()
    home = mock.patch.dict(os.environ, {knobs.CACHE_DIR.name: str(folder)})
    with home, WorkerBuilder(Target.parse("host"), workers=1) as builder:
        _is_right()
        kept = {path: path.read_bytes() for path in folder.glob("??/*")}
        models = [path for path, data in kept.items() if data.startswith(b"\x89TWMODL\n")]
        for _ in range(count):
            path = rng.choice(list(kept))
            flipped = bytearray(kept[path])
            flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
            path.write_bytes(flipped)
            is_right = _is_right(None if path in models else builder)
            found[WRONG if not is_right else UNTOLD if path.read_bytes() == flipped else REBUILT] += 1
            for place, data in kept.items():
                place.write_bytes(data)
    return found


def _is_right(builder: WorkerBuilder | None = None) -> bool:
    """Compile, and compare. builder: is asked for kernels; else the model is looked for first."""
    graph = ops.Graph()
    x, w = graph.input("x", ["M", 16]), graph.input("w", [16, 8])
    graph.output(ops.softmax(ops.matmul(x, w), 1))
    weight = np.linspace(-1, 1, 128, dtype=np.float32).reshape(16, 8)
    fn = tw.compile(graph, {"M": (1, 8)}, constants={"w": weight}, options=tw.CompileOptions(builder=builder))
    given = np.linspace(-2, 2, 80, dtype=np.float32).reshape(5, 16)
    product = np.exp(given @ weight)
    return bool(np.allclose(fn(given), product / product.sum(1, keepdims=True), atol=1e-5))
