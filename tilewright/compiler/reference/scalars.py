"""Scalar operations (arith, math, affine) on NumPy arrays: floats in float64, integers exact, wrapping at their width.

A value of type i1 is a bool array, of iN the smallest signed NumPy integer that holds it, of index an int64 array.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.passes.mlir import ir
from tilewright.runtime.errors import IngestError
from tilewright.runtime.tensor import DType

_LEAST = np.iinfo(np.int64).min

Array = npt.NDArray[Any]
Rule = Callable[[ir.Operation, Sequence[Array]], "Array | Sequence[Array]"]


def element(kind: ir.Type) -> ir.Type:
    """The element type of a tensor type, or the scalar type itself."""
    return kind.element_type if isinstance(kind, ir.ShapedType) else kind


def is_float(kind: ir.Type) -> bool:
    return not isinstance(kind, (ir.IntegerType, ir.IndexType))


def width(kind: ir.Type) -> int:
    """Bits of an integer or index type."""
    return 64 if isinstance(kind, ir.IndexType) else int(ir.IntegerType(kind).width)


def storage(kind: ir.Type) -> np.dtype[Any]:
    """The NumPy type that holds values of this element type."""
    if is_float(kind):
        return np.dtype(np.float64)
    bits = width(kind)
    if bits > 64:
        raise IngestError(f"the reference evaluates integers of up to 64 bits, not {kind}")
    return np.dtype(bool) if bits == 1 else np.dtype(f"i{next(b for b in (1, 2, 4, 8) if 8 * b >= bits)}")


def declared(kind: ir.Type) -> np.dtype[Any]:
    """The NumPy type that an argument or result of this element type has outside (bf16 and fp8 from ml_dtypes)."""
    if not is_float(kind):
        return storage(kind)
    try:
        return DType(str(kind)).numpy
    except ValueError:
        raise IngestError(f"the reference knows no element type {kind}") from None


def signed(a: Array) -> Array:
    """As int64; a true i1 is -1."""
    return -a.astype(np.int64) if a.dtype == bool else a.astype(np.int64)


def unsigned(a: Array, bits: int) -> Array:
    """The bits of an integer as uint64."""
    if a.dtype == bool:
        return a.astype(np.uint64)
    return a.astype(np.uint64) & np.uint64((1 << bits) - 1)


def wrap(a: Array, kind: ir.Type) -> Array:
    """An integer result reduced to the width of its type."""
    bits = width(kind)
    if bits == 1:
        return (a.astype(np.int64) & 1).astype(bool)
    if bits in (8, 16, 32, 64):
        return a.astype(storage(kind))
    return ((a.astype(np.int64) << (64 - bits)) >> (64 - bits)).astype(storage(kind))


def constant(op: ir.Operation) -> Array:
    """The value of arith.constant."""
    value, kind = op.attributes["value"], op.results[0].type
    t = element(kind)
    if isinstance(value, (ir.IntegerAttr, ir.BoolAttr)):
        return wrap(np.asarray(int(value.value)), t)
    if isinstance(value, ir.FloatAttr):
        return np.asarray(float(value.value))
    if not isinstance(value, ir.DenseElementsAttr):
        raise IngestError(f"{op.name} at {op.location}: the reference cannot read {type(value).__name__}")
    shape = tuple(ir.ShapedType(kind).shape)
    if value.is_splat:
        splat = np.asarray(value.get_splat_value().value)
        return np.broadcast_to(splat.astype(np.float64) if is_float(t) else wrap(splat, t), shape)
    if not is_float(t) and width(t) not in (1, 8, 16, 32, 64):
        return np.array(re.findall(r"-?\d+", str(value).rsplit(":", 1)[0]), dtype=storage(t)).reshape(shape)
    if str(t) in ("f16", "f32", "f64") or not is_float(t):
        return np.asarray(np.array(value), storage(t)).reshape(shape)
    return _dense_text(str(value).rsplit(":", 1)[0], declared(t)).astype(np.float64).reshape(shape)


def _dense_text(text: str, dtype: np.dtype[Any]) -> Array:
    """Elements of a printed dense attribute: numbers, hexadecimal bit patterns, or one hexadecimal blob."""
    blob = re.search(r'"0x([0-9A-Fa-f]*)"', text)
    if blob:
        return np.frombuffer(bytes.fromhex(blob[1]), dtype)
    bits = np.dtype(f"u{dtype.itemsize}")
    words = re.findall(r"0x[0-9A-Fa-f]+|[-+]?[\d.]+(?:[eE][-+]?\d+)?", text)
    return np.array([np.array(int(w, 16), bits).view(dtype) if w.startswith("0x") else np.array(float(w), dtype)
                     for w in words], dtype)


def _truncated_quotient(a: Array, b: Array) -> Array:
    down = a // b
    return np.asarray(down + ((a % b != 0) & ((a < 0) != (b < 0))))


def _erf(name: str) -> Callable[[Array], Array]:
    def call(a: Array) -> Array:
        import scipy.special

        return np.asarray(getattr(scipy.special, name)(a))

    return call


def _round_away(a: Array) -> Array:
    return np.copysign(np.floor(np.abs(a) + 0.5), a)


def _clamp(a: Array, lo: Array, hi: Array) -> Array:
    return np.minimum(np.maximum(a, lo), hi)


_FLOAT: Mapping[str, Callable[..., Any]] = MappingProxyType({
    "arith.addf": np.add, "arith.subf": np.subtract, "arith.mulf": np.multiply, "arith.divf": np.divide,
    "arith.remf": np.fmod, "arith.negf": np.negative, "arith.maximumf": np.maximum, "arith.minimumf": np.minimum,
    "arith.maxnumf": np.fmax, "arith.minnumf": np.fmin, "arith.extf": np.asarray, "arith.truncf": np.asarray,
    "arith.convertf": np.asarray, "arith.flush_denormals": np.asarray,
    "math.absf": np.abs, "math.acos": np.arccos, "math.acosh": np.arccosh, "math.asin": np.arcsin,
    "math.asinh": np.arcsinh, "math.atan": np.arctan, "math.atan2": np.arctan2, "math.atanh": np.arctanh,
    "math.cbrt": np.cbrt, "math.ceil": np.ceil, "math.clampf": _clamp, "math.copysign": np.copysign, "math.cos": np.cos,
    "math.cosh": np.cosh, "math.erf": _erf("erf"), "math.erfc": _erf("erfc"), "math.exp": np.exp, "math.exp2": np.exp2,
    "math.expm1": np.expm1, "math.floor": np.floor, "math.fma": lambda a, b, c: a * b + c, "math.log": np.log,
    "math.log10": np.log10, "math.log1p": np.log1p, "math.log2": np.log2, "math.powf": np.power,
    "math.fpowi": lambda a, n: np.power(a, n.astype(np.float64)), "math.round": _round_away, "math.roundeven": np.rint,
    "math.rsqrt": lambda a: 1.0 / np.sqrt(a), "math.sin": np.sin, "math.sinh": np.sinh, "math.sqrt": np.sqrt,
    "math.tan": np.tan, "math.tanh": np.tanh, "math.trunc": np.trunc,
    "math.sincos": lambda a: (np.sin(a), np.cos(a)),
})

_TEST: Mapping[str, Callable[[Array], Array]] = MappingProxyType({
    "math.isfinite": np.isfinite, "math.isinf": np.isinf, "math.isnan": np.isnan,
    "math.isnormal": lambda a: np.isfinite(a) & (np.abs(a) >= np.finfo(np.float64).tiny),
})

_SIGNED: Mapping[str, Callable[..., Array]] = MappingProxyType({
    "arith.addi": np.add, "arith.subi": np.subtract, "arith.muli": np.multiply, "arith.divsi": _truncated_quotient,
    "arith.remsi": np.fmod, "arith.floordivsi": np.floor_divide, "arith.ceildivsi": lambda a, b: a // b + (a % b != 0),
    "arith.maxsi": np.maximum, "arith.minsi": np.minimum, "arith.andi": np.bitwise_and, "arith.ori": np.bitwise_or,
    "arith.xori": np.bitwise_xor, "arith.shli": np.left_shift, "arith.shrsi": np.right_shift, "arith.extsi": np.asarray,
    "arith.trunci": np.asarray, "arith.index_cast": np.asarray, "math.absi": np.abs,
    "math.ipowi": lambda a, n: _integer_power(a, n),
})

_UNSIGNED: Mapping[str, Callable[..., Array]] = MappingProxyType({
    "arith.divui": np.floor_divide, "arith.remui": np.remainder, "arith.ceildivui": lambda a, b: a // b + (a % b != 0),
    "arith.maxui": np.maximum, "arith.minui": np.minimum, "arith.shrui": np.right_shift, "arith.extui": np.asarray,
    "arith.index_castui": np.asarray, "math.ctpop": np.bitwise_count,
})

_ORDER: Mapping[str, Callable[[Array, Array], Array]] = MappingProxyType({
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
})
_CMPI = ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge")
_CMPF = ("false", "oeq", "ogt", "oge", "olt", "ole", "one", "ord",
         "ueq", "ugt", "uge", "ult", "ule", "une", "uno", "true")  # fmt: skip


def _integer_power(a: Array, n: Array) -> Array:
    base, left, result = a.copy(), np.maximum(n, 0), np.ones_like(a + n)
    while np.any(left):
        result = np.where(left & 1, result * base, result)
        base, left = base * base, left >> 1
    return np.where(n < 0, np.where(a == 1, 1, np.where(a == -1, 1 - 2 * (n & 1), 0)), result)


def _compare_integers(op: ir.Operation, operands: Sequence[Array]) -> Array:
    predicate = _CMPI[int(op.attributes["predicate"].value)]
    bits = width(element(op.operands[0].type))
    a, b = (unsigned(x, bits) if predicate[0] == "u" else signed(x) for x in operands)
    return _ORDER[predicate if predicate in ("eq", "ne") else predicate[1:]](a, b)


def _compare_floats(op: ir.Operation, operands: Sequence[Array]) -> Array:
    predicate = _CMPF[int(op.attributes["predicate"].value)]
    a, b = operands
    unordered = np.isnan(a) | np.isnan(b)
    if predicate in ("false", "true"):
        return np.full(unordered.shape, predicate == "true")
    if predicate in ("ord", "uno"):
        return unordered if predicate == "uno" else ~unordered
    truth = _ORDER[predicate[1:]](a, b)
    return truth | unordered if predicate[0] == "u" else truth & ~unordered


def _to_integer(op: ir.Operation, operands: Sequence[Array]) -> Array:
    kind = element(op.results[0].type)
    is_signed, whole = op.name == "arith.fptosi", np.trunc(operands[0])
    if is_signed or width(kind) < 64:
        return wrap(_whole(whole, 32 if is_signed and width(kind) <= 32 else 64), kind)
    upper = whole >= 2.0**63
    low = _whole(np.where(upper, whole - 2.0**63, whole), 64)
    return wrap(np.where(upper, low ^ np.int64(_LEAST), low), kind)


def _whole(a: Array, bits: int) -> Array:
    """Whole floats as integers of this width, in int64; the least value where they do not fit."""
    half = 2.0 ** (bits - 1)
    fits = (a >= -half) & (a < half)
    return np.where(fits, np.where(fits, a, 0).astype(np.int64), -(1 << bits - 1))


def _to_float(op: ir.Operation, operands: Sequence[Array]) -> Array:
    bits = width(element(op.operands[0].type))
    return (unsigned(operands[0], bits) if op.name == "arith.uitofp" else signed(operands[0])).astype(np.float64)


def bitcast(op: ir.Operation, operands: Sequence[Array]) -> Array:
    """arith.bitcast and tensor.bitcast: the bits of the declared type, read as the other."""
    source, target = element(op.operands[0].type), element(op.results[0].type)
    bits = np.ascontiguousarray(operands[0].astype(declared(source))).reshape(operands[0].shape)
    return bits.view(declared(target)).astype(storage(target))


def _zeros(op: ir.Operation, operands: Sequence[Array]) -> Array:
    """math.ctlz and math.cttz: a zero has as many zeros as bits."""
    kind = element(op.results[0].type)
    bits = width(kind)
    a = unsigned(operands[0], bits)
    places = np.arange(bits, dtype=np.uint64)
    if op.name == "math.ctlz":
        places = places[::-1]
    set_ = (a[..., None] >> places) & np.uint64(1) != 0
    return wrap(np.where(set_.any(axis=-1), set_.argmax(axis=-1), bits), kind)


def _extended(op: ir.Operation, operands: Sequence[Array]) -> tuple[Array, Array]:
    """arith.addui_extended, mulsi_extended, mului_extended, subui_extended: (low part, high part, carry or borrow)."""
    kind = element(op.results[0].type)
    bits = width(kind)
    a, b = ((signed(x) if "mulsi" in op.name else unsigned(x, bits)).astype(object) for x in operands)
    exact = a + b if "add" in op.name else a - b if "sub" in op.name else a * b
    mask = (1 << bits) - 1
    low = np.asarray(np.asarray(exact & mask).astype(np.uint64))
    if "mul" in op.name:
        return wrap(low, kind), wrap(np.asarray(np.asarray((exact >> bits) & mask).astype(np.uint64)), kind)
    return wrap(low, kind), np.asarray(np.asarray(exact != low.astype(object)).astype(bool))


_SPECIAL: Mapping[str, Rule] = MappingProxyType({
    "arith.constant": lambda op, _: constant(op),
    "arith.cmpi": _compare_integers,
    "arith.cmpf": _compare_floats,
    "arith.select": lambda _, x: np.where(x[0], x[1], x[2]),
    "arith.fptosi": _to_integer,
    "arith.fptoui": _to_integer,
    "arith.sitofp": _to_float,
    "arith.uitofp": _to_float,
    "arith.bitcast": bitcast,
    "arith.addui_extended": _extended,
    "arith.subui_extended": _extended,
    "arith.mulsi_extended": _extended,
    "arith.mului_extended": _extended,
    "math.ctlz": _zeros,
    "math.cttz": _zeros,
    "affine.apply": lambda op, x: _affine(op, x)[0],
    "affine.min": lambda op, x: np.minimum.reduce(np.broadcast_arrays(*_affine(op, x))),
    "affine.max": lambda op, x: np.maximum.reduce(np.broadcast_arrays(*_affine(op, x))),
})


def _affine(op: ir.Operation, operands: Sequence[Array]) -> list[Array]:
    m = ir.AffineMapAttr(op.attributes["map"]).value
    return [affine(e, operands[: m.n_dims], operands[m.n_dims :]) for e in m.results]


def affine(e: ir.AffineExpr, dims: Sequence[Any] | Mapping[int, Any], symbols: Sequence[Any] = ()) -> Any:
    """An affine expression over integers or integer arrays."""
    if isinstance(e, ir.AffineDimExpr):
        return dims[e.position]
    if isinstance(e, ir.AffineSymbolExpr):
        return symbols[e.position]
    if isinstance(e, ir.AffineConstantExpr):
        return np.int64(e.value)
    a, b = affine(e.lhs, dims, symbols), affine(e.rhs, dims, symbols)
    if isinstance(e, ir.AffineAddExpr):
        return a + b
    if isinstance(e, ir.AffineMulExpr):
        return a * b
    if isinstance(e, ir.AffineModExpr):
        return a % b
    return -(-a // b) if isinstance(e, ir.AffineCeilDivExpr) else a // b


def is_scalar_op(name: str) -> bool:
    return any(name in table for table in (_FLOAT, _SIGNED, _UNSIGNED, _TEST, _SPECIAL))


def apply(op: ir.Operation, operands: Sequence[Array]) -> list[Array]:
    """The results of an arith, math or affine operation; operands broadcast against each other."""
    name = op.name
    if name in _SPECIAL:
        found = _SPECIAL[name](op, operands)
        return list(found) if isinstance(found, tuple) else [np.asarray(found)]
    if name in _TEST:
        return [np.asarray(_TEST[name](operands[0]))]
    if name in _FLOAT:
        result = _FLOAT[name](*operands)
        return [np.asarray(r) for r in result] if isinstance(result, tuple) else [np.asarray(result)]
    kind = element(op.results[0].type)
    if name in _SIGNED:
        return [wrap(np.asarray(_SIGNED[name](*map(signed, operands))), kind)]
    bits = width(element(op.operands[0].type))
    return [wrap(np.asarray(_UNSIGNED[name](*(unsigned(a, bits) for a in operands))), kind)]
