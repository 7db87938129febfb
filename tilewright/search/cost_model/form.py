"""CostForm: what arithmetic alone says of the kernels of a lattice, on one kind of device (HostForm, GpuForm).

It gives the cost model its analytic part and the features that only such a device has, and it says how far its times can be
compared. Everything over pairs is an array.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tilewright.search.cost_model.pairs import Pairs
from tilewright.search.cost_model.shape_table import ShapeTable
from tilewright.search.space.array_types import Floats
from tilewright.search.space.kernel_facts import KernelFacts
from tilewright.search.space.lattice import Lattice


class CostForm(Protocol):
    """Of one lattice; shared by all tables of its shapes.

    drifts: does the speed of the device change from one second to another, so that only what was timed side by side compares?
    whole_vectors: do accesses of some kernels need extents that are whole vectors, and dispatch a tree that asks first?
    """

    lattice: Lattice
    drifts: bool
    whole_vectors: bool

    def note(self, config: str, facts: KernelFacts) -> None:
        """Take what a built kernel tells in place of what was expected of its configuration."""

    def config_columns(self) -> dict[str, Floats]:
        """Named features of each configuration."""

    def shape_columns(self, table: ShapeTable) -> dict[str, Floats]:
        """Named features of each shape."""

    def pair_columns(self, table: ShapeTable, pairs: Pairs) -> dict[str, Floats]:
        """Named features of pairs: what the analytic time leaves open."""

    def log_cycles(self, table: ShapeTable, pairs: Pairs) -> Floats:
        """Logarithm of the cycles that are expected."""

    def kernel_shifts(self, table: ShapeTable, measured: Pairs, beyond: Floats, targets: Pairs) -> tuple[Floats, Floats]:
        """What terms of each kernel's own, fitted to what it was measured at, add to the logarithm of its time: at the measured
        pairs and at targets.

        beyond: logarithm of measured over predicted times.
        """

    def refit(self, table: ShapeTable, measured: Pairs, beyond: Callable[[], Floats]) -> None:
        """Fit the terms of the device to measurements of all kernels.

        beyond: logarithm of measured over predicted times, by the terms that stand when it is called.
        """
