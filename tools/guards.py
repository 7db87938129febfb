"""Saved models with everything between pages that nobody may touch: inputs, constants, results and the arena of temporaries.

    python -m tools.guards bert.tw layer.tw [--shapes 64] [--seed 0]

Each model runs in a process of its own, at the ends of its ranges, primes and random shapes, with one thread and two, rows of
inputs apart where they may be; results are held against an ordinary call. Ragged models run at random batches, empty and equal
ones and one long sequence among them.
Prints a line a model. Exit code 1 where a process dies, or a result differs.
"""

from __future__ import annotations

import argparse
import ctypes
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.compiler.cli.batches import batches_of, without_gaps
from tilewright.compiler.cli.sampling import shapes_of
from tilewright.compiler.verification.random_inputs import batch_inputs, random_inputs
from tilewright.runtime.call.binder import row_strides
from tilewright.runtime.call.results import address
from tilewright.runtime.host.host_caller import HostCaller
from tilewright.runtime.program.artifact import ALIGNMENT
from tools.forge.guarded import GuardedMemory

_SECONDS = 1200.0  # of a model
_FILL = 0xAA
_GAPS = 4  # elements between rows of inputs, which may lie apart: fewer than so many


class GuardedModel:
    """A model of the host whose native entry is called with addresses of our own."""

    def __init__(self, path: Path) -> None:
        self.fn = tw.load(path)
        caller = self.fn._caller
        if not isinstance(caller, HostCaller):
            raise SystemExit(f"{path} is a model for {self.fn.program.target}; guards are for models of the host")
        caller.hold_constants()
        self._caller = caller
        whole, pointer = ctypes.c_int64, ctypes.c_void_p
        self._run = ctypes.CFUNCTYPE(whole, *[pointer] * 5, whole)(caller.code.address("tw_run"))
        self._arena_bytes = ctypes.CFUNCTYPE(whole, pointer, whole)(caller.code.address("tw_arena_bytes"))

    def differs(self, dims: Mapping[str, Any], number: int) -> str:
        """Run at a shape, or a batch of lengths: what is not as in an ordinary call."""
        memory, caller, at_end, threads = GuardedMemory(), self._caller, number % 3 > 0, self._caller.thread_count(1 + number % 2)
        program, ragged = self.fn.program, self.fn.program.ragged
        arrays = batch_inputs(self.fn.program, dims, number) if ragged else random_inputs(self.fn.program, dims, number)
        wanted = caller(*arrays, threads=threads)
        wanted = wanted if isinstance(wanted, tuple) else (wanted,)
        bound = caller.binder.bind(arrays)
        constants = [memory.array(np.asarray(a), at_end) for a in caller._constants]
        gap, words = number % _GAPS, program.stride_words
        inputs = [memory.apart(a, gap, at_end) if i in words else memory.array(np.ascontiguousarray(a), at_end)
                  for i, a in enumerate(bound.arrays)]
        strides = [s for i in words for s in row_strides(inputs[i]) or ()]
        got = [memory.array(np.full(w.nbytes, _FILL, np.uint8).view(w.dtype).reshape(w.shape), at_end) for w in wanted]
        sizes = (ctypes.c_int64 * len(bound.dims))(*bound.dims)
        room = -(-self._arena_bytes(sizes, threads) // ALIGNMENT) * ALIGNMENT
        arena = memory.array(np.full(room, _FILL, np.uint8), at_end)
        tensors = [address(a) for a in (*inputs, *constants, *got)] + strides
        pointers = (ctypes.c_void_p * len(tensors))(*tensors)
        scalars = (ctypes.c_uint64 * len(bound.scalars))(*bound.scalars)
        status = self._run(caller.table_pointer, pointers, scalars, sizes, address(arena), threads)
        if status:
            return f"status {status}"
        if ragged:  # rows between sequences are anything
            got, wanted = ([without_gaps(x, a, program, dims) for x, a in zip(own, program.outputs, strict=True)]
                           for own in (got, wanted))
        wrong = [str(i) for i, (g, w) in enumerate(zip(got, wanted, strict=True)) if g.tobytes() != w.tobytes()]
        return f"results {', '.join(wrong)} differ" if wrong else ""


def run_model(path: Path, shapes: int, seed: int) -> int:
    """All shapes of a model, here; the number of those that differ. A forbidden access kills the process."""
    model, wrong = GuardedModel(path), 0
    program = model.fn.program
    chosen: Sequence[Mapping[str, Any]] = (
        batches_of(program, shapes, seed) if program.ragged else shapes_of(program.ranges(), shapes, seed))
    for number, dims in enumerate(chosen):
        if reason := model.differs(dims, seed + number):
            print(f"WRONG {path} at {dims}: {reason}", flush=True)
            wrong += 1
    print(f"{path}: {len(chosen)} shapes between guard pages, {wrong} wrong", flush=True)
    return wrong


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path, help="files that were saved for the host")
    parser.add_argument("--shapes", type=int, default=64, help="of each model")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)  # in a process that may die
    args = parser.parse_args(argv)
    if args.here:
        return bool(sum(run_model(path, args.shapes, args.seed) for path in args.models))
    options = ["--shapes", str(args.shapes), "--seed", str(args.seed), "--here"]
    failed = 0
    for path in args.models:
        command = [sys.executable, "-X", "faulthandler", "-m", "tools.guards", str(path), *options]
        status = subprocess.run(command, timeout=_SECONDS, check=False).returncode
        if status < 0:
            print(f"WRONG {path}: killed by signal {-status}", flush=True)
        failed += bool(status)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
