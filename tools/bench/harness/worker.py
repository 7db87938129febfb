"""A process that measures one system: JSON requests on standard input, one reply a line on standard output.

    python -m tools.bench.harness.worker SYSTEM THREADS [--log FILE] [--prepared FOLDER] [--cold]

A failure ends the process with a traceback on standard error; the harness records that and starts another.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from tools.bench import models, operators
from tools.bench.control import cases
from tools.bench.harness.neighbour import touching_half_the_cache
from tools.bench.harness.prepared import Prepared
from tools.bench.harness.witness import reader
from tools.bench.operator_spec import Operator
from tools.bench.peers import OURS, Bound, Explaining, System, UnsupportedError, make
from tools.bench.zoo import modules

WARM_SHARE, BATCHES = 0.2, 8
COLD_CALLS = 3


def catalog() -> dict[str, Operator]:
    """Every operator of every suite by name."""
    written = (*operators.operators(), *models.models(), *cases.cases())
    return {o.name: o for o in (*written, *modules.groups(), *modules.layers(), *modules.models())}


def time_cold(call: Callable[[], object], seconds: float, disturb: Callable[[], object]) -> float:
    """Seconds per call where each call comes after a disturbance, which is not counted: the median over the time, 3 at least."""
    begin, found = time.perf_counter(), list[float]()
    while len(found) < COLD_CALLS or time.perf_counter() - begin < seconds:
        disturb()
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return statistics.median(found)


def time_calls(call: Callable[[], object], seconds: float, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds per call: the median of up to eight batches that fill the given time after a warm-up of a fifth of it."""
    start, warm = clock(), 0
    while not warm or clock() - start < seconds * WARM_SHARE:
        call()
        warm += 1
    each = (clock() - start) / warm
    repeat = max(1, round(seconds * (1 - WARM_SHARE) / BATCHES / max(each, 1e-9)))
    batches: list[float] = []
    begin = last = clock()
    while not batches or (len(batches) < BATCHES and last - begin < seconds * (1 - WARM_SHARE)):
        for _ in range(repeat):
            call()
        now = clock()
        batches.append((now - last) / repeat)
        last = now
    return statistics.median(batches)


class Server:
    """Answers the requests version, prepare, bind, time and memory for one system."""

    def __init__(
        self, system: System, threads: int, all_cores: set[int], cold: bool = False, prepared: Prepared | None = None
    ) -> None:
        self.system, self.threads, self.all_cores, self.prepared = system, threads, all_cores, prepared
        self.operators = catalog()
        self.operator: Operator | None = None
        self.bound: Bound | None = None
        self.disturb = touching_half_the_cache() if cold else None
        self.near = reader(threads)
        self.base_kib = resident_kib("VmRSS")

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        handler: Callable[[dict[str, Any]], dict[str, Any]] = getattr(self, "do_" + request["do"])
        try:
            return handler(request)
        except UnsupportedError as error:
            return {"unsupported": str(error)}

    def do_version(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"version": self.system.version()}

    def do_prepare(self, request: dict[str, Any]) -> dict[str, Any]:
        self.bound = None
        self.operator = self.operators[request["operator"]]
        constants = {} if request.get("bare") else self.operator.constants()
        os.sched_setaffinity(0, self.all_cores)
        start = time.perf_counter()
        if self.prepared:
            self.prepared.prepare(self.system, self.operator, constants)
        else:
            self.system.prepare(self.operator, constants)
        took = time.perf_counter() - start
        pin(self.all_cores, self.threads)
        return {"seconds": took, "families": self.system.families() if isinstance(self.system, Explaining) else []}

    def do_bind(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run once; the result goes to the file `output`, as f32."""
        assert self.operator
        self.bound = None
        shape = request["shape"]
        output = self.operator.empty_output(shape)
        self.bound = self.system.bind(shape, self.operator.arguments(shape), output)
        self.bound.call()
        if request.get("output"):
            np.save(request["output"], self.bound.result().astype(np.float32))
        return {}

    def do_time(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self.bound
        gc.disable()
        seconds, near = request["seconds"], [self.near()]
        each = time_cold(self.bound.call, seconds, self.disturb) if self.disturb else time_calls(self.bound.call, seconds)
        gc.enable()
        return {"seconds": each, "near": [*near, self.near()]}

    def do_memory(self, request: dict[str, Any]) -> dict[str, Any]:
        """KiB above what the process held before `prepare`: at most while binding and running a shape ten times."""
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
        self.do_bind({"shape": request["shape"]})
        assert self.bound
        for _ in range(10):
            self.bound.call()
        return {"kib": resident_kib("VmHWM") - self.base_kib}


def resident_kib(field: str) -> int:
    """VmRSS (resident now) or VmHWM (its peak) of this process."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status[field].split()[0])


def pin(cores: set[int], threads: int) -> None:
    """Keep to the last `threads` cores, so that pools sized from the affinity have that many threads too."""
    os.sched_setaffinity(0, sorted(cores)[-threads:])


def private_stdout() -> TextIO:
    """Standard output for replies alone; what libraries print goes to standard error."""
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return replies


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("system")
    parser.add_argument("threads", type=int)
    parser.add_argument("--log")
    parser.add_argument("--prepared", type=Path, help="a folder of files of what was prepared; found, they are loaded")
    parser.add_argument("--cold", action="store_true", help="touch half the last cache between calls")
    args = parser.parse_args()
    replies = private_stdout()
    cores = os.sched_getaffinity(0)
    pin(cores, args.threads)
    if args.system == OURS:
        from tools.bench.ours import Tilewright

        system: System = Tilewright(args.threads, args.log)
    else:
        system = make(args.system, args.threads)
    prepared = Prepared(args.prepared, args.system, args.threads, args.log) if args.prepared else None
    server = Server(system, args.threads, cores, args.cold, prepared)
    for line in sys.stdin:
        replies.write(json.dumps(server.answer(json.loads(line))) + "\n")
        replies.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
