"""The bytes of 64 words of 32 bits by their places in a word, at once (AVX-512 VBMI): half the work of narrowing 16 at a time."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.passes.codegen.emit import integer_type, intrinsic, vector_type
from tilewright.passes.mlir import arith, ir, vector

MANY = 64
_REGISTER = 16  # words
_PERMUTE_TWO = "llvm.x86.avx512.vpermi2var.qi.512"


def bytes_of_words(words: ir.Value, places: Sequence[int]) -> list[ir.Value]:
    """For each place the bytes there of MANY words. Two registers give two places of 32 words, which halves put together."""
    kind, found = vector_type(integer_type(8), MANY), []
    parts = [vector.bitcast(kind, vector.shuffle(words, words, list(range(n, n + _REGISTER)))) for n in range(0, MANY, _REGISTER)]
    for first in range(0, len(places), 2):
        both = [*places[first : first + 2], places[first]][:2]
        lanes = [4 * word + place for place in both for word in range(2 * _REGISTER)]
        numbers = [ir.IntegerAttr.get(integer_type(8), lane) for lane in lanes]
        chosen = arith.constant(kind, ir.DenseElementsAttr.get(numbers, kind))
        halves = [intrinsic(_PERMUTE_TWO, kind, [parts[n], chosen, parts[n + 1]]) for n in (0, 2)]
        for half in range(len(places[first : first + 2])):
            taken = range(half * MANY // 2, (half + 1) * MANY // 2)
            found.append(vector.shuffle(*halves, [*taken, *(MANY + lane for lane in taken)]))
    return found
