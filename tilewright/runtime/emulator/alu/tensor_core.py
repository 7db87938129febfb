"""movmatrix and mma.sync: tensor-core instructions of a warp (PTX ISA, sections 9.7.14.5 and 9.7.14.6).

Products are exact and summed in double, rounded once: a device rounds in the middle, so results differ in the last bits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import numpy as np

from tilewright.runtime.emulator.alu import formats
from tilewright.runtime.emulator.alu.build_context import BuildContext
from tilewright.runtime.emulator.alu.instruction_kinds import WarpBuilder, WarpStep
from tilewright.runtime.emulator.alu.warp_registers import LANE, element_index, read_warps, whole_warps, write_warps
from tilewright.runtime.emulator.machine.lanes import Array
from tilewright.runtime.emulator.machine.machine import Machine
from tilewright.runtime.emulator.ptx.ptx_syntax import Instruction
from tilewright.runtime.limits import WARP

_GROUP, _MEMBER = LANE // 4, LANE % 4


def _build_movmatrix(inst: Instruction, cx: BuildContext) -> WarpStep:
    get, put, site = cx.source(inst, inst.operands[1], "b32"), cx.sink(inst, inst.operands[0], "b32"), cx.site(inst)
    rows, columns = element_index(False)

    def run(machine: Machine) -> None:
        warps = whole_warps(machine, site)
        halves = np.ascontiguousarray(read_warps(machine, [get], warps)).view(np.uint16)
        matrix = np.zeros((len(warps), 8, 8), dtype=np.uint16)
        matrix[:, rows, columns] = halves
        turned = np.ascontiguousarray(matrix[:, columns, rows]).view(np.uint32)
        write_warps(machine, [put], warps, turned)

    return WarpStep(None, run)


Decoder = Callable[[Array], Array]


def decoder(kind: str) -> tuple[Decoder, int]:
    """(uint32 registers [..., n] -> values [..., n * per register] as float64, elements per register)."""
    if kind == "f16":
        return lambda r: r.view(np.float16).astype(np.float64), 2
    if kind == "bf16":
        return lambda r: formats.bf16_decode(r.view(np.uint16)).astype(np.float64), 2
    if kind == "tf32":
        return lambda r: (r & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64), 1
    if kind in ("s8", "u8"):
        return lambda r: r.view(np.int8 if kind == "s8" else np.uint8).astype(np.float64), 4
    if kind in ("e4m3", "e5m2"):
        table = formats.fp8_values(kind).astype(np.float64)
        return lambda r: table[r.view(np.uint8)], 4
    raise KeyError(kind)


def _build_mma(inst: Instruction, cx: BuildContext) -> WarpStep:
    shape = next((m for p in inst.parts if (m := re.fullmatch(r"m(\d+)n(\d+)k(\d+)", p))), None)
    result, a_kind, b_kind, c_kind = inst.parts[-4:]
    if shape is not None and shape[0] == "m8n8k4" and result == "f64":
        return _build_mma_f64(inst, cx)
    if shape is None or (shape[1], shape[2]) != ("16", "8") or not inst.has("row") or not inst.has("col"):
        raise cx.refuse(inst, "only m16n8kK row.col and m8n8k4 of f64 are modelled")
    k, site, finite = int(shape[3]), cx.site(inst), inst.has("satfinite")
    try:
        (decode_a, per), (decode_b, _) = decoder(a_kind), decoder(b_kind)
    except KeyError as error:
        raise cx.refuse(inst, f"operands of type {error} are not modelled") from None
    word = "b32"
    sinks = [cx.sink(inst, e, word) for e in cx.elements(inst.operands[0])]
    sources = [[cx.source(inst, e, word) for e in cx.elements(o)] for o in inst.operands[1:]]
    chunks = k // (4 * per)
    if (len(sources[0]), len(sources[1])) != (2 * chunks, chunks):
        raise cx.refuse(inst, f"{2 * chunks} and {chunks} registers of A and B wanted")
    element = np.arange(per)
    i = np.arange(2 * chunks)[None, :, None]
    a_row = np.broadcast_to(_GROUP[:, None, None] + 8 * (i % 2), (WARP, 2 * chunks, per))
    a_col = _MEMBER[:, None, None] * per + 4 * per * (i // 2) + element
    j = np.arange(chunks)[None, :, None]
    b_row = _MEMBER[:, None, None] * per + 4 * per * j + element
    b_col = np.broadcast_to(_GROUP[:, None, None], b_row.shape)
    c_row = _GROUP[:, None] + 8 * (np.arange(4) // 2)
    c_col = 2 * _MEMBER[:, None] + np.arange(4) % 2

    def accumulators(registers: Array) -> Array:
        if c_kind == "f16":
            return np.ascontiguousarray(registers).view(np.float16).astype(np.float64)
        return registers.view(np.float32 if c_kind == "f32" else np.int32).astype(np.float64)

    def pack(values: Array) -> Array:
        if result == "f16":
            return np.ascontiguousarray(values.astype(np.float16)).view(np.uint32)
        if result == "f32":
            return np.ascontiguousarray(values.astype(np.float32)).view(np.uint32)
        wide = np.clip(values, -(2.0**31), 2.0**31 - 1) if finite else values
        return wide.astype(np.int64).astype(np.uint32)

    def run(machine: Machine) -> None:
        warps = whole_warps(machine, site)
        left, right, base = (read_warps(machine, gets, warps) for gets in sources)
        count = len(warps)
        a_full, b_full = np.empty((count, 16, k)), np.empty((count, k, 8))
        a_full[:, a_row, a_col] = decode_a(left).reshape(count, WARP, 2 * chunks, per)
        b_full[:, b_row, b_col] = decode_b(right).reshape(count, WARP, chunks, per)
        product = np.matmul(a_full, b_full)[:, c_row, c_col]
        write_warps(machine, sinks, warps, pack(product + accumulators(base)))

    return WarpStep(None, run)


def _build_mma_f64(inst: Instruction, cx: BuildContext) -> WarpStep:
    site = cx.site(inst)
    sinks = [cx.sink(inst, e, "f64") for e in cx.elements(inst.operands[0])]
    sources = [[cx.source(inst, e, "f64") for e in cx.elements(o)] for o in inst.operands[1:]]
    columns = 2 * _MEMBER[:, None] + np.arange(2)

    def run(machine: Machine) -> None:
        warps = whole_warps(machine, site)
        left, right, base = (read_warps(machine, gets, warps) for gets in sources)
        a_full, b_full = left.reshape(-1, 8, 4), right.reshape(-1, 8, 4).transpose(0, 2, 1)
        product = np.matmul(a_full, b_full)[:, _GROUP[:, None], columns]
        write_warps(machine, sinks, warps, product + base)

    return WarpStep(None, run)


TENSOR_CORE: Mapping[str, WarpBuilder] = {
    "movmatrix": _build_movmatrix,
    "mma.sync": _build_mma,
}
