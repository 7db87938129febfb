"""The same workload in a process of each system: ours, torch.compile, torch itself and XLA through JAX.

    python -m tools.bench.partition.systems SYSTEM THREADS

Each is bound to as many cores as threads; they take turns, and stand still meanwhile: threads of one that wait for work would
take the cores of the next.
"""

from __future__ import annotations

import functools
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

import tilewright as tw
from tools.bench.harness.interleave import Worker, rounds
from tools.bench.harness.serve import Call, serve
from tools.bench.partition.bench import Bench, tensors, xla_of
from tools.bench.partition.inductor import compiled
from tools.bench.partition.training import COLUMNS, WORKLOADS

PEERS = ("inductor", "torch", "xla")
_LINE = 64  # bytes, across which one reads at half its speed
_FEWEST = 5  # rounds


@contextmanager
def working(systems: Sequence[str], threads: int, module: str = __name__) -> Iterator[dict[str, Worker]]:
    """A process of each system."""
    workers = {name: Worker(name, threads, module=module) for name in systems}
    try:
        yield workers
    finally:
        for worker in workers.values():
            worker.close()


def compared(
    workload: str, rows: int, workers: Mapping[str, Worker], most: int, seconds: float
) -> tuple[float, dict[str, float]]:
    """Microseconds of a call of ours, and times of the others over ours: medians of `most` rounds, of fewer where these take
    longer than so many seconds for each system, but of _FEWEST at least."""
    passes = {name: worker.ask(do="prepare", workload=workload, rows=rows)["passes"] for name, worker in workers.items()}
    turns = {name: workers[name].turn for name, count in passes.items() if count}
    begin = time.perf_counter()
    rounds(turns, 1, seconds / most)
    fit = int(len(turns) * seconds / (time.perf_counter() - begin))
    count = max(_FEWEST, min(most, fit))
    taken = rounds(turns, count, seconds * count / most)
    each = {name: [t / passes[name] for t in times] for name, times in taken.items()}
    ratios = {name: statistics.median(t / own for t, own in zip(times, each["ours"], strict=True))
              for name, times in each.items() if name != "ours"}
    return statistics.median(each["ours"]) * 1e6, ratios


def placed(torch: Any, tensors: Sequence[Any]) -> tuple[np.ndarray, tuple[Any, ...]]:
    """Memory from the beginning of a line on, and in it one after the other tensors that hold the same, widest elements first."""
    size, found, start = sum(t.nbytes for t in tensors), dict[int, Any](), 0
    room = np.empty(size + _LINE, np.uint8)
    memory = room[-room.ctypes.data % _LINE :][:size]
    for n in sorted(range(len(tensors)), key=lambda n: -tensors[n].element_size()):
        tensor = tensors[n]
        found[n] = torch.from_numpy(memory[start : start + tensor.nbytes]).view(tensor.dtype).view(tensor.shape).copy_(tensor)
        start += tensor.nbytes
    return memory, tuple(found[n] for n in range(len(tensors)))


@functools.cache
def bench(name: str, threads: int, system: str) -> Bench:
    import torch

    torch.set_num_threads(threads)
    workload = next(w for w in (*WORKLOADS, *COLUMNS) if w.name == name)
    return Bench(torch, xla_of(threads) if system == "xla" else None, workload, threads)


@functools.cache
def _function(name: str, threads: int, system: str) -> Callable[..., Any]:
    found = bench(name, threads, system)
    if system == "ours":
        module, example, dynamic = found.exported()
        return tw.compile(module, args=example, dynamic_shapes=dynamic, options={"threads": threads})
    if system == "inductor":
        return compiled(found.torch, found.function)
    return found.workload.native(found.torch) if found.workload.native else found.function


def prepared(system: str, threads: int, request: dict[str, Any]) -> tuple[Call, dict[str, Any]]:
    """A call of a system that was compiled for these extents, and how often it does what the others do once; 0 where it is not
    installed."""
    found = bench(request["workload"], threads, system)
    _, given = placed(found.torch, tensors(found.torch, found.workload.given, request["rows"]))
    if system == "xla" and found.xla is None:
        return lambda: None, {"passes": 0}
    call = found.xla.bound(found.theirs, given) if found.xla else partial(_function(request["workload"], threads, system), *given)
    got = call()
    if system == "ours":
        found.check(got, given)
    return call, {"passes": 1}


if __name__ == "__main__":
    sys.exit(serve(int(sys.argv[2]), partial(prepared, sys.argv[1], int(sys.argv[2]))))
