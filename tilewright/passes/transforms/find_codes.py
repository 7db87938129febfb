"""find-codes: weights in few bits are marked where they are decoded, so that they stay so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.passes.analysis.codes import Codes
from tilewright.passes.analysis.compile_time import constant_arguments
from tilewright.passes.analysis.contraction import is_contraction
from tilewright.passes.base import Pass
from tilewright.passes.linalg.structured import inputs, main_of, users
from tilewright.passes.mlir import ir, operations

CODES = "tw.codes"


@dataclass(frozen=True)
class FindCodes(Pass):
    """A decoding of constants that only contractions read gets `tw.codes`, with its format as text.

    Arithmetic on constants alone would run at compile time, and what is stored would be its result: weights of 4 bits as f32.
    The mark keeps it from that, and the pass fuse computes it where contractions load.
    """

    name: ClassVar[str] = "find-codes"

    def run(self, module: ir.Module) -> None:
        for fn in main_of(module):
            constants = constant_arguments(fn)
            for op in operations(fn.regions[0].blocks[0]):
                found = Codes.of(op)
                if found is None or not all(v in constants for v in inputs(op)):
                    continue
                readers = users(op.results[0])
                if readers and all(is_contraction(r) for r in readers):
                    op.attributes[CODES] = ir.StringAttr.get(found.text)
