"""Mutants of MLIR text: what a bad disk, a bad editor, a bad exporter and an attacker make of a model."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

_TOKEN = re.compile(r'"[^"\n]*"|->|[%#@^!]?[\w.$]+|\n|[^\s\w]')
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+(?:[eE][+-]?\d+)?)?(?![\w.])")
_EXTENT = re.compile(r"(?<=[<x])(?:\d+|\?)(?=x)")
_TYPE = re.compile(r"\b(?:f16|bf16|f32|f64|i1|i8|i32|i64|index|si8|ui8)\b")
_MAP = re.compile(r"\(((?:[a-z]\w*(?:, )?)+)\)(?:\[[^\]\n]*\])? -> \(([^()\n]*)\)")
_VALUE = re.compile(r"%[\w$.]+")
_OPERATION = re.compile(r"\b(?:arith|math|linalg|tensor)\.\w+")
_TYPES = ("f16", "bf16", "f32", "f64", "i1", "i4", "i8", "i16", "i32", "i64", "index", "ui8", "si32", "f8E5M2", "f128",
          "complex<f32>", "i128", "vector<4xf32>", "none")
_EXTREMES = ("0", "1", "-1", "2", "3", "7", "63", "64", "255", "65536", "2147483647", "2147483648", "4294967296",
             "9223372036854775807", "-9223372036854775808", "9223372036854775808", "18446744073709551616", "1" + "0" * 40,
             "1.0e308", "1.0e-45", "0x7FC00000", "0.0", "-0.0", "1.0")
_EXTENTS = ("?", "0", "1", "2", "3", "5", "7", "16", "4294967296", "9223372036854775807")
_PIECES = ("", "(", ")", "{", "}", "<", ">", "[", "]", '"', "%", "#", "\\", "\0", "\x80", "é", "//", "dense<", "?", "x", "-> ",
           ",")
_EXPRESSIONS = ("{0} + {1}", "{0} * 2", "{0} * 2 + {1}", "{0} floordiv 2", "{0} mod 3", "{0} ceildiv 2", "-{0} + 3", "0", "7",
                "{0} - {1}", "{0} + 100", "{1}", "{0} mod 0", "{0} floordiv 0", "{0} * 4611686018427387904")

Mutator = Callable[[str, random.Random], str]


def mutant(text: str, rng: random.Random) -> str:
    """The text with one to three mutations."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        text = rng.choice(MUTATORS)(text, rng)
    return text


def flipped(text: str, rng: random.Random) -> str:
    """One character for another, as a flipped bit of its byte gives it."""
    at = rng.randrange(len(text)) if text else 0
    return text[:at] + chr((ord(text[at]) ^ (1 << rng.randrange(8))) & 0xFF) + text[at + 1 :] if text else text


def token_changed(text: str, rng: random.Random) -> str:
    """A token deleted, doubled, replaced by another of the text, or by a piece of syntax."""
    tokens = list(_TOKEN.finditer(text))
    if not tokens:
        return text
    one, other = rng.choice(tokens), rng.choice(tokens)
    new = rng.choice(("", one[0] + " " + one[0], other[0], rng.choice(_PIECES)))
    return _put(text, one, new)


def tokens_swapped(text: str, rng: random.Random) -> str:
    tokens = list(_TOKEN.finditer(text))
    if len(tokens) < 2:
        return text
    first, second = sorted(rng.sample(tokens, 2), key=lambda m: m.start())
    return text[: first.start()] + second[0] + text[first.end() : second.start()] + first[0] + text[second.end() :]


def number_changed(text: str, rng: random.Random) -> str:
    return _changed(text, rng, _NUMBER, lambda _: rng.choice(_EXTREMES))


def extent_changed(text: str, rng: random.Random) -> str:
    return _changed(text, rng, _EXTENT, lambda _: rng.choice(_EXTENTS))


def type_changed(text: str, rng: random.Random) -> str:
    return _changed(text, rng, _TYPE, lambda _: rng.choice(_TYPES))


def value_changed(text: str, rng: random.Random) -> str:
    """A value read in place of another."""
    names = _VALUE.findall(text)
    return _changed(text, rng, _VALUE, lambda _: rng.choice(names))


def operation_changed(text: str, rng: random.Random) -> str:
    """An operation for another of the text, a loop for a loop of the other kind."""
    if rng.random() < 0.2:
        return _changed(text, rng, re.compile('"parallel"|"reduction"'),
                        lambda old: '"reduction"' if "par" in old else '"parallel"')
    names = [*_OPERATION.findall(text), "arith.mulf", "arith.divf", "arith.maximumf", "arith.subi", "arith.divsi", "arith.shli",
             "math.exp", "math.sqrt", "tensor.cast", "linalg.copy", "linalg.exp"]
    return _changed(text, rng, _OPERATION, lambda _: rng.choice(names))


def everywhere(text: str, rng: random.Random) -> str:
    """A type or an extent for another, all over the text: what is valid often stays so."""
    pattern, choice = rng.choice(((_TYPE, _TYPES), (_EXTENT, _EXTENTS)))
    found = pattern.findall(text)
    if not found:
        return text
    old, new = rng.choice(found), rng.choice(choice)
    return pattern.sub(lambda m: new if m[0] == old else m[0], text)


def map_changed(text: str, rng: random.Random) -> str:
    """A result of an affine map for another expression, or its results in another order."""

    def change(match: re.Match[str]) -> str:
        dims, results = match[1].split(", "), match[2].split(", ")
        at = rng.randrange(len(results))
        action = rng.randrange(4)
        if action == 0:
            rng.shuffle(results)
        elif action == 1:
            del results[at]
        else:
            expression = rng.choice(_EXPRESSIONS).format(rng.choice(dims), rng.choice(dims))
            results[at : at + (action == 2)] = [expression]
        return f"({match[1]}) -> ({', '.join(results)})"

    found = list(_MAP.finditer(text))
    if not found:
        return text
    one = rng.choice(found)
    return _put(text, one, change(one))


def line_changed(text: str, rng: random.Random) -> str:
    """A line deleted, doubled, or moved; the end cut off."""
    lines = text.split("\n")
    one, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    match rng.randrange(5):
        case 0 | 1:
            del lines[one]
        case 2:
            lines.insert(one, lines[one])
        case 3:
            lines[one], lines[other] = lines[other], lines[one]
        case 4:
            return text[: rng.randrange(len(text) + 1)]
    return "\n".join(lines)


MUTATORS: tuple[Mutator, ...] = (flipped, token_changed, tokens_swapped, number_changed, extent_changed, type_changed,
                                 value_changed, value_changed, operation_changed, operation_changed, everywhere, everywhere,
                                 map_changed, map_changed, line_changed)


def _changed(text: str, rng: random.Random, pattern: re.Pattern[str], new: Callable[[str], str]) -> str:
    found = list(pattern.finditer(text))
    if not found:
        return text
    one = rng.choice(found)
    return _put(text, one, new(one[0]))


def _put(text: str, place: re.Match[str], new: str) -> str:
    return text[: place.start()] + new + text[place.end() :]
