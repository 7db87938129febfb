"""How well the partition's predicted cost ranks: the partition that is taken against random legal cuts of the same workload.

    python -m tools.bench cuts [--names 'layernorm*'] [--cuts 20] [--rows 128,1024] [--threads 1] [--json out.jsonl]

A cut is a rule that keeps some pairs of regions apart, drawn by what they hold; two more are no cut and nothing joined. All are
compiled and timed in turns, one at a time beside the one that is taken. Spearman's correlation of predicted and measured times is
over all cuts of all workloads and rows. Times need a quiet machine.
"""

from __future__ import annotations

import argparse
import fnmatch
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from zlib import crc32

from scipy.stats import spearmanr

import tilewright as tw
from tilewright.compiler.builder.codegen import limits
from tilewright.compiler.compilation.compilation import full_target
from tilewright.compiler.compilation.partitions import partitions_of
from tilewright.passes.dispatch_creation.partition_summary import PartitionSummary
from tilewright.passes.mlir import ir
from tilewright.passes.partition.region import Region
from tilewright.passes.partition.rules import Rule, register, unregister
from tilewright.runtime.host.benchmark import Timing, time_beside, time_call
from tools.bench import command
from tools.bench.partition.bench import Bench, tensors
from tools.bench.partition.shown import shown
from tools.bench.partition.training import WORKLOADS, Workload
from tools.checkout import of_tests


@dataclass(frozen=True)
class Cut(Rule):
    """Keeps a share of all pairs of regions apart."""

    name: ClassVar[str] = "drawn"
    order: ClassVar[int] = 0
    seed: int = 0
    share: float = 0.3

    def applies(self, a: Region, b: Region) -> bool:
        """Is it one of the pairs that are kept apart?"""
        text = f"{self.seed}|{_held(a)}|{_held(b)}"
        return crc32(text.encode()) / 2**32 < self.share

    def joins(self, a: Region, b: Region) -> str | None:
        return "drawn"


@dataclass(frozen=True)
class CutBeside(Cut):
    """The same of regions that read one tensor."""

    name: ClassVar[str] = "drawn-beside"
    beside: ClassVar[bool] = True


def _held(region: Region) -> str:
    return ",".join(str(op.attributes) + str(len(op.operands)) for op in region.ops)


@dataclass(frozen=True)
class Compiled:
    """A workload under one cut; its partition, and the predicted seconds of a call at each of the shapes that were looked at."""

    fn: Any
    summary: PartitionSummary

    @property
    def areas(self) -> tuple[tuple[int, ...], ...]:
        return tuple(a.operations for a in self.summary.areas)


def compiled(bench: Bench, cut: Cut | None, threads: int) -> Compiled:
    """By the whole compiler, with the rules of the cut registered meanwhile."""
    rules = [] if cut is None else [cut, CutBeside(cut.seed, cut.share)]
    for rule in rules:
        register(rule)
    try:
        module, example, dynamic = bench.exported()
        fn = tw.compile(module, args=example, dynamic_shapes=dynamic, options={"threads": threads})
        return Compiled(fn, partitions_of(fn.program.source, limits(full_target("host"), threads))[-1])
    finally:
        for rule in rules:
            unregister(rule.name)


def measured(bench: Bench, workload: Workload, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A record for each row and each partition that differs from those before: its time over that of the one that is taken."""
    rows = [int(n) for n in args.rows.split(",")]
    taken = compiled(bench, None, args.threads)
    others: dict[tuple[tuple[int, ...], ...], Compiled] = {taken.areas: taken}
    for seed in range(args.cuts):
        made = compiled(bench, Cut(seed, (0.15, 0.3, 0.6)[seed % 3]), args.threads)
        others.setdefault(made.areas, made)
    whole = compiled(bench, Cut(0, 1.0), args.threads)
    others.setdefault(whole.areas, whole)
    for count in rows:
        given = tensors(bench.torch, workload.given, count)
        own = partial(taken.fn, *given)
        seconds = statistics.median(time_call(own, Timing(longest=args.seconds)))
        for made in others.values():
            ratio = 1.0 if made is taken else statistics.median(
                time_beside(partial(made.fn, *given), own, Timing(longest=args.seconds)))
            yield {"workload": workload.name, "rows": count, "launches": len(made.areas), "taken": made is taken,
                   "seconds": ratio * seconds, "ratio": ratio, "predicted": predicted_at(made.summary, count)}


def predicted_at(summary: PartitionSummary, rows: int) -> float:
    """Predicted seconds at the shape that lies nearest to so many rows, on a scale of logarithms."""
    sizes = [next(iter(shape.values())) if shape else rows for shape in summary.shapes]
    nearest = min(range(len(sizes)), key=lambda n: abs(math.log(sizes[n] / rows)))
    return summary.seconds[nearest]


def judged(records: Sequence[dict[str, Any]]) -> str:
    """Spearman's correlation, and how far the one that is taken is from the best, by workload and rows."""
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for record in records:
        groups.setdefault((record["workload"], record["rows"]), []).append(record)
    behind = {key: 1 / min(r["ratio"] for r in own) for key, own in groups.items()}
    worst = max(behind, key=behind.__getitem__)
    mean = math.exp(statistics.fmean(map(math.log, behind.values())))
    pooled = spearmanr([r["predicted"] for r in records], [r["seconds"] for r in records]).statistic
    within = [spearmanr([r["predicted"] for r in own], [r["seconds"] for r in own]).statistic
              for own in groups.values() if len({r["predicted"] for r in own}) > 2]
    inner = f", within a workload {statistics.fmean(within):.2f} on average" if within else ""
    return (f"{len(records)} partitions: Spearman {pooled:.2f}{inner}; taken over best: geometric mean {mean:.3f}, "
            f"worst {behind[worst]:.3f} {worst[0]} at {worst[1]}")


def random_graphs(seeds: range) -> int:
    """Exit code 1 where a graph is wrong, with its seed. Every other one has sums down the rows."""
    check, wrong = of_tests("unit.test_partition"), 0
    for seed in seeds:
        with ir.Context(), ir.Location.unknown():
            try:
                check.assert_right(seed, {"B": 1}, {"B": 5}, columns=bool(seed % 2))
            except AssertionError as error:
                wrong += 1
                print(f"seed {seed}: {error}", flush=True)
            check.KEPT.clear()
    print(f"{len(seeds)} graphs, each cut in 3 ways at 2 shapes: {wrong} wrong")
    return int(wrong > 0)


def random_chains(seeds: range) -> int:
    """Exit code 1 where a chain by strips of rows is wrong, with its seed."""
    check, wrong, cut = of_tests("unit.test_strips"), 0, 0
    for seed in seeds:
        try:
            cut += check.right_at(seed) > 0
        except AssertionError as error:
            wrong += 1
            print(f"seed {seed}: {error}", flush=True)
    print(f"{len(seeds)} chains, {cut} of them with strips, at {len(check.CHAIN_ROWS)} shapes: {wrong} wrong")
    return int(wrong > 0)


def main(argv: Sequence[str] | None = None) -> int:
    parser = command.parser("cuts", __doc__)
    parser.add_argument("--names", default="*", metavar="PATTERN", help="which workloads")
    parser.add_argument("--cuts", type=int, default=20)
    parser.add_argument("--rows", default="128,1024")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.3, help="longest measuring time of a partition")
    parser.add_argument("--random", type=int, default=0, metavar="N",
                        help="no times: N random graphs, each cut in three ways at two shapes, against what they give unfused")
    parser.add_argument("--chains", type=int, default=0, metavar="N",
                        help="no times: N random chains of products and work on rows, all by strips of rows that may be, against "
                        "what they give unfused")
    parser.add_argument("--seed", type=int, default=1000, help="of the first random graph")
    parser.add_argument("--json", type=Path, help="JSON Lines file to append to")
    args = parser.parse_args(argv)
    if args.random:
        return random_graphs(range(args.seed, args.seed + args.random))
    if args.chains:
        return random_chains(range(args.seed, args.seed + args.chains))
    import torch

    torch.set_num_threads(args.threads)
    records = []
    for workload in WORKLOADS:
        if fnmatch.fnmatch(workload.name, args.names):
            for record in measured(Bench(torch, None, workload, args.threads), workload, args):
                print(shown(record), flush=True)
                records.append(record)
    command.append(args.json, records)
    print(judged(records))
    return 0
