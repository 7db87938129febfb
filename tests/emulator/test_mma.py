"""Family `mma` on the emulator, under all of its checks, against NumPy in f64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gpu_harness import build, check
from gpu_workloads import Case
from tensor_core_workloads import convolution, product, shortened

from tilewright.runtime.emulator import EmulatorDevice
from tilewright.runtime.errors import BuildError

LAYOUTS = {"nn": "m k,k n,m n", "nt": "m k,n k,m n", "tn": "k m,k n,m n", "tt": "k m,n k,m n", "transposed_result": "m k,k n,n m"}
SMALL = "mma{bm=32 bn=32 bk=32 wm=16 wn=32 stages=2}"
FREE = "mma{bm=32 bn=64 bk=16 wm=32 wn=32 stages=2 vec=1 index=64}"
HARD = [(8, 8, 8), (32, 32, 32), (40, 56, 72)]
ODD = [(1, 1, 1), (31, 65, 17), (33, 2, 40)]


def sweep(case: Case, config: str, names: str, sizes: list[tuple[int, ...]], seed: int | None = None, **given: object) -> int:
    """Checks all sizes; the number of those that the kernel's guards let run."""
    dims = [dict(zip(names, size, strict=True)) for size in sizes]
    return sum(check(case.text, config, case.inputs, case.results, d, case.reference, seed, **given) for d in dims)  # type: ignore[arg-type]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("element", ["f16", "bf16"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_matmul(layout: str, element: str) -> None:
    case = product(LAYOUTS[layout], element)
    assert sweep(case, SMALL, "MNK", HARD, seed=1) == len(HARD)
    assert sweep(case, FREE, "MNK", ODD) == len(ODD)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_few_rows_on_the_narrow_side(layout: str) -> None:
    case = product(LAYOUTS[layout], epilogue="tanh", out="f16") if layout != "transposed_result" else product(LAYOUTS[layout])
    config = "mma{bm=8 bn=64 wm=8 wn=16 bk=32 swapped=true}"
    assert sweep(case, config, "MNK", [(8, 64, 64), (16, 72, 40)], seed=1) == 2
    assert sweep(case, config.replace("}", " split-k=4}"), "MNK", [(8, 72, 136)]) == 1
    free = "mma{bm=16 bn=64 wm=16 wn=32 bk=32 stages=2 vec=1 staged=false swapped=true}"
    assert sweep(case, free, "MNK", [(1, 1, 1), (17, 33, 65)]) == 2


def test_single_operands_that_are_not_aligned() -> None:
    """Of the rows' operand by single elements and by pairs, and of the result."""
    one = "mma{bm=32 bn=32 bk=32 wm=16 wn=32 stages=2 "
    assert sweep(product("m k,k n,m n"), one + "row-vec=1}", "MNK", [(40, 56, 77), (3, 8, 1)], seed=1) == 2
    assert sweep(product("m k,k n,m n"), one + "row-vec=2}", "MNK", [(40, 56, 78)]) == 1
    assert sweep(product("m k,n k,m n", out="f16"), one + "result-vec=1}", "MNK", [(40, 41, 72)], seed=1) == 1
    assert sweep(product("m k,n k,m n", out="f16"), one + "result-vec=2 staged=false}", "MNK", [(40, 42, 72)]) == 1
    assert sweep(product("k m,k n,m n"), one + "column-vec=1 result-vec=1}", "MNK", [(40, 41, 24)]) == 1


def test_few_rows_of_bytes_on_the_narrow_side() -> None:
    """Rows of 8 bytes of shared memory, where memory runs along them, have no chunks to permute."""
    for layout, vec in (("nt", 16), ("nn", 1), ("tn", 16)):
        config = f"mma{{bm=8 bn=64 wm=8 wn=16 bk=128 vec={vec} swapped=true}}"
        assert sweep(product(LAYOUTS[layout], "i8"), config, "MNK", [(16 if layout == "tn" else 1, 80, 144)]) == 1


@pytest.mark.sampled(4)
@pytest.mark.parametrize("layout", ["nn", "nt", "tn"])
@pytest.mark.parametrize("element,config", [("i8", "mma{bm=32 bn=32 bk=64 wm=16 wn=16 stages=2 vec=16}"),
                                            ("f32", "mma{bm=32 bn=32 bk=16 wm=32 wn=16 stages=3 vec=4 tf32=true}")])
def test_other_types(element: str, config: str, layout: str) -> None:
    case = product(LAYOUTS[layout], element)
    if element == "f32":
        exact = case.reference
        case = replace(case, reference=lambda a, b: exact(shortened(a), shortened(b)))
    free = config.replace("vec=16", "vec=1").replace("vec=4", "vec=1")
    assert sweep(case, config, "MNK", [(16, 16, 16), (48, 32, 80)]) == 2
    assert sweep(case, free, "MNK", [(7, 9, 5), (33, 35, 65)]) == 2


@pytest.mark.sampled(4)
@pytest.mark.parametrize("layout", ["nn", "nt", "tn"])
@pytest.mark.parametrize("element", ["f8E4M3FN", "f8E5M2"])
def test_8_bit_floats(element: str, layout: str) -> None:
    """Columns of k by rows are gathered byte by byte where memory does not run along k."""
    case = product(LAYOUTS[layout], element)
    config = "mma{bm=32 bn=32 bk=64 wm=16 wn=16 stages=2 vec=16}"
    assert sweep(case, config, "MNK", [(16, 16, 16), (48, 32, 80)], arch="sm_89") == 2
    assert sweep(case, config.replace("vec=16", "vec=1 index=64"), "MNK", [(7, 9, 5)], arch="sm_89") == 1
    with pytest.raises(BuildError, match="sm_80 has no products of 8-bit floats"):
        build(case.text, config, "sm_80")


def test_empty_extents() -> None:
    assert sweep(product("m k,k n,m n"), SMALL, "MNK", [(8, 8, 0), (0, 8, 8), (8, 0, 8)]) == 3


@pytest.mark.sampled(2)
@pytest.mark.parametrize("maps", ["b m k,b k n,b m n", "b m k,b n k,b m n", "b m k,k n,b m n", "b k m,k n,m b n"])
def test_batches(maps: str) -> None:
    case = product(maps)
    order = "".join(x.upper() for x in "bmn" if x in maps.split(",")[2]) + "K"
    assert sweep(case, SMALL, order, [(2, 8, 16, 24), (3, 40, 32, 8)]) == 2
    assert sweep(case, FREE, order, [(2, 5, 7, 9)]) == 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize("config", [SMALL, FREE, SMALL.replace("}", " staged=false}"),
                                    "simt{vec=1 transpose-on-copy=true index=64}"])
def test_vectors_by_matrices(config: str) -> None:
    """There is one row, which no loop runs along."""
    assert sweep(product("k,k n,n"), config, "NK", [(72, 136), (8, 8)]) == 2
    assert sweep(product("b k,b k n,b n"), config, "BNK", [(3, 40, 72)]) == 1


@pytest.mark.sampled(4)
@pytest.mark.parametrize("out", ["", "f16"])
@pytest.mark.parametrize("epilogue", ["relu", "tanh"])
@pytest.mark.parametrize("staged", ["staged=true", "staged=false", "split-k=2"])
def test_epilogues(staged: str, epilogue: str, out: str) -> None:
    case = product("m k,k n,m n", epilogue=epilogue, out=out)
    config = f"mma{{bm=32 bn=64 bk=32 wm=16 wn=32 stages=3 {staged}}}"
    assert sweep(case, config, "MNK", [(32, 64, 32), (24, 72, 104)], seed=2) == 2
    if epilogue == "relu":
        assert sweep(case, config.replace("}", " vec=1}"), "MNK", [(9, 71, 33)]) == 1


@pytest.mark.parametrize("element", ["f16", "bf16"])
def test_computed_operands(element: str) -> None:
    case = product("m k,k n,m n", element, computed=True)
    assert sweep(case, SMALL, "MNK", [(8, 8, 8), (40, 56, 72)], seed=1) == 2
    assert sweep(case, FREE, "MNK", [(31, 65, 17)]) == 1


@pytest.mark.parametrize("stride,pad", [(1, 0), (1, 1), (2, 1)])
def test_convolutions(stride: int, pad: int) -> None:
    assert sweep(convolution(stride, pad, 8, 16), SMALL, "B", [(1,), (2,)]) == 2
    assert sweep(convolution(stride, pad, 5, 7), FREE, "B", [(1,)]) == 1


def test_alignment_is_guarded() -> None:
    case = product("m k,k n,m n")
    assert sweep(case, SMALL, "MNK", [(8, 8, 9), (8, 9, 8)]) == 0
    assert sweep(case, SMALL, "MNK", [(24, 16, 8)], pads={0: (0, 3)}) == 0
    assert sweep(case, SMALL, "MNK", [(24, 16, 8)], pads={0: (0, 8), 2: (0, 4)}, offsets={0: 8, 1: 16}) == 1
    assert sweep(case, FREE, "MNK", [(24, 16, 8)], pads={0: (0, 3), 1: (0, 1)}, offsets={0: 1}) == 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_any_order_of_warps_and_copies(stages: int, seed: int) -> None:
    config = f"mma{{bm=32 bn=32 bk=16 wm=16 wn=16 stages={stages}}}"
    assert sweep(product("m k,n k,m n"), config, "MNK", [(40, 40, 88), (8, 8, 8)], seed) == 2


@pytest.mark.parametrize("layout", ["nn", "nt", "tn"])
def test_shared_memory_has_no_bank_conflicts(layout: str) -> None:
    case = product(LAYOUTS[layout])
    built = build(case.text, "mma{bm=64 bn=64 bk=64 wm=32 wn=32 stages=2 staged=false}")
    device = EmulatorDevice("sm_80", profile=True)
    pointers = [device.upload(np.zeros((64, 64), np.float16)) for _ in range(2)] + [device.alloc(64 * 64 * 4)]
    args = [pointers[p.index] if p.kind == "pointer" else 64 for p in built.kernel.params]
    launch = built.kernel.launches()[0]
    device.launch(device.load(built.code).kernel(launch.symbol), (1, 1, 1), (launch.threads, 1, 1), launch.shared_bytes, args)
    statistics = device.launches[0]
    assert statistics.shared_ideal > 0
    assert statistics.shared_wavefronts == statistics.shared_ideal


def test_what_tensor_cores_do_not_multiply_is_refused() -> None:
    with pytest.raises(BuildError, match="tensor cores do not multiply f32 by f32"):
        build(product("m k,k n,m n", "f32").text, "mma")
