"""The family host_matmul with the loop of rows along the vectors, for columns that fill no vector."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_harness import T
from matmul_workloads import AVX512, check, described, matmul

from tilewright.passes.spaces.gemm_operands import Gemm
from tilewright.passes.spaces.host.host_matmul import Extents, HostMatmulConfig, Pack, why_invalid
from tilewright.passes.spaces.host.host_matmul_heuristics import default
from tilewright.runtime.errors import BuildError
from tilewright.runtime.program.dispatch import select

CONFIGS = ("host_matmul{mr=4 nv=2 lanes=8 pack=panel mc=8 exact-tails=true turned=true}",
           "host_matmul{mr=6 nv=1 lanes=4 pack=panel mc=12 turned=true}")


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("filters", ["m k", "k m"])
def test_all_pixels_of_all_images_are_rows(filters: str, config: str) -> None:
    f, x, y = T("f32", tuple(filters.upper().split())), T("f32", ("B", "K", "N")), T("f32", ("B", "M", "N"))
    text = matmul(f, x, y, f"{filters},b k n,b m n", "pppr", dims=("B", "M", "N", "K"))
    for b, m, n, k in ((1, 1, 1, 1), (1, 47, 1, 5), (3, 48, 2, 16), (4, 17, 3, 31), (2, 33, 9, 40), (5, 7, 1, 0), (0, 4, 2, 3)):
        check(text, config, {"a": f, "b": x}, [y], {"B": b, "M": m, "N": n, "K": k},
              lambda a, c: np.einsum(f"{filters.replace(' ', '')},bkn->bmn", a, c))


def test_rows_of_several_loops_are_not_turned() -> None:
    """Rows of two loops are no run along the vectors."""
    a, b, c = T("f32", ("B", "M", "K")), T("f32", ("K", "N")), T("f32", ("B", "M", "N"))
    text = matmul(a, b, c, "b m k,k n,b m n", "pppr", dims=("B", "M", "N", "K"))
    with pytest.raises(BuildError, match="rows are no one loop"):
        check(text, CONFIGS[0], {"a": a, "b": b}, [c], {"B": 2, "M": 3, "N": 4, "K": 5}, lambda x, y: x @ y)


def test_few_columns_are_turned_untuned_and_many_are_not() -> None:
    work = described(96, "N", 64)
    assert Gemm.turned(work) is not None
    turned = Extents.turned(work)
    assert turned is not None and (turned.columns.constant, str(turned.rows), turned.transposed) == (96, "N", True)
    configs, root = default(work, AVX512)
    found = {n: configs[select(root, {"N": n}).kernel].turned for n in (1, 4, 5, 16, 17, 900)}
    assert found == {1: True, 4: True, 5: False, 16: False, 17: False, 900: False}
    assert not any(c.turned for c in default(described("M", 96, 64), AVX512)[0])


def test_what_cannot_be_turned_is_told() -> None:
    config = HostMatmulConfig(4, 2, 8, Pack.PANEL, turned=True)
    assert why_invalid(config, described(96, "N", 64), AVX512) is None
    streamed = HostMatmulConfig(1, 2, 8, stream=4, turned=True)
    assert str(why_invalid(streamed, described(96, "N", 64), AVX512)).startswith("turned")
