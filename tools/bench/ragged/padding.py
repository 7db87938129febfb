"""What padding the rows of a whole batch would gain: the layer without its attention, over the rows of a batch as they are and
over as many as are a multiple of a block's height, as kernels without tails would run them."""

from __future__ import annotations

import argparse
import statistics
from functools import partial

import numpy as np

import tilewright as tw
from tilewright.compiler import ops
from tools.bench.ragged.case import first_lengths
from tools.bench.ragged.encoder import INNER, WIDTH
from tools.bench.turns import rounds_of

_MULTIPLES = (4, 16, 64)  # rows: of a block of products, of blocks beside each other, of a tile that a GPU would take


def main(given: argparse.Namespace) -> int:
    """Print the padded time over the time as it is, for each data set and multiple, and their geometric means."""
    fn = _rows()
    found: dict[int, list[float]] = {m: [] for m in _MULTIPLES}
    for name in given.sets.split(","):
        rows = sum(first_lengths()[name][: given.batch])
        x = np.random.default_rng(0).standard_normal((rows + max(_MULTIPLES), WIDTH)).astype(np.float32)
        counts = {m: -(-rows // m) * m for m in (1, *_MULTIPLES)}
        outs = {m: np.empty((count, WIDTH), np.float32) for m, count in counts.items()}
        calls = {str(m): partial(fn, x[:count], out=outs[m], threads=given.threads) for m, count in counts.items()}
        turns = rounds_of(calls, given.rounds)
        ratios = turns.ratios("1")
        for m in _MULTIPLES:
            found[m].append(ratios[str(m)])
        shown = "  ".join(f"{counts[m]}: {ratios[str(m)]:.3f}x" for m in _MULTIPLES)
        print(f"{name:10} {rows} rows {turns.seconds['1'] * 1e3:8.2f} ms; time with rows up to {shown}", flush=True)
    for m, each in found.items():
        print(f"padded to multiples of {m}: geomean {statistics.geometric_mean(each):.4f}x the time, least {min(each):.3f}x")
    return 0


def _rows() -> tw.CompiledFunction:
    """The layer's products and norms over [N, WIDTH]; its weights are constants."""
    g, rng, weights = ops.Graph(), np.random.default_rng(0), dict[str, np.ndarray]()

    def dense(x: ops.Tensor, width: int) -> ops.Tensor:
        shape = (int(str(x.dims[-1])), width)
        name = f"w{len(weights)}"
        weights[name] = (rng.standard_normal(shape) / shape[0] ** 0.5).astype(np.float32)
        return ops.dense(x, g.input(name, list(shape)))

    def norm(x: ops.Tensor) -> ops.Tensor:
        names = [f"w{len(weights)}", f"w{len(weights) + 1}"]
        weights.update({name: np.ones(WIDTH, np.float32) for name in names})
        scale, shift = (g.input(name, [WIDTH]) for name in names)
        return ops.layernorm(x, scale, shift)

    x = g.input("x", ["N", WIDTH])
    y = norm(ops.add(x, dense(dense(x, 3 * WIDTH), WIDTH)))
    g.output(norm(ops.add(y, dense(ops.relu(dense(y, INNER)), WIDTH))))
    return tw.compile(g, {"N": tw.Dim(1, 1 << 16)}, constants=weights)
