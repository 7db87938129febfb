"""Family `gemv` on the emulator, under all of its checks, against NumPy in f64."""

from __future__ import annotations

import pytest
from emulator.test_families import sweep
from gpu_workloads import RELU, Case, contraction
from tensor_core_workloads import product

LAYOUTS = {"nn": "m k,k n,m n", "nt": "m k,n k,m n", "tn": "k m,k n,m n", "transposed_result": "m k,k n,n m"}
ODD = [(1, 1, 1), (3, 41, 77), (2, 33, 130)]
VECTORS = [(1, 8, 8), (5, 72, 136)]


def run(case: Case, config: str, sizes: list[tuple[int, ...]], seed: int | None = None, arch: str = "sm_90a",
        pads: dict[int, tuple[int, ...]] | None = None) -> None:
    assert sweep(case, config, "MNK", sizes, seed, arch=arch, pads=pads) == len(sizes)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("element", ["f32", "f16", "bf16"])
def test_layouts(layout: str, element: str) -> None:
    """Rows and columns that end inside a tile, k inside a piece; with gaps behind the rows of operands and results."""
    vec, tensor = (4, "rows=4") if element == "f32" else (8, "rows=8 tensor=true")
    case = product(LAYOUTS[layout], element)
    turned = layout == "transposed_result"
    vectors = [(n, m, k) for m, n, k in VECTORS] if turned else VECTORS
    wide = 64 if element != "f32" and layout in ("nn", "tn") else 32
    if layout != "tn":
        gaps = {0: (0, 8), 1: (0, 16), 2: (0, 4)}
        run(case, f"gemv{{{tensor} bn={wide} warps=2 vec={vec} cluster-k=2}}", vectors, 1, pads=gaps)
    run(case, f"gemv{{{tensor} warps=2 vec=1 unroll=1 index=64}}", ODD[1:], pads={0: (0, 1), 1: (0, 2), 2: (0, 3)})


@pytest.mark.parametrize("config", ["rows=1", "rows=2 cluster-k=8", "rows=8 cluster-k=4", "rows=16 warps=1 split-k=4"])
def test_single_multiply_adds(config: str) -> None:
    case = contraction("m k,n k,m n", epilogue=RELU)
    run(case, f"gemv{{{config} min-blocks-per-sm=2}}", [(1, 36, 4), (17, 40, 300), (3, 4, 0)], 2)


@pytest.mark.parametrize("config", ["rows=8", "rows=16 cluster-k=8", "rows=16 split-k=4"])
@pytest.mark.parametrize("epilogue,out", [("tanh", "f16"), ("relu", "")])
def test_tensor_cores(config: str, epilogue: str, out: str) -> None:
    case = product("m k,n k,m n", "f16", epilogue=epilogue, out=out, computed=True)
    run(case, f"gemv{{{config} warps=2 vec=8 tensor=true}}", [(1, 8, 8), (13, 40, 328), (17, 8, 1064)], 0)


def test_on_the_oldest_architecture() -> None:
    run(product("m k,k n,m n", "bf16"), "gemv{rows=16 bn=64 vec=8 unroll=1 tensor=true split-k=2}", [(9, 72, 264)], arch="sm_80")


def test_batches_and_operands_of_two_types() -> None:
    case = product("b m k,b n k,b m n")
    assert sweep(case, "gemv{rows=8 vec=8 tensor=true cluster-k=2}", "BMNK", [(2, 3, 40, 72)], arch="sm_90a") == 1
    narrow = contraction("m k,n k,m n", "f16")
    run(narrow, "gemv{rows=4 vec=8 warps=2}", [(3, 40, 264), (2, 8, 8)])


def test_empty_extents() -> None:
    for config in ("gemv{rows=4 cluster-k=2}", "gemv{rows=4 split-k=2}"):
        run(contraction("m k,k n,m n"), config, [(4, 4, 0), (0, 4, 4), (4, 0, 4)])
