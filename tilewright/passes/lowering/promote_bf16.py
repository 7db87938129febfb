"""promote-bf16: arithmetic on f16, bf16 and 8-bit floats computed in f32 and rounded after every op, without library calls.

add, sub, mul and div are correctly rounded this way (24 >= 2 * 11 + 2 bits); fma is rounded twice. Conversions to f16
and bf16 are rounded once from any type but i64; f32 to f16 stays for the hardware (F16C, AVX-512, every GPU). Those of 8-bit
floats are integer arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.passes.base import Pass
from tilewright.passes.lowering.arithmetic import Real, element_of, with_element
from tilewright.passes.lowering.fp8 import from_fp8, is_fp8, to_fp8
from tilewright.passes.mlir import arith, attributes, ir, operations, owner, walk

_COMPUTED = frozenset(
    [f"arith.{op}" for op in ("addf", "subf", "mulf", "divf", "remf", "maximumf", "minimumf", "maxnumf", "minnumf")]
    + ["math.fma", "vector.fma", "vector.reduction"])
_SIGNS = ("arith.negf", "math.absf", "math.copysign")  # of bits that LLVM knows as f16 and bf16, and not as 8-bit floats
_INTEGER_RESULT = ("arith.cmpf", "arith.fptosi", "arith.fptoui")
_MOVED = ("arith.select", "arith.extf", "vector.shuffle", "vector.broadcast", "vector.extract", "arith.bitcast")
_LOADS = ("llvm.load", "llvm.intr.masked.load", "llvm.intr.masked.gather")
_FROM_INTEGER = ("arith.sitofp", "arith.uitofp")


@dataclass(frozen=True)
class PromoteBf16(Pass):
    """keep_conversion: leave f32 to bf16 to a target that has an instruction; else integer arithmetic, ties to even. flushes: the
    instruction takes denormal numbers for zeros (AVX-512 BF16), so only what was computed is left to it; a plain conversion of
    what lies in memory is exact."""

    name: ClassVar[str] = "promote-bf16"
    keep_conversion: bool = False
    flushes: bool = False

    def run(self, module: ir.Module) -> None:
        for op in walk(module.operation):
            with ir.InsertionPoint(op), op.location:
                result = self._rewrite(op)
            if result is not None:
                op.results[0].replace_all_uses_with(result)
                op.erase()

    def _rewrite(self, op: ir.Operation) -> ir.Value | None:
        if (op.name in _COMPUTED or (op.name in _SIGNS and is_fp8(op.results[0].type))) and _is_small(op.results[0].type):
            return self._narrow(_in_f32(op, [with_element(op.results[0].type, ir.F32Type.get())]), op.results[0].type)
        if op.name in _INTEGER_RESULT and _is_small(op.operands[0].type):
            return _in_f32(op, [op.results[0].type])
        if op.name in _FROM_INTEGER and _is_small(op.results[0].type):
            return self._from_integer(op)
        if op.name == "arith.truncf" and _is_small(op.results[0].type):
            return self._truncf(op)
        if op.name == "arith.extf" and is_fp8(op.operands[0].type):
            return self._extended(op)
        if op.name == "arith.extf" and _is_small(op.operands[0].type) and element_of(op.results[0].type).width == 64:
            wide = arith.extf(with_element(op.results[0].type, ir.F32Type.get()), op.operands[0])
            return arith.extf(op.results[0].type, wide)
        return None

    def _from_integer(self, op: ir.Operation) -> ir.Value:
        """Through f32 where it holds the integer exactly, else through f64."""
        target = op.results[0].type
        exact = element_of(op.operands[0].type).width <= 16
        wide = with_element(target, ir.F32Type.get() if exact else ir.F64Type.get())
        value = ir.Operation.create(op.name, results=[wide], operands=list(op.operands)).results[0]
        return self._narrow(value if exact else _odd_f32(Real(value)), target)

    def _truncf(self, op: ir.Operation) -> ir.Value | None:
        source, target = op.operands[0], op.results[0].type
        if element_of(source.type).width == 64:
            return self._narrow(_odd_f32(Real(source)), target)
        return None if self._is_native(target, source) else self._narrow(_widened(source), target)

    def _extended(self, op: ir.Operation) -> ir.Value:
        """An 8-bit float in a wider type, exactly."""
        target, value = op.results[0].type, from_fp8(op.operands[0]).value
        width = element_of(target).width
        if width == 32:
            return value
        return arith.extf(target, value) if width == 64 else self._narrow(value, target)

    def _narrow(self, value: ir.Value, target: ir.Type) -> ir.Value:
        """An f32 value rounded to a smaller type."""
        if is_fp8(target):
            return to_fp8(Real(value), target)
        return arith.truncf(target, value) if self._is_native(target, value) else _to_bf16(Real(value)).value

    def _is_native(self, target: ir.Type, value: ir.Value) -> bool:
        if is_fp8(target) or isinstance(element_of(target), ir.F16Type):
            return not is_fp8(target)
        return self.keep_conversion and not (self.flushes and _is_read(value))


def _is_small(t: ir.Type) -> bool:
    return isinstance(element_of(t), ir.F16Type | ir.BF16Type) or is_fp8(t)


def _is_read(value: ir.Value) -> bool:
    """Does a value come from memory, or from another value of its bits, as it is?"""
    op = owner(value)
    if op is not None and op.name == "scf.if":  # loads whose step is asked at run time
        return _is_read(operations(op.regions[0].blocks[0])[-1].operands[list(op.results).index(value)])
    if op is not None and op.name in _MOVED:
        return _is_read(op.operands[1 if op.name == "arith.select" else 0])
    return op is None or op.name in _LOADS


def _widened(value: ir.Value) -> ir.Value:
    """A value of a smaller type in f32; other values as they are."""
    if is_fp8(value.type):
        return from_fp8(value).value
    return arith.extf(with_element(value.type, ir.F32Type.get()), value) if _is_small(value.type) else value


def _in_f32(op: ir.Operation, results: list[ir.Type]) -> ir.Value:
    """The op on f32 copies of its smaller operands."""
    operands = [_widened(v) for v in op.operands]
    return ir.Operation.create(op.name, results=results, operands=operands, attributes=attributes(op)).results[0]


def _to_bf16(x: Real) -> Real:
    """Nearest bf16, ties to even; NaN stays NaN (quiet), with its upper payload."""
    bits = x.bits()
    rounded = bits + ((bits.unsigned_shift(16) & 1) + 0x7FFF)
    chosen = rounded.unsigned_shift(16).where(x.is_nan(), bits.unsigned_shift(16) | 0x40)
    return chosen.narrow(16).as_real(ir.BF16Type.get())


def _odd_f32(x: Real) -> ir.Value:
    """f64 to f32 rounded to odd: rounding that to at most 22 bits equals rounding once (Boldo and Melquiond, 2008)."""
    near = Real(arith.truncf(with_element(x.value.type, ir.F32Type.get()), x.value))
    back = Real(arith.extf(x.value.type, near.value))
    bits = near.bits()
    above = abs(back).compare("ogt", abs(x))
    cut = bits.where(above, bits - 1)
    inexact = back.compare("one", x)
    return cut.where(inexact, cut | 1).as_real(ir.F32Type.get()).value
