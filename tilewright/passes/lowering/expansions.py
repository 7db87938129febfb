"""f32 elementary functions as arith and fma ops, one formula for host and GPU.

Coefficients are relative minimax fits (reweighted least squares on Chebyshev points, in float64, rounded to f32).
Errors are the largest found over 6 million random numbers of all magnitudes, in units of the last place of the exact
result. NaN gives NaN. Results of exp and exp2 below the smallest normal number are 0; subnormal arguments count as all
others.
"""

from __future__ import annotations

from math import inf, nan

from tilewright.passes.lowering.arithmetic import Real, element_of, fma, horner
from tilewright.passes.mlir import arith, ir

_ROUND = 1.5 * 2.0**23  # t = x + _ROUND holds round(x) in its low bits for |x| < 2^22
_ROUND_BIASED = _ROUND + 127  # as _ROUND, for round(x) + 127: as an exponent, 2^round(x)
_TINY = 2.0**-126
_EXP_LEAST = -87.33654022216797  # below it exp is subnormal
_OVERFLOWS = 200.0  # exp and exp2 of it are inf
_SCALE_MASKS = {(16,): 16, (8,): 8, (4,): 8}  # bits of the mask operand of vscalefps by lanes

_LOG2E = 1.4426950216293335
_LOG2E_LOW = 1.9259629911266175e-08
_LN2 = 0.6931471824645996
_LN2_LOW = -1.904654323148236e-09
_SQRT_HALF = 0x3F3504F3  # bits of sqrt(1/2)

# e^r = 1 + r + r^2 P(r) for |r| <= ln(2)/2: 0.05 ulp
_EXP = (0.4999999403953552, 0.1666651964187622, 0.04166839271783829, 0.008368780836462975, 0.0013814467238262296)
# e^r - 1 = r + r^2 P(r), relative to e^r - 1: 0.004 ulp
_EXPM1 = (0.5, 0.1666666716337204, 0.04166635498404503, 0.008333273231983185, 0.0013941063079982996,
          0.0001991427270695567)
# 2^r = 1 + r P(r) for |r| <= 1/2: 0.03 ulp, and 1.5 ulp
_EXP2 = (0.6931471824645996, 0.24022647738456726, 0.05550331994891167, 0.00961843878030777, 0.001339900423772633,
         0.00015353258640971035)
_EXP2_SHORT = (0.6931470036506653, 0.24022240936756134, 0.0555073507130146, 0.009671619161963463, 0.0013264591107144952)
# log(1 + f) = f + f^2 P(f) for sqrt(1/2) <= 1 + f <= sqrt(2): 0.07 ulp
_LOG = (-0.49999988079071045, 0.33333325386047363, -0.2500160038471222, 0.2000202089548111, -0.16608662903308868,
        0.1418057233095169, -0.132454052567482, 0.1291404664516449, -0.07627750933170319)
# tanh(x) = x P(x^2) / Q(x^2) for |x| <= 9.02, where it rounds to 1: 0.4 ulp before rounding
_TANH_END = 9.02
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
    """0.86 ulp; 0 below -87.3365, inf above 88.7228. Approximate: 6 ulp for |x| <= 20, 21 ulp anywhere.

    scale: by the instruction of AVX-512, the same bits. nonpositive: no argument is above 0, which takes fewer operations.
    """
    by_instruction = scale and scales(x)
    if by_instruction and not nonpositive:
        x = x.at_most(_OVERFLOWS)
    shift = _ROUND_BIASED if nonpositive else _ROUND
    shifted = fma(x, _LOG2E, shift)
    n = shifted - shift
    if approximate:
        r = fma(x, _LOG2E, -n)
        mantissa = fma(horner(_EXP2_SHORT, r), r, 1.0)
    else:
        r = fma(n, -_LN2_LOW, fma(n, -_LN2, x))
        mantissa = fma(fma(horner(_EXP, r), r, 1.0), r, 1.0)
    if by_instruction:
        return scalef(mantissa, n).where(x.compare("olt", _EXP_LEAST), 0.0)
    return _scale(mantissa, shifted, x, _EXP_LEAST, None if nonpositive else 88.72283172607422)


def exp2(x: Real, approximate: bool = False, scale: bool = False, nonpositive: bool = False) -> Real:
    """0.93 ulp, 2 ulp when approximate; 0 below -126, inf from 128 on. scale, nonpositive: as for exp."""
    by_instruction = scale and scales(x)
    if by_instruction and not nonpositive:
        x = x.at_most(_OVERFLOWS)
    shift = _ROUND_BIASED if nonpositive else _ROUND
    shifted = x + shift
    n = shifted - shift
    r = x - n
    mantissa = fma(horner(_EXP2_SHORT if approximate else _EXP2, r), r, 1.0)
    if by_instruction:
        return scalef(mantissa, n).where(x.compare("olt", -126.0), 0.0)
    return _scale(mantissa, shifted, x, -126.0, None if nonpositive else 127.99999237060547)


def share(part: Real, whole: Real) -> Real:
    """part / whole for 0 <= part <= 1 <= whole, 1.5 ulp: by the reciprocal, which the parts of one whole have in common."""
    return part * (1.0 / whole)


def scales(x: Real) -> bool:
    """Is there a form of vscalefps for a type?"""
    return isinstance(x.value.type, ir.VectorType) and tuple(ir.VectorType(x.value.type).shape) in _SCALE_MASKS


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
    power, element = shifted.bits() << 23, element_of(x.value.type)
    if most is None:
        return (mantissa * power.as_real(element)).where(x.compare("olt", least), 0.0)
    scaled = (mantissa.bits() + power).as_real(element)
    return (x * inf).where(x.compare("ole", most), scaled).where(x.compare("olt", least), 0.0)


def expm1(x: Real) -> Real:
    """1.5 ulp; -1 far below, the argument itself near 0, inf above 88.7228."""
    bounded = x.at_least(-60.0).at_most(89.0)
    shifted = fma(bounded, _LOG2E, _ROUND)
    n = shifted - _ROUND
    r = fma(n, -_LN2_LOW, fma(n, -_LN2, bounded))
    q = fma(horner(_EXPM1, r) * r, r, r)
    half = ((shifted.bits() << 23) + (126 << 23)).as_real(element_of(x.value.type))  # 2^(n-1): 2^128 is no f32
    return (fma(half, q, half - 0.5) * 2.0).copysign(x)


def tanh(x: Real) -> Real:
    """4.5 ulp; 1 from 9.02 on."""
    return _odd_ratio(x, _TANH_P, _TANH_Q, _TANH_END)


def erf(x: Real) -> Real:
    """5.0 ulp; 1 from 3.92 on."""
    return _odd_ratio(x, _ERF_P, _ERF_Q, _ERF_END)


def erfc(x: Real) -> Real:
    """5.5 ulp down to the smallest normal result; 0 from 9.35 on, 2 from -3.9 down."""
    a = abs(x).at_most(10.0)
    square = a * a
    lost = fma(a, a, -square)
    gauss = exp(-square)
    gauss = fma(-lost, gauss, gauss)
    right = gauss * (horner(_ERFC_P, a) / horner(_ERFC_Q, a))
    return right.where(x.compare("olt", 0.0), 2.0 - right)


def _odd_ratio(x: Real, p: tuple[float, ...], q: tuple[float, ...], end: float) -> Real:
    bounded = x.at_least(-end).at_most(end)
    square = bounded * bounded
    ratio = bounded * horner(p, square) / horner(q, square)
    return ratio.at_least(-1.0).at_most(1.0)


def log(x: Real) -> Real:
    """0.86 ulp."""
    exponent, f = _split(x)
    low = fma(exponent, _LN2_LOW, horner(_LOG, f) * (f * f))
    return _log_ends(fma(exponent, _LN2, f + low), x)


def log2(x: Real) -> Real:
    """1 ulp; exact at powers of two."""
    exponent, f = _split(x)
    tail = horner(_LOG, f) * (f * f)
    low = fma(f, _LOG2E_LOW, tail * _LOG2E)
    return _log_ends(exponent + fma(f, _LOG2E, low), x)


def log1p(x: Real) -> Real:
    """0.9 ulp; the argument itself near 0."""
    sum_ = x + 1.0
    exponent, split = _split(sum_)
    near = exponent.compare("oeq", 0.0)  # x itself is then the exact 1 + f
    f = split.where(near, x)
    whole = sum_ - 1.0
    lost = ((1.0 - (sum_ - whole)) + (x - whole)) / sum_
    low = fma(exponent, _LN2_LOW, horner(_LOG, f) * (f * f) + lost.where(near, 0.0))
    return _log_ends(fma(exponent, _LN2, f + low), sum_).copysign(x)


def _split(x: Real) -> tuple[Real, Real]:
    """e and f with x = 2^e (1 + f), sqrt(1/2) <= 1 + f < sqrt(2), for positive finite x."""
    element = element_of(x.value.type)
    small = x.compare("olt", _TINY)
    base = x.where(small, x * 2.0**23)
    shifted = base.bits() - _SQRT_HALF
    exponent = (shifted >> 23).to_real(element)
    f = ((shifted & 0x7FFFFF) + _SQRT_HALF).as_real(element) - 1.0
    return exponent.where(small, exponent - 23.0), f


def _log_ends(y: Real, x: Real) -> Real:
    """y, but -inf at 0, NaN below, and x at inf and NaN."""
    inside = x.compare("olt", inf)
    ended = x.where(inside, y)
    return ended.where(x.compare("oeq", 0.0), -inf).where(x.compare("olt", 0.0), nan)
