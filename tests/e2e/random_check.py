"""Runs a random program at a shape and judges the results by the float64 reference."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from e2e import random_accesses
from e2e.random_programs import Input, Program
from kernel_harness import at_edge, guarded

import tilewright as tw
from tilewright.compiler.reference import compare, evaluate
from tilewright.runtime.errors import IngestError, ShapeError
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


def compiled(program: Program, builder: Builder, seed: int, target: str = "host") -> CompiledFunction:
    """The program compiled in this process, its constants bound."""
    return tw.compile(program.text, dict(program.ranges), target=target, options=tw.CompileOptions(builder=builder),
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
    """An array that ends at an unreadable page, or begins there, now and then in column-major order; a dim's value for "dim"."""
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
        values = np.clip(rng.standard_normal(shape), -3, 3) * {"weight": 0.3, "subnormal": 1e-39}.get(how.fill, 1)
    array = np.asarray(values).astype(how.dtype.numpy)
    return at_edge(np.asfortranarray(array) if array.ndim and rng.random() < 0.2 else array, rng.random() < 0.3)


def call_guarded(fn: CompiledFunction, given: Sequence[Any], front: bool, threads: int) -> tuple[Array, ...] | None:
    """The results of a call into guarded memory, all of whose bytes were 0xAA; None where the shapes are refused."""
    try:
        sizes = [r.shape for r in as_tuple(fn(*given, threads=threads))]
    except ShapeError:
        return None
    out = tuple(guarded(shape, o.dtype.numpy, front) for shape, o in zip(sizes, fn.program.outputs, strict=True))
    return as_tuple(fn(*given, out=out if len(out) > 1 else out[0], threads=threads))


def wrong_at(fn: CompiledFunction, program: Program, dims: Mapping[str, int], seed: int) -> Wrong | None:
    """Run at one shape, twice with different threads and into poisoned memory; None when all is right."""
    given = arguments(program, dims, seed)
    called = free(program, given)
    results = as_tuple(fn(*called, threads=1))
    poisoned = tuple(guarded(r.shape, r.dtype, seed % 3 == 0) for r in results)
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


def fault_at(fn: CompiledFunction, program: Program, dims: Mapping[str, int], seed: int) -> Wrong | None:
    """Run at one shape, between unreadable pages; results are of the declared shapes, or the process is gone."""
    given = arguments(program, dims, seed)
    results = call_guarded(fn, free(program, given), seed % 3 == 0, 1 + seed % 3)
    return Wrong(dict(dims), "is refused") if results is None else None


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


def compiled_access(program: random_accesses.Program, builder: Builder, target: str = "host") -> CompiledFunction | str:
    """The program compiled in this process; the message where it is refused."""
    try:
        return tw.compile(program.text, dict(program.ranges), target=target, options=tw.CompileOptions(builder=builder))
    except IngestError as error:
        return str(error)


def access_wrong_at(
    fn: CompiledFunction | str, program: random_accesses.Program, dims: Mapping[str, int], seed: int
) -> tuple[Wrong | None, bool]:
    """What is wrong at a shape, and whether the program runs there. One that is refused is wrong where it could run."""
    rng = np.random.default_rng([seed, *dims.values()])
    given = [at_edge(a, bool(rng.integers(2))) for a in program.arguments(dims, rng)]
    want = program.expected(dims, given)
    got = None if isinstance(fn, str) else call_guarded(fn, given, bool(rng.integers(2)), 1)
    if got is None:
        refused = want is not None and program.exact
        return (Wrong(dict(dims), f"refused, and nothing leaves a tensor: {fn}") if refused else None), False
    if want is None:
        return Wrong(dict(dims), "leaves a tensor, and is run"), True
    return (None if np.array_equal(got[0], want) else Wrong(dict(dims), "is not what NumPy computes")), True
