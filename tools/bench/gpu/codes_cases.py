"""What the benchmark of weights in few bits on a GPU runs: formats and sizes, their weights, and the artifacts of our side.

The weights of a case are a few random rows again and again, so that an artifact of any size packs into a small file; memory and
caches do not know.
"""

from __future__ import annotations

import lzma
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
PERIOD = 17  # rows of weights that differ
VECTOR = 8  # values of a vector of a pool
_SCALES = {"f16": np.float16, "bf16": np.float32, "f32": np.float32}  # NumPy has no bf16: scales are rounded to it


@dataclass(frozen=True)
class CodesCase:
    """x [M, k] @ W [n, k] transposed, W in codes of `bits` with a scale for each `group` along k, or out of a pool of `entries`
    vectors. zero: do groups have zero points of their own? element: of x, of the result and of the scales."""

    k: int
    n: int
    bits: int
    group: int = 128
    zero: bool = False
    element: str = "f16"
    entries: int = 0
    points: tuple[int, ...] = (1, 16, 4)
    kind = "matmul"
    tolerance = 2e-2  # in the 2-norm: torch's kernel takes x and scales in bf16

    @property
    def precision(self) -> str:
        return self.element

    @property
    def name(self) -> str:
        form = f"pool{self.entries}" if self.entries else f"{self.bits}bit_g{self.group}{'z' if self.zero else ''}"
        return f"{form}_{self.k}x{self.n}"

    @property
    def file(self) -> str:
        return f"{self.name}_{self.element}.tw.xz"

    def flops(self, rows: int) -> int:
        return 2 * rows * self.k * self.n

    @property
    def weight_bytes(self) -> int:
        """Of codes or indices, scales and zero points."""
        if self.entries:
            return self.n * self.k // VECTOR + self.entries * VECTOR * 2
        groups = self.n * self.k // self.group
        return self.n * self.k * self.bits // 8 + groups * (4 if self.element == "f32" else 2) + (groups if self.zero else 0)

    @cached_property
    def _random(self) -> dict[str, Array]:
        """The rows that differ, the same on every machine: legacy generators of NumPy do not change."""
        rng = np.random.RandomState(7)
        if self.entries:
            index = (np.frombuffer(rng.bytes(PERIOD * self.k // VECTOR), np.uint8).astype(int) % self.entries).astype(np.uint8)
            pool = np.frombuffer(rng.bytes(self.entries * VECTOR), np.int8).astype(np.float16) / np.float16(1024)
            return {"codes": index.reshape(PERIOD, -1), "pool": pool.reshape(-1, VECTOR)}
        codes = np.frombuffer(rng.bytes(PERIOD * self.k * self.bits // 8), np.uint8).reshape(PERIOD, -1)
        spread = np.frombuffer(rng.bytes(PERIOD * self.k // self.group), np.uint8).reshape(PERIOD, -1)
        scale = (1 + spread / 256) / (self.k**0.5 * (1 << (self.bits - 1)))
        found = {"codes": codes, "scale": scale.astype(_SCALES[self.element])}
        if self.element == "bf16":
            found["scale"] = (found["scale"].view(np.uint32) & 0xFFFF0000).view(np.float32)
        if self.zero:
            found["zero"] = (spread % (1 << self.bits)).astype(np.uint8)
        return found

    def rows_of(self, name: str) -> Array:
        """"codes", "scale", "zero" or "pool" of the rows that differ."""
        return self._random[name]

    @cached_property
    def integers(self) -> Array:
        """Codes of the rows that differ, one by one."""
        shifts = np.arange(0, 8, self.bits, dtype=np.uint8)
        return ((self.rows_of("codes")[..., None] >> shifts) & ((1 << self.bits) - 1)).reshape(PERIOD, self.k)

    @cached_property
    def weight(self) -> Array:
        """The rows that differ, in f64, as the format says; not rounded to the type of x."""
        if self.entries:
            return self.rows_of("pool").astype(np.float64)[self.rows_of("codes")].reshape(PERIOD, self.k)
        point = self.rows_of("zero").astype(np.float64) if self.zero else np.full((PERIOD, 1), float(1 << (self.bits - 1)))
        group = np.arange(self.k) // self.group
        spread = self.integers - (point[:, group] if self.zero else point)
        return np.asarray(spread * self.rows_of("scale").astype(np.float64)[:, group])

    def whole(self, name: str) -> Array:
        """One of `rows_of` for all n rows; a pool as it is."""
        found = self.rows_of(name)
        return found if name == "pool" else found[np.arange(self.n) % PERIOD]


def cases() -> Iterator[CodesCase]:
    """All of them, the most telling first."""
    every = (1, 16, 8, 4, 2, 64, 256)
    for k, n in ((4096, 14336), (4096, 4096), (14336, 4096)):
        yield CodesCase(k, n, 4, points=every)
    yield CodesCase(4096, 14336, 4, element="bf16", points=(1, 16))
    yield CodesCase(4096, 14336, 4, 32)
    yield CodesCase(4096, 14336, 4, zero=True)
    yield CodesCase(4096, 14336, 2)
    yield CodesCase(4096, 14336, 8)
    yield CodesCase(4096, 14336, 8, 0, element="f32", entries=256)


def graph(case: CodesCase) -> Any:
    """The product as tw.ops builds it."""
    import ml_dtypes

    import tilewright as tw

    ops, made = tw.ops, tw.ops.Graph()
    x, codes = made.input("x", ["M", case.k], case.element), made.constant(case.whole("codes"))
    if case.entries:
        w = ops.decode_pool(codes, made.constant(case.whole("pool")), 1.0)
    else:
        scale = case.whole("scale")
        kept = made.constant(scale.astype(ml_dtypes.bfloat16) if case.element == "bf16" else scale)
        w = ops.decode(codes, kept, made.constant(case.whole("zero")) if case.zero else None, bits=case.bits, group=case.group)
    w = w if case.element == "f32" else ops.cast(w, case.element)
    made.output(ops.dense(x, w, transposed=True))
    return made


def compilation(case: CodesCase) -> tuple[Any, dict[str, Any]]:
    """The model and its dims."""
    import tilewright as tw

    return graph(case), {"M": tw.Dim(1, max(256, *case.points))}


def build(case: CodesCase, folder: Path, target: str) -> None:
    """Compile a case and pack it. Needs the compiler, not a GPU."""
    import tilewright as tw

    source, dims = compilation(case)
    with tempfile.TemporaryDirectory() as room:
        made = Path(room) / "model.tw"
        tw.compile(source, dims, target=target).save(made)
        (folder / case.file).write_bytes(lzma.compress(made.read_bytes(), preset=6))


def unpacked(case: CodesCase, packed: Path, folder: Path) -> Path:
    """The artifact that `build` packed, in a folder."""
    made = folder / case.file.removesuffix(".xz")
    made.write_bytes(lzma.decompress((packed / case.file).read_bytes()))
    return made
