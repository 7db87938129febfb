"""Family `wgmma` on the emulator, under all of its checks, against NumPy in f64."""

from __future__ import annotations

import pytest
from gpu_harness import build, check
from gpu_workloads import Case
from tensor_core_workloads import convolution, product

from runtime.errors import BuildError

ARCH = "sm_90a"
LAYOUTS = {"nn": "m k,k n,m n", "nt": "m k,n k,m n", "tn": "k m,k n,m n", "tt": "k m,n k,m n", "transposed_result": "m k,k n,n m"}
SMALL = "wgmma{bm=64 bn=64 consumers=1 stages=3 blocks=2}"
HARD = [(64, 64, 64), (8, 8, 8), (136, 72, 200)]


def sweep(case: Case, config: str, names: str, sizes: list[tuple[int, ...]], seed: int | None = None, **given: object) -> int:
    """Checks all sizes; the number of those that the kernel's guards let run."""
    dims = [dict(zip(names, size, strict=True)) for size in sizes]
    return sum(check(case.text, config, case.inputs, case.results, d, case.reference, seed, ARCH, **given) for d in dims)  # type: ignore[arg-type]


@pytest.mark.parametrize("element", ["f16", "bf16"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_matmul(layout: str, element: str) -> None:
    assert sweep(product(LAYOUTS[layout], element), SMALL, "MNK", HARD, seed=0 if element == "f16" else None) == len(HARD)


@pytest.mark.parametrize("element", ["f8E4M3FN", "i8"])
def test_bytes_along_k(element: str) -> None:
    case = product("m k,n k,m n", element)
    assert sweep(case, SMALL, "MNK", [(16, 16, 16), (72, 80, 272)]) == 2
    with pytest.raises(BuildError, match="must be contiguous along k"):
        build(product("m k,k n,m n", element).text, SMALL, ARCH)


@pytest.mark.parametrize("config", ["wgmma{bm=128 bn=32 stages=2 blocks=0}", "wgmma{bm=256 bn=64 stages=2 consumers=2 blocks=1}",
                                    "wgmma{bm=192 bn=128 consumers=3 stages=3 blocks=1 group=1}", "wgmma{bm=128 bn=256 stages=3}"])
def test_tiles(config: str) -> None:
    layout = "nt" if "bn=32" in config else "nn"
    assert sweep(product(LAYOUTS[layout]), config, "MNK", [(200, 264, 136)], seed=1) == 1


def test_empty_extents() -> None:
    assert sweep(product("m k,k n,m n"), SMALL, "MNK", [(8, 8, 0), (0, 8, 8), (8, 0, 8)]) == 3


@pytest.mark.parametrize("maps", ["b m k,b k n,b m n", "b m k,b n k,b m n", "b m k,k n,b m n", "b k m,k n,m b n"])
def test_batches(maps: str) -> None:
    case = product(maps)
    order = "".join(x.upper() for x in "bmn" if x in maps.split(",")[2]) + "K"
    if "k n" in maps.split(",")[1].replace("b ", "") and "b" not in maps.split(",")[1]:
        with pytest.raises(BuildError, match="no matrix along one axis and k"):
            build(case.text, SMALL, ARCH)
        return
    assert sweep(case, SMALL, order, [(3, 40, 72, 24)], seed=1) == 1


@pytest.mark.parametrize("out", ["", "f16"])
@pytest.mark.parametrize("epilogue", ["relu", "tanh"])
def test_epilogues(epilogue: str, out: str) -> None:
    case = product("m k,k n,m n", epilogue=epilogue, out=out)
    assert sweep(case, "wgmma{bm=64 bn=128 consumers=1 stages=2 blocks=2}", "MNK", [(32, 64, 32), (72, 136, 104)], seed=2) == 2


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("stages", [2, 4])
def test_any_order_of_warps_and_copies(stages: int, seed: int) -> None:
    config = f"wgmma{{bm=128 bn=64 stages={stages} blocks=1}}"
    assert sweep(product("m k,n k,m n"), config, "MNK", [(136, 72, 328)], seed) == 1


def test_alignment_is_guarded() -> None:
    case = product("m k,k n,m n")
    assert sweep(case, SMALL, "MNK", [(8, 8, 9), (8, 9, 8)]) == 0
    assert sweep(case, SMALL, "MNK", [(24, 16, 8)], pads={0: (0, 4)}) == 0
    assert sweep(case, SMALL, "MNK", [(24, 16, 8)], offsets={0: 4}) == 0
    assert sweep(case, SMALL, "MNK", [(24, 16, 8)], pads={0: (0, 8), 2: (0, 4)}, offsets={0: 8, 1: 16}) == 1


def test_what_copies_cannot_fetch_is_refused() -> None:
    with pytest.raises(BuildError, match="operand 0 is computed"):
        build(product("m k,k n,m n", computed=True).text, SMALL, ARCH)
    with pytest.raises(BuildError, match="no matrix along one axis and k"):
        build(convolution(1, 0, 8, 16).text, SMALL, ARCH)
