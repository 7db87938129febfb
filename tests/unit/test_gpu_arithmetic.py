"""Predicted times of GPU kernels against those that an H200 took (tools/bench/results/h200-kernels.jsonl)."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from unit.test_gpu_spaces import dense
from unit.test_tensor_core_spaces import dense as tensor_cores

from tilewright.passes.spaces.family_registry import cost_of, parse_config
from tilewright.passes.spaces.gpu.predicted import predicted
from tilewright.runtime.limits import GpuLimits

RECORDS = Path(__file__).resolve().parents[2] / "tools/bench/results/h200-kernels.jsonl"
H200, CLOCK = GpuLimits.of("sm_90a"), 1.755e3  # cycles a microsecond


@pytest.mark.parametrize("family,element,regret,off", [("wgmma", "f16", 1.06, 0.25), ("simt", "f32", 1.08, 0.25)])
def test_the_kernel_that_arithmetic_puts_first_is_near_the_fastest(family: str, element: str, regret: float, off: float) -> None:
    """regret: of the kernel with the least predicted time, the geometric mean over operators and sizes. off: share by which the
    time of the fastest kernel is mistaken, the median."""
    places = defaultdict(list)
    for line in RECORDS.read_text().splitlines()[1:]:
        r = json.loads(line)
        shape = re.fullmatch(rf"dense_(\d+)x(\d+)_{element}", r["case"])
        if shape is not None and r["config"].startswith(family):
            places[int(shape[1]), int(shape[2]), r["T"]].append((r["us"], parse_config(r["config"])))
    regrets, mistaken = [], []
    for (k, n, rows), found in places.items():
        if len(found) < 6:
            continue
        work = dense("M", k, n) if element == "f32" else tensor_cores("M", n, k)
        extents = {"batch": 1, "rows": np.array([float(rows)]), "columns": n, "depth": k}
        times = predicted([c for _, c in found], work, H200, cost_of(family), extents)[:, 0] / CLOCK
        taken = np.array([t for t, _ in found])
        regrets.append(taken[times.argmin()] / taken.min())
        mistaken.append(abs(np.log(times[taken.argmin()] / taken.min())))
    assert len(regrets) > 10
    assert np.exp(np.mean(np.log(regrets))) < regret
    assert np.median(mistaken) < off
