"""Family `gemv` on the emulator, under all of its checks, against NumPy in f64."""

from __future__ import annotations

import pytest
from emulator.test_families import sweep
from gpu_workloads import RELU, Case, contraction
from tensor_core_workloads import product

LAYOUTS = {"nn": "m k,k n,m n", "nt": "m k,n k,m n", "tn": "k m,k n,m n", "transposed_result": "m k,k n,n m"}
GAPS, ODD = {0: (0, 8), 1: (0, 16), 2: (0, 4)}, {0: (0, 1), 1: (0, 2), 2: (0, 3)}


def whole_sweep(case: Case, config: str, sizes: list[tuple[int, ...]], seed: int | None = None, arch: str = "sm_90a",
        pads: dict[int, tuple[int, ...]] | None = None) -> None:
    assert sweep(case, config, "MNK", sizes, seed, arch=arch, pads=pads) == len(sizes)


@pytest.mark.parametrize("element,layout,ahead", [("f32", "nn", ""), ("f32", "nt", "ahead=true unroll=1"), ("bf16", "nt", ""),
                                                  ("f16", "nn", "ahead=true unroll=1"), ("f16", "transposed_result", "")])
def test_vectors_along_k_or_along_columns(element: str, layout: str, ahead: str) -> None:
    """Rows and columns that end inside a tile, k inside a piece; with gaps behind the rows of operands and results."""
    vec, rows = (4, "rows=4") if element == "f32" else (8, "rows=8 tensor=true")
    wide = 64 if (element, layout) == ("f16", "nn") else 32
    size = (72, 5, 136) if layout == "transposed_result" else (5, 72, 136)
    config = f"gemv{{{rows} bn={wide} warps=2 vec={vec} cluster-k=2 {ahead}}}"
    whole_sweep(product(LAYOUTS[layout], element), config, [size], 1, pads=GAPS)


@pytest.mark.parametrize("element,layout", [("f32", "nt"), ("bf16", "nn"), ("f16", "tn")])
def test_any_extents(element: str, layout: str) -> None:
    kind = "" if element == "f32" else "tensor=true "
    config = f"gemv{{rows=8 {kind}warps=2 vec=1 unroll=1 index=64 min-blocks-per-sm=2}}"
    whole_sweep(product(LAYOUTS[layout], element), config, [(3, 41, 77)], pads=ODD)


@pytest.mark.parametrize("config", ["rows=1", "rows=2 cluster-k=8", "rows=16 warps=1 split-k=4"])
def test_single_multiply_adds(config: str) -> None:
    case = contraction("m k,n k,m n", epilogue=RELU)
    whole_sweep(case, f"gemv{{{config} min-blocks-per-sm=2}}", [(17, 40, 300), (3, 4, 0)], 2)


@pytest.mark.parametrize("config", ["rows=8", "rows=16 cluster-k=8"])
def test_tensor_cores(config: str) -> None:
    """What comes before the product and what follows it."""
    case = product("m k,n k,m n", "f16", epilogue="tanh", out="f16", computed=True)
    whole_sweep(case, f"gemv{{{config} warps=2 vec=8 tensor=true}}", [(1, 8, 8), (13, 40, 328)], 0)


def test_on_the_oldest_architecture() -> None:
    case = product("m k,k n,m n", "bf16")
    whole_sweep(case, "gemv{rows=16 bn=64 vec=8 unroll=1 tensor=true split-k=2}", [(9, 72, 264)], arch="sm_80")


def test_batches_and_narrow_results() -> None:
    case = product("b m k,b n k,b m n")
    assert sweep(case, "gemv{rows=8 vec=8 tensor=true cluster-k=2}", "BMNK", [(2, 3, 40, 72)], arch="sm_90a") == 1
    whole_sweep(contraction("m k,n k,m n", "f16"), "gemv{rows=4 vec=8 warps=2}", [(3, 40, 264)])


def test_steps_loaded_while_the_one_before_multiplies() -> None:
    """Several whole steps, one, one and a rest, nothing but a rest."""
    config = "gemv{rows=8 bn=64 vec=8 unroll=1 warps=2 tensor=true ahead=true}"
    whole_sweep(product("m k,k n,m n", "f16"), config, [(5, 72, 256), (5, 72, 64), (5, 72, 104), (5, 72, 24)], 1)


@pytest.mark.parametrize("ahead", ["", "ahead=true"])
def test_empty_extents(ahead: str) -> None:
    whole_sweep(contraction("m k,k n,m n"), f"gemv{{rows=4 cluster-k=2 {ahead}}}", [(4, 4, 0), (0, 4, 4), (4, 0, 4)])
