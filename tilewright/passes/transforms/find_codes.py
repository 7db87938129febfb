"""find-codes: weights in few bits are marked where they are decoded, so that they stay so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.passes.analysis.codes import BYTE_BITS, Codes
from tilewright.passes.analysis.compile_time import constant_arguments
from tilewright.passes.analysis.contraction import is_contraction
from tilewright.passes.base import Pass
from tilewright.passes.linalg.structured import inputs, main_of, users
from tilewright.passes.mlir import ir, operations

CODES = "tw.codes"


@dataclass(frozen=True)
class FindCodes(Pass):
    """A decoding of constants that only contractions read gets `tw.codes`, with its format as text; and so does one of bytes with
    a sign that meets such a one in all of them, so that both factors reach the kernel as integers.

    Arithmetic on constants alone would run at compile time, and what is stored would be its result: weights of 4 bits as f32.
    The mark keeps it from that, and the pass fuse computes it where contractions load.
    """

    name: ClassVar[str] = "find-codes"

    def run(self, module: ir.Module) -> None:
        for fn in main_of(module):
            constants = constant_arguments(fn)
            found = [c for op in operations(fn.regions[0].blocks[0]) if (c := Codes.of(op)) is not None and _multiplied(op)]
            weights = [c for c in found if all(v in constants for v in inputs(c.op))]
            for codes in weights:
                codes.op.attributes[CODES] = ir.StringAttr.get(codes.text)
            marked = {c.op.results[0] for c in weights}
            for codes in found:
                met = [v for reader in users(codes.op.results[0]) for v in list(reader.operands)[:2] if v != codes.op.results[0]]
                if codes not in weights and codes.signed and codes.bits == BYTE_BITS and met and all(v in marked for v in met):
                    codes.op.attributes[CODES] = ir.StringAttr.get(codes.text)


def _multiplied(op: ir.Operation) -> bool:
    """Do contractions alone read the result, at least one?"""
    readers = users(op.results[0])
    return bool(readers) and all(is_contraction(r) for r in readers)
