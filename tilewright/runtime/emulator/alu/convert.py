"""cvt in all combinations, cvta, and mov with packing and unpacking (PTX ISA, section 9.7.9)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilewright.runtime.emulator.alu import formats
from tilewright.runtime.emulator.alu.alu_function import Elementwise, SpecTable
from tilewright.runtime.emulator.alu.alu_function import build as build_elementwise
from tilewright.runtime.emulator.alu.arith_float import decode, encode, flush, is_float, saturate
from tilewright.runtime.emulator.alu.build_context import BuildContext
from tilewright.runtime.emulator.machine.findings import EmulatorError
from tilewright.runtime.emulator.machine.lanes import Array
from tilewright.runtime.emulator.machine.machine import InstructionRunner, Machine
from tilewright.runtime.emulator.ptx.ptx_syntax import Instruction, Vector
from tilewright.runtime.emulator.ptx.ptx_types import numpy_type, type_bits

_INTEGRAL: dict[str, Callable[[Array], Array]] = {
    "rni": np.rint,
    "rzi": np.trunc,
    "rmi": np.floor,
    "rpi": np.ceil,
}
_FP8 = ("e4m3x2", "e5m2x2")


def _float_to_integer(value: Array, kind: str, mode: str) -> Array:
    """Round, clamp to the type's range; NaN becomes 0."""
    info, dtype = np.iinfo(numpy_type(kind)), numpy_type(kind)
    rounded = _INTEGRAL[mode](value.astype(np.float64))
    low, high = float(info.min), float(info.max) + (0.0 if type_bits(kind) < 64 else 1.0)
    inside = np.where((rounded >= low) & (rounded < high), rounded, 0.0).astype(dtype)
    result = np.where(rounded >= high, dtype.type(info.max), np.where(rounded <= low, dtype.type(info.min), inside))
    return np.where(np.isnan(rounded), dtype.type(0), result)


def _integer_to_float(value: Array, kind: str, mode: str) -> Array:
    if kind == "f64":
        return value.astype(np.float64)
    if kind == "f32":
        if mode == "rn":
            return value.astype(np.float32)
        low = value & value.dtype.type(0xFFFFFFFF) if value.dtype.itemsize == 8 else np.zeros(1, value.dtype)
        return formats.directed_f32(*formats.two_sum((value - low).astype(np.float64), low.astype(np.float64)), mode)
    return encode(kind, value.astype(np.float64), mode)


def _float_to_float(inst: Instruction, value: Array, kind: str, mode: str) -> Array:
    if mode in _INTEGRAL:
        value = _INTEGRAL[mode](value)
        mode = "rn"
    if inst.has("ftz"):
        value = flush(value)
    if kind == "f64":
        return value.astype(np.float64)
    if kind == "f32":
        result = formats.round_f32(value.astype(np.float64), mode) if value.dtype == np.float64 else value
        return flush(result) if inst.has("ftz") else result
    return encode(kind, value, mode)


def _cvt(inst: Instruction) -> Elementwise:
    result, kind = inst.parts[-2:]
    mode = next((p for p in inst.parts if p in (*_INTEGRAL, "rn", "rz", "rm", "rp", "rna")), "")
    if kind in _FP8 or result in _FP8:
        return _cvt_fp8(inst, result, kind)
    if result in ("f16x2", "bf16x2"):
        return _cvt_pair(inst, result, kind, mode or "rn")
    if result == "tf32":
        return Elementwise(lambda a: formats.tf32_round(a, mode or "rna"), ("f32",), ("f32",))
    sat, relu = inst.has("sat", "satfinite"), inst.has("relu")
    if is_float(kind) and is_float(result):

        def between(a: Array) -> Array:
            value = decode(kind, a, a.shape[-1])
            value = np.maximum(value, value.dtype.type(0)) if relu else value
            return _float_to_float(inst, saturate(value) if sat else value, result, mode or "rn")

        return Elementwise(between, (result,), (kind,))
    if is_float(kind):
        return Elementwise(
            lambda a: _float_to_integer(
                flush(decode(kind, a, a.shape[-1])) if inst.has("ftz") else decode(kind, a, a.shape[-1]), result, mode or "rzi"
            ),
            (result,),
            (kind,),
        )
    if is_float(result):

        def to_float(a: Array) -> Array:
            value = _integer_to_float(a, result, mode or "rn")
            return saturate(value) if sat else value

        return Elementwise(to_float, (result,), (kind,))
    dtype = numpy_type(result)
    if not sat:
        return Elementwise(lambda a: a.astype(dtype), (result,), (kind,))
    info, source = np.iinfo(dtype), np.iinfo(numpy_type(kind))
    low, high = max(info.min, source.min), min(info.max, source.max)
    return Elementwise(lambda a: np.clip(a, a.dtype.type(low), a.dtype.type(high)).astype(dtype), (result,), (kind,))


def _cvt_pair(inst: Instruction, result: str, kind: str, mode: str) -> Elementwise:
    """cvt.rn.f16x2.f32 d, a, b: a becomes the upper half, b the lower."""
    half, relu = result[:-2], inst.has("relu")

    def bits(value: Array) -> Array:
        value = np.where(np.isnan(value), value, np.maximum(value, np.float32(0))) if relu else value
        return np.ascontiguousarray(encode(half, value, mode)).view(np.uint16).astype(np.uint32)

    return Elementwise(lambda a, b: (bits(a) << np.uint32(16)) | bits(b), ("b32",), (kind, kind))


def _cvt_fp8(inst: Instruction, result: str, kind: str) -> Elementwise:
    """e4m3x2 and e5m2x2: from two f32 or from f16x2, and to f16x2."""
    relu = inst.has("relu")
    if result in _FP8:
        name = result[:-2]

        def code(value: Array) -> Array:
            value = np.where(np.isnan(value), value, np.maximum(value, np.float32(0))) if relu else value
            return formats.fp8_encode(value, name).astype(np.uint16)

        if kind == "f32":
            return Elementwise(lambda a, b: (code(a) << np.uint16(8)) | code(b), ("b16",), ("f32", "f32"))

        def from_pair(a: Array) -> Array:
            both = code(decode(kind, a, a.shape[-1]))
            return np.asarray(both[..., 0::2] | (both[..., 1::2] << np.uint16(8)))

        return Elementwise(from_pair, ("b16",), (kind,))
    if result not in ("f16x2", "bf16x2"):
        raise EmulatorError(f"{inst.text}: this conversion is not modelled")
    table = formats.fp8_values(kind[:-2])

    def to_pair(a: Array) -> Array:
        value = table[np.ascontiguousarray(a).view(np.uint8)]
        return encode(result, np.maximum(value, np.float32(0)) if relu else value)

    return Elementwise(to_pair, ("b32",), ("b16",))


def _moved(inst: Instruction) -> Elementwise:
    kind = inst.parts[-1]
    return Elementwise(lambda a: a, (kind,), (kind,))


def build_mov(inst: Instruction, cx: BuildContext) -> InstructionRunner:
    """mov with `{}` on one side: split a register into parts, or join parts."""
    target, source = inst.operands
    kind = inst.parts[-1]
    if not isinstance(target, Vector) and not isinstance(source, Vector):
        return build_elementwise(inst, _moved(inst), cx)
    count = len(target.elements if isinstance(target, Vector) else source.elements)  # type: ignore[union-attr]
    bits = type_bits(kind) // max(1, count)
    if bits not in (8, 16, 32, 64) or bits * count != type_bits(kind):
        raise cx.refuse(inst, f"{type_bits(kind)} bits are not {count} parts of 8, 16, 32 or 64")
    part = f"b{bits}"
    if isinstance(target, Vector):
        get = cx.source(inst, source, f"b{type_bits(kind)}")
        puts = [cx.sink(inst, element, part) for element in target.elements]

        def split(machine: Machine) -> None:
            parts = np.ascontiguousarray(get(machine)).view(f"u{bits // 8}").reshape(-1, count)
            for i, put in enumerate(puts):
                put(machine, parts[:, i])

        return split
    assert isinstance(source, Vector)
    gets = [cx.source(inst, element, part) for element in source.elements]
    put_whole = cx.sink(inst, target, f"b{type_bits(kind)}")

    def join(machine: Machine) -> None:
        parts = np.empty((machine.lanes, count), dtype=f"u{bits // 8}")
        for i, get in enumerate(gets):
            parts[:, i] = get(machine)
        put_whole(machine, parts.view(f"u{bits * count // 8}")[:, 0])

    return join


def is_plain_move(inst: Instruction) -> bool:
    return not any(isinstance(operand, Vector) for operand in inst.operands)


CONVERT: SpecTable = {"cvt": _cvt, "mov": _moved}
