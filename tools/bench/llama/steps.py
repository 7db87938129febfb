"""A step of decoding of a Llama with weights of 4 bits, against f32 and against ONNX Runtime on the same graph.

    python -m tools.bench llama [--threads 1,2] [--kept 511] [--rounds 9] [--seconds 0.5] [--models FOLDER] [--json out.jsonl]

Two layers of TinyLlama's sizes (width 2048, 5632 within, 32 heads of queries and 4 of keys), one token behind `kept` others. All
read one ONNX graph (MatMul or MatMulNBits of accuracy level 4, groups of 32); ort-4-fused has GroupQueryAttention with caches in
place and products q, k and v in one besides. Each system is a process of its own; they take turns, and stand still meanwhile. The
figure is the median of rounds. --models keeps compiled models in a folder for later runs of the same version.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tools.bench import command
from tools.bench.harness.interleave import Worker, rounds
from tools.bench.llama.model import Llama
from tools.bench.llama.worker import OURS, PEERS


def measure(llama: Llama, kept: int, threads: int, systems: Sequence[str], counts: tuple[int, float],
            models: Path | None = None, check: bool = False) -> tuple[dict[str, float], dict[str, float]]:
    """Milliseconds of a step of each system, and its error. counts: rounds, and seconds of one."""
    options = [] if models is None else ["--models", str(models)]
    workers = {s: Worker(s, threads, options, "tools.bench.llama.worker") for s in systems}
    try:
        errors = {s: float(w.ask(do="prepare", llama=asdict(llama), length=kept, check=check)["error"])
                  for s, w in workers.items()}
        number, seconds = counts
        found = rounds({s: w.turn for s, w in workers.items()}, number, seconds * number)
    finally:
        for worker in workers.values():
            worker.close()
    return {s: statistics.median(t) * 1e3 for s, t in found.items()}, errors


def main(argv: Sequence[str] | None = None) -> int:
    parser = command.parser("llama", __doc__)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--kept", type=int, default=511, help="positions in the caches")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.5, help="of a turn")
    parser.add_argument("--systems", default=",".join((*OURS, *PEERS)))
    parser.add_argument("--layers", type=int, default=Llama.layers)
    parser.add_argument("--models", type=Path, help="folder of compiled models")
    parser.add_argument("--check", action="store_true", help="errors against float64, which takes a minute")
    parser.add_argument("--json", type=Path, help="append the records to this file")
    given = parser.parse_args(argv)
    llama = Llama(layers=given.layers)
    for threads in (int(t) for t in given.threads.split(",")):
        times, errors = measure(llama, given.kept, threads, given.systems.split(","), (given.rounds, given.seconds), given.models,
                                given.check)
        best = min(times, key=times.__getitem__)
        for system, ms in times.items():
            print(f"{threads} threads  {system:14}{ms:9.3f} ms  {ms / times[best]:6.2f} of the best"
                  + (f"  error {errors[system]:.1e}" if given.check else ""), flush=True)
        command.append(given.json, [{"threads": threads, "kept": given.kept, **asdict(llama), "ms": times, "errors": errors}])
    return 0
