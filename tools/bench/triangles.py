"""Products with a triangular factor against BLAS's trmm and the full product.

    python -m tools.bench triangles [--sizes 128,256,512,1024] [--threads 1] [--rounds 15] [--json out.jsonl]

The factor is N x N, the other N x N too: `lower` is tril(a) b, `transposed` tril(a)' b, `right` b tril(a). Systems take turns in
one process: `trmm` is scipy's strmm in place, again and again on its own result; `full` is this compiler's product without the
triangle; `torch` is torch's tril and matmul. Ratios are medians over the rounds of peer time / ours.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.compiler import ops
from tools.bench import command
from tools.bench.turns import rounds_of

KINDS = ("lower", "transposed", "right")
Call = Callable[[], Any]


def product(kind: str, triangular: bool) -> tw.CompiledFunction:
    """a, b -> their product, for all sizes."""
    g = ops.Graph()
    a, b = g.input("a", ["N", "N"]), g.input("b", ["N", "N"])
    factor = ops.tril(a) if triangular else a
    g.output(ops.matmul(b, factor) if kind == "right" else ops.matmul(factor, b, transpose_a=kind == "transposed"))
    return tw.compile(g, {"N": tw.Dim(1, 2048)})


def calls_of(kind: str, fns: tuple[tw.CompiledFunction, tw.CompiledFunction], n: int,
             threads: int) -> tuple[dict[str, Call], float]:
    """The systems, each a product of the same matrices, and the largest difference of ours from trmm's."""
    import torch
    from scipy.linalg.blas import strmm

    rng = np.random.default_rng(n)
    a, b = (rng.standard_normal((n, n), dtype=np.float32) for _ in range(2))
    out, full = np.empty_like(b), np.empty_like(b)
    (x, y), keep = (torch.from_numpy(m) for m in (a, b)), np.asfortranarray(b.T)
    # Row by row, a is a' to BLAS: tril(a) b is (b' tril(a)')', whose factor it sees as an upper one on the right.
    side, transposed = int(kind != "right"), int(kind == "transposed")
    mine, whole = fns

    def trmm() -> Any:
        return strmm(0.5, a.T, keep, side=side, lower=0, trans_a=transposed, overwrite_b=1)

    def with_torch() -> Any:
        t = torch.tril(x)
        return y @ t if kind == "right" else (t.T if transposed else t) @ y

    wanted = strmm(1.0, a.T, np.asfortranarray(b.T), side=side, lower=0, trans_a=transposed).T
    error = float(np.abs(mine(a, b, threads=threads) - wanted).max())
    return {"ours": lambda: mine(a, b, out=out, threads=threads), "trmm": trmm,
            "full": lambda: whole(a, b, out=full, threads=threads), "torch": with_torch}, error


def main(argv: Sequence[str]) -> int:
    """Print a line for each product and size."""
    parser = command.parser("triangles", __doc__)
    parser.add_argument("--sizes", default="128,256,512,1024")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, help="append a record for each product")
    given = parser.parse_args(argv)
    import scipy.linalg.blas  # noqa: F401 - loads the library that the limit is for
    import torch
    from threadpoolctl import threadpool_limits

    torch.set_num_threads(given.threads)
    ratios: dict[str, list[float]] = {}
    with threadpool_limits(given.threads):
        for kind in KINDS:
            fns = product(kind, True), product(kind, False)
            for n in map(int, given.sizes.split(",")):
                calls, error = calls_of(kind, fns, n, given.threads)
                times = rounds_of(calls, given.rounds)
                found = times.ratios("ours")
                for peer, ratio in found.items():
                    ratios.setdefault(peer, []).append(ratio)
                shown = "  ".join(f"{peer} {ratio:.2f}x" for peer, ratio in found.items())
                print(f"{kind:11}{n:5} {times.seconds['ours'] * 1e6:10.1f} us  {shown}  error {error:.1e}", flush=True)
                if given.json is not None:
                    record = {"kind": kind, "n": n, "threads": given.threads, "seconds": times.seconds, "ratios": found}
                    with given.json.open("a") as file:
                        file.write(json.dumps({**record, "error": error}) + "\n")
    for peer, each in ratios.items():
        print(f"{peer}: geomean {statistics.geometric_mean(each):.3f}x, worst {min(each):.3f}x")
    return 0
