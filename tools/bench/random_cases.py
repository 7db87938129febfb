"""Random (program, shape) cases against the float64 reference, each program in a process that may crash.

    python -m tools.bench random --cases 2000 --seed 0 --workers 2 --json out.jsonl
    python -m tools.bench random --seed 0 --only 17          one program here, with its text
    python -m tools.bench random --cases 10000 --shapes 40 --faults --target host:x86-64-v3
    python -m tools.bench random --cases 10000 --shapes 40 --accesses

Every input and result lies between unreadable pages. --faults runs each case once and compares nothing; --accesses draws indexing
maps that leave their tensors at some shapes (tests/e2e/random_accesses.py).

Prints what is wrong with the command that repeats it, and which operators the family `generic` took. Exit code 1 when
anything is wrong.
"""

from __future__ import annotations

import argparse
import collections
import json
import queue
import random
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilewright.compiler.builder.local_builder import LocalBuilder
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Kind, Workload
from tilewright.runtime.errors import TilewrightError
from tilewright.runtime.target import Target
from tilewright.search.protocols import BuildResult
from tools.bench import command
from tools.checkout import ROOT, of_tests

SECONDS = 12.0  # for one shape, and ten times as much for a program


@dataclass(frozen=True)
class Sweep:
    """What is run: programs of a seed at `shapes` shapes each, for a target. faults: compare nothing. accesses: odd maps."""

    seed: int
    target: str
    shapes: int
    faults: bool
    accesses: bool

    def words(self) -> list[str]:
        """The command line that says so."""
        flags = [f"--{name}" for name in ("faults", "accesses") if getattr(self, name)]
        return ["random", "--seed", str(self.seed), "--target", self.target, "--shapes", str(self.shapes), *flags]


@dataclass
class RecordingBuilder:
    """Builds in this process and notes which family took each workload, and why the preferred one did not."""

    inner: LocalBuilder
    calls: list[dict[str, str]] = field(default_factory=list)

    def build(self, candidates: Sequence[tuple[Workload, TileConfig]], seconds: float | None = None) -> list[BuildResult]:
        results = self.inner.build(candidates, seconds)
        for (workload, config), result in zip(candidates, results, strict=True):
            error = "" if result.kernel is not None else result.error.splitlines()[0]
            self.calls.append({"name": workload.name, "kind": workload.kind.value, "family": config.family, "error": error})
        return results


def drawn(sweep: Sweep, number: int) -> tuple[Any, list[dict[str, int]]]:
    """One program, and the shapes that it runs at."""
    rng = random.Random(f"{sweep.seed}/{number}")
    if sweep.accesses:
        program = of_tests("e2e.random_accesses").draw(rng)
        return program, of_tests("e2e.random_accesses").shapes(program, rng, sweep.shapes)
    program = of_tests("e2e.random_programs").draw(rng, of_tests("e2e.random_operators").OPERATORS)
    return program, program.shapes(rng, sweep.shapes)


def run_program(sweep: Sweep, number: int) -> dict[str, Any]:
    """All shapes of one program; `wrong` lists what is not right."""
    check = of_tests("e2e.random_check")
    program, shapes = drawn(sweep, number)
    builder = RecordingBuilder(LocalBuilder(Target.parse(sweep.target)))
    record: dict[str, Any] = {"program": number, "operators": ["access"] if sweep.accesses else program.operators,
                              "dtypes": ["i32"] if sweep.accesses else sorted(program.dtypes), "cases": len(shapes), "wrong": []}
    try:
        fn = (check.compiled_access(program, builder, sweep.target) if sweep.accesses
              else check.compiled(program, builder, number, sweep.target))  # fmt: skip
    except TilewrightError as error:
        record["wrong"].append({"shape": {}, "reason": f"{type(error).__name__}: {error}"})
        return record
    for dims in shapes:
        if sweep.accesses:
            wrong, _ = check.access_wrong_at(fn, program, dims, number)
        else:
            wrong = check.fault_at(fn, program, dims, number) if sweep.faults else check.wrong_at(fn, program, dims, number)
        if wrong is not None:
            record["wrong"].append({"shape": wrong.shape, "reason": wrong.reason})
    return {**record, "kernels": builder.calls}


def serve(sweep: Sweep) -> None:
    """Program numbers on stdin, a record each on stdout."""
    for line in sys.stdin:
        print(json.dumps(run_program(sweep, int(line))), flush=True)


@dataclass
class Server:
    """A process that runs programs; replaced when one kills it."""

    sweep: Sweep
    process: subprocess.Popen[str] | None = None

    def run(self, number: int) -> dict[str, Any]:
        if self.process is None:
            command = [sys.executable, "-X", "faulthandler", "-m", "tools.bench", *self.sweep.words(), "--serve"]
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{number}\n")
        self.process.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            line = self.process.stdout.readline() if selector.select(SECONDS * (10 + self.sweep.shapes)) else ""
        if line:
            record: dict[str, Any] = json.loads(line)
            return record
        reason = self.close()
        return {"program": number, "operators": [], "dtypes": [], "cases": 1, "wrong": [{"shape": {}, "reason": reason}]}

    def close(self) -> str:
        """End the process; what became of it."""
        if self.process is None:
            return ""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            reason = f"the process ended with status {self.process.wait(2)}"
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            reason = f"no result in {SECONDS * (10 + self.sweep.shapes):g} s"
        self.process = None
        return reason


def run_all(sweep: Sweep, cases: int, workers: int, log: Path | None) -> list[dict[str, Any]]:
    """Programs 0, 1, ... until they hold `cases` cases."""
    numbers: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in range(cases):
        numbers.put(number)
    records: list[dict[str, Any]] = []
    lock = threading.Lock()

    def work() -> None:
        server = Server(sweep)
        while sum(r["cases"] for r in records) < cases:
            record = server.run(numbers.get())
            with lock:
                records.append(record)
                if log is not None:
                    with log.open("a") as file:
                        file.write(json.dumps(record) + "\n")
                report_wrong(record, sweep)
        server.close()

    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return records


def report_wrong(record: dict[str, Any], sweep: Sweep) -> None:
    for wrong in record["wrong"][:1]:
        reason = wrong["reason"].splitlines()[0][:300]
        print(f"WRONG {' '.join(record['operators'])} ({', '.join(record['dtypes'])}) at {wrong['shape']}: {reason}\n"
              f"      python -m tools.bench {' '.join(sweep.words())} --only {record['program']}", flush=True)


def summarize(records: Sequence[dict[str, Any]], seconds: float) -> int:
    """Totals, and what fell to `generic`; the number of wrong cases."""
    cases, wrong = sum(r["cases"] for r in records), sum(len(r["wrong"]) for r in records)
    used = collections.Counter(o for r in records for o in r["operators"])
    print(f"{cases} cases of {len(records)} programs in {seconds:.0f} s: {wrong} wrong")
    print("operators: " + ", ".join(f"{n} {c}" for n, c in used.most_common()))
    kernels = [k for r in records for k in r.get("kernels", ())]
    for kind in Kind:
        families = collections.Counter(k["family"] for k in kernels if k["kind"] == kind.value and not k["error"])
        print(f"{kind.value}: " + (", ".join(f"{n} kernels of {f}" for f, n in families.most_common()) or "none"))
    refused = collections.Counter(_reason(k["error"]) for k in kernels if k["error"])
    for reason, count in refused.most_common(20):
        print(f"  {count} times: {reason}")
    return wrong


def _reason(error: str) -> str:
    """An error without the names of one kernel."""
    return error.rpartition(" failed: ")[2][:160]


def main(argv: Sequence[str] | None = None) -> int:
    parser = command.parser("random", __doc__)
    parser.add_argument("--cases", type=int, default=2000, help="cases to run; a program and a shape are one")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", default="host")
    parser.add_argument("--shapes", type=int, default=5, help="shapes of a program")
    parser.add_argument("--faults", action="store_true", help="call once a case, and compare nothing")
    parser.add_argument("--accesses", action="store_true", help="indexing maps that leave their tensors at some shapes")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", type=Path, help="append a record per program to this file")
    parser.add_argument("--only", type=int, help="run one program here and print it")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    sweep = Sweep(given.seed, given.target, given.shapes, given.faults, given.accesses)
    if given.serve:
        serve(sweep)
        return 0
    if given.only is not None:
        program, _ = drawn(sweep, given.only)
        print(program.text, *program.ranges.items(), *program.inputs, sep="\n", flush=True)
        record = run_program(sweep, given.only)
        print(json.dumps(record, indent=1))
        return 1 if record["wrong"] else 0
    start = time.perf_counter()
    records = run_all(sweep, given.cases, given.workers, given.json)
    return 1 if summarize(records, time.perf_counter() - start) else 0
