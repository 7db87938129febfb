"""What lies between the products of a training step, exported from torch in bf16, on the emulated GPU: races, bounds, values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tools.bench.partition.bench import Bench, tensors
from tools.bench.partition.training import WORKLOADS, Workload

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("built_here")

ROWS = (1, 35)
NAMED = {w.name: w for w in WORKLOADS}
TOLERANCE = 3e-2  # of the norm: bf16 keeps eight bits


def given_of(workload: Workload, rows: int) -> tuple[Any, ...]:
    """Arguments, of which those that are no labels are bf16."""
    return tuple(a.bfloat16() if a.is_floating_point() else a for a in tensors(torch, workload.given, rows))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", NAMED)
def test_values_of_bf16(name: str) -> None:
    workload = NAMED[name]
    bench = Bench(torch, None, workload, 1)
    module, _, dynamic = bench.exported()
    fn = tw.compile(module, args=given_of(workload, 64), dynamic_shapes=dynamic, target="emulator:sm_90a")
    for rows in ROWS:
        given = given_of(workload, rows)
        found = fn(*given)
        want = bench.function(*(a.double() if a.is_floating_point() else a for a in given))
        for a, b in zip(*(r if isinstance(r, tuple) else (r,) for r in (found, want)), strict=True):
            wide, other = (torch.as_tensor(v).double().numpy() for v in (a, b))
            assert wide.shape == other.shape
            assert np.linalg.norm(wide - other) <= TOLERANCE * max(1e-3, np.linalg.norm(other)), (name, rows)
