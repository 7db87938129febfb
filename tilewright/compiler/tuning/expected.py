"""Expectations: what the kernels of each workload must give, by the reference evaluation in float64."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.compiler.reference import evaluate
from tilewright.passes.spaces.workload import Workload
from tilewright.search.runner.verification import Case, edge_shapes, seeded
from tilewright.search.space.shapes import Dims, Points


class Expectations(Mapping[str, Sequence[Case]]):
    """Workload key -> its cases, evaluated when first asked for.

    Args:
        points: workload key -> shapes of its range.
    """

    def __init__(self, workloads: Sequence[Workload], points: Mapping[str, Points], seed: int = 0) -> None:
        self._workloads = {w.key: w for w in workloads}
        self._points, self._seed = points, seed
        self._made: dict[str, list[Case]] = {}

    def __getitem__(self, key: str) -> Sequence[Case]:
        if key not in self._made:
            workload = self._workloads[key]
            self._made[key] = [_case(workload, shape, self._seed) for shape in edge_shapes(workload, self._points[key])]
        return self._made[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._workloads)

    def __len__(self) -> int:
        return len(self._workloads)


def _case(workload: Workload, shape: Dims, seed: int) -> Case:
    arguments: list[Any] = [*seeded(workload, shape, seed), *(np.int64(v) for _, v in shape)]
    arguments += [d.numpy.type(0) for d in workload.scalars]
    outputs = evaluate(workload.ir, arguments)
    return Case(shape, seed, tuple(np.asarray(o, np.float64) for o in outputs))
