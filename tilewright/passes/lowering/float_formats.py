"""Constants of the expansions by float format: what f32 and f64 compute the same formulas with.

Coefficients of f32 are relative minimax fits (reweighted least squares on Chebyshev points, in float64, rounded to f32), those of
f64 interpolate at Chebyshev points (in 70 decimal digits). A name with _low holds what the number without it misses.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.passes.lowering.arithmetic import Real, element_of

Coefficients = tuple[float, ...]


@dataclass(frozen=True)
class FloatFormat:
    """fraction, bias: bits of the fraction, and what is added to the exponent. tiny: the smallest normal number. exp_least: below
    it exp is subnormal; exp_most: above it inf, as is half of it above exp_half_most. square_end: from here on sqrt(x^2 + 1) is
    x; linear_end: up to here sinh(x) is x. sqrt_half: bits of sqrt(1/2). far: largest angle whose multiples of pi are lost in
    three steps, the first of them exact. pi: parts that add up to it. In polynomials |r| <= ln(2)/2 for exp, 1/2 for exp2, pi/2
    for sin.
    """

    fraction: int
    bias: int
    tiny: float
    exp_least: float
    exp_most: float
    exp_half_most: float
    square_end: float
    linear_end: float
    far: float
    sqrt_half: int
    ln2: float
    ln2_low: float
    log2e: float
    log2e_low: float
    log10e: float
    log10e_low: float
    log10_2: float
    log10_2_low: float
    pi: tuple[float, float, float]
    exp: Coefficients  # e^r = 1 + r + r^2 P(r)
    expm1: Coefficients  # the same, relative to e^r - 1
    exp2: Coefficients  # 2^r = 1 + r P(r)
    sin: Coefficients  # sin(r) = r + r^3 P(r^2)

    @property
    def round(self) -> float:
        """t = x + round holds the whole number next to x in its low bits, for |x| below a quarter of 2^fraction."""
        return 1.5 * 2.0**self.fraction


F32 = FloatFormat(
    fraction=23, bias=127, tiny=2.0**-126, exp_least=-87.33654022216797, exp_most=88.72283172607422, exp_half_most=89.6,
    square_end=1e9, linear_end=2.0**-12, far=2.0**17, sqrt_half=0x3F3504F3,
    ln2=0.6931471824645996, ln2_low=-1.904654323148236e-09, log2e=1.4426950216293335, log2e_low=1.9259629911266175e-08,
    log10e=0.4342944920063019, log10e_low=-1.0103049952192578e-08, log10_2=0.3010300099849701, log10_2_low=-1.432098883924482e-08,
    pi=(3.1415927410125732, -8.742277657347586e-08, -3.4302490200117637e-15),
    exp=(0.4999999403953552, 0.1666651964187622, 0.04166839271783829, 0.008368780836462975, 0.0013814467238262296),  # 0.05 ulp
    expm1=(0.5, 0.1666666716337204, 0.04166635498404503, 0.008333273231983185, 0.0013941063079982996,
           0.0001991427270695567),  # 0.004 ulp
    exp2=(0.6931471824645996, 0.24022647738456726, 0.05550331994891167, 0.00961843878030777, 0.001339900423772633,
          0.00015353258640971035),  # 0.03 ulp
    sin=(-0.16666659712791443, 0.008333067409694195, -0.00019809552759397775, 2.6054585759993643e-06),  # 0.06 ulp
)
_F64_EXP = (0.5, 0.1666666666666667, 0.04166666666666667, 0.008333333333326136, 0.0013888888888883748, 0.00019841269874820627,
            2.4801587325547743e-05, 2.7557255400206422e-06, 2.75572736431103e-07, 2.5105217004720745e-08,
            2.0914686968086876e-09)  # 0.01 ulp
F64 = FloatFormat(
    fraction=52, bias=1023, tiny=2.0**-1022, exp_least=-708.3964185322641, exp_most=709.782712893384, exp_half_most=710.7,
    square_end=1e18, linear_end=2.0**-27, far=2.0**25, sqrt_half=0x3FE6A09E667F3BCD,
    ln2=0.6931471805599453, ln2_low=2.3190468138462996e-17, log2e=1.4426950408889634, log2e_low=2.0355273740931033e-17,
    log10e=0.4342944819032518, log10e_low=1.098319650216765e-17, log10_2=0.3010299956639812, log10_2_low=-2.8037281277851704e-18,
    pi=(3.141592653589793, 1.2246467991473532e-16, -2.9947698097183397e-33), exp=_F64_EXP, expm1=_F64_EXP,
    exp2=(0.6931471805599453, 0.24022650695910072, 0.055504108664821625, 0.00961812910762848, 0.001333355814640647,
          0.00015403530393370734, 1.5252733841556773e-05, 1.3215486808705563e-06, 1.0178057087733941e-07, 7.0548973041554995e-09,
          4.4558179083360645e-10, 2.5729324177362305e-11),  # 0.2 ulp
    sin=(-0.16666666666666666, 0.008333333333333316, -0.00019841269841254955, 2.755731921915843e-06, -2.5052107616384595e-08,
         1.6058977272815506e-10, -7.643969031052769e-13, 2.731428986122616e-15),  # 0.3 ulp
)


def format_of(x: Real) -> FloatFormat:
    """Of a value of f32 or f64."""
    return F64 if element_of(x.value.type).width == 64 else F32
