"""From the text of LLVM 24, as the MLIR bindings write it, to what llvmlite's LLVM 22 reads.

The incompatibilities are all spellings of floating-point constants; each has its function. Applying the bridge to text
that already is LLVM 22's changes nothing. LLVM IR reference: https://llvm.org/docs/LangRef.html#simple-constants
"""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from tilewright.runtime.errors import BuildError


@dataclass(frozen=True)
class Format:
    """A binary floating-point format: bits of exponent and of mantissa (without the hidden bit)."""

    exponent: int
    mantissa: int

    @property
    def infinity(self) -> int:
        return ((1 << self.exponent) - 1) << self.mantissa

    @property
    def sign(self) -> int:
        return 1 << (self.exponent + self.mantissa)


_FORMATS = {"half": Format(5, 10), "bfloat": Format(8, 7), "float": Format(8, 23), "double": Format(11, 52)}

_TOKEN = re.compile(
    r'(?P<skip>"[^"]*"|;.*|[%@!#$][-\w.$]*|\b0x\w+)'
    r"|(?P<type>\b(?:half|bfloat|float|double|fp128|x86_fp80|ppc_fp128)\b)"
    r"|(?P<bits>\bf0x(?P<digits>[0-9A-Fa-f]+))"
    r"|(?P<special>[+-](?:inf|qnan)\b|[+-]s?nan\(0x[0-9A-Fa-f]+\))"
    r"|(?P<decimal>(?<![\w.])-?\d+\.\d+(?:e[+-]?\d+)?)"
)

_CONSTANT = re.compile(r"f0x|\d\.\d|[+-](?:inf|s?nan|qnan)\b")


@functools.lru_cache(maxsize=1)
def to_llvm22(text: str) -> str:
    """LLVM 24 text with every floating-point constant as LLVM 22 spells it. The last one is kept: it goes to the code generator,
    and then beside the code.

    Raises:
        BuildError: a constant of a type other than half, bfloat, float and double.
    """
    return "\n".join(_line(line) if _CONSTANT.search(line) else line for line in text.split("\n"))


def _line(line: str) -> str:
    kind = ""

    def rewrite(match: re.Match[str]) -> str:
        nonlocal kind
        token = match[0]
        if match["type"]:
            kind = token
            return token
        convert: Callable[[str, str], str]
        if match["bits"]:
            convert, token = bits_literal, match["digits"]
        elif match["special"]:
            convert = special_literal
        elif match["decimal"]:
            convert = decimal_literal
        else:
            return token
        if kind not in _FORMATS:
            raise BuildError(
                f"LLVM IR holds a {kind or 'untyped'} constant {match[0]}; wanted one of {', '.join(_FORMATS)}", line
            )
        return convert(kind, token)

    return _TOKEN.sub(rewrite, line)


def bits_literal(kind: str, digits: str) -> str:
    """`f0x3DCCCCCD`: the bits in the constant's own type. LLVM 22 spells a float by the double of equal value."""
    return _hexadecimal(kind, int(digits, 16))


def special_literal(kind: str, token: str) -> str:
    """`+inf`, `-qnan`, `+nan(0x1)` (quiet, with a payload), `-snan(0x1)`: LLVM 22 knows only bits."""
    form = _FORMATS[kind]
    sign = form.sign if token[0] == "-" else 0
    quiet = 1 << (form.mantissa - 1)
    name, _, payload = token[1:].rstrip(")").partition("(")
    mantissa = {"inf": 0, "qnan": quiet, "nan": quiet, "snan": 0}[name] | int(payload or "0", 16)
    return _hexadecimal(kind, sign | form.infinity | mantissa)


def decimal_literal(kind: str, token: str) -> str:
    """`1.000000e-01`: LLVM 24 takes the nearest number of the type, LLVM 22 only decimals that are exact."""
    if kind == "double":
        return token
    form = _FORMATS[kind]
    return _hexadecimal(kind, (form.sign if token[0] == "-" else 0) | _nearest(abs(Fraction(token)), form))


def _nearest(value: Fraction, form: Format) -> int:
    """Bits of the number of a format nearest to a value >= 0, ties to even; infinity when it is too large."""
    if not value:
        return 0
    least = 2 - (1 << (form.exponent - 1))
    exponent = max(value.numerator.bit_length() - value.denominator.bit_length(), least)
    if exponent > least and value < Fraction(2) ** exponent:
        exponent -= 1
    digits = round(value / Fraction(2) ** (exponent - form.mantissa))
    return min(((exponent - least) << form.mantissa) + digits, form.infinity)


def _hexadecimal(kind: str, bits: int) -> str:
    if kind == "half":
        return f"0xH{bits:04X}"
    if kind == "bfloat":
        return f"0xR{bits:04X}"
    if kind == "double":
        return f"0x{bits:016X}"
    form, wide = _FORMATS["float"], _FORMATS["double"]
    if bits & form.infinity == form.infinity:
        mantissa = (bits & ((1 << form.mantissa) - 1)) << (wide.mantissa - form.mantissa)
        return f"0x{(wide.sign if bits & form.sign else 0) | wide.infinity | mantissa:016X}"
    (value,) = struct.unpack("<f", struct.pack("<I", bits))
    return "0x" + struct.pack(">d", value).hex().upper()
