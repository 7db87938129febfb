"""Comparison and selection: setp, set, selp, slct (PTX ISA, section 9.7.6)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.runtime.emulator.alu.alu_function import Elementwise, SpecTable
from tilewright.runtime.emulator.alu.arith_float import decode, flush, is_float
from tilewright.runtime.emulator.machine.findings import EmulatorError
from tilewright.runtime.emulator.machine.lanes import Array
from tilewright.runtime.emulator.ptx.ptx_syntax import Instruction, Pair
from tilewright.runtime.emulator.ptx.ptx_types import numpy_type

_ORDERED: dict[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
}
_COMBINE: dict[str, Callable[[Array, Array], Array]] = {
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
}


def _comparison(inst: Instruction, operator: str, kind: str) -> Callable[[Array, Array], Array]:
    if not is_float(kind):
        if operator not in _ORDERED:
            raise EmulatorError(f"{inst.text}: comparison .{operator} is not for integers")
        return _ORDERED[operator]
    unordered = operator.endswith("u") and operator[:-1] in _ORDERED
    base, ftz = _ORDERED.get(operator[:-1] if unordered else operator), inst.has("ftz")

    def f(a: Array, b: Array) -> Array:
        lanes = max(a.shape[-1], b.shape[-1])
        x, y = decode(kind, a, lanes), decode(kind, b, lanes)
        if ftz:
            x, y = flush(x), flush(y)
        if base is not None and not unordered and operator != "ne":
            return base(x, y)
        nan = np.isnan(x) | np.isnan(y)
        if operator == "num":
            return ~nan
        if operator == "nan":
            return nan
        if base is None:
            raise EmulatorError(f"{inst.text}: comparison .{operator} is unknown")
        return base(x, y) | nan if unordered else base(x, y) & ~nan

    return f


def _boolean(inst: Instruction, start: int) -> Callable[[Array, Array], Array] | None:
    return next((_COMBINE[p] for p in inst.parts[start:-1] if p in _COMBINE), None)


def _setp(inst: Instruction) -> Elementwise:
    kind, compare = inst.parts[-1], _comparison(inst, inst.parts[1], inst.parts[-1])
    combine = _boolean(inst, 2)
    if kind.endswith("x2"):

        def pairs(a: Array, b: Array) -> tuple[Array, Array]:
            both = compare(a, b)
            return both[..., 0::2], both[..., 1::2]

        return Elementwise(pairs, ("pred", "pred"), (kind, kind))
    if combine is None:
        if not isinstance(inst.operands[0], Pair):
            return Elementwise(compare, ("pred",), (kind, kind))

        def both(a: Array, b: Array) -> tuple[Array, Array]:
            truth = compare(a, b)
            return truth, ~truth

        return Elementwise(both, ("pred", "pred"), (kind, kind))

    def combined(a: Array, b: Array, c: Array) -> tuple[Array, Array]:
        truth = compare(a, b)
        return combine(truth, c), combine(~truth, c)

    return Elementwise(combined, ("pred", "pred"), (kind, kind, "pred"))


def _set(inst: Instruction) -> Elementwise:
    result, kind = inst.parts[-2:]
    compare, combine = _comparison(inst, inst.parts[1], kind), _boolean(inst, 2)
    dtype = numpy_type(result)
    one: dict[str, Any] = {"f32": np.float32(1), "f16": np.float16(1), "bf16": np.uint16(0x3F80)}
    yes = one.get(result, ~np.zeros(1, dtype))

    def f(a: Array, b: Array, *c: Array) -> Array:
        truth = compare(a, b)
        truth = truth if combine is None else combine(truth, c[0])
        return np.where(truth, yes, np.zeros(1, dtype))

    return Elementwise(f, (result,), (kind, kind) if combine is None else (kind, kind, "pred"))


def _selp(inst: Instruction) -> Elementwise:
    kind = inst.parts[-1]
    return Elementwise(lambda a, b, c: np.where(c, a, b), (kind,), (kind, kind, "pred"))


def _slct(inst: Instruction) -> Elementwise:
    kind, by = inst.parts[-2:]
    return Elementwise(lambda a, b, c: np.where(c >= 0, a, b), (kind,), (kind, kind, by))


COMPARE: SpecTable = {"setp": _setp, "set": _set, "selp": _selp, "slct": _slct}
