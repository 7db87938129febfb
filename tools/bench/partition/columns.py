"""Sums down the columns beside how fast the same bytes can be read, and beside torch, torch.compile and XLA through JAX.

    python -m tools.bench columns [--threads 1] [--rows 128,512,2048] [--json out.jsonl]

The reader is a loop of vector loads over the same memory, on as many threads, which does not come back to Python between its
passes. "of read" is the speed at which a call from Python reads over that of the reader; the others are times over ours. Each
system is a process of its own, bound to as many cores as threads; they take turns, and stand still meanwhile: threads of one that
wait for work would take the cores of the next. All need a quiet machine.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import os
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.runtime.host.benchmark import Timing, warm_up
from tilewright.runtime.host.cpu import load_native
from tilewright.runtime.host.host_target import host_target
from tilewright.runtime.host.object_code import emit_object
from tilewright.runtime.target import Target
from tools.bench import command
from tools.bench.harness.interleave import Worker, rounds
from tools.bench.harness.serve import Call, serve
from tools.bench.partition.compare_partition import Bench, summary, tensors, xla_of
from tools.bench.partition.inductor import compiled
from tools.bench.partition.shown import shown
from tools.bench.partition.training import COLUMNS, Workload

_VECTORS, _LANES = 8, 16  # of a step, words of one
STEP = _VECTORS * _LANES * 4  # bytes
_TURN, _LINE = 0.003, 64  # seconds that a reader reads at once, at least; bytes, across which it reads at half its speed
_SYSTEMS = ("ours", "reader", "inductor", "torch", "xla")


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


def placed(torch: Any, tensors: Sequence[Any]) -> tuple[np.ndarray, tuple[Any, ...]]:
    """Memory from the beginning of a line on, and in it one after the other tensors that hold the same."""
    size, found, start = sum(t.nbytes for t in tensors), [], 0
    room = np.empty(size + _LINE, np.uint8)
    memory = room[-room.ctypes.data % _LINE :][:size]
    for tensor in tensors:
        found.append(torch.from_numpy(memory[start : start + tensor.nbytes]).view(tensor.dtype).view(tensor.shape).copy_(tensor))
        start += tensor.nbytes
    return memory, tuple(found)


@functools.cache
def _bench(name: str, threads: int, system: str) -> Bench:
    import torch

    torch.set_num_threads(threads)
    return Bench(torch, xla_of(threads) if system == "xla" else None, next(w for w in COLUMNS if w.name == name), threads)


@functools.cache
def _function(name: str, threads: int, system: str) -> Callable[..., Any]:
    bench = _bench(name, threads, system)
    if system == "ours":
        module, example, dynamic = bench.exported()
        return tw.compile(module, args=example, dynamic_shapes=dynamic, options={"threads": threads})
    return compiled(bench.torch, bench.function) if system == "inductor" else bench.function


def prepared(system: str, threads: int, request: dict[str, Any]) -> tuple[Call, dict[str, Any]]:
    """A call of a system, and how often it reads what the others read once."""
    bench = _bench(request["workload"], threads, system)
    memory, given = placed(bench.torch, tensors(bench.torch, bench.workload.given, request["rows"]))
    if system == "reader":
        call, passes = Reader(threads).bound(memory)
        return call, {"passes": passes}
    if system == "xla":
        return (bench.xla.bound(bench.theirs, given), {"passes": 1}) if bench.xla else (lambda: None, {"passes": 0})
    return partial(_function(request["workload"], threads, system), *given), {"passes": 1}


def measured(workload: Workload, workers: dict[str, Worker], args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A record for each number of rows."""
    for rows in map(int, args.rows.split(",")):
        passes = {name: worker.ask(do="prepare", workload=workload.name, rows=rows)["passes"] for name, worker in workers.items()}
        taken = rounds({name: workers[name].turn for name, count in passes.items() if count}, args.rounds, args.seconds)
        each = {name: [t / passes[name] for t in times] for name, times in taken.items()}
        ratios = {name: statistics.median(t / own for t, own in zip(times, each["ours"], strict=True))
                  for name, times in each.items()}
        us = statistics.median(each["ours"]) * 1e6
        peers = {name: ratios[name] for name in _SYSTEMS[2:] if name in ratios}
        yield {"workload": workload.name, "rows": rows, "threads": args.threads, "us": us, **peers, "of read": ratios["reader"]}


def main(argv: Sequence[str] | None = None) -> int:
    parser = command.parser("columns", __doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rows", default="128,512,2048")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.3, help="measuring time at a shape, for each system")
    parser.add_argument("--json", type=Path, help="JSON Lines file to append to")
    args = parser.parse_args(argv)
    workers = {name: Worker(name, args.threads, module="tools.bench.partition.columns") for name in _SYSTEMS}
    records = []
    try:
        for workload in COLUMNS:
            for record in measured(workload, workers, args):
                print(shown(record), flush=True)
                records.append(record)
    finally:
        for worker in workers.values():
            worker.close()
    command.append(args.json, records)
    print(summary(records))
    return 0


if __name__ == "__main__":
    sys.exit(serve(int(sys.argv[2]), partial(prepared, sys.argv[1], int(sys.argv[2]))))
