"""CaseForm: what a kernel must give, as plain data: what runner processes and kernel archives carry."""

from __future__ import annotations

import math

import msgspec
import numpy as np

from tilewright.runtime.errors import ArtifactError
from tilewright.search.runner.verification import Case


class CaseForm(msgspec.Struct, frozen=True):
    """A Case: outputs as their extents and the bytes of float64, first axis slowest."""

    shape: tuple[tuple[str, int], ...]
    seed: int
    outputs: tuple[tuple[tuple[int, ...], bytes], ...]

    @staticmethod
    def of(case: Case) -> CaseForm:
        return CaseForm(case.shape, case.seed, tuple((o.shape, np.ascontiguousarray(o, np.float64).tobytes())
                                                     for o in case.outputs))

    def case(self) -> Case:
        """The inverse of `of`; ArtifactError where the bytes do not fill the extents."""
        outputs = []
        for extents, data in self.outputs:
            if len(data) != 8 * math.prod(extents):
                raise ArtifactError(f"expected outputs at {dict(self.shape)} are damaged: {len(data)} bytes for {extents}")
            outputs.append(np.frombuffer(data, np.float64).reshape(extents))
        return Case(self.shape, self.seed, tuple(outputs))
