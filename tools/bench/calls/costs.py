"""What a call costs beside its kernels, measured in this process by native loops; Figures as JSON Lines.

    python -m tools.bench.calls.costs THREADS SECONDS
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import tilewright as tw
from tilewright.compiler import ops
from tilewright.runtime.device import PARALLEL_FOR
from tilewright.runtime.host.cpu import HostDevice
from tilewright.runtime.host.host_caller import HostCaller
from tilewright.runtime.host.host_cpu import machine
from tilewright.runtime.host.host_target import lowest_level
from tilewright.runtime.host.object_code import emit_object
from tilewright.runtime.program.artifact import Artifact
from tools.bench.harness.interleave import rounds
from tools.bench.harness.records import Figure
from tools.bench.harness.worker import pin, time_calls

LOOP = 1000  # native calls per call from Python
TURNS = 1000  # of the measured loop

# Loops of LOOP calls; @nothing is an empty kernel.
_LOOPS = """
define void @nothing(ptr %slots, i64 %begin, i64 %end, ptr %workspace) { ret void }
""" + "".join(
    f"""
define void @repeat_{name}(ptr %f, {parameters}) {{
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  {call}
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, {LOOP}
  br i1 %more, label %loop, label %end
end:
  ret void
}}
"""
    for name, parameters, call in (
        ("call", "ptr %t, ptr %x, ptr %s, ptr %d, i64 %n", "call i64 %f(ptr %t, ptr %x, ptr %s, ptr %d, i64 %n)"),
        ("dispatch", "ptr %d", "call i64 %f(i64 0, ptr %d)"),
        ("parallel", "ptr %t, ptr %k, i64 %u, i64 %n",
         "call void %f(ptr %t, ptr %k, ptr null, i64 %u, i64 %n, ptr null, i64 0)"),
    )
)  # fmt: skip


def dense(k: int, n: int, threads: int, **constants: Any) -> Any:
    g = ops.Graph()
    g.output(ops.dense(g.input("x", ["T", k]), g.input("w", [k, n])))
    return tw.compile(g, {"T": tw.Dim(1, 128)}, options=tw.CompileOptions(threads=threads), constants=constants)


def native(fn: Any, threads: int) -> HostCaller:
    """The function's program, loaded a second time, with the addresses of its parts."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fn.tw"
        fn.save(path)
        bundle = next(Artifact(path).bundles("host"))
        program, code = bundle.program(), bundle.code()
        return HostCaller(program, code, bundle.constants(), HostDevice(bytes(code[program.runtime_object])), threads)


class Loops:
    """The native loops, as functions of integers."""

    def __init__(self) -> None:
        self._code = HostDevice().load([emit_object(_LOOPS, lowest_level(machine()))])
        self.nothing = self._code.address("nothing")

    def seconds(self, name: str, values: list[int], seconds: float) -> float:
        """Seconds of one call in the loop `repeat_<name>`: the median of five rounds."""
        function = ctypes.CFUNCTYPE(None, *[ctypes.c_uint64] * len(values))(self._code.address(f"repeat_{name}"))
        return median(lambda: function(*values), seconds) / LOOP


def median(call: Callable[[], object], seconds: float) -> float:
    """Seconds per call, the median of five rounds."""
    found = sorted(rounds({"it": lambda s: time_calls(call, s)}, 5, seconds)["it"])
    return found[len(found) // 2]


def figures(threads: int, seconds: float) -> Iterator[tuple[str, float, str]]:
    """(name, value, unit) of every cost."""
    loops = Loops()
    yield from small_calls(loops, threads, seconds)
    yield from turns(loops, threads, seconds)
    yield from rows_apart(threads, seconds)
    large = native(dense(768, 768, threads, arg1=np.zeros((768, 768), np.float32)), threads)
    worst = 0.0
    for t in (1, 5, 16, 57, 100, 128):
        dims = np.array([t], np.int64)
        worst = max(worst, loops.seconds("dispatch", [large.code.address("tw_dispatch"), dims.ctypes.data], seconds))
    yield "dispatch, dense_768x768, slowest of 6 shapes", worst * 1e9, "ns"
    parallel = int(large.table[PARALLEL_FOR])
    each = loops.seconds("parallel", [parallel, large.table_pointer, loops.nothing, 64, threads], seconds)
    yield f"empty parallel loop of 64 units on {threads} threads", each * 1e9, "ns"


def small_calls(loops: Loops, threads: int, seconds: float) -> Iterator[tuple[str, float, str]]:
    """Calls of [1, 8] x [8, 8], whose kernel does next to nothing."""
    fn = dense(8, 8, threads)
    small = native(fn, threads)
    x, w, out = np.ones((1, 8), np.float32), np.ones((8, 8), np.float32), np.empty((1, 8), np.float32)
    words = sum(small.program.stride_words.values())
    pointers = np.array([*(a.ctypes.data for a in (x, w, out)), *[0] * words], np.uint64)
    dims, scalars = np.array([1], np.int64), np.zeros(1, np.uint64)
    data = [small.entry, small.table_pointer, *(a.ctypes.data for a in (pointers, scalars, dims)), threads]
    inner = loops.seconds("call", data, seconds)
    empty = median(lambda: None, seconds)
    yield "tw_call of a [1, 8] x [8, 8] product", inner * 1e9, "ns"

    def over(call: Callable[[], object]) -> float:
        return (median(call, seconds) - inner - empty) * 1e9

    yield "fn(x, w, out=o) with numpy, over tw_call", over(lambda: fn(x, w, out=out)), "ns"
    yield "fn(x, w) with numpy, over tw_call", over(lambda: fn(x, w)), "ns"
    strided, columns = np.ones((1, 16), np.float32)[:, ::2], np.ones((8, 16), np.float32)[:, :8]
    yield "fn(x, w, out=o) with an x that is copied, over tw_call", over(lambda: fn(strided, w, out=out)), "ns"
    yield "fn(x, w, out=o) with columns of a wider w, over tw_call", over(lambda: fn(x, columns, out=out)), "ns"
    yield "fn(x, w, threads=1), over tw_call", over(lambda: fn(x, w, threads=1)), "ns"
    if importlib.util.find_spec("torch"):
        import torch

        tx, tw_, to = (torch.from_numpy(a) for a in (x, w, out))
        with torch.inference_mode():
            own = over(lambda: fn(tx, tw_, out=to))
            yield "fn(x, w, out=o) with torch, over tw_call", own, "ns"
            eager = median(lambda: torch.mm(tx, tw_, out=to), seconds) * 1e9
            yield "torch.mm(x, w, out=o) of the same", eager, "ns"
            made, eager = over(lambda: fn(tx, tw_)), median(lambda: torch.mm(tx, tw_), seconds) * 1e9
            yield "fn(x, w) with torch, over tw_call", made, "ns"
            yield "torch.mm(x, w) of the same", eager, "ns"


def rows_apart(threads: int, seconds: float) -> Iterator[tuple[str, float, str]]:
    """Products by weights of 768 x 2304 that are columns of wider ones, over the time of the same without gaps."""
    fn, wide = dense(768, 2304, threads), np.ones((768, 3000), np.float32)
    columns = wide[:, 300:2604]
    whole = columns.copy()
    for m in (1, 16, 64, 128):
        x, out = np.ones((m, 768), np.float32), np.empty((m, 2304), np.float32)
        weights: dict[str, Callable[[], np.ndarray]] = {"whole": lambda: whole, "columns": lambda: columns, "copy": columns.copy}
        systems = {name: partial(_turn, fn, x, out, weight) for name, weight in weights.items()}
        taken = {name: sorted(found)[4] for name, found in rounds(systems, 9, 9 * seconds).items()}
        yield f"{m} rows by columns of a wider w, of one without gaps", 100 * taken["columns"] / taken["whole"], "%"
        yield f"{m} rows by a copy of them, of one without gaps", 100 * taken["copy"] / taken["whole"], "%"


def _turn(fn: Any, x: np.ndarray, out: np.ndarray, weight: Callable[[], np.ndarray], seconds: float) -> float:
    return time_calls(lambda: fn(x, weight(), out=out), seconds)


def turns(loops: Loops, threads: int, seconds: float) -> Iterator[tuple[str, float, str]]:
    """A loop that goes from place to place of a table, one kernel of one element each time around."""
    g, places = ops.Graph(), TURNS
    table = g.input("table", [places], "i64")
    g.output(ops.fori_loop(0, g.dim("T"), lambda _, at: ops.gather(table, at), g.input("start", [1], "i64"))[0])
    fn = native(tw.compile(g, {"T": (0, places)}, options=tw.CompileOptions(threads=threads)), threads)
    given = [np.roll(np.arange(places), -1), np.zeros(1, np.int64), np.zeros(1, np.int64)]
    pointers = np.array([a.ctypes.data for a in given], np.uint64)
    scalars, took = np.zeros(1, np.uint64), []
    for count in (0, places - 1):
        dims = np.array([count], np.int64)
        data = [fn.entry, fn.table_pointer, *(a.ctypes.data for a in (pointers, scalars, dims)), threads]
        took.append(loops.seconds("call", data, seconds))
        if given[2][0] != count:
            raise AssertionError(f"the loop ended at {given[2][0]}, wanted {count}")
    yield "an iteration of a loop whose body is one kernel of one element", (took[1] - took[0]) / (places - 1) * 1e9, "ns"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("threads", type=int)
    parser.add_argument("seconds", type=float)
    args = parser.parse_args()
    pin(os.sched_getaffinity(0), args.threads)
    for name, value, unit in figures(args.threads, args.seconds):
        figure = Figure("", name, round(value, 1), unit, {"threads": str(args.threads)})
        print(msgspec.json.encode(figure).decode(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
