"""Products with weights in few bits, by rows of f32 and of bytes, against f32, ONNX Runtime, torch and llama.cpp.

    python -m tools.bench codes [--threads 1,2] [--formats 4g32,2g128,p64] [--rows 1,4,16,64] [--sizes 2048x2048] [--ring 128]
        [--levels 4] [--seconds 4] [--llama FOLDER] [--cpu sapphirerapids] [--peers no] [--json out.jsonl]

A format 4g32 has codes of 4 bits with a scale of f32 for each 32, 4g32h one of f16; p64 is a pool of 64 vectors of eight bytes,
p256x2 two pools whose vectors are added: by rows of f32, and by rows rounded to whole numbers of 8 and of 4 bits beforehand.
Peers: ONNX Runtime's MatMul of f32 and MatMulNBits of the formats that it has, also by tables of activations where it has them
(2 bits), torch's bytes (dynamic) and, where its libraries lie in a folder, llama.cpp's Q4_0.

Each system is a process of its own, which stands still while others are measured: threads of a peer that wait in a loop would
slow the others down. Of a size and number of threads they take turns; the figure is the median of their times of a product. A
model multiplies its rows by a ring of weights of so many MiB, one after the other, so that weights come from memory; --ring 0
keeps one weight, which stays in the caches where it fits. GB/s counts codes and scales once; "of memory" is its share of what the
product of a long vector with itself reads in the same run.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tools.bench import command
from tools.bench.codes_systems import Call, Case, llama, onnx_runtime, ours, torch_bytes
from tools.bench.harness import serve
from tools.bench.harness.interleave import Worker, rounds

FORMATS = "4g32,4g32h,2g128,8g32,p64"
_LLAMA = "4g32h"
SIZES = "2048x2048,4096x4096,2048x8192"  # K x N
_ROUNDS, _SECONDS = 7, 4.0
_MOST_TURNS = 250  # in one process
_MEMORY = 1 << 26  # values of f32
_NODES = (2, 4, 8)  # bits of MatMulNBits
_ROW_BITS = ("8", "4")  # of rows that pools are multiplied by


@dataclass(frozen=True)
class System:
    """What is measured, on weights of which format. by: the key of what makes it in `_MADE`. options: of that."""

    name: str
    format: str
    by: str
    options: Mapping[str, Any] = field(default_factory=dict)


def systems(given: Any) -> list[System]:
    """All of a size and number of threads; llama.cpp as one, whatever layouts it has."""
    formats, found = given.formats.split(","), list[System]()
    for form in ("32", *formats):
        found.append(System("ours", form, "ours"))
        kinds = () if form == "32" else _ROW_BITS if form.startswith("p") else ("int8",)
        found += [System(f"ours, rows of {kind}", form, "ours", {"activations": kind}) for kind in kinds]
    if given.peers == "no":
        return found
    found.append(System("onnxruntime", "32", "onnxruntime", {"level": 0}))
    for form in formats:
        if (bits := Case.read(form, (1024, 1), 0).bits) not in _NODES or form.endswith("h"):
            continue
        found += [System(f"onnxruntime level {n}", form, "onnxruntime", {"level": int(n)}) for n in given.levels.split(",")]
        if bits == min(_NODES):
            found.append(System("onnxruntime tables", form, "onnxruntime", {"level": 0, "tables": True}))
    found.append(System("torch bytes", "8g32", "torch"))
    if given.llama is not None:
        found.append(System("llama.cpp Q4_0", _LLAMA, "llama", {"libraries": [str(given.llama), given.cpu]}))
    return found


def _ours(case: Case, rows: Sequence[int], threads: int, activations: str = "f32") -> dict[str, Call]:
    return {"": ours(case, max(rows), threads, activations)}


def _onnx_runtime(case: Case, rows: Sequence[int], threads: int, level: int, tables: bool = False) -> dict[str, Call]:
    return {"": onnx_runtime(case, threads, level, tables=tables)}


def _torch(case: Case, rows: Sequence[int], threads: int) -> dict[str, Call]:
    return {"": torch_bytes(case, threads)}


def _llama(case: Case, rows: Sequence[int], threads: int, libraries: Sequence[str]) -> dict[str, Call]:
    return llama(case, tuple(rows), threads, (Path(libraries[0]), libraries[1]))


_MADE: Mapping[str, Callable[..., dict[str, Call]]] = {  # calls by layout
    "ours": _ours, "onnxruntime": _onnx_runtime, "torch": _torch, "llama": _llama}


def answer(by: str, threads: int) -> int:
    """The process of a system: the first request says what it makes, each how many rows are multiplied, by which layout."""
    made = dict[str, Call]()

    def prepare(request: dict[str, Any]) -> tuple[serve.Call, dict[str, Any]]:
        k, n = request["size"]
        if not made:
            case = Case.read(request["format"], (k, n), request["ring"])
            made.update(_MADE[by](case, request["most"], threads, **request["options"]))
        x = np.random.default_rng(request["rows"]).standard_normal((request["rows"], k), dtype=np.float32)
        return partial(made[request["layout"] or next(iter(made))], x), {"layouts": list(made)}

    return serve.serve(threads, prepare)


class Process:
    """Of a system at a size and number of threads. layouts: those that it has, by names; one of no name where there are none."""

    def __init__(self, system: System, size: tuple[int, int], rows: Sequence[int], threads: int, ring: int) -> None:
        self.system, self.case = system, Case.read(system.format, size, ring)
        self._worker = Worker(system.by, threads, module="tools.bench.codes")
        self._request = {"do": "prepare", "format": system.format, "size": size, "ring": ring, "most": list(rows),
                         "options": dict(system.options)}
        self.layouts: list[str] = self._worker.ask(**self._request, rows=rows[0], layout="")["layouts"]

    def turn(self, layout: str, rows: int, seconds: float) -> float:
        """Seconds of a call."""
        self._worker.ask(**self._request, rows=rows, layout=layout)
        return self._worker.turn(seconds)

    def close(self) -> None:
        self._worker.close()


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


def times(calls: Sequence[Call], x: np.ndarray, seconds: float = _SECONDS) -> list[float]:
    """Median seconds of a call of each, in turns, in one process."""
    taken: list[list[float]] = [[] for _ in calls]
    for call in calls:
        call(x)
    begin = time.perf_counter()
    while len(taken[0]) < 3 or (time.perf_counter() - begin < seconds and len(taken[0]) < _MOST_TURNS):
        for call, found in zip(calls, taken, strict=True):
            start = time.perf_counter()
            call(x)
            found.append(time.perf_counter() - start)
    return [statistics.median(found) for found in taken]


def measure(found: Sequence[Process], rows: int, threads: int, seconds: float) -> list[dict[str, object]]:
    """A record for each layout of each system."""
    memory, records = bandwidth(threads), list[dict[str, object]]()
    each = {(number, layout): partial(p.turn, layout, rows) for number, p in enumerate(found) for layout in p.layouts}
    turns = {f"{number} {layout}": turn for (number, layout), turn in each.items()}
    taken = rounds(turns, _ROUNDS, seconds / len(turns))
    for number, layout in each:
        case, system, s = found[number].case, found[number].system, statistics.median(taken[f"{number} {layout}"])
        speed = case.bytes * case.weights / s
        records.append({"system": layout or system.name, "format": system.format, "k": case.k, "n": case.n, "rows": rows,
                        "threads": threads, "ring": case.weights, "us": round(s / case.weights * 1e6, 2),
                        "GB/s": round(speed / 1e9, 2), "of memory": round(speed / memory, 3), "memory": round(memory / 1e9, 2)})
    return records


def show(records: list[dict[str, object]], file: Path | None) -> None:
    for r in records:
        print(f"{r['k']}x{r['n']:<8}{r['rows']:>4}{r['threads']:>3}  {r['format']:8}{r['system']:26}{r['us']:>10}{r['GB/s']:>8}"
              f"{r['of memory']:>8}", flush=True)
    command.append(file, records)


def main(argv: Sequence[str] | None = None) -> int:
    given = parser().parse_args(argv)
    counts = [int(r) for r in given.rows.split(",")]
    for size in given.sizes.split(","):
        k, n = (int(e) for e in size.split("x"))
        for threads in (int(t) for t in given.threads.split(",")):
            found = list[Process]()
            try:
                for system in systems(given):
                    found.append(Process(system, (k, n), counts, threads, given.ring))
                for rows in counts:
                    show(measure(found, rows, threads, given.seconds), given.json)
            finally:
                for process in found:
                    process.close()
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


if __name__ == "__main__":
    sys.exit(answer(sys.argv[1], int(sys.argv[2])))
