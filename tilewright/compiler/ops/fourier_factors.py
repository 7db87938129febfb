"""Discrete Fourier transforms of a known size with three factors, one of which may be 1, as products with constants alone.

With n = A B C, an element (a B + b) C + c of the input and one k1 + A (k2 + B k3) of the spectrum (Cooley and Tukey, 1965):

    y[b, c, k1] = sum over a of x[a, b, c] w(n)^(k1 ((a B + b) C + c))
    z[c, k2, k1] = sum over b of w(B)^(k2 b) w(B C)^(k2 c) y[b, c, k1]
    X[k3, k2, k1] = sum over c of w(C)^(k3 c) z[c, k2, k1]        where w(m) = e^(sign 2 pi i / m)

The turns between the steps are in the constants, so nothing is done between the products, and the last one gives the spectrum in
its order. k1 lies side by side in all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.compiler.ops.body import computed_in
from tilewright.compiler.ops.contractions import contract, matmul
from tilewright.compiler.ops.graph import Tensor
from tilewright.compiler.ops.padding import pad
from tilewright.compiler.ops.pointwise import cast
from tilewright.compiler.ops.reshaping import reshape
from tilewright.compiler.ops.slicing import narrow, select
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

_FIRST = range(24, 33)  # first factors: with fewer than two vectors of f32 products wait for loads, more multiply too much
_LANES = 16
_STEP = 20  # products an element that take as long as a further step


@dataclass(frozen=True)
class Factors:
    """first, second, third: A, B and C. sign: of the exponent."""

    first: int
    second: int
    third: int
    sign: float

    @staticmethod
    def of(size: int, sign: float) -> Factors | None:
        """Those that take the fewest products; None where a size has no such first factor."""
        found = [Factors(a, b, size // (a * b), sign) for a in _FIRST if size % a == 0
                 for b in range(1, size // (4 * a) + 1) if size % (a * b) == 0]
        return min(found, key=lambda f: f.products, default=None)

    @property
    def products(self) -> float:
        """Of numbers for an element, those of vectors that are not full counted as well."""
        a, b, c = self.first, self.second, self.third
        middle = 4 * b * _whole(a) / a + _STEP if b > 1 else 0
        return _whole(2 * a) + middle + 2 * (c + 2) * _whole(a * b) / (a * b)

    @property
    def size(self) -> int:
        return self.first * self.second * self.third

    def run(self, parts: Sequence[Tensor], bins: int, results: int = 2, weights: Sequence[np.ndarray] = ()) -> list[Tensor]:
        """The first `bins` elements of the spectrum, real and imaginary part, or the real one alone.

        Args:
            parts: the real part [..., count], and the imaginary one unless it is 0; elements from count on are 0.
            weights: by which the elements of each part are multiplied; none for 1.
        """
        g, kind, (a, b, c) = parts[0].graph, computed_in(parts[0].dtype), (self.first, self.second, self.third)
        lead, count = parts[0].dims[:-1], parts[0].dims[-1].constant
        assert count is not None
        used, rows = -(-count // (b * c)), math.prod(lead, start=Expr.of(1))

        def constant(value: Any) -> Tensor:
            return g.constant(np.ascontiguousarray(value, "f8" if kind is DType.F64 else "f4"))

        inner = self._inner(used)
        sums = []
        for number, part in enumerate(parts):
            turned = inner if number == 0 else 1j * inner
            if weights:
                each = np.zeros(used * b * c)
                each[:count] = weights[number][:count]
                turned = turned * each.reshape(used, b, c).transpose(1, 2, 0)[..., None]
            flat = pad(cast(reshape(part, [rows, count]), kind), [0, 0], [0, used * b * c - count])
            both = constant(np.concatenate([turned.real, turned.imag], 3))
            sums.append(contract("fourier", reshape(flat, [rows, used, b, c]), both, "rabc", "bcaj", "rcbj"))
        total = sums[0] if len(sums) == 1 else sums[0] + sums[1]
        if b > 1:
            middle = contract("fourier", constant(self._middle()), reshape(total, [rows, c, 2 * b, a]), "cmj", "rcjk", "rcmk")
        else:
            middle = total
        wanted = -(-bins // (a * b))
        outer = constant(self._outer(wanted)[: results * wanted])
        made = reshape(matmul(outer, reshape(middle, [rows, 2 * c, b * a])), [rows, results, wanted * a * b])
        found = narrow(made, 2, 0, bins)
        return [reshape(select(found, 1, n), [*lead, bins]) for n in range(results)]

    def _inner(self, used: int) -> np.ndarray:
        """[b, c, a, k1] of the first step, with all turns that depend on k1."""
        b, c, a, k = np.ogrid[: self.second, : self.third, :used, : self.first]
        return self._turns(k * ((a * self.second + b) * self.third + c), self.size)

    def _middle(self) -> np.ndarray:
        """[c, (part, k2), (b, part)] of the second step."""
        c, k, b = np.ogrid[: self.third, : self.second, : self.second]
        turns = self._turns(k * (b * self.third + c), self.second * self.third)
        return _by_parts(turns).reshape(self.third, 2 * self.second, 2 * self.second)

    def _outer(self, wanted: int) -> np.ndarray:
        """[(part, k3), (c, part)] of the last step."""
        k, c = np.ogrid[:wanted, : self.third]
        return _by_parts(self._turns(k * c, self.third)).reshape(2 * wanted, 2 * self.third)

    def _turns(self, turns: np.ndarray, size: int) -> np.ndarray:
        """w(size)^turns."""
        return np.exp(self.sign * 2j * np.pi / size * (turns % size))


def _by_parts(turns: np.ndarray) -> np.ndarray:
    """[..., k, n] of complex numbers as [..., part, k, n, part] of real ones that multiply the parts of others."""
    real = np.stack([turns.real, -turns.imag], -1)
    return np.stack([real, np.stack([turns.imag, turns.real], -1)], -4)


def _whole(columns: int) -> int:
    return -(-columns // _LANES) * _LANES
