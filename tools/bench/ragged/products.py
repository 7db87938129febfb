"""CoRa's batch of products, each of its own M, N and K: the first 100 rows of its table, scaled by 1/4."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.compiler import ops
from tools.bench.ragged.case import Call, Case

# vbatch_gemm/data.txt of github.com/pratikfegade/cora_benchmarks: M, N and K of a row in units of 128, as hexadecimal digits.
TABLE = """
    768 888 676 5b7 9a7 9b4 447 599 4bb 6a7 67a 9b5 7ba 855 8a8 555 744 948 b58 a7a 646 8a7 876 6b6 945 a86 985 886 979 846 ba9
    954 6b6 679 aa6 7b6 865 ba5 a88 6ba 757 757 bb9 5b4 699 5a4 576 957 b89 544 aba 788 ab9 4b5 589 b99 b4a 776 ab9 748 747 8b5
    454 76b 967 a94 979 a7b b67 94b 9b7 64a 748 896 847 676 6a7 7a4 947 a8b ab8 984 ba7 bb9 594 4b7 5a9 774 568 868 485 669 645
    ba7 a55 b54 585 bab 895 5b7
"""
UNIT = 32


def sizes() -> list[tuple[int, int, int]]:
    """M, N, K of each product."""
    return [(m * UNIT, n * UNIT, k * UNIT) for m, n, k in ((int(d, 16) for d in row) for row in TABLE.split())]


def cases(_given: argparse.Namespace) -> Iterator[Case]:
    """The whole batch."""
    import torch

    g = ops.Graph()
    g.output(ops.matmul(g.input("a", ["B", "M", "K"]), g.input("b", ["B", "K", "N"])))
    table = sizes()
    fn = tw.compile(g, {"B": tw.Dim(1, 128), **{n: tw.Ragged(1, 512, over="B") for n in "MNK"}})
    a, b = ([torch.randn(rows, columns) for rows, columns in shapes]
            for shapes in ([(m, k) for m, _, k in table], [(k, n) for _, n, k in table]))
    most = [max(own) for own in zip(*table, strict=True)]
    wide = torch.zeros(len(table), most[0], most[2]), torch.zeros(len(table), most[2], most[1])
    for number, (m, n, k) in enumerate(table):
        wide[0][number, :m, :k], wide[1][number, :k, :n] = a[number], b[number]
    packed = [torch.cat([x.reshape(-1) for x in own]) for own in (a, b)]
    lengths = np.array(table, np.int64)
    ends = [torch.from_numpy(np.append(0, np.cumsum(own))) for own in lengths.T]
    totals = [int(own.sum()) for own in lengths.T]
    elements = int((lengths[:, 0] * lengths[:, 1]).sum())
    mine, padded = torch.empty(elements), torch.empty(len(table), most[0], most[1])
    out = torch.empty(elements)
    results = [o.view(m, n) for o, (m, n, _) in zip(out.split([m * n for m, n, _ in table]), table, strict=True)]

    def loop() -> Any:
        for x, y, z in zip(a, b, results, strict=True):
            torch.mm(x, y, out=z)
        return out

    calls: dict[str, Call] = {
        "ours": lambda: fn.call_flat(*packed, *ends, *totals, elements, out=mine),
        "padded": lambda: torch.bmm(*wide, out=padded),
        "loop": loop,
    }
    calls["ours"]()
    return iter([Case(f"{len(table)} products", calls, float((mine - loop()).abs().max()))])
