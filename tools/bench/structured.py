"""Random structured programs (branches and loops in each other, on shapes and on data) and random scans against the reference.

    python -m tools.bench structured --programs 600 --shapes 5 --seed 0
    python -m tools.bench structured --programs 75 --shapes 4 --target emulator:sm_90a --kinds control

Prints each case that is wrong with its seed, and how many cases ran. Exit code 1 when anything is wrong.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.compiler.builder.local_builder import LocalBuilder
from tilewright.compiler.compilation.compilation import full_target
from tilewright.compiler.reference import evaluate
from tilewright.runtime.errors import TilewrightError
from tools.checkout import of_tests

BOUNDS = {"f32": 2e-4, "f64": 2e-4, "bf16": 6e-2, "f16": 2e-2}


@dataclass(frozen=True)
class Program:
    """Text, dims, and for each shape the arguments; bound: relative and absolute."""

    model: Any
    text: str
    dims: dict[str, tuple[int, int]]
    arguments: list[list[Any]]
    bound: float


def control(seed: int, shapes: int) -> Program:
    """Branches and loops, nested up to three deep."""
    made, rng, draw = of_tests("e2e.random_control").Structured(seed), np.random.default_rng(seed), random.Random(seed)
    sizes = [(0, 0), (1, 7), *((draw.randint(0, 6), draw.randint(0, 7)) for _ in range(shapes))][:shapes]
    arguments, text = [list(made.arguments(n, t, rng)) for n, t in sizes], made.text
    return Program(text, text, {"N": (0, 6), "T": (0, 7)}, arguments, 1e-4)


def scans(seed: int, shapes: int) -> Program:
    """Loops that become kernels over all their steps."""
    scan, draw = of_tests("e2e.random_scans").RandomScan(seed), random.Random(seed)
    sizes = [(scan.lowest, 3), (17, 33), *((draw.randint(scan.lowest, 40), draw.randint(1, 40)) for _ in range(shapes))][:shapes]
    arguments = [[t, *scan.arrays(t, n)] for t, n in sizes]
    return Program(scan.graph, scan.graph.module_text(), scan.dims, arguments, BOUNDS.get(scan.dtype, 0.0))


def sums(seed: int, shapes: int) -> Program:
    """Recurrences whose states are summed where they are."""
    made, draw = of_tests("e2e.random_sums").RandomSums(seed), random.Random(seed)
    sizes = [(made.lowest, 3), (17, 33), *((draw.randint(made.lowest, 40), draw.randint(1, 40)) for _ in range(shapes))][:shapes]
    arguments = [[t, *made.arrays(t, n)] for t, n in sizes]
    return Program(made.graph, made.graph.module_text(), made.dims, arguments, BOUNDS.get(made.dtype, 0.0))


KINDS = {"control": control, "scans": scans, "sums": sums}


def wrong(program: Program, target: str) -> Iterator[str]:
    """A line for each case that is not as the reference has it, "" for each that is."""
    fn = tw.compile(program.model, program.dims, target, options={"builder": LocalBuilder(full_target(target))})
    for number, given in enumerate(program.arguments):
        wanted = evaluate(program.text, given)
        for threads in (1, 3) if target.startswith("host") else (1,):
            found = fn(*given, threads=threads) if target.startswith("host") else fn(*given)
            pairs = zip(found if isinstance(found, (tuple, list)) else [found], wanted, strict=True)
            if not all(np.allclose(np.asarray(a, np.float64), np.asarray(b, np.float64), program.bound, program.bound,
                                   equal_nan=True) for a, b in pairs):
                yield f"case {number}, {threads} threads"
                break
        else:
            yield ""


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.bench structured", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=100, help="how many")
    parser.add_argument("--shapes", type=int, default=4, help="at which each runs")
    parser.add_argument("--seed", type=int, default=0, help="of the first program")
    parser.add_argument("--target", default="host")
    parser.add_argument("--kinds", default="control,scans,sums", help="of control, scans and sums, in turns")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    options = parser.parse_args(argv)
    kinds, start, cases, bad, programs = options.kinds.split(","), time.monotonic(), 0, 0, 0
    for number in range(options.programs):
        if time.monotonic() - start > options.seconds:
            break
        kind, seed, programs = kinds[number % len(kinds)], options.seed + number, programs + 1
        try:
            for line in wrong(KINDS[kind](seed, options.shapes), options.target):
                cases += 1
                if line:
                    bad += 1
                    print(f"WRONG {kind} {seed} on {options.target}: {line}", flush=True)
        except TilewrightError as error:
            bad += 1
            print(f"FAILED {kind} {seed} on {options.target}: {str(error)[:300]}", flush=True)
    print(f"{options.target}: {cases} cases of {programs} programs, seeds from {options.seed}: {bad} wrong or failed")
    return 1 if bad else 0
