"""Which form the kernels of a lattice have."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.runtime.limits import GpuLimits
from tilewright.search.cost_model.feature_space import FeatureSpace
from tilewright.search.cost_model.form import CostForm
from tilewright.search.cost_model.gpu_form import GpuForm
from tilewright.search.cost_model.host_form import HostForm
from tilewright.search.space.lattice import Lattice
from tilewright.search.space.shapes import Dims


def form_of(lattice: Lattice) -> CostForm:
    """By the device that its limits are of. What is noted of built kernels is noted in it."""
    limits = lattice.limits
    return GpuForm(lattice, limits) if isinstance(limits, GpuLimits) else HostForm(lattice, limits)


def feature_space(lattice: Lattice, shapes: Sequence[Dims]) -> FeatureSpace:
    """A space with a form of its own."""
    return FeatureSpace(form_of(lattice), shapes)
