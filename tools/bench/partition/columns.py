"""Sums down the columns beside how fast the same bytes can be read, and beside torch, torch.compile and XLA through JAX.

    python -m tools.bench columns [--threads 1] [--rows 128,512,2048] [--json out.jsonl]

The reader is a loop of vector loads over the same memory, on as many threads, which does not come back to Python between its
passes. "of read" is the speed at which a call from Python reads over that of the reader; the others are times over ours. Each
system is a process of its own (systems.py). All need a quiet machine.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.runtime.host.benchmark import Timing, warm_up
from tilewright.runtime.host.cpu import load_native
from tilewright.runtime.host.host_target import host_target
from tilewright.runtime.host.object_code import emit_object
from tilewright.runtime.target import Target
from tools.bench import command
from tools.bench.harness.serve import Call, serve
from tools.bench.partition import systems
from tools.bench.partition.bench import tensors
from tools.bench.partition.compare_partition import summary
from tools.bench.partition.shown import shown
from tools.bench.partition.training import COLUMNS

_VECTORS, _LANES = 8, 16  # of a step, words of one
STEP = _VECTORS * _LANES * 4  # bytes
_TURN = 0.003  # seconds that a reader reads at once, at least


def _reader_ir() -> str:
    """`read(from, steps, passes, to)`: exclusive or of all vectors, of each pass anew."""
    vector, each = f"<{_LANES} x i32>", range(_VECTORS)
    sums = "\n".join(f"  %a{n} = phi {vector} [ zeroinitializer, %pass ], [ %b{n}, %step ]" for n in each)
    loads = "\n".join(f"""  %p{n} = getelementptr i8, ptr %at, i64 {n * _LANES * 4}
  %v{n} = load {vector}, ptr %p{n}, align 4
  %b{n} = xor {vector} %a{n}, %v{n}""" for n in each)
    joined = "\n".join(f"  %j{n + 1} = xor {vector} %j{n}, %b{n}" for n in each)
    return f"""define void @read(ptr %from, i64 %steps, i64 %passes, ptr %to) {{
entry:
  br label %pass
pass:
  %done = phi i64 [ 0, %entry ], [ %done1, %passed ]
  br label %step
step:
  %k = phi i64 [ 0, %pass ], [ %k1, %step ]
{sums}
  %offset = mul i64 %k, {STEP}
  %at = getelementptr i8, ptr %from, i64 %offset
{loads}
  %k1 = add i64 %k, 1
  %more = icmp ult i64 %k1, %steps
  br i1 %more, label %step, label %passed
passed:
  %j0 = xor {vector} zeroinitializer, zeroinitializer
{joined}
  store volatile {vector} %j{_VECTORS}, ptr %to, align 4
  call void asm sideeffect "", "~{{memory}}"()
  %done1 = add i64 %done, 1
  %again = icmp ult i64 %done1, %passes
  br i1 %again, label %pass, label %end
end:
  ret void
}}
"""


class Reader:
    """Reads an array whose bytes are a multiple of STEP for each thread."""

    def __init__(self, threads: int) -> None:
        self._code = load_native([emit_object(_reader_ir(), host_target(Target.parse("host")))])
        arguments = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p
        self._read = ctypes.CFUNCTYPE(None, *arguments)(self._code.address("read"))
        self._threads, self._cores = threads, sorted(os.sched_getaffinity(0))
        self._pool = ThreadPoolExecutor(threads)

    def folded(self, array: np.ndarray, passes: int = 1) -> np.ndarray:
        """The exclusive or of what lies _LANES words apart."""
        parts = np.split(array.reshape(-1).view(np.uint8), self._threads)
        found = np.zeros((self._threads, _LANES), np.uint32)

        def run(thread: int) -> None:
            os.sched_setaffinity(0, {self._cores[thread % len(self._cores)]})
            part = parts[thread]
            self._read(part.ctypes.data, part.nbytes // STEP, passes, found[thread].ctypes.data)

        list(self._pool.map(run, range(self._threads)))
        joined: np.ndarray = np.bitwise_xor.reduce(found, 0)
        return joined

    def bound(self, array: np.ndarray) -> tuple[Callable[[], Any], int]:
        """A call that reads the array as often as it says, long enough to be timed."""
        passes = max(1, round(_TURN / warm_up(lambda: self.folded(array, 10), Timing()) * 10))
        return partial(self.folded, array, passes), passes


def prepared(system: str, threads: int, request: dict[str, Any]) -> tuple[Call, dict[str, Any]]:
    """A call of a system or of the reader, and how often it reads what the others read once."""
    if system != "reader":
        return systems.prepared(system, threads, request)
    found = systems.bench(request["workload"], threads, system)
    memory, _ = systems.placed(found.torch, tensors(found.torch, found.workload.given, request["rows"]))
    call, passes = Reader(threads).bound(memory)
    return call, {"passes": passes}


def main(argv: Sequence[str] | None = None) -> int:
    parser = command.parser("columns", __doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rows", default="128,512,2048")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.3, help="measuring time at a shape, for each system")
    parser.add_argument("--json", type=Path, help="JSON Lines file to append to")
    args = parser.parse_args(argv)
    records = []
    with systems.working(("ours", "reader", *systems.PEERS), args.threads, "tools.bench.partition.columns") as workers:
        for workload, rows in product(COLUMNS, map(int, args.rows.split(","))):
            us, ratios = systems.compared(workload.name, rows, workers, args.rounds, args.seconds)
            of_read = {"of read": ratios.pop("reader")}
            record = {"workload": workload.name, "rows": rows, "threads": args.threads, "us": us, **ratios, **of_read}
            print(shown(record), flush=True)
            records.append(record)
    command.append(args.json, records)
    print(summary(records))
    return 0


if __name__ == "__main__":
    sys.exit(serve(int(sys.argv[2]), partial(prepared, sys.argv[1], int(sys.argv[2]))))
