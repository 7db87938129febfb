"""Windows that Winograd's minimal filtering serves: their phases, and how large their transforms are. MLIR-free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

TILES = (2, 4)  # pixels of a result along an axis
LARGEST = 6  # places along an axis of a transform
_STEPS = (1, 2)


@dataclass(frozen=True)
class Axis:
    """`window` places along an axis, going on by `step` places. They fall apart into `step` phases, places that leave one
    remainder by `step`: windows with steps of one over the places of that phase."""

    window: int = 1
    step: int = 1

    @property
    def taps(self) -> int:
        """The most places of the window that a phase has."""
        return self.taps_of(0)

    def taps_of(self, remainder: int) -> int:
        return -(-(self.window - remainder) // self.step)

    @property
    def uneven(self) -> bool:
        """Has a phase one place less than another?"""
        return self.window % self.step > 0

    def side(self, m: int) -> int:
        """Places that m pixels are transformed to."""
        return m + self.taps - 1

    def tile(self, m: int) -> int:
        """Places of the image that m pixels need: as many products a channel and filter."""
        return (m - 1) * self.step + self.window

    def is_served(self) -> bool:
        """Not so where nothing is saved, of one place in each phase, and beyond the largest transform."""
        return self.step in _STEPS and self.taps > 1 and self.side(min(TILES)) <= LARGEST


@dataclass(frozen=True)
class Form:
    """Windows along one axis or two."""

    axes: tuple[Axis, ...]

    @staticmethod
    def of(windows: Sequence[tuple[int | None, int]]) -> Form | None:
        """Of pairs of places and steps; None where one is not served."""
        axes = tuple(Axis(window or 0, step) for window, step in windows)
        return Form(axes) if 1 <= len(axes) <= 2 and all(a.is_served() for a in axes) else None

    @staticmethod
    def wanted() -> str:
        """The windows that are served, in words."""
        found = [[str(w) for w in range(3 * LARGEST) if Axis(w, step).is_served()] for step in _STEPS]
        return " or ".join(f"{', '.join(w)} places with steps of {step}" for w, step in zip(found, _STEPS, strict=True))

    def serves(self, m: int) -> bool:
        return m in TILES and max(a.side(m) for a in self.axes) <= LARGEST

    @property
    def taps(self) -> int:
        """Places of the window."""
        return prod(a.window for a in self.axes)

    def places(self, m: int) -> int:
        """Of a transformed tile of m pixels along each axis."""
        return prod(a.side(m) for a in self.axes)

    def products(self, m: int) -> int:
        """For a tile, a channel and a filter; as many values of an image are transformed."""
        return prod(a.tile(m) for a in self.axes)

    @property
    def phases(self) -> tuple[tuple[int, ...], ...]:
        """Remainders along the axes. Those that have products at the last place along an uneven axis lie side by side."""
        uneven = [n for n, a in enumerate(self.axes) if a.uneven]
        if len(uneven) == 2:
            return (0, 1), (0, 0), (1, 0), (1, 1)
        every = product(*(range(a.step) for a in self.axes))
        return tuple(sorted(every, key=lambda phase: [phase[n] for n in uneven]))
