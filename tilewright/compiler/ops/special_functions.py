"""Special functions of scalars, computed in f64 and rounded once to the type of their argument; `erfinv` of f32 in f32.

Gamma functions by Lanczos' sum (g = 7, nine terms) and Stirling's series, the inverse of erf by polynomials in the form of Giles'
(GPU Computing Gems 2, chapter 10), in f64 with two steps of Newton, Bessel functions by Chebyshev series whose errors, relative
to the largest value of a series, stand beside their coefficients. Away from their zeros all that are computed in f64 are within
1e-8 of the exact result before rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import factorial, inf, nan, pi, sqrt

import numpy as np

from tilewright.compiler.ops.body import Scalar
from tilewright.compiler.ops.scalar_functions import call, constant, is_inf, is_nan, select

_DIRECT_TERMS = 8  # of the series of polygamma, before its tail is integrated
_LANCZOS = (0.99999999999980993, 676.5203681218851, -1259.1392167224028, 771.32342877765313, -176.61502916214059,
            12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6, 1.5056327351493116e-7)
# erfinv(v) / v of w - 1, w = -log(1 - v^2) < 5, and of sqrt(w) - 3 up to the last f32 in front of 1: 6e-9 each
_ERFINV_CENTRE = (-8.7910159676e-09, 1.41911337719e-07, -5.24693654896e-07, -4.40158236061e-06, 3.82289976277e-05,
                  0.00010028132251, -0.00237644274051, 0.00425064288212, 0.247832890099, 1.12737439883)
_ERFINV_TAIL = (1.2896419537406482e-04, -3.18723491578651e-04, -7.661953073570704e-05, 1.4958570376925697e-03,
                -3.5869875736665663e-03, 5.683172251769023e-03, -7.6394100656387715e-03, 9.445684195623357e-03,
                1.0016750867616482, 2.8329767956876912)
# e^-x I0(x), x <= 8: 6e-10
_I0_NEAR = (3.383976372e-1, -3.046826723e-1, 1.716209015e-1, -9.490109705e-2, 4.930528424e-2, -2.373741481e-2,
    1.054646039e-2, -4.324309995e-3, 1.639475617e-3, -5.763755745e-4, 1.885028851e-4, -5.754195010e-5, 1.644844807e-5,
    -4.416738358e-6, 1.117387539e-6, -2.670793852e-7, 6.046994991e-8, -1.300024990e-8, 2.659823489e-9)
# e^-x sqrt(x) I0(x) of 8 / x: 1e-09
_I0_FAR = (4.022452055e-1, 3.369116478e-3, 6.889758347e-5, 2.891370521e-6, 2.048918589e-7, 2.266668988e-8, 3.396231975e-9)
# e^-x I1(x) / x, x <= 8: 9e-10
_I1_NEAR = (1.262935932e-1, -1.764165184e-1, 1.026436587e-1, -5.294598121e-2, 2.472644903e-2, -1.056408489e-2,
    4.156422944e-3, -1.513572451e-3, 5.122859562e-4, -1.617608158e-4, 4.781565108e-5, -1.327316366e-5, 3.470251308e-6,
    -8.568720264e-7, 2.003294752e-7, -4.445059118e-8, 9.381537251e-9, -1.887249645e-9)
# e^-x sqrt(x) I1(x) of 8 / x: 2e-09
_I1_FAR = (3.892881175e-1, -9.761097491e-3, -1.105889388e-4, -3.882564809e-6, -2.512236238e-7, -2.631468846e-8,
    -3.835380434e-9)
# J0(x) of x^2, x <= 8: 8e-11
_J0_NEAR = (1.577279715e-1, -8.723442353e-3, 2.651786132e-1, -3.700949939e-1, 1.580671023e-1, -3.489376941e-2,
    4.819180069e-3, -4.606261662e-4, 3.246032882e-5, -1.761946908e-6, 7.608163572e-8, -2.679253316e-9)
# J1(x) / x of x^2, x <= 8: 2e-10
_J1_NEAR = (8.104484633e-2, -1.489751451e-1, 1.609992624e-1, -8.268049177e-2, 2.221363965e-2, -3.646940601e-3,
    4.050337728e-4, -3.255554867e-5, 1.985877405e-6, -9.521984752e-8, 3.687133709e-9)
# Y0(x) - 2 / pi log(x) J0(x) of x^2, x <= 8: 3e-10
_Y0_NEAR = (-3.314611320e-2, -2.744743055e-1, 1.790343141e-1, 2.615673463e-1, -1.773020128e-1, 4.719668960e-2,
    -7.287962480e-3, 7.531135933e-4, -5.632079141e-5, 3.206532538e-6, -1.440723326e-7, 5.248794650e-9)
# (Y1(x) - 2 / pi (log(x) J1(x) - 1 / x)) / x of x^2, x <= 8: 1e-09
_Y1_NEAR = (2.538013236e-3, -1.608717305e-2, -9.591204536e-2, 8.445197260e-2, -2.832812394e-2, 5.289897544e-3,
    -6.414551451e-4, 5.505982873e-5, -3.538080019e-6, 1.770780454e-7, -7.110549900e-9)
# of (8 / x)^2, J0 + i Y0 = sqrt(2 / (pi x)) (P + i Q) e^(i (x - 1 pi / 4)), x > 8: 2e-09
_P0_FAR = (9.994603493e-1, -5.365220468e-4, 3.075184787e-6, -5.170594524e-8)
# Q x / 8 of (8 / x)^2: 2e-10
_Q0_FAR = (-1.555585461e-2, 6.838519937e-5, -7.414497810e-7, 1.797239745e-8, -7.271311063e-10, 4.213985046e-11)
# of (8 / x)^2, J1 + i Y1 = sqrt(2 / (pi x)) (P + i Q) e^(i (x - 3 pi / 4)), x > 8: 2e-09
_P1_FAR = (1.000903041, 8.989898331e-4, -3.987284301e-6, 6.177633942e-8)
# Q x / 8 of (8 / x)^2: 1e-09
_Q1_FAR = (4.677778707e-2, -9.627723554e-5, 9.138615732e-7, -2.095982922e-8, 8.229675508e-10)
# K0(x) + log(x) I0(x) of x^2, x <= 2: 2e-09
_K0_NEAR = (8.433977276e-1, 7.870789909e-1, 6.152577860e-2, 1.945894614e-3, 3.324799870e-5, 3.556382516e-7)
# e^x sqrt(x) K0(x) of 2 / x: 2e-09
_K0_FAR = (1.220151541, -3.144810131e-2, 1.569883886e-3, -1.284954958e-4, 1.394981372e-5, -1.831755523e-6, 2.766813638e-7,
    -4.660489898e-8, 8.574033595e-9)
# (K1(x) - log(x) I1(x)) x of x^2, x <= 2: 1e-10
_K1_NEAR = (-2.292832288e-1, -1.451444464, -2.331381338e-1, -1.123163323e-2, -2.581760262e-4, -3.471923798e-6,
    -3.064684273e-8)
# e^x sqrt(x) K1(x) of 2 / x: 2e-09
_K1_FAR = (1.360313095, 1.039237366e-1, -2.857816860e-3, 1.952155185e-4, -1.936197974e-5, 2.406484948e-6, -3.501960605e-7,
    5.741084125e-8, -1.034576289e-8)

Special = Callable[[Scalar], Scalar]


def in_double(function: Special) -> Special:
    """A function that computes in f64, for an argument of any float type."""

    def run(v: Scalar) -> Scalar:
        return function(v.cast("f64")).cast(v.kind)

    run.__doc__, run.__name__ = function.__doc__, function.__name__
    return run


def _exp(v: Scalar) -> Scalar:
    return call("math.exp", v)


def _log(v: Scalar) -> Scalar:
    return call("math.log", v)


def _polynomial(v: Scalar, coefficients: Sequence[float]) -> Scalar:
    """Horner's rule, the highest power first."""
    total = v * coefficients[0] + coefficients[1]
    for c in coefficients[2:]:
        total = total * v + c
    return total


def _chebyshev(t: Scalar, coefficients: Sequence[float]) -> Scalar:
    """Clenshaw's sum of Chebyshev polynomials at t in [-1, 1]."""
    twice, last, before = t * 2, constant(t, coefficients[-1]), constant(t, 0)
    for c in coefficients[-2:0:-1]:
        last, before = twice * last - before + c, last
    return t * last - before + coefficients[0]


# -- gamma functions


@in_double
def lgamma(v: Scalar) -> Scalar:
    """log |gamma(v)|; inf at 0 and the negative integers."""
    low = v.compare("lt", 0.5)
    x = select(low, -v, v - 1)
    total = constant(v, _LANCZOS[0])
    for k, c in enumerate(_LANCZOS[1:], 1):
        total = total + c / (x + k)
    t = x + 7.5
    right = (x + 0.5) * _log(t) - t + _log(total) + 0.5 * _log(constant(v, 2 * pi))
    right = select(x.compare("gt", 1e30), x * (_log(x) - 1), right)
    sine = call("math.absf", call("math.sin", (v - call("math.floor", v)) * pi))
    mirrored = _log(pi / sine) - right
    mirrored = select(call("math.floor", v).compare("eq", v), constant(v, inf), mirrored)
    right = select(v.compare("eq", 1) | v.compare("eq", 2), constant(v, 0), right)
    return select(is_inf(v), constant(v, inf), select(low, mirrored, right))


@in_double
def digamma(v: Scalar) -> Scalar:
    """The derivative of log gamma; an infinity at 0, NaN at the negative integers."""
    low = v.compare("lt", 0)
    x = select(low, 1 - v, v)
    lower = 1 / x
    for k in range(1, 8):
        lower = lower + 1 / (x + k)
    y = x + 8
    z = 1 / (y * y)
    series = _polynomial(z, (-1 / 132, 1 / 240, -1 / 252, 1 / 120, -1 / 12)) * z
    right = _log(y) - 0.5 / y + series - lower
    turn = (v - call("math.floor", v)) * pi
    mirrored = right - pi * call("math.cos", turn) / call("math.sin", turn)
    mirrored = select(call("math.floor", v).compare("eq", v), constant(v, nan), mirrored)
    at_zero = call("math.copysign", constant(v, inf), -v)
    value = select(low, mirrored, right)
    value = select(v.compare("eq", inf), v, value)
    return select(v.compare("eq", 0), at_zero, value)


def _polygamma(v: Scalar, order: int) -> Scalar:
    """(-1)^(order + 1) order! times Hurwitz' zeta(order + 1, v), by Euler and Maclaurin; mirrored below 0.5."""
    low = v.compare("lt", 0.5)
    x = select(low, 1 - v, v)
    total = 1 / _whole_power(x, order + 1)
    for k in range(1, _DIRECT_TERMS):
        total = total + 1 / _whole_power(x + k, order + 1)
    y = x + _DIRECT_TERMS
    tail = y / order + 0.5
    rising = float(order + 1)
    for k, c in enumerate((1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160)):
        tail = tail + c * rising / _whole_power(y, 2 * k + 1)
        rising *= (order + 2 * k + 2) * (order + 2 * k + 3)
    right = (total + tail / _whole_power(y, order + 1)) * (factorial(order) * (-1) ** (order + 1))
    right = select(x.compare("eq", inf), constant(v, 0), right)
    turn = (v - call("math.floor", v)) * pi
    tangent = call("math.cos", turn) / call("math.sin", turn)
    sine = call("math.sin", turn)
    mirrored = right * (-1) ** order - pi * _polynomial(tangent, _cotangent_derivative(order))
    if order == 1:
        mirrored = pi * pi / (sine * sine) - right
    return select(low, mirrored, right)


def _whole_power(v: Scalar, exponent: int) -> Scalar:
    product = v
    for _ in range(exponent - 1):
        product = product * v
    return product


def _cotangent_derivative(order: int) -> list[float]:
    """The derivative of cot(pi v) as a polynomial of cot(pi v), the highest power first."""
    found = np.poly1d([1.0, 0.0])
    for _ in range(order):
        found = found.deriv() * np.poly1d([-pi, 0.0, -pi])
    return [float(c) for c in found.coeffs]


def polygamma(order: int) -> Special:
    """The derivative of log gamma of order + 1."""
    return in_double(lambda v: _polygamma(v, order)) if order else digamma


# -- the normal distribution


def _depth(v: Scalar) -> Scalar:
    return -_log(call("math.fma", -v, v, 1.0))


def _erf_inverse(v: Scalar) -> Scalar:
    depth = _depth(v)
    central = depth.compare("lt", 5)
    centre = _polynomial(depth - 1, _ERFINV_CENTRE)
    tail = _polynomial(call("math.sqrt", depth) - 3, _ERFINV_TAIL)
    x = select(central, centre, tail) * v
    for _ in range(2):
        x = x - (call("math.erf", x) - v) * _exp(x * x) * (sqrt(pi) / 2)
    return select(call("math.absf", v).compare("eq", 1), v * inf, x)


def _short_erf_inverse(v: Scalar) -> Scalar:
    """Of f32. The last coefficients are added behind the product with v, in two parts, so that they are rounded once."""
    depth = _depth(v)
    central = depth.compare("lt", 5)

    def part(t: Scalar, coefficients: Sequence[float]) -> tuple[Scalar, Scalar]:
        high = float(np.float32(coefficients[-1]))
        total = constant(t, coefficients[0])
        for c in (*coefficients[1:-1], coefficients[-1] - high):
            total = call("math.fma", total, t, c)
        return total, constant(t, high)

    centre = part(depth - 1, _ERFINV_CENTRE)
    tail = part(call("math.sqrt", depth) - 3, _ERFINV_TAIL)
    rest, high = (select(central, a, b) for a, b in zip(centre, tail, strict=True))
    x = call("math.copysign", call("math.fma", v, high, v * rest), v)  # of -0 too
    return select(call("math.absf", v).compare("eq", 1), v * inf, x)


def erfinv(v: Scalar) -> Scalar:
    """The inverse of erf; infinities at -1 and 1, NaN outside. Of f32 within 1.7 ulp; of 16-bit floats that, rounded."""
    return _erf_inverse(v) if v.kind == "f64" else _short_erf_inverse(v.cast("f32")).cast(v.kind)


@in_double
def ndtri(v: Scalar) -> Scalar:
    """Where the normal distribution reaches v."""
    return _erf_inverse(v * 2 - 1) * sqrt(2)


@in_double
def ndtr(v: Scalar) -> Scalar:
    """The normal distribution up to v."""
    return call("math.erfc", v * -sqrt(0.5)) * 0.5


def _scaled_erfc(v: Scalar) -> Scalar:
    near = _exp(v * v) * call("math.erfc", v)
    z = 0.5 / (v * v)
    far = _polynomial(z, (-945, 105, -15, 3, -1, 1)) / (v * sqrt(pi))
    return select(v.compare("gt", 12), far, near)


@in_double
def erfcx(v: Scalar) -> Scalar:
    """e^(v^2) erfc(v)."""
    return _scaled_erfc(v)


@in_double
def log_ndtr(v: Scalar) -> Scalar:
    """The logarithm of the normal distribution up to v."""
    t = v * sqrt(0.5)
    tail = _log(_scaled_erfc(-t) * 0.5) - t * t
    return select(v.compare("lt", -1), tail, call("math.log1p", call("math.erfc", t) * -0.5))


def entropy(v: Scalar) -> Scalar:
    """-v log v; 0 at 0, -inf below."""
    value = select(v.compare("eq", 0), constant(v, 0), -v * _log(v))
    return select(is_nan(v), v, select(v.compare("lt", 0), constant(v, -inf), value))


# -- Bessel functions


def _bessel_i(v: Scalar, order: int) -> Scalar:
    """e^-|v| I(v)."""
    x = call("math.absf", v)
    near, far = ((_I0_NEAR, _I0_FAR), (_I1_NEAR, _I1_FAR))[order]
    inner = _chebyshev(x.minimum(8) / 4 - 1, near)
    larger = x.maximum(8)
    outer = _chebyshev(16 / larger - 1, far) / call("math.sqrt", larger)
    if order:
        inner = inner * x
    value = select(x.compare("le", 8), inner, outer)
    return call("math.copysign", value, v) if order else value


@in_double
def i0(v: Scalar) -> Scalar:
    return _bessel_i(v, 0) * _exp(call("math.absf", v))


@in_double
def i0e(v: Scalar) -> Scalar:
    """e^-|v| I0(v)."""
    return _bessel_i(v, 0)


@in_double
def i1(v: Scalar) -> Scalar:
    return _bessel_i(v, 1) * _exp(call("math.absf", v))


@in_double
def i1e(v: Scalar) -> Scalar:
    """e^-|v| I1(v)."""
    return _bessel_i(v, 1)


def _bessel_k(v: Scalar, order: int, scaled: bool) -> Scalar:
    small, large = v.minimum(2), v.maximum(2)
    t, grown = small * small / 2 - 1, _exp(small)
    if order:
        inner = _chebyshev(t, _K1_NEAR) / small + _log(small) * _bessel_i(small, 1) * grown
    else:
        inner = _chebyshev(t, _K0_NEAR) - _log(small) * _bessel_i(small, 0) * grown
    outer = _chebyshev(4 / large - 1, _K1_FAR if order else _K0_FAR) / call("math.sqrt", large)
    inner, outer = (inner * grown, outer) if scaled else (inner, outer * _exp(-large))
    value = select(v.compare("le", 2), inner, outer)
    value = select(v.compare("eq", 0), constant(v, inf), value)
    return select(v.compare("lt", 0), constant(v, nan), value)


def bessel_k(order: int, scaled: bool) -> Special:
    """K of order 0 or 1, times e^v when scaled; inf at 0, NaN below."""
    return in_double(lambda v: _bessel_k(v, order, scaled))


def _far(x: Scalar, order: int) -> tuple[Scalar, Scalar]:
    """J and Y beyond 8."""
    z = 8 / x
    t = z * z * 2 - 1
    p, q = _chebyshev(t, (_P0_FAR, _P1_FAR)[order]), _chebyshev(t, (_Q0_FAR, _Q1_FAR)[order]) * z
    angle, size = x - (2 * order + 1) * pi / 4, call("math.sqrt", 2 / (x * pi))
    sine, cosine = call("math.sin", angle), call("math.cos", angle)
    return size * (p * cosine - q * sine), size * (p * sine + q * cosine)


def _near(x: Scalar, order: int) -> tuple[Scalar, Scalar]:
    """J and Y up to 8."""
    t = x * x / 32 - 1
    j, y = _chebyshev(t, (_J0_NEAR, _J1_NEAR)[order]), _chebyshev(t, (_Y0_NEAR, _Y1_NEAR)[order])
    if order:
        j, y = j * x, y * x - 2 / pi / x
    return j, y + _log(x) * j * (2 / pi)


def bessel_j(order: int) -> Special:
    """J of order 0 or 1."""

    def run(v: Scalar) -> Scalar:
        x = call("math.absf", v)
        value = select(x.compare("le", 8), _near(x.minimum(8), order)[0], _far(x.maximum(8), order)[0])
        return select(v.compare("lt", 0), -value, value) if order else value

    return in_double(run)


def bessel_y(order: int) -> Special:
    """Y of order 0 or 1; -inf at 0, NaN below."""

    def run(v: Scalar) -> Scalar:
        value = select(v.compare("le", 8), _near(v.minimum(8), order)[1], _far(v.maximum(8), order)[1])
        value = select(v.compare("eq", 0), constant(v, -inf), value)
        return select(v.compare("lt", 0), constant(v, nan), value)

    return in_double(run)


def spherical_bessel_j0(v: Scalar) -> Scalar:
    """sin(v) / v; 1 at 0, 0 at the infinities."""
    value = select(v.compare("eq", 0), constant(v, 1), call("math.sin", v) / v)
    return select(is_inf(v), constant(v, 0), value)
