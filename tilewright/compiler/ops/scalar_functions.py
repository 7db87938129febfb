"""Elementary functions of scalars inside a region, as arith and math operations of host and GPU.

Floats follow IEEE 754 and C at zeros, infinities and NaN, integers wrap around. Division by an integer 0 gives 0 and never traps.
"""

from __future__ import annotations

from math import inf, nan, pi

from tilewright.compiler.ops.body import Number, Scalar, is_float


def call(name: str, first: Scalar, *others: Number) -> Scalar:
    """A function of the math or arith dialect ("math.atan2") of operands of one type, which the result has."""
    operands = [first, *(first.body.value(o, first.kind) for o in others)]
    return first.body.emit(f"{name} {', '.join(o.ssa for o in operands)} : {first.type}", first.kind)


def constant(like: Scalar, value: float) -> Scalar:
    """A number in the type of another scalar."""
    return like.body.value(value, like.kind)


def select(condition: Scalar, a: Number, b: Number) -> Scalar:
    """`a` where the i1 scalar holds, else `b`; one of them is a scalar, whose type the result has."""
    return condition.body.select(condition, a, b)


def bits_of(v: Scalar) -> int:
    """Width of an integer."""
    return int(v.type[1:])


# -- tests


def is_nan(v: Scalar) -> Scalar:
    return v.compare("ne", v)


def is_inf(v: Scalar) -> Scalar:
    return call("math.absf", v).compare("eq", inf)


def is_finite(v: Scalar) -> Scalar:
    return call("math.absf", v).compare("lt", inf)


def sign_bit(v: Scalar) -> Scalar:
    """Is the sign set? -0 and negative NaN count."""
    return call("math.copysign", constant(v, 1.0), v).compare("lt", 0) if is_float(v.kind) else v.compare("lt", 0)


# -- rounding, signs and parts


def absolute(v: Scalar) -> Scalar:
    return v if v.kind == "i1" or v.is_unsigned else call("math.absf", v) if is_float(v.kind) else v.maximum(0 - v)


def sign(v: Scalar) -> Scalar:
    """-1, 0 or 1; 0 and NaN give themselves."""
    if v.kind == "i1":
        return v
    negative = select(v.compare("lt", 0), constant(v, -1), v)
    return select(v.compare("gt", 0), constant(v, 1), negative)


def fraction(v: Scalar) -> Scalar:
    """v - trunc(v), with v's sign."""
    return v - call("math.trunc", v)


def round_to(v: Scalar, decimals: int) -> Scalar:
    """Half to even at a number of decimals, which may be negative."""
    if decimals == 0:
        return call("math.roundeven", v)
    ten = 10.0 ** abs(decimals)
    return call("math.roundeven", v * ten) / ten if decimals > 0 else call("math.roundeven", v / ten) * ten


def next_after(v: Scalar, towards: Scalar) -> Scalar:
    """The next float of v's type in the direction of another number."""
    width = {"f16": 16, "bf16": 16, "f32": 32, "f64": 64}[v.kind]
    whole = f"i{width}"
    bits = v.body.emit(f"arith.bitcast {v.ssa} : {v.kind} to {whole}", whole)
    grows = v.compare("lt", towards) ^ v.compare("lt", 0)
    stepped = bits + select(grows, constant(bits, 1), constant(bits, -1))
    next_ = v.body.emit(f"arith.bitcast {stepped.ssa} : {whole} to {v.kind}", v.kind)
    least = v.body.emit(f"arith.bitcast {constant(bits, 1).ssa} : {whole} to {v.kind}", v.kind)
    next_ = select(v.compare("eq", 0), call("math.copysign", least, towards), next_)
    next_ = select(v.compare("eq", towards), towards, next_)
    return select(is_nan(v) | is_nan(towards), v + towards, next_)


# -- division


def _safe_divisor(b: Scalar) -> Scalar:
    """1 in place of 0 and -1, by which x86 traps (the latter with the smallest number)."""
    odd = b.compare("eq", 0)
    return select(odd if b.is_unsigned else odd | b.compare("eq", -1), constant(b, 1), b)


def _by_zero(b: Scalar, v: Scalar) -> Scalar:
    return select(b.compare("eq", 0), constant(v, 0), v)


def truncated_quotient(a: Scalar, b: Scalar) -> Scalar:
    """a / b towards zero."""
    if is_float(a.kind):
        return call("math.trunc", a / b)
    quotient = a / _safe_divisor(b)
    return _by_zero(b, quotient if a.is_unsigned else select(b.compare("eq", -1), 0 - a, quotient))


def fmod(a: Scalar, b: Scalar) -> Scalar:
    """The rest of the division towards zero, with a's sign."""
    if is_float(a.kind):
        return a.remainder(b)
    return a.remainder(_safe_divisor(b))


def remainder(a: Scalar, b: Scalar) -> Scalar:
    """The rest of the division towards minus infinity, with b's sign: Python's %."""
    rest = fmod(a, b)
    opposite = rest.compare("lt", 0) ^ b.compare("lt", 0)
    return select(rest.compare("ne", 0) & opposite, rest + b, rest)


def floor_quotient(a: Scalar, b: Scalar) -> Scalar:
    """a / b towards minus infinity: Python's //; a float by 0 gives inf or NaN."""
    rest = fmod(a, b)
    opposite = rest.compare("lt", 0) ^ b.compare("lt", 0)
    below = rest.compare("ne", 0) & opposite
    if not is_float(a.kind):
        quotient = truncated_quotient(a, b)
        return _by_zero(b, select(below, quotient - 1, quotient))
    quotient = (a - rest) / b
    quotient = select(below, quotient - 1, quotient)
    whole = call("math.floor", quotient)
    whole = select((quotient - whole).compare("gt", 0.5), whole + 1, whole)
    zero = call("math.copysign", constant(a, 0), a / b)
    return select(b.compare("eq", 0), a / b, select(quotient.compare("eq", 0), zero, whole))


# -- powers, exponentials and logarithms


def power(a: Scalar, b: Number) -> Scalar:
    """a^b as C's pow; an integer to a negative power is 1, -1 or 0."""
    if not is_float(a.kind):
        return call("math.ipowi", a, b)
    simple = (
        None
        if isinstance(b, Scalar)
        else {
            0.5: lambda: call("math.sqrt", a),
            -0.5: lambda: 1 / call("math.sqrt", a),
            1: lambda: a,
            2: lambda: a * a,
            3: lambda: a * a * a,
            -1: lambda: 1 / a,
            -2: lambda: 1 / (a * a),
        }.get(float(b))
    )
    return simple() if simple else call("math.powf", a, b)


def hypot(a: Scalar, b: Scalar) -> Scalar:
    """sqrt(a^2 + b^2) without overflow; inf where either is infinite."""
    x, y = call("math.absf", a), call("math.absf", b)
    larger, smaller = x.maximum(y), x.minimum(y)
    ratio = smaller / larger
    length = larger * call("math.sqrt", ratio * ratio + 1)
    length = select(larger.compare("eq", 0), constant(a, 0), length)
    return select(is_inf(a) | is_inf(b), constant(a, inf), length)


def log_add_exp(a: Scalar, b: Scalar, base_two: bool = False) -> Scalar:
    """log(e^a + e^b), or log2(2^a + 2^b), without overflow."""
    larger = a.maximum(b)
    distance = 0 - call("math.absf", a - b)
    if base_two:
        added = larger + call("math.log1p", call("math.exp2", distance)) * 1.4426950408889634
    else:
        added = larger + call("math.log1p", call("math.exp", distance))
    same = a.compare("eq", b) & is_inf(a)
    return select(same, a, added)


def x_log_y(x: Scalar, y: Scalar, plus_one: bool = False) -> Scalar:
    """x log(y), or x log(1 + y); 0 where x is 0 and y is a number."""
    product = x * call("math.log1p" if plus_one else "math.log", y)
    return select(is_nan(y), constant(x, nan), select(x.compare("eq", 0), constant(x, 0), product))


def sinc(v: Scalar) -> Scalar:
    """sin(pi v) / (pi v), 1 at 0."""
    angle = v * pi
    return select(v.compare("eq", 0), constant(v, 1), call("math.sin", angle) / angle)


# -- selection


def fmax(a: Scalar, b: Scalar) -> Scalar:
    """The larger number; a number wins over NaN."""
    return select(is_nan(a), b, select(is_nan(b), a, a.maximum(b))) if is_float(a.kind) else a.maximum(b)


def fmin(a: Scalar, b: Scalar) -> Scalar:
    """The smaller number; a number wins over NaN."""
    return select(is_nan(a), b, select(is_nan(b), a, a.minimum(b))) if is_float(a.kind) else a.minimum(b)


def nan_to_num(v: Scalar, for_nan: float, for_inf: float, for_minus_inf: float) -> Scalar:
    """Numbers in place of NaN and the infinities."""
    high = select(v.compare("eq", inf), constant(v, for_inf), v)
    low = select(v.compare("eq", -inf), constant(v, for_minus_inf), high)
    return select(is_nan(v), constant(v, for_nan), low)


def heaviside(v: Scalar, at_zero: Scalar) -> Scalar:
    """0 below 0 and for NaN, 1 above 0, and `at_zero` at 0."""
    step = select(v.compare("gt", 0), constant(v, 1), constant(v, 0))
    return select(v.compare("eq", 0), at_zero, step)


def lerp(a: Scalar, b: Scalar, weight: Scalar) -> Scalar:
    """a + weight (b - a), exact at both ends."""
    way = b - a
    return select(call("math.absf", weight).compare("lt", 0.5), a + weight * way, b - way * (1 - weight))


# -- bits


def shift_left(a: Scalar, count: Scalar) -> Scalar:
    """a * 2^count; 0 for a count below 0 or past the width."""
    fits = count.compare("ge", 0) & count.compare("lt", bits_of(a))
    return select(fits, a << select(fits, count, constant(count, 0)), constant(a, 0))


def shift_right(a: Scalar, count: Scalar) -> Scalar:
    """a / 2^count towards minus infinity; a count below 0 or past the width leaves the sign."""
    last = bits_of(a) - 1
    inside = count.compare("ge", 0) & count.compare("lt", last)
    return a >> select(inside, count, constant(count, last))


# -- activations


def softplus(v: Scalar, beta: float, threshold: float) -> Scalar:
    """log(1 + e^(beta v)) / beta; v itself where beta v is above the threshold."""
    scaled = v * beta
    return select(scaled.compare("gt", threshold), v, call("math.log1p", call("math.exp", scaled)) / beta)


def elu(v: Scalar, alpha: float, scale: float, input_scale: float) -> Scalar:
    """scale v above 0, scale alpha (e^(input_scale v) - 1) below."""
    return select(v.compare("gt", 0), v * scale, call("math.expm1", v * input_scale) * (alpha * scale))


def mish(v: Scalar) -> Scalar:
    """v tanh(log(1 + e^v))."""
    return v * call("math.tanh", softplus(v, 1.0, 20.0))


def log_sigmoid(v: Scalar) -> Scalar:
    """log(1 / (1 + e^-v)) without overflow."""
    return v.minimum(0) - call("math.log1p", call("math.exp", 0 - call("math.absf", v)))


def hard_sigmoid(v: Scalar) -> Scalar:
    """max(0, min(6, v + 3)) / 6."""
    return (v + 3).maximum(0).minimum(6) / 6


def gelu_tanh(v: Scalar) -> Scalar:
    """v (1 + tanh(sqrt(2 / pi) (v + 0.044715 v^3))) / 2."""
    inner = (v + v * v * v * 0.044715) * 0.7978845608028654
    return v * 0.5 * (call("math.tanh", inner) + 1)
