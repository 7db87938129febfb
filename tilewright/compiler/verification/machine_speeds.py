"""Speeds of this machine that partitions are predicted by (passes/partition/cost.py): models of known work, timed on one thread.

Each speed is what more rows cost, from one number of rows to another where the same thing decides: a call's own time is in both.
A launch is what a chain takes whose operations are kept apart, beside one of two.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from tilewright.compiler import ops
from tilewright.compiler.assemble import assemble
from tilewright.compiler.builder.worker_builder import WorkerBuilder
from tilewright.compiler.compilation.compilation import Compilation, full_target
from tilewright.compiler.compilation.options import CompileOptions
from tilewright.compiler.compilation.outlined_model import Cut
from tilewright.compiler.tuning.cut_refused import built_with_cuts
from tilewright.compiler.tuning.dispatch_tables import untuned_tables
from tilewright.compiler.verification.keep_what_gains import function_of
from tilewright.compiler.verification.random_inputs import random_inputs
from tilewright.runtime.host.benchmark import Timing, time_call
from tilewright.runtime.load.function import CompiledFunction
from tilewright.runtime.shape import Dim
from tilewright.search.protocols import Builder

_WIDE = 1024  # columns of all subjects
_F32 = 4
_STEPS = 24  # multiplications and additions each, of the subject that is bound by arithmetic
_CHAIN = 32  # operations that are launched one after the other
_ROUNDS = 3

Body = Callable[[ops.Graph], ops.Tensor]


@dataclass(frozen=True)
class _Subject:
    """few, many: rows between which the speed decides. each: what a row counts for it: bytes, or operations."""

    name: str
    body: Body
    few: int
    many: int
    each: float
    constants: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def _doubled(g: ops.Graph) -> ops.Tensor:
    return g.input("x", ["T", _WIDE]) * 2.0


def _polynomial(g: ops.Graph) -> ops.Tensor:
    x = y = g.input("x", ["T", _WIDE])
    for step in range(_STEPS):
        y = y * x + (1.0 / (step + 2))
    return y


def _product(g: ops.Graph) -> ops.Tensor:
    return ops.dense(g.input("x", ["T", _WIDE]), g.input("w", [_WIDE, _WIDE]))


def _chain(count: int, g: ops.Graph) -> ops.Tensor:
    y = g.input("x", ["T", _WIDE])
    for _ in range(count):
        y = ops.tanh(y)
    return y


def _subjects() -> tuple[_Subject, ...]:
    """Elements that are read from and written to each cache and memory; arithmetic; a product."""
    moved = 2.0 * _F32 * _WIDE
    return (
        _Subject("l1", _doubled, 1, 4, moved), _Subject("l2", _doubled, 16, 112, moved),
        _Subject("l3", _doubled, 256, 1536, moved), _Subject("memory", _doubled, 4096, 16384, moved),
        _Subject("operations", _polynomial, 1, 4, 2.0 * _STEPS * _WIDE),
        _Subject("products", _product, 64, 128, 2.0 * _WIDE * _WIDE, {"w": (_WIDE, _WIDE)}),
    )  # fmt: skip


def machine_speeds(seconds: float) -> dict[str, int]:
    """Speeds by the names of SPEEDS: a launch in picoseconds, then bytes and operations a second. Empty where there was not time
    for all, or the machine was so busy that more work took less time."""
    end, found = time.monotonic() + seconds, dict[str, float]()
    made: dict[Body, CompiledFunction] = {}
    with WorkerBuilder(full_target("host")) as builder:
        launches = [_seconds(_compiled(partial(_chain, n), builder, Cut("alone")), 1, end) for n in (2, _CHAIN)]
        found["launch"] = 1e12 * _less(launches[1], launches[0]) / (_CHAIN - 2)
        for subject in _subjects():
            if subject.body not in made:
                made[subject.body] = _compiled(subject.body, builder, constants=subject.constants)
            fn = made[subject.body]
            took = _less(_seconds(fn, subject.many, end), _seconds(fn, subject.few, end))
            found[subject.name] = (subject.many - subject.few) * subject.each / took if took else 0.0
    return {name: round(value) for name, value in found.items()} if min(found.values()) >= 1 else {}


def _less(many: float, few: float) -> float:
    return max(0.0, many - few) if few else 0.0


def _seconds(fn: CompiledFunction, rows: int, end: float) -> float:
    """The least of some medians of a call; 0 where there is no time."""
    arrays = random_inputs(fn.program, {"T": rows}, 0)
    out = fn.call_flat(*arrays)
    call = partial(fn, *arrays, out=out)
    times = []
    for _ in range(_ROUNDS):
        left = end - time.monotonic()
        if left <= 0:
            return 0.0
        times.append(statistics.median(time_call(call, Timing(longest=min(left, 0.3)))))
    return min(times)


def _compiled(body: Body, builder: Builder, cut: Cut | None = None,
              constants: Mapping[str, tuple[int, ...]] | None = None) -> CompiledFunction:
    g = ops.Graph()
    g.output(body(g))
    values = {name: np.ones(shape, np.float32) for name, shape in (constants or {}).items()}
    compilation = Compilation(g, {"T": Dim(1, 16384)}, full_target("host"), CompileOptions(threads=1), values)
    return function_of(assemble(*built_with_cuts(compilation, partial(untuned_tables, builder=builder), cut)))
