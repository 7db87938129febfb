"""Products with weights in few bits, by rows of f32 and of bytes, against f32, ONNX Runtime, torch and llama.cpp.

    python -m tools.bench codes [--threads 1,2] [--formats 4g32,2g128,p64] [--rows 1,4,16,64] [--sizes 2048x2048] [--ring 128]
        [--levels 4] [--seconds 4] [--llama FOLDER] [--cpu sapphirerapids] [--peers no] [--json out.jsonl]

A format 4g32 has codes of 4 bits with a scale of f32 for each 32, 4g32h one of f16; p64 is a pool of 64 vectors of eight bytes,
p256x2 two pools whose vectors are added: by rows of f32, and by rows rounded to whole numbers of 8 and of 4 bits beforehand.
Peers: ONNX Runtime's MatMul of f32 and MatMulNBits of the formats that it has, also by tables of activations where it has them
(2 bits), torch's bytes (dynamic) and, where its libraries lie in a folder, llama.cpp's Q4_0.

Of a size and number of threads, all systems take turns, call by call; the figure is the median time of a product. A model
multiplies its rows by a ring of weights of so many MiB, one after the other, so that weights come from memory; --ring 0 keeps one
weight, which stays in the caches where it fits. GB/s counts codes and scales once; "of memory" is its share of what the product
of a long vector with itself reads in the same run.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tools.bench import command
from tools.bench.codes_systems import Call, Case, llama, onnx_runtime, ours, torch_bytes

FORMATS = "4g32,4g32h,2g128,8g32,p64"
_LLAMA = "4g32h"
SIZES = "2048x2048,4096x4096,2048x8192"  # K x N
_ROUNDS, _SECONDS = 5, 4.0
_MEMORY = 1 << 26  # values of f32
_NODES = (2, 4, 8)  # bits of MatMulNBits
_ROW_BITS = ("8", "4")  # of rows that pools are multiplied by
_REST = 0.02  # seconds in which the threads of a system that wait in a loop give it up


@dataclass(frozen=True)
class System:
    """What is measured, on weights of which format. bits: 0 for pools."""

    name: str
    format: str
    case: Case
    call: Call


def systems(size: tuple[int, int], threads: int, given: Any) -> list[System]:
    """All of a size and number of threads, compiled."""
    rows = tuple(int(r) for r in given.rows.split(","))
    most, found = max(rows), list[System]()

    def add(name: str, form: str, call: Any, *arguments: Any, **named: Any) -> None:
        case = Case.read(form, size, given.ring)
        found.append(System(name, form, case, call(case, *arguments, **named)))

    formats = given.formats.split(",")
    for form in ("32", *formats):
        add("ours", form, ours, most, threads)
        for activations in () if form == "32" else _ROW_BITS if form.startswith("p") else ("int8",):
            add(f"ours, rows of {activations}", form, ours, most, threads, activations)
    if given.peers == "no":
        return found
    add("onnxruntime", "32", onnx_runtime, threads, 0)
    for form in formats:
        if (bits := Case.read(form, size, 0).bits) not in _NODES or form.endswith("h"):
            continue
        for level in given.levels.split(","):
            add(f"onnxruntime level {level}", form, onnx_runtime, threads, int(level))
        if bits == min(_NODES):
            add("onnxruntime tables", form, onnx_runtime, threads, 0, tables=True)
    add("torch bytes", "8g32", torch_bytes, threads)
    if given.llama is not None:
        case = Case.read(_LLAMA, size, given.ring)
        peers = llama(case, rows, threads, (given.llama, given.cpu))
        found += [System(name, _LLAMA, case, call) for name, call in peers.items()]
    return found


def bandwidth(threads: int) -> float:
    """Bytes a second that products of long vectors with themselves read, all threads together."""
    parts = np.array_split(np.ones(_MEMORY, np.float32), threads)
    taken = list[float]()
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(_ROUNDS):
            start = time.perf_counter()
            list(pool.map(lambda part: part.dot(part), parts))
            taken.append(time.perf_counter() - start)
    return _MEMORY * 4 / statistics.median(taken)


def times(calls: Sequence[Call], x: np.ndarray, seconds: float = _SECONDS, rest: float = 0.0) -> list[float]:
    """Median seconds of a call of each, in turns, with so many seconds of rest before each."""
    taken: list[list[float]] = [[] for _ in calls]
    for call in calls:
        call(x)
    begin = time.perf_counter()
    while len(taken[0]) < 3 or (time.perf_counter() - begin < seconds and len(taken[0]) < 50 * _ROUNDS):
        for call, found in zip(calls, taken, strict=True):
            time.sleep(rest)
            start = time.perf_counter()
            call(x)
            found.append(time.perf_counter() - start)
    return [statistics.median(found) for found in taken]


def measure(found: Sequence[System], rows: int, threads: int, seconds: float) -> list[dict[str, object]]:
    """A record for each system."""
    memory = bandwidth(threads)
    x = np.random.default_rng(rows).standard_normal((rows, found[0].case.k), dtype=np.float32)
    records = list[dict[str, object]]()
    taken = times([s.call for s in found], x, seconds, _REST if threads > 1 else 0.0)
    for system, each in zip(found, taken, strict=True):
        case = system.case
        speed = case.bytes * case.weights / each
        records.append({"system": system.name, "format": system.format, "k": case.k, "n": case.n, "rows": rows,
                        "threads": threads, "ring": case.weights, "us": round(each / case.weights * 1e6, 2),
                        "GB/s": round(speed / 1e9, 2), "of memory": round(speed / memory, 3), "memory": round(memory / 1e9, 2)})
    return records


def show(records: Sequence[dict[str, object]], file: Path | None) -> None:
    for r in records:
        print(f"{r['k']}x{r['n']:<8}{r['rows']:>4}{r['threads']:>3}  {r['format']:8}{r['system']:26}{r['us']:>10}{r['GB/s']:>8}"
              f"{r['of memory']:>8}", flush=True)
    if file is not None:
        with file.open("a") as out:
            out.writelines(json.dumps(r) + "\n" for r in records)


def main(argv: Sequence[str] | None = None) -> int:
    given = parser().parse_args(argv)
    for size in given.sizes.split(","):
        k, n = (int(e) for e in size.split("x"))
        for threads in (int(t) for t in given.threads.split(",")):
            found = systems((k, n), threads, given)
            for rows in (int(r) for r in given.rows.split(",")):
                show(measure(found, rows, threads, given.seconds), given.json)
    return 0


def parser() -> Any:
    found = command.parser("codes", __doc__)
    found.add_argument("--threads", default="1", help="comma separated")
    found.add_argument("--rows", default="1,4,16,64")
    found.add_argument("--sizes", default=SIZES, help="K x N, comma separated")
    found.add_argument("--formats", default=FORMATS, help="bits and values of a group; p64: a pool, p256x2: two")
    found.add_argument("--levels", default="4", help="accuracy levels of ONNX Runtime: 4 rounds rows to bytes, 0 does not")
    found.add_argument("--ring", type=int, default=128, help="MiB of weights")
    found.add_argument("--seconds", type=float, default=_SECONDS, help="of a size and number of rows")
    found.add_argument("--peers", choices=("yes", "no"), default="yes")
    found.add_argument("--llama", type=Path, help="folder with llama.cpp's libggml-base.so and libggml-cpu-*.so")
    found.add_argument("--cpu", default="haswell", help="the processor whose library of llama.cpp is taken")
    found.add_argument("--json", type=Path, help="append the records to this file")
    return found
