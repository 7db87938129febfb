"""half and bfloat conversions in LLVM IR, for CPUs that have no instruction and libraries that lack the function.

Round to nearest even, subnormals kept, NaN quieted with its upper payload. Weak, because the code of several kernels is
loaded together.
"""

from __future__ import annotations

from collections.abc import Iterable

_FLOAT_TO_BFLOAT = """
define weak bfloat @__truncsfbf2(float %x) nounwind {
  %bits = bitcast float %x to i32
  %high = lshr i32 %bits, 16
  %odd = and i32 %high, 1
  %bias = add i32 %odd, 32767
  %sum = add i32 %bits, %bias
  %rounded = lshr i32 %sum, 16
  %quiet = or i32 %high, 64
  %magnitude = and i32 %bits, 2147483647
  %nan = icmp ugt i32 %magnitude, 2139095040
  %chosen = select i1 %nan, i32 %quiet, i32 %rounded
  %short = trunc i32 %chosen to i16
  %result = bitcast i16 %short to bfloat
  ret bfloat %result
}
"""

_HALF_TO_FLOAT = """
define weak float @__extendhfsf2(half %h) nounwind {
  %short = bitcast half %h to i16
  %bits = zext i16 %short to i32
  %top = and i32 %bits, 32768
  %sign = shl i32 %top, 16
  %magnitude = and i32 %bits, 32767
  %shifted = shl i32 %magnitude, 13
  %normal = add i32 %shifted, 939524096
  %special = or i32 %shifted, 2139095040
  %integer = uitofp i32 %magnitude to float
  %small = fmul float %integer, 0x3E70000000000000
  %subnormal = bitcast float %small to i32
  %is_special = icmp ugt i32 %magnitude, 31743
  %is_small = icmp ult i32 %magnitude, 1024
  %nan = icmp ugt i32 %magnitude, 31744
  %quieting = select i1 %nan, i32 4194304, i32 0
  %finite = select i1 %is_small, i32 %subnormal, i32 %normal
  %value = select i1 %is_special, i32 %special, i32 %finite
  %quiet = or i32 %value, %quieting
  %signed = or i32 %quiet, %sign
  %result = bitcast i32 %signed to float
  ret float %result
}
"""

# |x| is rounded at the place of the half's last bit: for a normal result 13 bits down; for a subnormal one the addition
# of 0.5, whose last bit is 2^-24, makes the float unit round there.
_FLOAT_TO_HALF = """
define weak half @__truncsfhf2(float %x) nounwind {
  %bits = bitcast float %x to i32
  %top = lshr i32 %bits, 16
  %sign = and i32 %top, 32768
  %magnitude = and i32 %bits, 2147483647
  %shifted = lshr i32 %magnitude, 13
  %odd = and i32 %shifted, 1
  %bias = add i32 %odd, 4095
  %rebased = sub i32 %magnitude, 939524096
  %sum = add i32 %rebased, %bias
  %normal = lshr i32 %sum, 13
  %absolute = bitcast i32 %magnitude to float
  %aligned = fadd float %absolute, 5.000000e-01
  %aligned_bits = bitcast float %aligned to i32
  %subnormal = sub i32 %aligned_bits, 1056964608
  %payload = and i32 %shifted, 1023
  %quiet = or i32 %payload, 32256
  %is_small = icmp ult i32 %magnitude, 947912704
  %is_large = icmp ugt i32 %magnitude, 1199566847
  %nan = icmp ugt i32 %magnitude, 2139095040
  %finite = select i1 %is_small, i32 %subnormal, i32 %normal
  %bounded = select i1 %is_large, i32 31744, i32 %finite
  %value = select i1 %nan, i32 %quiet, i32 %bounded
  %signed = or i32 %value, %sign
  %short = trunc i32 %signed to i16
  %result = bitcast i16 %short to half
  ret half %result
}
"""


def _through_float(name: str, kind: str, narrow: str) -> str:
    """double to a 16-bit type without double rounding: the float in between is rounded to odd."""
    return f"""
define weak {kind} @{name}(double %x) nounwind {{
  %near = fptrunc double %x to float
  %back = fpext float %near to double
  %bits = bitcast float %near to i32
  %x_bits = bitcast double %x to i64
  %back_bits = bitcast double %back to i64
  %exact = fcmp ueq double %x, %back
  %above = icmp ugt i64 %back_bits, %x_bits
  %less = sub i32 %bits, 1
  %below = select i1 %above, i32 %less, i32 %bits
  %odd = or i32 %below, 1
  %chosen = select i1 %exact, i32 %bits, i32 %odd
  %middle = bitcast i32 %chosen to float
  %result = call {kind} @{narrow}(float %middle)
  ret {kind} %result
}}
"""


_DEFINITIONS = {
    "__truncsfbf2": _FLOAT_TO_BFLOAT,
    "__truncsfhf2": _FLOAT_TO_HALF,
    "__extendhfsf2": _HALF_TO_FLOAT,
    "__truncdfbf2": _through_float("__truncdfbf2", "bfloat", "__truncsfbf2"),
    "__truncdfhf2": _through_float("__truncdfhf2", "half", "__truncsfhf2"),
}
SOFT_FLOAT = frozenset(_DEFINITIONS)


def soft_float_ir(names: Iterable[str]) -> str:
    """LLVM IR that defines these functions and those that they call."""
    wanted = set(names)
    wanted |= {name.replace("df", "sf") for name in wanted if name.startswith("__truncdf")}
    return "".join(_DEFINITIONS[name] for name in sorted(wanted))
