"""Runs a random program at a shape and judges the results by the float64 reference."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

import tilewright as tw
from compiler.reference import compare, evaluate
from e2e.random_programs import Input, Program
from kernel_harness import at_edge
from runtime.function import CompiledFunction
from runtime.program import Argument
from runtime.shape import Expr
from runtime.tensor import DType
from search.protocols import Builder

Array = np.ndarray
NORM = {"bf16": 4e-2, "f16": 1e-2, "f32": 2e-5, "f64": 1e-9}
EPSILON = {"bf16": 2.0**-8, "f16": 2.0**-11, "f32": 2.0**-23, "f64": 2.0**-50}


@dataclass(frozen=True)
class Wrong:
    """One case that is not right."""

    shape: Mapping[str, int]
    reason: str


def compiled(program: Program, builder: Builder) -> CompiledFunction:
    """The program compiled in this process."""
    return tw.compile(program.text, dict(program.ranges), builder=builder)


def arguments(fn: CompiledFunction, inputs: Sequence[Input], dims: Mapping[str, int], seed: int) -> list[Array]:
    """Random arguments at a shape; every array ends at an unreadable page."""
    rng = np.random.default_rng([seed, zlib.crc32(repr(sorted(dims.items())).encode())])
    scalars = {place: dims[d.name] for d in fn.program.dims for place in d.at}
    return [_argument(a, i, dims, scalars, rng) for a, i in zip(fn.inputs, inputs, strict=True)]


def _argument(argument: Argument, how: Input, dims: Mapping[str, int], scalars: Mapping[str, int],
              rng: np.random.Generator) -> Array:
    if how.fill == "dim":
        return np.asarray(scalars.get(argument.name, 0))
    shape = tuple(Expr.parse(d).evaluate(dims) for d in argument.dims or ())
    dtype = argument.dtype
    if how.fill == "index":
        assert how.below is not None
        values = rng.integers(0, max(1, how.below.evaluate(dims)), shape)
    elif dtype is DType.I1:
        values = rng.integers(0, 2, shape)
    elif not dtype.is_float:
        values = rng.integers(1 if how.fill == "positive" else -9, 10, shape)
    elif how.fill == "positive":
        values = rng.uniform(0.5, 2, shape)
    else:
        values = np.clip(rng.standard_normal(shape), -3, 3) * (0.3 if how.fill == "weight" else 1)
    array = np.asarray(values).astype(dtype.numpy)
    return at_edge(np.asfortranarray(array) if array.ndim and rng.random() < 0.2 else array)


def wrong_at(fn: CompiledFunction, program: Program, dims: Mapping[str, int], seed: int) -> Wrong | None:
    """Run at one shape, twice with different threads and into poisoned memory; None when all is right."""
    given = arguments(fn, program.inputs, dims, seed)
    called = [a.item() if i.fill == "dim" else a for a, i in zip(given, program.inputs, strict=True)]
    results = _tuple(fn(*called, threads=1))
    poisoned = tuple(np.frombuffer(b"\xa5" * r.nbytes, r.dtype).reshape(r.shape).copy() for r in results)
    again = _tuple(fn(*called, out=poisoned, threads=3))
    wanted = evaluate(program.text, given)
    for number, (got, other, want) in enumerate(zip(results, again, wanted, strict=True)):
        reason = _judge(got, want, program.dtypes)
        if reason is not None and got.dtype.kind in "fV" and got.shape == want.shape:
            reason = None if _is_ill_conditioned(program, given, number, got, want) else reason
        if reason is None and got.tobytes() != other.tobytes():
            reason = "other bits with three threads, into poisoned memory"
        if reason is not None:
            return Wrong(dict(dims), f"result {number}: {reason}")
    return None


def _judge(got: Array, want: Array, dtypes: frozenset[str]) -> str | None:
    if got.shape != want.shape:
        return f"shape {got.shape}, the reference has {want.shape}"
    difference = compare(got, want)
    if got.dtype.kind in "biu":
        return None if np.array_equal(got, want) else f"differs: {difference}"
    bound = tolerance(dtypes)
    return None if difference.ok(bound, 5 * bound) else str(difference)


def tolerance(dtypes: frozenset[str]) -> float:
    """Bound of the norm error of a program that holds these element types."""
    return max((NORM[t] for t in dtypes if t in NORM), default=0.0)


def _is_ill_conditioned(program: Program, given: Sequence[Array], number: int, got: Array, want: Array) -> bool:
    """Does rounding the inputs move the reference as far as the result lies from it?"""
    moved = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        epsilon = max(EPSILON[t] for t in program.dtypes if t in EPSILON)
        near = [_nudged(a, epsilon, rng) for a in given]
        moved.append(np.abs(evaluate(program.text, near)[number] - want))
    with np.errstate(all="ignore"):
        sensitivity = np.linalg.norm(np.max(moved, axis=0))
        return bool(np.linalg.norm(got.astype(np.float64) - want) <= 8 * sensitivity)


def _nudged(a: Array, epsilon: float, rng: np.random.Generator) -> Array:
    if a.dtype.kind in "biu":
        return a
    return np.asarray(a.astype(np.float64) * (1 + 2 * epsilon * rng.choice((-1.0, 1.0), a.shape))).astype(a.dtype)


def _tuple(results: Array | tuple[Array, ...]) -> tuple[Array, ...]:
    return results if isinstance(results, tuple) else (results,)
