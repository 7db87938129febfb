"""The bench of tables of activations computes what it is compared with."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from tilewright.runtime.host.host_cpu import cpu_features
from tools.bench.activation_tables import by_tables, whole
from tools.bench.codes_systems import Case

WANTED = pytest.mark.skipif(not {"avx512vbmi", "avx512vnni"} <= set(cpu_features()) or shutil.which("cc") is None,
                            reason="AVX-512 VBMI, VNNI and a C compiler wanted")


@WANTED
@pytest.mark.parametrize("form", ["1g128", "2g32", "3g64", "4g32"])
def test_against_float64(form: str) -> None:
    """Within what rounding sums of four activations to bytes loses."""
    case = Case.read(form, (256, 192), 0)
    x = np.random.default_rng(3).standard_normal((1, case.k)).astype(np.float32)
    scale = np.repeat(case.arrays(0)[1].astype(np.float64), case.group, 1)
    weight = (whole(case, 0).astype(np.float64) - (1 << (case.bits - 1))) * scale
    got, want = by_tables(case)(x)[0], weight @ x[0].astype(np.float64)
    assert np.linalg.norm(got - want) < 0.02 * np.linalg.norm(want)
