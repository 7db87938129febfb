"""Models that are attacked, and the processes that load what was forged: what came of every file is counted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.builder.local_builder import LocalBuilder
from tilewright.runtime.target import Target
from tools.forge.forgery import Forged

_ROOT = Path(__file__).resolve().parents[2]
CRASH, HANG = "crash", "hang"
_SECONDS = 120.0  # of the clock for one file, and for the process to start where it is its first


@dataclass(frozen=True)
class Victim:
    """A saved model, and calls with their right results; where there are none, the call has to be refused."""

    data: bytes
    calls: list[tuple[list[np.ndarray], list[np.ndarray]]]


def victims() -> list[Victim]:
    """Small models that together have what a program can hold: several dims, results and kernels, constants, temporaries."""
    rng = np.random.default_rng(0)
    return [_dense(rng), _two_dims(rng)]


def _dense(rng: np.random.Generator) -> Victim:
    graph = ops.Graph()
    x, w, b = graph.input("x", ["M", 48]), graph.input("w", [48, 40]), graph.input("b", [40])
    graph.output(ops.softmax(ops.dense(x, w, b), 1))
    constants = {"w": _floats(rng, 48, 40), "b": _floats(rng, 40)}
    good, bad = ([[_floats(rng, m, 48)] for m in rows] for rows in ((1, 7, 64, 200), (300,)))
    return _victim(graph, {"M": (1, 200)}, constants, good, bad)


def _two_dims(rng: np.random.Generator) -> Victim:
    graph = ops.Graph()
    x, y = graph.input("x", ["B", "S", 8]), graph.input("y", ["B", "S", 8])
    total = x + y
    graph.output(ops.transpose(total, [1, 0, 2]), ops.sum(total * total, 2))
    shapes = [(1, 1), (3, 5), (4, 16)]
    return _victim(graph, {"B": (1, 4), "S": (1, 16)}, {}, [[_floats(rng, *s, 8), _floats(rng, *s, 8)] for s in shapes],
                   [[_floats(rng, 9, 3, 8), _floats(rng, 9, 3, 8)]])


def _floats(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def _victim(graph: Any, dims: dict[str, Any], constants: dict[str, Any], good: list[list[np.ndarray]],
            bad: list[list[np.ndarray]]) -> Victim:
    options = tw.CompileOptions(builder=LocalBuilder(Target.parse("host")))
    fn = tw.compile(graph, dims, constants=constants, options=options)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.tw"
        fn.save(path)
        data = path.read_bytes()
    calls: list[tuple[list[np.ndarray], list[np.ndarray]]] = []
    for inputs in good:
        got = fn(*inputs)
        calls.append((inputs, list(got) if isinstance(got, tuple) else [got]))
    return Victim(data, [*calls, *((inputs, []) for inputs in bad)])


@dataclass(frozen=True)
class Outcome:
    """What came of a file: refused, harmless, wrong, raw, crash or hang; and the words about it."""

    forged: Forged
    kind: str
    words: str


def outcomes(victim: Victim, forged: Sequence[Forged]) -> Iterator[Outcome]:
    """Load and call every file in another process, which is started again after a crash."""
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        arrays = {f"{n:03}_{kind}_{i:03}": array for n, (inputs, results) in enumerate(victim.calls)
                  for kind, found in (("in", inputs), ("out", results)) for i, array in enumerate(found)}
        np.savez(folder / "calls.npz", **arrays)  # type: ignore[arg-type]
        for number, one in enumerate(forged):
            (folder / f"{number}.tw").write_bytes(one.data)
        number = 0
        while number < len(forged):
            for found in _run(folder, number):
                yield Outcome(forged[number], found["kind"], found["words"])
                number += 1


def _run(folder: Path, first: int) -> Iterator[dict[str, Any]]:
    """What one process finds, until all is done or it dies."""
    environment = {**os.environ, "PYTHONPATH": str(_ROOT)}
    command = [sys.executable, "-m", "tools.forge.victim", str(folder), str(first)]
    process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        signal.signal(signal.SIGALRM, lambda *_: process.kill())
        while True:
            signal.setitimer(signal.ITIMER_REAL, _SECONDS)
            line = process.stdout.readline()
            left = signal.setitimer(signal.ITIMER_REAL, 0)[0]
            if line.endswith("}\n"):
                yield json.loads(line)
                continue
            status = process.wait()
            if line:
                yield {"kind": CRASH if left else HANG, "words": f"exit code {status}"}
            elif status:
                raise RuntimeError(f"the process that is attacked ended with {status} before it looked at a file")
            return
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
