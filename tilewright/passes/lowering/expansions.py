"""Elementary functions as arith and fma ops, one formula for host and GPU; of f32 all, of f64 those that say so.

Coefficients are fitted as float_formats.py says. Errors are the largest found over 6 million random numbers of all magnitudes, in
units of the last place of the exact result. NaN gives NaN. Results of exp and exp2 below the smallest normal number are 0;
subnormal arguments count as all others.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from operator import truediv

import numpy as np

from tilewright.passes.lowering.arithmetic import Real, element_of, fma, horner
from tilewright.passes.lowering.float_formats import F32, format_of
from tilewright.passes.mlir import arith, ir, nvvm, vector
from tilewright.runtime.errors import BuildError

Divide = Callable[[Real, Real], Real]  # a dividend by a divisor between 1 and 2^126

_LEAST_DIVISOR = 2.0**-64  # of those that products stand for
_OVERFLOWS = 200.0  # exp and exp2 of it are inf in f32
_SCALE_MASKS = {(16,): 16, (8,): 8, (4,): 8}  # bits of the mask operand of vscalefps by lanes

# 2^r = 1 + r P(r) for |r| <= 1/2: 1.5 ulp
_EXP2_SHORT = (0.6931470036506653, 0.24022240936756134, 0.0555073507130146, 0.009671619161963463, 0.0013264591107144952)
# 2^r = 1 + r P(r) for |r| <= 1/16: 0.2 ulp of results from 1 to 2; beside 2^(j/8), rounded to f32, which is 0.34 ulp off
_EXP2_EIGHTH = (0.6931472420692444, 0.2402576357126236, 0.0554962232708931)
_EIGHTHS = (0x3F800000, 0x3F8B95C2, 0x3F9837F0, 0x3FA5FED7, 0x3FB504F3, 0x3FC5672A, 0x3FD744FD, 0x3FEAC0C7)
# log(1 + f) = f + f^2 P(f) for sqrt(1/2) <= 1 + f <= sqrt(2): 0.07 ulp
_LOG = (-0.49999988079071045, 0.33333325386047363, -0.2500160038471222, 0.2000202089548111, -0.16608662903308868,
        0.1418057233095169, -0.132454052567482, 0.1291404664516449, -0.07627750933170319)
# log(1 + f) = f - (f^2/2 - s (f^2/2 + s^2 P(s^2))) with s = f / (2 + f), in f64 for the same f: 0.04 ulp
_LOG_F64 = (0.666666666666667, 0.3999999999989924, 0.2857142862609589, 0.2222221111514416, 0.18182890556695602,
            0.1533167403016786, 0.1461703754879165)
# tanh(x) = x P(x^2) / Q(x^2) for |x| <= 9.02, where it rounds to 1: 0.4 ulp before rounding
_TANH_END = 9.02
_TANH_END_F64 = 20.0
_TANH_P = (1.0, 0.1337971779475312, 0.0034940343949015256, 2.058347877705985e-05, 1.3319068701183686e-08)
_TANH_Q = (1.0, 0.4671303303458118, 0.02587107255253706, 0.0003283092580992787, 7.762018084664916e-07)
# erf(x) = x P(x^2) / Q(x^2) for |x| <= 3.92, where it rounds to 1: 0.3 ulp before rounding
_ERF_END = 3.92
_ERF_P = (1.1283791461318013, 0.1904072506605415, 0.05274883143973309, 0.003765651986660019, 0.00028488375284262254,
          2.050084277438876e-06)
_ERF_Q = (1.0, 0.5020767730489007, 0.11410944007506695, 0.014969286327500322, 0.0011625444653574801,
          3.8091737905123945e-05)
# erfc(x) = e^(-x^2) P(x) / Q(x) for x >= 0: 0.1 ulp before rounding
_ERFC_P = (1.000000004965788, 1.2322648205500035, 0.72518309201556, 0.22616377411358407, 0.03215717491545461)
_ERFC_Q = (1.0, 2.3606444938162703, 2.3888768940482294, 1.3133839268647818, 0.4008943996006599, 0.05699629754812794)


def exp(x: Real, approximate: bool = False, scale: bool = False, nonpositive: bool = False) -> Real:
    """0.86 ulp; 0 below -87.3365, inf above 88.7228. Approximate: 6 ulp for |x| <= 20, 21 ulp anywhere. f64: 0.9 ulp, never
    approximate; 0 below -708.396, inf above 709.783.

    scale: by the instruction of AVX-512, the same bits. nonpositive: no argument is above 0, which takes fewer operations.
    """
    form, by_instruction = format_of(x), scale and scales(x)
    if by_instruction and not nonpositive:
        x = x.at_most(_OVERFLOWS)
    mantissa, shifted, n = _mantissa(x, approximate, nonpositive)
    if by_instruction:
        return scalef(mantissa, n).where(x.compare("olt", form.exp_least), 0.0)
    return _scale(mantissa, shifted, x, form.exp_least, None if nonpositive else form.exp_most)


def summed_exp(x: Real, approximate: bool = False, scale: bool = False) -> Real:
    """exp of what is never above 0, not 0 but 2^-126 (f64: 2^-1022) below its least argument: the same in a sum that is at least
    1. A comparison and a mask less, a maximum more."""
    form = format_of(x)
    x = x.at_least(form.exp_least)
    mantissa, shifted, n = _mantissa(x, approximate, nonpositive=True)
    if scale and scales(x):
        return scalef(mantissa, n)
    return mantissa * (shifted.bits() << form.fraction).as_real(element_of(x.value.type))


def _mantissa(x: Real, approximate: bool, nonpositive: bool) -> tuple[Real, Real, Real]:
    """e^x / 2^n for the whole number n next to log2(e^x); n in the low bits of a number, as it is or as an exponent; n."""
    form = format_of(x)
    shift = form.round + form.bias if nonpositive else form.round  # for round(x) + bias: as an exponent, 2^round(x)
    shifted = fma(x, form.log2e, shift)
    n = shifted - shift
    if approximate and form is F32:
        r = fma(x, form.log2e, -n)
        return fma(horner(_EXP2_SHORT, r), r, 1.0), shifted, n
    r = fma(n, -form.ln2_low, fma(n, -form.ln2, x))
    return fma(fma(horner(form.exp, r), r, 1.0), r, 1.0), shifted, n


def exp2(x: Real, approximate: bool = False, scale: bool = False, nonpositive: bool = False) -> Real:
    """0.93 ulp, 2 ulp when approximate; 0 below -126, inf from 128 on. f64: 0.9 ulp, never approximate; 0 below -1022, inf from
    1024 on. scale, nonpositive: as for exp."""
    form, by_instruction = format_of(x), scale and scales(x)
    if by_instruction and not nonpositive:
        x = x.at_most(_OVERFLOWS)
    shift = form.round + form.bias if nonpositive else form.round
    shifted = x + shift
    n = shifted - shift
    r = x - n
    mantissa = fma(horner(_EXP2_SHORT if approximate and form is F32 else form.exp2, r), r, 1.0)
    least = 1.0 - form.bias
    if by_instruction:
        return scalef(mantissa, n).where(x.compare("olt", least), 0.0)
    below = 1.0 - 2.0 ** (-24 if form is F32 else -53)  # of a number, that one before it
    return _scale(mantissa, shifted, x, least, None if nonpositive else (form.bias + 1) * below)


def exp2_of_product(a: Real, b: Real) -> Real:
    """2^(2ab) of f32 for products that are never above 0 and are not rounded: 0.93 ulp; 0 below 2^-126.5.

    A factor of half the size never overflows where it is made by a product with log2(e) / 2. Halves of whole numbers are what
    `shifted` is rounded to, so that its low bits are those of a whole exponent."""
    form = format_of(a)
    shift = (form.round + form.bias) / 2
    shifted = fma(a, b, shift)
    half = fma(a, b, -(shifted - shift))
    mantissa = fma(horner(tuple(c * 2.0 ** (k + 1) for k, c in enumerate(form.exp2)), half), half, 1.0)
    power = (shifted.bits() << form.fraction).as_real(element_of(a.value.type))
    return (mantissa * power).where(shifted.compare("olt", shift + (1 - form.bias) / 2), 0.0)


def exp2_of_product_by_lookup(a: Real, b: Real) -> Real:
    """The same for vectors of 8: 1.1 ulp; 0 below 2^-126, between that and 2^-125 1.5 ulp. A quarter fewer operations.

    `shifted` is rounded to eighths of an exponent, n + j/8; its low bits are 8n + j, by which vpermps of AVX2 looks up 2^(j/8).
    Moved to the exponent, and less j, they make the bits of 2^(n + j/8) with those of 2^(j/8)."""
    form, t = format_of(a), ir.VectorType(a.value.type)
    shift, eighth = (form.round + 8 * form.bias) / 16, form.fraction - 3
    shifted = fma(a, b, shift)
    half = fma(a, b, -(shifted - shift))
    bits = shifted.bits()
    i32 = ir.IntegerType.get_signless(32)
    eighths = [bits_ - (form.bias << form.fraction) - (j << eighth) for j, bits_ in enumerate(_EIGHTHS)]
    table = arith.constant(bits.value.type, ir.DenseElementsAttr.get(
        [ir.IntegerAttr.get(i32, n) for n in eighths], bits.value.type))
    looked_up = ir.Operation.create("llvm.call_intrinsic", [t], [arith.bitcast(t, table), bits.value], {
        "intrin": ir.StringAttr.get("llvm.x86.avx2.permps"),
        "op_bundle_sizes": ir.DenseI32ArrayAttr.get([]),
        "operandSegmentSizes": ir.DenseI32ArrayAttr.get([2, 0]),
    }).results[0]
    power = ((bits << eighth) + Real(looked_up).bits()).as_real(element_of(t))
    part = horner(tuple(c * 2.0 ** (k + 1) for k, c in enumerate(_EXP2_EIGHTH)), half)
    return fma(part, half * power, power).where(shifted.compare("olt", shift + (1 - form.bias) / 2), 0.0)


def is_looked_up(x: Real) -> bool:
    """Is it a vector as vpermps of AVX2 takes it?"""
    t = x.value.type
    return format_of(x) is F32 and isinstance(t, ir.VectorType) and list(ir.VectorType(t).shape) == [8]


def half_log2(x: ir.Value) -> ir.Value:
    """x log2(e) / 2 in f32, rounded once: what makes e^(d x) a 2^(2 d r)."""
    value, form = Real(x), format_of(Real(x))
    return fma(value, form.log2e / 2, value * (form.log2e_low / 2)).value


def exp2_by_instruction(x: Real) -> Real:
    """2^x of f32 by PTX's ex2.approx.ftz, 2 ulp, lane by lane; 0 below -126."""
    return _by_lanes(lambda value: nvvm.ex2(value, ftz=True), x)


def ratio_by_instruction(a: Real, b: Real) -> Real:
    """a / b of f32 with PTX's rcp.approx.ftz, for b between 2^-126 and 2^126: 1.5 ulp, since PTX bounds the error of the
    reciprocal by 1 ulp. A division that is rounded once has a branch for what lies beyond, and takes several times as many
    instructions."""
    return a * _by_lanes(lambda value: nvvm.rcp_approx_ftz_f(value), b)


def quotient_by_instruction(a: Real, b: Real) -> Real:
    """a / b of f32 by PTX's div.full, 2 ulp, for all numbers; without a branch."""
    return _by_lanes(lambda x, y: ir.Operation.create("llvm.call_intrinsic", [x.type], [x, y], {
        "intrin": ir.StringAttr.get("llvm.nvvm.div.full"),
        "op_bundle_sizes": ir.DenseI32ArrayAttr.get([]),
        "operandSegmentSizes": ir.DenseI32ArrayAttr.get([2, 0]),
    }).results[0], a, b)


def _by_lanes(instruction: Callable[..., ir.Value], *operands: Real) -> Real:
    """What has no form for vectors."""
    t = operands[0].value.type
    if not isinstance(t, ir.VectorType):
        return Real(instruction(*(x.value for x in operands)))
    if t.rank != 1:
        raise BuildError(f"wanted a scalar or a 1-D vector for an instruction of PTX, got {t}")
    lanes = [instruction(*(vector.extract(x.value, [], [i]) for x in operands)) for i in range(t.shape[0])]
    return Real(vector.from_elements(t, lanes))


def share(part: Real, whole: Real) -> Real:
    """part / whole for 0 <= part <= 1 <= whole, or where whole is a root, 1.5 ulp: by the reciprocal, which is that of all parts
    of one whole."""
    return part * (1.0 / whole)


def reciprocal(divisor: float | None) -> tuple[float, float] | None:
    """1 / divisor as the sum of two numbers of f32, the first one not larger in size: then the second has its sign, and products
    with both keep that of a zero or infinity. None for powers of two, one product of which is exact, and for extreme divisors."""
    if divisor is None or not _LEAST_DIVISOR <= abs(divisor) <= 1 / _LEAST_DIVISOR:
        return None
    whole = 1.0 / float(np.float32(divisor))
    high = np.float32(whole)
    if abs(float(high)) > abs(whole):
        high = np.nextafter(high, np.float32(0))
    low = np.float32(whole - float(high))
    return (float(high), float(low)) if low else None


def scaled(x: Real, parts: tuple[float, float]) -> Real:
    """x times the sum of two numbers, rounded as if once: by half an ulp and 2^-22 of one."""
    high, low = parts
    return fma(x, high, x * low)


def scales(x: Real) -> bool:
    """Is there a form of vscalefps for a type?"""
    t = x.value.type
    return format_of(x) is F32 and isinstance(t, ir.VectorType) and tuple(ir.VectorType(t).shape) in _SCALE_MASKS


def scalef(mantissa: Real, n: Real) -> Real:
    """mantissa * 2^n for a whole n, rounded once (vscalefps of AVX-512F, of AVX-512VL below 16 lanes)."""
    t = ir.VectorType(mantissa.value.type)
    lanes = t.shape[0]
    bits = ir.IntegerType.get_signless(_SCALE_MASKS[(lanes,)])
    operands = [mantissa.value, n.value, mantissa.value, arith.constant(bits, ir.IntegerAttr.get(bits, -1))]
    if lanes == 16:
        i32 = ir.IntegerType.get_signless(32)
        operands.append(arith.constant(i32, ir.IntegerAttr.get(i32, 4)))  # the rounding of the environment
    return Real(ir.Operation.create("llvm.call_intrinsic", [t], operands, {
        "intrin": ir.StringAttr.get(f"llvm.x86.avx512.mask.scalef.ps.{32 * lanes}"),
        "op_bundle_sizes": ir.DenseI32ArrayAttr.get([]),
        "operandSegmentSizes": ir.DenseI32ArrayAttr.get([len(operands), 0]),
    }).results[0])


def _scale(mantissa: Real, shifted: Real, x: Real, least: float, most: float | None) -> Real:
    """mantissa * 2^n, 0 where x is below `least`. The low bits of `shifted` are n, which is added to the exponent, inf above
    `most`; or, where that is None and nothing overflows, n + 127, which make a factor, so that NaN stays by itself."""
    power, element = shifted.bits() << format_of(x).fraction, element_of(x.value.type)
    if most is None:
        return (mantissa * power.as_real(element)).where(x.compare("olt", least), 0.0)
    scaled = (mantissa.bits() + power).as_real(element)
    return (x * inf).where(x.compare("ole", most), scaled).where(x.compare("olt", least), 0.0)


def expm1(x: Real) -> Real:
    """1.5 ulp; -1 far below, the argument itself near 0, inf where exp is. f64: 1.9 ulp."""
    half, q = _exp_parts(x.at_least(-60.0).at_most(format_of(x).exp_most + 0.25), 1)  # 2^128 is no f32
    return (fma(half, q, half - 0.5) * 2.0).copysign(x)


def sinh(x: Real) -> Real:
    """2.1 ulp, 2.4 in f64; the argument itself near 0, inf above 89.416, in f64 above 710.475."""
    quarter, q = _exp_parts(abs(x).at_most(format_of(x).exp_half_most), 2)
    part = fma(quarter, q, quarter - 0.25)  # of e^|x| - 1
    whole = (part + part / fma(part, 4.0, 1.0)) * 2.0
    return x.where(abs(x).compare("ogt", format_of(x).linear_end), whole.copysign(x))


def cosh(x: Real) -> Real:
    """1.5 ulp; inf above 89.416, in f64 above 710.475."""
    quarter, q = _exp_parts(abs(x).at_most(format_of(x).exp_half_most), 2)
    half = fma(quarter, q, quarter) * 2.0  # of e^|x|
    return half + 0.25 / half


def _exp_parts(x: Real, smaller: int) -> tuple[Real, Real]:
    """2^(n - smaller) and q with e^x = 2^n (1 + q), where neither overflows."""
    form = format_of(x)
    shifted = fma(x, form.log2e, form.round)
    n = shifted - form.round
    r = fma(n, -form.ln2_low, fma(n, -form.ln2, x))
    q = fma(horner(form.expm1, r) * r, r, r)
    exponent = (shifted.bits() << form.fraction) + ((form.bias - smaller) << form.fraction)
    return exponent.as_real(element_of(x.value.type)), q


def asinh(x: Real) -> Real:
    """1.7 ulp."""
    size = abs(x)
    far = size.compare("ogt", format_of(x).square_end)
    square = size * size
    above = (size + square / ((square + 1.0).sqrt() + 1.0)).where(far, size)
    return _log_of_twice(above, far).copysign(x)


def acosh(x: Real) -> Real:
    """2 ulp; NaN below 1."""
    above, far = x - 1.0, x.compare("ogt", format_of(x).square_end)
    both = (above + fma(above, above, above + above).sqrt()).where(far, x)
    return _log_of_twice(both, far).where(x.compare("olt", 1.0), nan)


def atanh(x: Real) -> Real:
    """2 ulp; NaN beyond 1, inf at 1."""
    size = abs(x)
    return (log1p((size + size) / (1.0 - size)) * 0.5).copysign(x)


def _log_of_twice(x: Real, twice: ir.Value) -> Real:
    """log(1 + x), or log(2 x) where that is asked of a large x."""
    y = log1p(x)
    return y.where(twice, y + format_of(x).ln2)


def tanh(x: Real, divide: Divide = truediv) -> Real:
    """4.5 ulp; 1 from 9.02 on; by `ratio_by_instruction` at most 1.5 ulp more. f64: 2.6 ulp, by expm1."""
    if format_of(x) is not F32:
        grown = expm1(abs(x).at_most(_TANH_END_F64) * 2.0)
        return (grown / (grown + 2.0)).copysign(x)
    return _odd_ratio(x, _TANH_P, _TANH_Q, _TANH_END, divide)


def erf(x: Real, divide: Divide = truediv) -> Real:
    """5.0 ulp; 1 from 3.92 on; by `ratio_by_instruction` at most 1.5 ulp more."""
    return _odd_ratio(x, _ERF_P, _ERF_Q, _ERF_END, divide)


def erfc(x: Real, divide: Divide = truediv) -> Real:
    """5.5 ulp down to the smallest normal result; 0 from 9.35 on, 2 from -3.9 down. By `ratio_by_instruction` at most
    1.5 ulp more."""
    a = abs(x).at_most(10.0)
    square = a * a
    lost = fma(a, a, -square)
    gauss = exp(-square)
    gauss = fma(-lost, gauss, gauss)
    right = gauss * divide(horner(_ERFC_P, a), horner(_ERFC_Q, a))
    return right.where(x.compare("olt", 0.0), 2.0 - right)


def _odd_ratio(x: Real, p: tuple[float, ...], q: tuple[float, ...], end: float, divide: Divide) -> Real:
    bounded = x.at_least(-end).at_most(end)
    square = bounded * bounded
    ratio = divide(bounded * horner(p, square), horner(q, square))
    return ratio.at_least(-1.0).at_most(1.0)


def log(x: Real) -> Real:
    """0.86 ulp; f64: 0.9 ulp."""
    form, (exponent, f) = format_of(x), split(x)
    low = fma(exponent, form.ln2_low, _log_tail(f))
    return _log_ends(fma(exponent, form.ln2, f + low), x)


def log2(x: Real) -> Real:
    """1 ulp, f64 too; exact at powers of two."""
    form, (exponent, f) = format_of(x), split(x)
    low = fma(f, form.log2e_low, _log_tail(f) * form.log2e)
    return _log_ends(exponent + fma(f, form.log2e, low), x)


def log10(x: Real) -> Real:
    """1 ulp, f64 too."""
    form, (exponent, f) = format_of(x), split(x)
    low = fma(exponent, form.log10_2_low, fma(f, form.log10e_low, _log_tail(f) * form.log10e))
    return _log_ends(fma(exponent, form.log10_2, fma(f, form.log10e, low)), x)


def log1p(x: Real) -> Real:
    """0.9 ulp; f64: 1 ulp; the argument itself near 0."""
    form, sum_ = format_of(x), x + 1.0
    exponent, part = split(sum_)
    near = exponent.compare("oeq", 0.0)  # x itself is then the exact 1 + f
    f = part.where(near, x)
    whole = sum_ - 1.0
    lost = ((1.0 - (sum_ - whole)) + (x - whole)) / sum_
    low = fma(exponent, form.ln2_low, _log_tail(f) + lost.where(near, 0.0))
    return _log_ends(fma(exponent, form.ln2, f + low), sum_).copysign(x)


def _log_tail(f: Real) -> Real:
    """log(1 + f) - f"""
    square = f * f
    if format_of(f) is F32:
        return horner(_LOG, f) * square
    half, s = square * 0.5, f / (f + 2.0)
    z = s * s
    return fma(s, fma(horner(_LOG_F64, z), z, half), -half)


def split(x: Real) -> tuple[Real, Real]:
    """e and f with x = 2^e (1 + f), sqrt(1/2) <= 1 + f < sqrt(2), for positive finite x."""
    element, form = element_of(x.value.type), format_of(x)
    small = x.compare("olt", form.tiny)
    base = x.where(small, x * 2.0**form.fraction)
    shifted = base.bits() - form.sqrt_half
    exponent = (shifted >> form.fraction).to_real(element)
    f = ((shifted & ((1 << form.fraction) - 1)) + form.sqrt_half).as_real(element) - 1.0
    return exponent.where(small, exponent - float(form.fraction)), f


def _log_ends(y: Real, x: Real) -> Real:
    """y, but -inf at 0, NaN below, and x at inf and NaN."""
    inside = x.compare("olt", inf)
    ended = x.where(inside, y)
    return ended.where(x.compare("oeq", 0.0), -inf).where(x.compare("olt", 0.0), nan)
