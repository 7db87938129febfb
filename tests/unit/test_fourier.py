"""Fourier transforms in two steps, against NumPy in f64: sizes with and without factors, zeros behind, halves of spectra."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.ops import fourier
from tilewright.runtime.shape import Expr

pytestmark = pytest.mark.usefixtures("built_here")

SIZES = (16, 17, 32, 36, 55, 62, 128, 240, 256, 300, 400, 1000, 1001, 1024)


def spectrum(x: np.ndarray, size: int, bins: int, inverse: bool) -> np.ndarray:
    whole = np.fft.fft(x, size, axis=-1)
    return np.asarray((np.conj(np.fft.fft(np.conj(x), size, axis=-1)) if inverse else whole)[..., :bins])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", ["f32", "f64"])
@pytest.mark.parametrize("size", SIZES)
def test_transforms(size: int, kind: str) -> None:
    dtype = np.float32 if kind == "f32" else np.float64
    g, half = ops.Graph(), size // 2 + 1
    x, y, s, t = (g.input(n, ["B", 3, d], kind) for n, d in (("x", size), ("y", size), ("s", half), ("t", half)))
    for imaginary, bins, inverse in ((None, half, False), (None, size, True), (y, size, False), (y, half, True)):
        g.output(*fourier.transform(x, imaginary, Expr.of(size), Expr.of(bins), inverse))
    g.output(fourier.real_inverse(s, t, Expr.of(size)))
    fn = tw.compile(g, {"B": (1, 9)})
    rng = np.random.default_rng(size)
    for b in (1, 7):
        a, i = rng.standard_normal((2, b, 3, size)).astype(dtype)
        re, im = rng.standard_normal((2, b, 3, half)).astype(dtype)
        found = [np.asarray(v) for v in fn(a, i, re, im)]
        wants: list[Any] = []
        for given, bins, inverse in ((a, half, False), (a, size, True), (a + 1j * i, size, False), (a + 1j * i, half, True)):
            want = spectrum(np.asarray(given, np.complex128), size, bins, inverse)
            wants += [want.real, want.imag]
        im[..., 0] = 0
        if size % 2 == 0:
            im[..., -1] = 0
        wants.append(np.fft.irfft(np.asarray(re + 1j * im, np.complex128), size) * size)
        for got, want in zip(found, wants, strict=True):
            bound = (4e-7 if kind == "f32" else 1e-14) * np.linalg.norm(want, axis=-1, keepdims=True) + 1e-12
            assert got.shape == want.shape and got.dtype == dtype
            assert (np.abs(got - want) <= 4 * bound).all(), (np.abs(got - want) / bound).max()


def test_values_that_are_no_numbers_stay_in_their_row() -> None:
    g = ops.Graph()
    g.output(*fourier.transform(g.input("x", ["B", 64]), None, Expr.of(64), Expr.of(33), False))
    x = np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)
    x[1, 5] = np.nan
    real, imaginary = (np.asarray(v) for v in tw.compile(g, {"B": (1, 4)})(x))
    assert np.isnan(real[1]).all() and np.isfinite(real[[0, 2]]).all() and np.isfinite(imaginary[[0, 2]]).all()
