"""Into which steps a Fourier transform on the host is taken apart. MLIR-free."""

from __future__ import annotations

_PRIMES = (7, 5, 3)
_MOST = 4096  # elements, whose vectors of two planes fill half a megabyte


def radices(size: int) -> tuple[int, ...] | None:
    """Factors of a size: 7, 5, 4, 3, and at most one 8 or 2; None where others are left, or it is too long or no transform."""
    found, rest = list[int](), size
    for radix in _PRIMES:
        while rest % radix == 0 and rest:
            found.append(radix)
            rest //= radix
    fours, twos = divmod(rest.bit_length() - 1, 2)
    if not 1 < size <= _MOST or rest.bit_count() != 1:
        return None
    if twos and fours:
        return (8, *found, *[4] * (fours - 1))
    return (*found, *[4] * fours, *[2] * twos)
