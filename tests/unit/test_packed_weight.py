"""Weights in few bits of other tools: each form against its own formula, and one of them in a product."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.ops import PackedWeight
from tilewright.compiler.ops.codes import planes
from tilewright.runtime.errors import OptionError, ShapeError

pytestmark = pytest.mark.usefixtures("built_here")

RNG = np.random.default_rng(5)
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def value(w: PackedWeight) -> np.ndarray[Any, Any]:
    """The weight in float64."""
    codes, place = np.zeros((len(w.scale), w.depth), np.int64), 0
    for part, bits in zip(w.codes, planes(w.bits), strict=True):
        spread = np.stack([(part >> s) & ((1 << bits) - 1) for s in range(0, 8, bits)], -1).reshape(len(part), -1)
        codes += spread[:, : w.depth].astype(np.int64) << place
        place += bits
    zero = float(1 << (w.bits - 1)) if w.zero is None else w.zero
    point = np.repeat(zero.astype(np.float64), w.group, 1) if isinstance(zero, np.ndarray) else zero
    return (codes - point) * np.repeat(w.scale.astype(np.float64), w.group, 1)


def words(codes: np.ndarray[Any, Any], order: tuple[int, ...] = tuple(range(8))) -> np.ndarray[Any, Any]:
    """Eight codes along the last axis in an int32."""
    parts = codes.reshape(*codes.shape[:-1], -1, 8)[..., order].astype(np.uint32)
    return np.bitwise_or.reduce(parts << (4 * np.arange(8, dtype=np.uint32)), axis=-1).view(np.int32)


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("zero", [None, "whole", "real"])
def test_plain_codes(bits: int, signed: bool, zero: str | None) -> None:
    low = -(1 << (bits - 1)) if signed else 0
    codes = RNG.integers(low, low + (1 << bits), (5, 30))
    scale = RNG.random((5, 3)).astype(np.float16)
    points = {None: None, "whole": RNG.integers(low, low + (1 << bits), (5, 3)), "real": RNG.normal(0, 3, (5, 3))}[zero]
    found = PackedWeight.plain(codes, scale, points, bits=bits, signed=signed)
    shift = 0 if points is None else np.repeat(points, 10, 1)
    assert np.allclose(value(found), (codes - shift) * np.repeat(scale.astype(np.float64), 10, 1), rtol=1e-5, atol=1e-5)
    assert [c.shape for c in found.codes] == [(5, -(-30 * b // 8)) for b in planes(bits)]
    assert found.bytes >= sum(c.nbytes for c in found.codes) + scale.nbytes
    assert zero != "whole" or (isinstance(found.zero, np.ndarray) and found.zero.dtype == np.uint8)


def blocks(kind: str, n: int, k: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Bytes of a GGUF tensor, and what they stand for."""
    scale = RNG.random((n * k // 32, 1)).astype(np.float16)
    if kind == "Q8_0":
        codes = RNG.integers(-128, 128, (len(scale), 32), dtype=np.int8)
        return np.concatenate([scale.view(np.uint8), codes.view(np.uint8)], 1), (codes * scale.astype(np.float64)).reshape(n, k)
    stored = RNG.integers(0, 256, (len(scale), 20 if kind == "Q5_0" else 16), dtype=np.uint8)
    low = stored[:, -16:]
    codes = np.concatenate([low & 15, low >> 4], 1).astype(np.float64) - 8
    if kind == "Q5_0":
        codes += 16 * np.unpackbits(stored[:, :4], axis=1, bitorder="little") - 8.0
    return np.concatenate([scale.view(np.uint8), stored], 1), (codes * scale.astype(np.float64)).reshape(n, k)


@pytest.mark.parametrize("kind", ["Q4_0", "Q5_0", "Q8_0"])
def test_gguf_blocks(kind: str) -> None:
    raw, want = blocks(kind, 6, 96)
    found = PackedWeight.gguf(raw, kind, (6, 96))
    assert np.array_equal(value(found), want) and found.group == 32 and found.zero is None
    assert found.bytes == raw.nbytes
    gguf = pytest.importorskip("gguf", reason="the package gguf is not installed")
    theirs = gguf.quants.dequantize(raw.reshape(6, -1), gguf.GGMLQuantizationType[kind])
    assert np.allclose(value(found), theirs, rtol=1e-6)


def test_awq_and_gptq_words() -> None:
    k, n, groups = 64, 16, 4
    codes, zeros = RNG.integers(0, 16, (k, n)), RNG.integers(0, 16, (groups, n))
    scales = RNG.random((groups, n)).astype(np.float16)
    spread = k // groups
    want = ((codes - np.repeat(zeros, spread, 0)) * np.repeat(scales.astype(np.float64), spread, 0)).T
    assert np.array_equal(value(PackedWeight.awq(words(codes, AWQ_ORDER), words(zeros, AWQ_ORDER), scales)), want)
    down = words(codes.T).T
    for stored, one in ((zeros, False), ((zeros - 1) % 16, True)):
        kept = zeros if not one else (zeros - 1) % 16 + 1
        exact = ((codes - np.repeat(kept, spread, 0)) * np.repeat(scales.astype(np.float64), spread, 0)).T
        found = PackedWeight.gptq(down, words(stored), scales, groups=np.arange(k) // spread, off_by_one=one)
        assert np.array_equal(value(found), exact)
    with pytest.raises(OptionError, match="g_idx"):
        PackedWeight.gptq(down, words(zeros), scales, groups=RNG.permutation(k) // spread)


@pytest.mark.parametrize("kind", ["Q4_0", "Q5_0"])
def test_a_product_of_gguf_blocks(kind: str) -> None:
    raw, want = blocks(kind, 24, 64)
    g = ops.Graph()
    g.output(ops.dense(g.input("x", [2, 64]), PackedWeight.gguf(raw, kind, (24, 64)).tensor(g), transposed=True))
    x = RNG.standard_normal((2, 64)).astype(np.float32)
    fn = tw.compile(g)
    assert [c.family for c in fn.explain().calls] == ["host_codes"]
    assert np.allclose(fn(x), x @ want.T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("change,error,message", [
    ({"bits": 9}, OptionError, "9 bits; wanted 1 to 8"),
    ({"codes": np.full((2, 8), 16)}, OptionError, "hold 0 to 15, or pass signed=True"),
    ({"codes": np.full((2, 8), -9), "signed": True}, OptionError, "hold -8 to 7"),
    ({"scale": np.ones((2, 3))}, ShapeError, "groups divide K"), ({"zero": np.ones((2, 1))}, ShapeError, "one for each scale"),
])  # fmt: skip
def test_bad_codes_are_named(change: dict[str, Any], error: type[Exception], message: str) -> None:
    given: dict[str, Any] = {"codes": np.zeros((2, 8), int), "scale": np.ones((2, 2)), "zero": None} | change
    with pytest.raises(error, match=message):
        PackedWeight.plain(given.pop("codes"), given.pop("scale"), given.pop("zero"), **given)


def test_bad_blocks_are_named() -> None:
    raw, _ = blocks("Q4_0", 2, 32)
    with pytest.raises(OptionError, match="Q4_0, Q5_0, Q8_0"):
        PackedWeight.gguf(raw, "Q4_K", (2, 32))
    for shape in ((2, 40), (3, 32)):
        with pytest.raises(ShapeError, match="bytes for Q4_0"):
            PackedWeight.gguf(raw, "Q4_0", shape)
