"""What training-like graphs are cut into: launches, bytes and time, against torch.compile, XLA through JAX, and torch itself.

    python -m tools.bench partition [--names 'layernorm*'] [--threads 1] [--rows 1,64,512,2048] [--counts] [--json out.jsonl]

Each workload is one function, exported from torch for ours with a dynamic number of rows, and given to JAX by the same text.
launches: of the host program, parallel loops, whose phases wait for each other; loops over memory in the code that Inductor
writes; executed instructions of XLA's program. bytes: what these read and write at 2048 rows, beside those of inputs and results,
which each have to be moved once. Times are ratios of turns of processes, one a system (systems.py); they need a quiet machine.
"""

from __future__ import annotations

import argparse
import fnmatch
import math
import statistics
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from tools.bench import command
from tools.bench.partition import systems
from tools.bench.partition.bench import Bench, xla_of
from tools.bench.partition.shown import shown
from tools.bench.partition.training import WORKLOADS, Workload


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command.parser("partition", __doc__)
    parser.add_argument("--names", default="*", metavar="PATTERN", help="which workloads")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rows", default="1,5,24,61,128,333,1000,2048", help="rows at which they are timed")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.3, help="measuring time at a shape, for each system")
    parser.add_argument("--counts", action="store_true", help="launches and bytes alone")
    parser.add_argument("--json", type=Path, help="JSON Lines file to append to")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments(argv)
    chosen = [w for w in WORKLOADS if fnmatch.fnmatch(w.name, args.names)]
    records = []
    for record in _counts(chosen, args.threads) if args.counts else _times(chosen, args):
        print(shown(record), flush=True)
        records.append(record)
    command.append(args.json, records)
    print(summary(records))
    return 0


def _counts(chosen: Sequence[Workload], threads: int) -> Iterator[dict[str, Any]]:
    xla = xla_of(threads)
    import torch

    torch.set_num_threads(threads)
    for workload in chosen:
        yield Bench(torch, xla, workload, threads).counts()


def _times(chosen: Sequence[Workload], args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A record a shape: of each peer its time over ours."""
    with systems.working(("ours", *systems.PEERS), args.threads) as workers:
        for workload, rows in product(chosen, map(int, args.rows.split(","))):
            us, ratios = systems.compared(workload.name, rows, workers, args.rounds, args.seconds)
            yield {"workload": workload.name, "rows": rows, "threads": args.threads, "us": us, **ratios}


def summary(records: Sequence[dict[str, Any]]) -> str:
    """Of each peer the geometric mean of its ratios, and the worst one."""
    lines = []
    for peer in ("inductor", "xla", "torch"):
        found = [(r[peer], f"{r['workload']} at {r['rows']}") for r in records if "rows" in r and peer in r]
        if found:
            mean = math.exp(statistics.fmean(math.log(ratio) for ratio, _ in found))
            lines.append(f"{peer}: geometric mean {mean:.2f} over {len(found)}, worst {min(found)[0]:.2f} {min(found)[1]}")
    return "\n".join(lines)
