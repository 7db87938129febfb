"""Products of groups of rows, as in mixtures of experts, against torch's grouped_mm and a loop of products.

    python -m tools.bench grouped [--groups 8 --inner 512 --columns 1024] [--tokens 1,4,32,256] [--json out.jsonl]

Each token has `--top` different groups, random ones; weights are constants. Systems take turns in one process: `grouped_mm` is
torch.nn.functional's, `loop` a torch.mm for each group that has rows. Ratios are medians over the rounds of peer time / ours.
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

Call = Callable[[], Any]
_MOST = 4096  # rows


def product(weights: Any, dtype: str, threads: int) -> tw.CompiledFunction:
    """x [S, K], offsets [E] -> [S, N] by weights [E, K, N], for all S."""
    groups, inner, columns = weights.shape
    g = ops.Graph()
    x, offsets = g.input("x", ["S", inner], dtype), g.input("offsets", [groups], "i32")
    g.output(ops.grouped_matmul(x, g.input("w", [groups, inner, columns], dtype), offsets))
    return tw.compile(g, {"S": tw.Dim(1, _MOST)}, constants={"w": weights}, options={"threads": threads})


def calls_of(fn: tw.CompiledFunction, weights: Any, tokens: int, top: int, threads: int) -> tuple[dict[str, Call], float]:
    """The systems, each a product of the same rows, and the largest relative difference of ours from the loop's."""
    import torch

    groups, rng = len(weights), np.random.default_rng(tokens)
    chosen = np.argsort(rng.random((tokens, groups)), axis=1)[:, :top]
    offsets = torch.from_numpy(np.cumsum(np.bincount(chosen.reshape(-1), minlength=groups)).astype(np.int32))
    x = torch.from_numpy(rng.standard_normal((tokens * top, weights.shape[1]), dtype=np.float32)).to(weights.dtype)
    out = torch.zeros(len(x), weights.shape[2], dtype=weights.dtype)

    def loop() -> Any:
        first = 0
        for group, last in enumerate(offsets.tolist()):
            if last > first:
                torch.mm(x[first:last], weights[group], out=out[first:last])
            first = last
        return out

    wanted, found = loop().double(), fn(x, offsets, threads=threads).double()
    error = float((found - wanted).abs().max() / wanted.abs().max())
    calls = {"ours": lambda: fn(x, offsets, threads=threads), "loop": loop,
             "grouped_mm": lambda: torch.nn.functional.grouped_mm(x, weights, offs=offsets)}
    return calls, error


def main(argv: Sequence[str]) -> int:
    """Print a line for each type and number of tokens."""
    parser = command.parser("grouped", __doc__)
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--inner", type=int, default=512)
    parser.add_argument("--columns", type=int, default=1024)
    parser.add_argument("--top", type=int, default=2, help="groups of a token")
    parser.add_argument("--tokens", default="1,4,32,256")
    parser.add_argument("--types", default="f32,bf16")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, help="append a record for each product")
    given = parser.parse_args(argv)
    tokens = [int(n) for n in given.tokens.split(",")]
    if not 1 <= given.top <= given.groups or max(tokens) * given.top > _MOST:
        parser.error(f"--top is from 1 to the number of groups, and the tokens have at most {_MOST} rows together")
    import torch

    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    plain = torch.randn(given.groups, given.inner, given.columns)
    for dtype in given.types.split(","):
        weights = plain.to({"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[dtype])
        fn = product(weights, dtype, given.threads)
        best: list[float] = []
        for number in tokens:
            calls, error = calls_of(fn, weights, number, given.top, given.threads)
            times = rounds_of(calls, given.rounds)
            found = times.ratios("ours")
            best.append(min(found.values()))
            shown = "  ".join(f"{peer} {ratio:.2f}x" for peer, ratio in found.items())
            print(f"{dtype:5}{number:5} tokens {times.seconds['ours'] * 1e6:10.1f} us  {shown}  error {error:.1e}", flush=True)
            if given.json is not None:
                record = {"dtype": dtype, "tokens": number, "top": given.top, "weights": list(weights.shape),
                          "threads": given.threads, "seconds": times.seconds, "ratios": found, "error": error}
                with given.json.open("a") as file:
                    file.write(json.dumps(record) + "\n")
        print(f"{dtype}: geomean {statistics.geometric_mean(best):.3f}x over the best, worst {min(best):.3f}x")
    return 0
