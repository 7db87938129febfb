"""StoredCase: what a kernel must give, as an archive holds it: no more than is needed to compare with."""

from __future__ import annotations

import math
from typing import Literal

import msgspec
import numpy as np

from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.errors import ArtifactError
from tilewright.search.runner.verification import Case, seeded

Encoding = Literal["f64", "f32", "input"]
_NARROW = 4  # bytes of a result that f32 tells exactly enough


class StoredCase(msgspec.Struct, frozen=True):
    """A Case: outputs as their extents and bytes, first axis slowest.

    encodings: of each output: "f64"; "f32", of results that are no wider; "input", no bytes, since the values are those of an
    input of the same extents that is converted: casts and copies. Empty: all are f64.
    """

    shape: tuple[tuple[str, int], ...]
    seed: int
    outputs: tuple[tuple[tuple[int, ...], bytes], ...]
    encodings: tuple[Encoding, ...] = ()

    @staticmethod
    def of(case: Case, workload: Workload) -> StoredCase:
        """The least that tells a case of a workload."""
        inputs = seeded(workload, case.shape, case.seed)
        outputs, encodings = [], list[Encoding]()
        for values, operand in zip(case.outputs, workload.outputs, strict=True):
            dtype = operand.dtype.numpy
            if _converted(inputs, values, dtype) is not None:
                outputs.append((values.shape, b""))
                encodings.append("input")
                continue
            narrow = operand.dtype.is_float and dtype.itemsize <= _NARROW
            with np.errstate(over="ignore"):
                outputs.append((values.shape, np.ascontiguousarray(values, np.float32 if narrow else np.float64).tobytes()))
            encodings.append("f32" if narrow else "f64")
        return StoredCase(case.shape, case.seed, tuple(outputs), tuple(encodings))

    def case(self, workload: Workload) -> Case:
        """The inverse of `of`; ArtifactError where the bytes do not fill the extents."""
        outputs = []
        plain: Encoding = "f64"
        encodings = self.encodings or (plain,) * len(self.outputs)
        for (extents, data), encoding, operand in zip(self.outputs, encodings, workload.outputs, strict=True):
            if encoding == "input":
                inputs = [x for x in seeded(workload, self.shape, self.seed) if x.shape == extents]
                if not inputs:
                    raise ArtifactError(f"expected outputs at {dict(self.shape)} are damaged: no input has the extents {extents}")
                outputs.append(inputs[0].astype(operand.dtype.numpy).astype(np.float64))
                continue
            kind = np.dtype(np.float64 if encoding == "f64" else np.float32)
            if len(data) != kind.itemsize * math.prod(extents):
                raise ArtifactError(f"expected outputs at {dict(self.shape)} are damaged: {len(data)} bytes for {extents}")
            outputs.append(np.frombuffer(data, kind).reshape(extents).astype(np.float64))
        return Case(self.shape, self.seed, tuple(outputs))


def _converted(inputs: list[np.ndarray], values: np.ndarray, dtype: np.dtype[np.generic]) -> np.ndarray | None:
    """The first input of the values' extents, where they are its elements converted to the result's type."""
    same = [x for x in inputs if x.shape == values.shape]
    with np.errstate(over="ignore"):
        equal = bool(same) and np.array_equal(same[0].astype(dtype), values.astype(dtype), equal_nan=False)
    return same[0] if equal else None
