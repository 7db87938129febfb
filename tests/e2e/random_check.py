"""Runs a random program at a shape and judges the results by the float64 reference."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from e2e.random_programs import Input, Program
from kernel_harness import at_edge

import tilewright as tw
from tilewright.compiler.reference import compare, evaluate
from tilewright.runtime.load.function import CompiledFunction
from tilewright.runtime.tensor import DType
from tilewright.search.protocols import Builder

Array = np.ndarray
NORM = {"bf16": 4e-2, "f16": 1e-2, "f32": 2e-5, "f64": 1e-9}
EPSILON = {"bf16": 2.0**-8, "f16": 2.0**-11, "f32": 2.0**-23, "f64": 2.0**-50}
SPECIAL = (np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-40, -6e-8, 1.0, -2.5, 3.0)
CANCELLING = {"gelu", "dense", "encoder"}  # 1 + erf(x) of x far below 0 has an absolute error only


@dataclass(frozen=True)
class Wrong:
    """One case that is not right."""

    shape: Mapping[str, int]
    reason: str


def compiled(program: Program, builder: Builder, seed: int) -> CompiledFunction:
    """The program compiled in this process, its constants bound."""
    return tw.compile(program.text, dict(program.ranges), options=tw.CompileOptions(builder=builder),
                      constants=constants(program, seed))


def constants(program: Program, seed: int) -> dict[str, Array]:
    """The values of the bound arguments."""
    return {f"arg{i}": filled(program.inputs[i], {}, np.random.default_rng([seed, i])) for i in program.bound}


def arguments(program: Program, dims: Mapping[str, int], seed: int) -> list[Array]:
    """Random arguments at a shape; bound ones have the values they are bound to."""
    shape = zlib.crc32(repr(sorted(dims.items())).encode())
    return [filled(how, dims, np.random.default_rng([seed, i] if i in program.bound else [seed, i, shape]))
            for i, how in enumerate(program.inputs)]


def filled(how: Input, dims: Mapping[str, int], rng: np.random.Generator) -> Array:
    """An array that ends at an unreadable page, now and then in column-major order; a dim's value for "dim"."""
    if how.fill == "dim":
        return np.asarray(how.dims[0].evaluate(dims))
    shape = tuple(d.evaluate(dims) for d in how.dims)
    if how.fill == "index":
        assert how.below is not None
        values = rng.integers(0, max(1, how.below.evaluate(dims)), shape)
    elif how.dtype is DType.I1:
        values = rng.integers(0, 2, shape)
    elif not how.dtype.is_float:
        values = rng.integers(1 if how.fill == "positive" else 0 if how.dtype.is_unsigned else -9, 10, shape)
    elif how.fill == "positive":
        values = rng.uniform(0.5, 2, shape)
    elif how.fill == "special":
        values = rng.choice(SPECIAL, shape)
    else:
        values = np.clip(rng.standard_normal(shape), -3, 3) * (0.3 if how.fill == "weight" else 1)
    array = np.asarray(values).astype(how.dtype.numpy)
    return at_edge(np.asfortranarray(array) if array.ndim and rng.random() < 0.2 else array)


def wrong_at(fn: CompiledFunction, program: Program, dims: Mapping[str, int], seed: int) -> Wrong | None:
    """Run at one shape, twice with different threads and into poisoned memory; None when all is right."""
    given = arguments(program, dims, seed)
    called = free(program, given)
    results = as_tuple(fn(*called, threads=1))
    poisoned = tuple(np.frombuffer(b"\xa5" * r.nbytes, r.dtype).reshape(r.shape).copy() for r in results)
    again = as_tuple(fn(*called, out=poisoned, threads=3))
    reason = reason_wrong(program, given, results)
    for number, (got, other) in enumerate(zip(results, again, strict=True)):
        if reason is None and got.tobytes() != other.tobytes():
            reason = f"result {number}: other bits with three threads, into poisoned memory"
    return None if reason is None else Wrong(dict(dims), reason)


def free(program: Program, given: Sequence[Array]) -> list[Any]:
    """What a call takes of all arguments: those that are not bound, dims as numbers."""
    return [a.item() if how.fill == "dim" else a
            for i, (a, how) in enumerate(zip(given, program.inputs, strict=True)) if i not in program.bound]


def reason_wrong(program: Program, given: Sequence[Array], results: Sequence[Array]) -> str | None:
    """What is wrong with the results of these arguments by the reference, or None."""
    wanted = evaluate(program.text, given)
    for number, (got, want) in enumerate(zip(results, wanted, strict=True)):
        reason = _judge(got, want, program.dtypes)
        if reason is not None and DType.of(got.dtype).is_float and got.shape == want.shape:
            reason = None if _is_ill_conditioned(program, given, number, got, want) else reason
        if reason is not None:
            return f"result {number}: {reason}"
    return None


def _judge(got: Array, want: Array, dtypes: frozenset[str]) -> str | None:
    if got.shape != want.shape:
        return f"shape {got.shape}, the reference has {want.shape}"
    if not DType.of(got.dtype).is_float:
        same_kind = want.astype(got.dtype) if got.dtype.kind == "u" else want  # the reference knows signed integers only
        different = np.count_nonzero(got != same_kind)
        return f"{different} of {got.size} elements differ" if different else None
    difference, bound = compare(got, want), tolerance(dtypes)
    return None if difference.ok(bound, 5 * bound) else str(difference)


def tolerance(dtypes: frozenset[str]) -> float:
    """Bound of the norm error of a program that holds these element types."""
    return max((NORM[t] for t in dtypes if t in NORM), default=0.0)


def _is_ill_conditioned(program: Program, given: Sequence[Array], number: int, got: Array, want: Array) -> bool:
    """Does rounding the inputs move the reference as far as the result lies from it?"""
    epsilon = max(EPSILON[t] for t in program.dtypes if t in EPSILON)
    moved = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        near = [_nudged(a, epsilon, rng) for a in given]
        with np.errstate(all="ignore"):
            moved.append(np.abs(evaluate(program.text, near)[number] - want))
    with np.errstate(all="ignore"):
        distance = np.linalg.norm(got.astype(np.float64) - want)
        cancelled = 16 * epsilon * np.sqrt(want.size) if CANCELLING & {*program.operators} else 0.0
        return bool(distance <= max(8 * np.linalg.norm(np.max(moved, axis=0)), cancelled))


def _nudged(a: Array, epsilon: float, rng: np.random.Generator) -> Array:
    if not DType.of(a.dtype).is_float:
        return a
    return np.asarray(a.astype(np.float64) * (1 + 2 * epsilon * rng.choice((-1.0, 1.0), a.shape))).astype(a.dtype)


def as_tuple(results: Array | tuple[Array, ...]) -> tuple[Array, ...]:
    return results if isinstance(results, tuple) else (results,)
