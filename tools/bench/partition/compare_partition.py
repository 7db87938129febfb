"""What training-like graphs are cut into: launches, bytes and time, against torch.compile, XLA through JAX, and torch itself.

    python -m tools.bench partition [--names 'layernorm*'] [--threads 1] [--rows 1,64,512,2048] [--counts] [--json out.jsonl]

Each workload is one function, exported from torch for ours with a dynamic number of rows, and given to JAX by the same text.
launches: of the host program, parallel loops, whose phases wait for each other; loops over memory in the code that Inductor
writes; executed instructions of XLA's program. bytes: what these read and write at 2048 rows, beside those of inputs and results,
which each have to be moved once. Times are ratios of turns taken one after the other; they need a quiet machine. The process is
bound to as many cores as threads.
"""

from __future__ import annotations

import argparse
import fnmatch
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.compiler.frontends.imported import ExampleInputs
from tilewright.runtime.host.benchmark import Timing, time_beside
from tools.bench import command
from tools.bench.partition import inductor
from tools.bench.partition.launched import least, moved, planned
from tools.bench.partition.maths import TorchMaths
from tools.bench.partition.shown import shown
from tools.bench.partition.training import WORKLOADS, Given, Workload
from tools.bench.partition.xla import Xla

MOST = 2048  # rows
Peers = dict[str, Callable[[], Any]]


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command.parser("partition", __doc__)
    parser.add_argument("--names", default="*", metavar="PATTERN", help="which workloads")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rows", default="1,5,24,61,128,333,1000,2048", help="rows at which they are timed")
    parser.add_argument("--seconds", type=float, default=0.3, help="longest measuring time at a shape, for each peer")
    parser.add_argument("--counts", action="store_true", help="launches and bytes alone")
    parser.add_argument("--json", type=Path, help="JSON Lines file to append to")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments(argv)
    xla = xla_of(args.threads)
    import torch

    torch.set_num_threads(args.threads)
    rows = [int(n) for n in args.rows.split(",")]
    records = []
    for workload in WORKLOADS:
        if fnmatch.fnmatch(workload.name, args.names):
            bench = Bench(torch, xla, workload, args.threads)
            for record in [bench.counts()] if args.counts else bench.times(rows, args.seconds):
                print(shown(record), flush=True)
                records.append(record)
    command.append(args.json, records)
    print(summary(records))
    return 0


def xla_of(threads: int) -> Xla | None:
    try:
        return Xla(threads)
    except ImportError:
        print("jax is not installed: without XLA")
        return None


class Bench:
    """One workload in all systems."""

    def __init__(self, torch: Any, xla: Xla | None, workload: Workload, threads: int) -> None:
        self.torch, self.xla, self.workload, self.threads = torch, xla, workload, threads
        self.function = workload.build(TorchMaths(torch))
        self.theirs = workload.build(xla.maths) if xla else self.function

    def counts(self) -> dict[str, Any]:
        """Launches and bytes of all systems."""
        module, example, dynamic = self.exported()
        ours = tw.compile(module, args=example, dynamic_shapes=dynamic, options={"threads": self.threads})
        plan = planned(module, ExampleInputs(example, None, dynamic))
        given = tensors(self.torch, self.workload.given, MOST)
        loops = inductor.counted(self.torch, self.function, given)
        xla = self.xla.counted(self.theirs, given) if self.xla else inductor.Counted(0, 0)
        phases = sum(len(list(launch.phases())) for launch in plan.launches())
        return {"workload": self.workload.name, "launches": len(plan.launches()), "phases": phases, "inductor": loops.launches,
                "xla": xla.launches,
                "bytes": moved(plan, ours.program, MOST), "inductor_bytes": loops.bytes, "xla_bytes": xla.bytes,
                "least_bytes": least(ours.program, MOST)}

    def times(self, rows: Sequence[int], seconds: float) -> Iterator[dict[str, Any]]:
        """A record a shape: of each peer its time over ours."""
        module, example, dynamic = self.exported()
        ours = tw.compile(module, args=example, dynamic_shapes=dynamic, options={"threads": self.threads})
        compiled = inductor.compiled(self.torch, self.function)
        native = self.workload.native(self.torch) if self.workload.native else self.function
        timing = Timing(batch=seconds / Timing.most, longest=seconds)
        for count in rows:
            given = tensors(self.torch, self.workload.given, count)
            self._check(ours(*given), given)
            peers: Peers = {"inductor": partial(compiled, *given), "torch": partial(native, *given)}
            if self.xla:
                peers["xla"] = self.xla.bound(self.theirs, given)
            own = partial(ours, *given)
            ratios = {name: statistics.median(time_beside(peer, own, timing)) for name, peer in peers.items()}
            start = statistics.median(time_beside(own, own, timing))
            yield {"workload": self.workload.name, "rows": count, "threads": self.threads, **ratios, "same": start}

    def _check(self, got: Any, given: Sequence[Any]) -> None:
        want = self.function(*(a.double() if a.is_floating_point() else a for a in given))
        for a, b in zip(got if isinstance(got, tuple) else (got,), want if isinstance(want, tuple) else (want,), strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-3, atol=1e-3 * max(1.0, float(b.abs().max())))

    def exported(self) -> tuple[Any, tuple[Any, ...], Any]:
        """The function as a module, arguments, and which axes of them are any number of rows."""
        function, given = self.function, self.workload.given
        torch: Any = self.torch

        class Module(torch.nn.Module):  # type: ignore[misc]
            def forward(self, *given: Any) -> Any:
                return function(*given)

        rows = torch.export.Dim("T", min=1, max=MOST)
        dynamic = (tuple({g.size.index("T"): rows} if "T" in g.size else None for g in given),)
        return Module().eval(), tensors(torch, given, 64), dynamic


def tensors(torch: Any, given: Sequence[Given], rows: int) -> tuple[Any, ...]:
    """Arguments of so many rows."""
    torch.manual_seed(rows)
    sizes = [[rows if n == "T" else int(n) for n in g.size] for g in given]
    return tuple(torch.randint(0, g.labels, size) if g.labels else torch.rand(size) for g, size in zip(given, sizes, strict=True))


def summary(records: Sequence[dict[str, Any]]) -> str:
    """Of each peer the geometric mean of its ratios, and the worst one."""
    lines = []
    for peer in ("inductor", "xla", "torch"):
        found = [(r[peer], f"{r['workload']} at {r['rows']}") for r in records if "rows" in r and peer in r]
        if found:
            mean = math.exp(statistics.fmean(math.log(ratio) for ratio, _ in found))
            lines.append(f"{peer}: geometric mean {mean:.2f} over {len(found)}, worst {min(found)[0]:.2f} {min(found)[1]}")
    return "\n".join(lines)
