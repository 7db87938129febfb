from __future__ import annotations

import numpy as np
from search_surfaces import dense

from tilewright.search.runner.host_runner import operands


def test_operands_lie_on_cache_lines_at_different_places_of_a_page() -> None:
    for rows in (1, 7, 64, 97):
        arrays = operands(dense(96, 40), {"d0": rows}, np.random.default_rng(0))
        places = [a.ctypes.data % 4096 for a in arrays]
        assert all(p % 64 == 0 for p in places) and len(set(places)) == len(arrays)
        assert [a.shape for a in arrays] == [(rows, 40), (40, 96), (rows, 96)]
        assert np.array_equal(arrays[0], operands(dense(96, 40), {"d0": rows}, np.random.default_rng(0))[0])
