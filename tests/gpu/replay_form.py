"""What a replay folder holds: launches of prebuilt kernels with their seeds and a sketch of what each must give. No compiler.

`launches.jsonl` has a ReplayLaunch a line, `images/DIGEST` the image of a kernel as it is stored (runtime/gpu/gpu_image.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tests.gpu_operands import NUMPY, Placed, T, Trial
from tilewright.runtime.program.kernel import MicroKernel

LAUNCHES, IMAGES = "launches.jsonl", "images"
_WHOLE = 512  # elements of a result of which every one is told
_RUN = 16  # elements of a larger one that are told as one sum with signs


class ReplayOperand(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tensor: element type, shape, axis of unit stride, and how it lies in its buffer."""

    element: str
    shape: tuple[int, ...]
    unit: int | None = -1
    offset: int = 0
    pads: tuple[int, ...] = ()


class ReplayResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """An output, and what it must be: sums of runs of elements (`sketch`), and the most that an element may be off
    by. wide: in f64; else the sums are told in f32."""

    operand: ReplayOperand
    sums: bytes
    bound: float
    wide: bool = False


class ReplayLaunch(msgspec.Struct, frozen=True, omit_defaults=True):
    """A kernel at a shape. test: where it comes from. seed: of the emulator's order of warps and copies, None: the program's.
    multiprocessors: of the emulator, where persistent blocks are to take several tiles; None: it holds any number of blocks."""

    test: str
    arch: str
    kernel: MicroKernel
    dims: dict[str, int]
    inputs: tuple[ReplayOperand, ...]
    results: tuple[ReplayResult, ...]
    seed: int | None = None
    multiprocessors: int | None = None

    def trial(self) -> Trial:
        """The operands, as the builder made them."""
        every = [*self.inputs, *(r.operand for r in self.results)]
        types = [T(o.element, o.shape, o.unit) for o in every]
        pads, offsets = {i: o.pads for i, o in enumerate(every)}, {i: o.offset for i, o in enumerate(every)}
        return Trial.of(types[: len(self.inputs)], types[len(self.inputs) :], {}, pads, offsets)

    def wrong(self, got: Sequence[np.ndarray]) -> str:
        """What tells the results from those wanted; empty where nothing does."""
        for number, (found, result) in enumerate(zip(got, self.results, strict=True)):
            wanted = np.frombuffer(result.sums, np.float64 if result.wide else np.float32).astype(np.float64)
            sums = sketch(found.astype(np.float64))
            if sums.shape != wanted.shape:
                return f"result {number} has {sums.size} sums, wanted {wanted.size}"
            finite = np.isfinite(wanted)
            if not np.array_equal(finite, np.isfinite(sums)):
                return f"result {number}: {int((finite != np.isfinite(sums)).sum())} sums with NaN or inf where none should be"
            with np.errstate(invalid="ignore"):
                error = float(np.abs(sums - wanted)[finite].max(initial=0))
            if error > result.bound * np.sqrt(found.size / max(1, sums.size)):
                return f"result {number}: largest error {error:.1e}, wanted {result.bound:.0e} an element"
        return ""


def sketch(values: np.ndarray) -> np.ndarray:
    """All elements of a small array; of a larger one the sums of runs of elements with random signs, so that errors do not
    cancel."""
    flat = np.ascontiguousarray(values).reshape(-1)
    if flat.size <= _WHOLE:
        return flat
    signs = np.random.default_rng(7).choice([-1.0, 1.0], -(-flat.size // _RUN) * _RUN)
    padded = np.zeros(signs.size)
    padded[: flat.size] = flat
    with np.errstate(invalid="ignore"):
        return (padded * signs).reshape(-1, _RUN).sum(1)


def result_of(operand: ReplayOperand, wanted: Any, tolerance: float) -> ReplayResult:
    """Of an output whose elements may be off by a tolerance, relative to the largest if that exceeds 1."""
    exact = np.asarray(wanted).astype(np.float64)
    scale = max(1.0, float(np.abs(exact[np.isfinite(exact)]).max(initial=0)))
    wide = NUMPY[operand.element] in (np.float64, np.int32, np.int64)
    with np.errstate(over="ignore"):
        sums = sketch(exact).astype(np.float64 if wide else np.float32)
    return ReplayResult(operand, sums.tobytes(), tolerance * scale, wide)


def operand_of(t: T, placed: Placed) -> ReplayOperand:
    return ReplayOperand(t.element, placed.array.shape, t.unit, placed.offset, placed.pads)


def read(folder: Path) -> list[ReplayLaunch]:
    """The launches of a folder."""
    return [msgspec.json.decode(line, type=ReplayLaunch) for line in (folder / LAUNCHES).read_bytes().splitlines()]
