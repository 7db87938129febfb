"""Rows and columns of a contraction's result as GPU families see them, and the types of its operands. MLIR-free."""

from __future__ import annotations

import re

from passes.workload import Workload
from runtime.limits import BYTE_FLOATS, GpuLimits
from runtime.shape import Expr

_TENSOR = re.compile(r"tensor<[^<>]*?x?(f16|bf16|i8|f8E4M3FN|f8E5M2)\b[^<>]*>")
_BYTES = {"f16": 2, "bf16": 2, "i8": 1, "f8E4M3FN": 1, "f8E5M2": 1}


def sides_of(workload: Workload) -> tuple[Expr, Expr]:
    """Rows and columns; columns run along the unit-stride axis."""
    out = workload.outputs[0]
    unit = out.unit_axis if out.unit_axis is not None else len(out.dims) - 1
    extent = out.dims[unit] if out.dims else Expr.of(1)
    groups = {role: [loop.extent for loop in workload.loops if loop.role == role] for role in ("m", "n")}
    swapped = extent not in groups["n"] and extent in groups["m"]
    return (workload.size("n"), workload.size("m")) if swapped else (workload.size("m"), workload.size("n"))


def narrow_bytes(workload: Workload) -> int | None:
    """Bytes of the elements that a contraction on tensor cores could read: those of the widest narrow type that occurs in the
    region. None where there is none. A family looks closer when it builds."""
    found = {_BYTES[m[1]] for m in _TENSOR.finditer(workload.ir)}
    return max(found) if found else None


def multiplies(workload: Workload, limits: GpuLimits) -> bool:
    """Do tensor cores of that architecture multiply what `narrow_bytes` finds? 8-bit floats came later than the others."""
    floats = any(m[1].startswith("f8") for m in _TENSOR.finditer(workload.ir))
    return narrow_bytes(workload) is not None and (not floats or limits.version >= BYTE_FLOATS)


def bytes_along_depth(workload: Workload) -> bool:
    """Does memory run along k in every operand of bytes, for certain? Not where k is as long as another loop."""
    depth, others = ({x.extent for x in workload.loops if (x.role == "k") is along} for along in (True, False))
    read = [o for o in workload.inputs if o.dtype.bytes == 1 and len(o.dims) > 1]
    return all(o.unit_axis is not None and o.dims[o.unit_axis] in depth - others for o in read)


def unaligned(workload: Workload, n: int) -> Expr:
    """0 exactly where every dynamic extent along which memory is contiguous is a multiple of n."""
    left = Expr.of(0)
    seen = set[Expr]()
    for operand in (*workload.inputs, *workload.outputs):
        if operand.unit_axis is None or len(operand.dims) < 2:
            continue
        extent = operand.dims[operand.unit_axis]
        if extent.constant is None and not extent.divisible_by(n) and extent not in seen:
            seen.add(extent)
            left = left + extent % n
    return left
