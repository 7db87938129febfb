"""GPU families on the emulator, under all of its checks, against NumPy in f64: layouts, element types, epilogues, odd extents."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from allpairspy import AllPairs
from gpu_harness import Placed, build, check, random, run
from gpu_workloads import (
    RELU,
    TANH,
    Case,
    concat,
    contraction,
    convolution,
    diagonals,
    gather,
    padded,
    pointwise,
    rows,
    transpose,
)
from kernel_harness import NUMPY
from tensor_core_workloads import product

from tilewright.runtime.errors import BuildError

LAYOUTS = {"nn": "m k,k n,m n", "nt": "m k,n k,m n", "tn": "k m,k n,m n", "tt": "k m,n k,m n", "transposed_result": "m k,k n,n m"}
FREE = "simt{bm=32 bn=32 bk=8 tm=2 tn=4 stages=2 vec=1 index=64}"
VECTOR = "simt{bm=32 bn=64 bk=16 tm=4 tn=4}"
SIZES = [(1, 1, 1), (32, 32, 16), (31, 33, 7), (33, 31, 17), (2, 67, 40), (65, 3, 9)]


def sweep(case: Case, config: str, names: str, sizes: list[tuple[int, ...]], seed: int | None = None, **given: object) -> int:
    """Checks all sizes; the number of those that the kernel's guards let run."""
    dims = [dict(zip(names, size, strict=True)) for size in sizes]
    return sum(check(case.text, config, case.inputs, case.results, d, case.reference, seed, **given) for d in dims)  # type: ignore[arg-type]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_matmul_of_any_extents(layout: str) -> None:
    assert sweep(contraction(LAYOUTS[layout]), FREE, "MNK", SIZES) == len(SIZES)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("config", [VECTOR, "simt{bm=32 bn=64 bk=16 tm=4 tn=4 transpose-on-copy=true fragment-k=2}"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_matmul_with_vector_copies(layout: str, config: str) -> None:
    sizes = [(4, 4, 4), (32, 64, 16), (36, 60, 20), (28, 68, 44)]
    assert sweep(contraction(LAYOUTS[layout]), config, "MNK", sizes, seed=3) == len(sizes)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_matmul_of_any_extents_with_turned_copies(layout: str) -> None:
    config = "simt{bm=32 bn=64 bk=8 tm=4 tn=8 stages=3 vec=1 transpose-on-copy=true fragment-k=1 group-m=1}"
    assert sweep(contraction(LAYOUTS[layout]), config, "MNK", SIZES, seed=2) == len(SIZES)


def test_vector_copies_are_guarded() -> None:
    case = contraction("m k,k n,m n")
    assert sweep(case, VECTOR, "MNK", [(5, 6, 8), (5, 8, 6), (4, 4, 5)]) == 0


def test_empty_extents() -> None:
    case = contraction("m k,k n,m n")
    for config in (FREE, VECTOR):
        assert sweep(case, config, "MNK", [(4, 4, 0), (0, 4, 4), (4, 0, 4)]) == 3


@pytest.mark.parametrize("maps", ["b m k,b k n,b m n", "b m k,b n k,b m n", "b m k,k n,b m n", "m k,b k n,b m n",
                                  "b k m,k n,m b n"])
def test_batches(maps: str) -> None:
    sizes = [(1, 1, 1, 1), (3, 5, 17, 18), (2, 33, 34, 7)]
    case = contraction(maps)
    order = "".join(x.upper() for x in "bmn" if x in maps.split(",")[2]) + "K"
    assert sweep(case, FREE, order, sizes) == len(sizes)
    assert sweep(case, VECTOR, order, [(2, 8, 12, 16), (3, 36, 68, 20)]) == 2


@pytest.mark.sampled(2)
@pytest.mark.parametrize("epilogue", [RELU, TANH])
@pytest.mark.parametrize("config", [FREE, VECTOR, "simt{bm=64 bn=64 tm=8 tn=8 split-k=2}"])
def test_epilogues(config: str, epilogue: str) -> None:
    case = contraction("m k,k n,m n", epilogue=epilogue)
    assert sweep(case, config, "MNK", [(32, 32, 16), (37, 68, 20)]) == 2
    if config == FREE:
        assert sweep(case, config, "MNK", SIZES) == len(SIZES)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("epilogue", [RELU, TANH], ids=["relu", "tanh"])
@pytest.mark.parametrize("element", ["f64", "f16", "bf16"])
def test_epilogues_of_other_types(element: str, epilogue: str) -> None:
    """Operands and results with odd gaps between their rows."""
    case = contraction("m k,k n,m n", element, epilogue=epilogue.replace("f32", element))
    gaps = {0: (0, 3), 1: (0, 1), 3: (0, 5), 4: (0, 7)}
    assert sweep(case, FREE, "MNK", SIZES, pads=gaps) == len(SIZES)
    for config in ("simt{bm=32 bn=64 bk=16 tm=4 tn=4 vec=2}", "simt{bm=32 bn=32 bk=8 tm=2 tn=2 vec=2 split-k=2}"):
        assert sweep(case, config, "MNK", [(31, 34, 16), (33, 62, 18)]) == 2


@pytest.mark.parametrize("element", ["f64", "f16", "bf16", "i32", "i64"])
def test_element_types(element: str) -> None:
    case = contraction("m k,k n,m n", element)
    assert sweep(case, FREE, "MNK", [(5, 7, 9), (33, 34, 17)]) == 2
    assert sweep(case, "simt{bm=32 bn=32 bk=8 tm=2 tn=4 vec=2}", "MNK", [(8, 8, 8), (34, 36, 18)]) == 2


@pytest.mark.sampled(2)
@pytest.mark.parametrize("element", ["i8", "f8E4M3FN", "f8E5M2", "f16", "bf16"])
def test_narrow_elements_are_widened(element: str) -> None:
    """What tensor cores take on the machines that have them."""
    case = product("m k,k n,m n", element)
    assert sweep(case, FREE, "MNK", [(5, 7, 9), (33, 34, 17)]) == 2
    assert sweep(case, "simt{bm=32 bn=32 bk=8 tm=2 tn=4 vec=4}", "MNK", [(8, 8, 8), (36, 36, 20)]) == 2


@pytest.mark.sampled(4)
@pytest.mark.parametrize("computed", ["a", "b", "ab"])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn"])
def test_operands_that_are_computed_while_they_are_copied(layout: str, computed: str) -> None:
    case = contraction(LAYOUTS[layout], computed=computed)
    assert sweep(case, FREE, "MNK", SIZES, seed=1) == len(SIZES)
    for config in (VECTOR, "simt{bm=32 bn=64 bk=16 tm=4 tn=4 stages=4 transpose-on-copy=true}"):
        assert sweep(case, config, "MNK", [(4, 4, 4), (36, 60, 20), (33, 64, 48)], seed=2) >= 2


@pytest.mark.sampled(4)
@pytest.mark.parametrize("layout,stride,pad", [("nhwc", 1, 0), ("nhwc", 2, 1), ("nhwc", 1, 1), ("nchw", 1, 1), ("nchw", 2, 0)])
def test_convolutions(layout: str, stride: int, pad: int) -> None:
    for channels, features, config in ((5, 19, FREE), (8, 20, VECTOR), (6, 7, VECTOR)):
        case = convolution(layout, stride, pad, channels, features)
        assert sweep(case, config, "B", [(1,), (3,)]) == 2


@pytest.mark.parametrize("split", [2, 4, 16])
def test_split_sums_are_the_same_for_every_schedule(split: int) -> None:
    case = contraction("b m k,b k n,b m n")
    for thread in ("tm=2 tn=2 vec=1", "tm=2 tn=4"):
        config = f"simt{{bm=32 bn=32 bk=8 {thread} split-k={split}}}"
        for seed in (None, 1, 2):
            assert sweep(case, config, "BMNK", [(2, 36, 40, 100), (1, 4, 4, 4)], seed) == 2


def test_leading_dimensions_and_offsets() -> None:
    case = contraction("m k,k n,m n")
    dims = [(12, 20, 16), (33, 36, 24)]
    for pad, legal in ((4, 2), (3, 0)):
        pads = {0: (0, pad), 1: (0, pad), 2: (0, pad)}
        assert sweep(case, VECTOR, "MNK", dims, pads=pads) == legal
        assert sweep(case, FREE, "MNK", dims, pads=pads) == 2
    assert sweep(case, VECTOR, "MNK", dims, offsets={0: 4, 1: 8}) == 2
    assert sweep(case, VECTOR, "MNK", dims, offsets={1: 2}) == 0
    assert sweep(case, FREE, "MNK", dims, offsets={0: 1, 1: 3, 2: 5}) == 2


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_any_order_of_warps_and_copies(stages: int, seed: int) -> None:
    case = contraction("m k,n k,m n")
    assert sweep(case, f"simt{{bm=32 bn=32 bk=8 tm=2 tn=4 stages={stages}}}", "MNK", [(36, 40, 68), (4, 4, 8)], seed) == 2


ROW_CONFIGS = ["gpu_rows{vectors-in-registers=2 unroll=1}", "gpu_rows{vec=1 index=64}",
               "gpu_rows{threads=256 per_row=256 vec=1 vectors-in-registers=4 unroll=1}",
               "gpu_rows{per_row=1 vec=1 unroll=4}", "gpu_rows{per_row=64}", "gpu_rows{per_row=8 vec=2 unroll=1}",
               "gpu_rows{threads=64 per_row=64 vec=1 blocks=4 index=64}", "gpu_rows{per_row=1 vec=1 unroll=4 blocks=8}",
               "gpu_rows{threads=64 per_row=16 unroll=1 blocks=2}", "gpu_pointwise{vec=1}"]
SHARED = "gpu_rows{threads=64 per_row=64 vec=1 blocks=4}"


@pytest.mark.sampled(6)
@pytest.mark.parametrize("config", ROW_CONFIGS)
@pytest.mark.parametrize("kind", ["sum", "softmax", "layernorm", "sum0"])
def test_rows(kind: str, config: str) -> None:
    sizes = [(1, 1), (5, 8), (3, 37), (9, 256), (130, 100), (128, 31), (7, 200)]
    ran = sweep(rows(kind), config, "MN", sizes, seed=1)
    assert ran == len(sizes) if "vec=1" in config else ran > 0


@pytest.mark.sampled(3)
@pytest.mark.parametrize("columns,element,kind", list(AllPairs([
    [1, 2, 31, 32, 33, 61, 127, 128, 129, 255, 256, 257, 1021], ["f32", "f16", "bf16"], ["sum", "softmax"]])))
def test_rows_with_gaps_between_them(kind: str, element: str, columns: int) -> None:
    """Lengths around those of a warp, of a block and of what several blocks take, by odd strides."""
    gaps = {0: (0, 3)} if kind == "sum" else {0: (0, 3), 1: (0, 5)}
    for config in ("gpu_rows{vec=1}", "gpu_rows{threads=64 per_row=64 vec=1}", SHARED):
        assert sweep(rows(kind, element=element), config, "MN", [(1, columns), (3, columns)], seed=2, pads=gaps) == 2


def test_sums_of_shared_rows_are_the_same_for_every_schedule() -> None:
    case = rows("layernorm")
    assert [len(build(case.text, c).kernel.launches()) for c in (SHARED, "gpu_rows")] == [3, 1]
    assert len(build(rows("sum").text, SHARED).kernel.launches()) == 2
    dims = {"M": 3, "N": 3000}
    inputs = [Placed(random(t, dims, i)) for i, t in enumerate(case.inputs)]
    found = [run(case.text, SHARED, dims, inputs, [Placed(random(t, dims)) for t in case.results], seed)[0]
             for seed in (None, 1, 2)]
    assert found[0].tobytes() == found[1].tobytes() == found[2].tobytes()


def test_rows_longer_than_what_is_held_are_refused() -> None:
    assert sweep(rows("softmax"), "gpu_rows{vec=1 vectors-in-registers=2 unroll=1}", "MN", [(4, 65), (4, 64)]) == 1
    with pytest.raises(BuildError, match="rows of at most 64 columns"):
        build(rows("softmax", 65).text, "gpu_rows{vec=1 vectors-in-registers=2 unroll=1}")


@pytest.mark.parametrize("columns", [1, 31, 32, 100, 129, 768])
@pytest.mark.parametrize("kind", ["softmax", "layernorm"])
def test_rows_of_static_length(kind: str, columns: int) -> None:
    case = rows(kind, columns)
    assert sweep(case, "gpu_rows{threads=64 per_row=64 vec=4 vectors-in-registers=4 unroll=1}", "M", [(1,), (7,)]) == 2


@pytest.mark.parametrize("element", ["f16", "f64"])
def test_rows_of_other_types(element: str) -> None:
    for config in ("gpu_rows{vec=1}", "gpu_rows{per_row=64 vec=2 vectors-in-registers=2 unroll=1}"):
        assert sweep(rows("softmax" if element == "f16" else "sum", element=element), config, "MN", [(3, 8), (5, 36)]) == 2


@pytest.mark.parametrize("element", ["f16", "bf16"])
def test_rounded_softmax_takes_few_instructions(element: str) -> None:
    """16 bytes an access, exponentials by one instruction each, one division a row; what is no number stays where it is."""
    case, config = rows("softmax", element=element), "gpu_rows{vec=8 vectors-in-registers=2 unroll=1}"
    assert sweep(case, config, "MN", [(3, 8), (5, 36), (1, 40), (2, 512)], seed=4) == 3
    code = build(case.text, config).code.decode()
    wanted = {r"ld\.global\S*\.v4": 2, r"st\.global\S*\.v4": 2, r"ex2\.approx\.ftz": 16, r"(rcp|div)\.rn": 1}
    assert {x: len(re.findall(x, code)) for x in wanted} == wanted
    assert "ex2.approx" not in build(rows("softmax").text, "gpu_rows{vectors-in-registers=2 unroll=1}").code.decode()
    values = np.linspace(-100, 0, 5 * 64).reshape(5, 64)
    values[1, 7], values[2, 9], values[3, :], values[4, 3:5] = np.nan, -np.inf, -np.inf, np.inf
    x = values.astype(NUMPY[element])
    (found,) = run(case.text, config, {"M": 5, "N": 64}, [Placed(x)], [Placed(np.zeros_like(x))])
    with np.errstate(invalid="ignore"):
        (expected,) = np.atleast_3d(case.reference(x.astype(np.float64))).reshape(1, 5, 64)
    np.testing.assert_allclose(found.astype(np.float64), expected, rtol=0, atol=2**-10 if element == "f16" else 2**-7)


@pytest.mark.parametrize("config", ["gpu_pointwise{vec=1 index=64}", "gpu_pointwise", "gpu_pointwise{vec=2 chunks=3 threads=64}"])
def test_pointwise(config: str) -> None:
    case = pointwise("%s = arith.mulf %x0, %x1 : f32\n %t = math.erf %s : f32\n linalg.yield %t : f32",
                     lambda x, b: np.vectorize(__import__("math").erf, otypes=[np.float64])(x * b))
    sizes = [(1, 4), (3, 8), (127, 36), (64, 64), (0, 4)]
    assert sweep(case, config, "MN", sizes) == len(sizes)
    assert sweep(case, config, "MN", [(5, 7)]) == ("vec=1" in config)


@pytest.mark.parametrize("element", ["f16", "bf16", "f64", "i8", "i64"])
def test_pointwise_of_other_types(element: str) -> None:
    f = "f" if "f" in element else "i"
    body = f"%s = arith.mul{f} %x0, %x1 : {element}\n %t = arith.add{f} %s, %x0 : {element}\n linalg.yield %t : {element}"
    case, gaps = pointwise(body, lambda x, b: x * b + x, element), {0: (0, 3), 2: (0, 5)}
    sizes = [(1, 1), (3, 37), (31, 33), (2, 257)]
    for config in ("gpu_pointwise{vec=1}", "gpu_pointwise{vec=1 index=64}"):
        assert sweep(case, config, "MN", sizes, pads=gaps) == len(sizes)
    assert sweep(case, "gpu_pointwise{vec=2}", "MN", [(1, 2), (3, 38), (31, 66)], pads={0: (0, 2), 2: (0, 4)}) == 3


@pytest.mark.parametrize("element", ["f16", "i8", "f64"])
def test_transpose_of_other_types(element: str) -> None:
    sizes = [(1, 1), (31, 33), (32, 32), (67, 5)]
    assert sweep(transpose(element), "gpu_pointwise{vec=1 tile=32}", "MN", sizes, pads={0: (0, 3), 1: (0, 1)}) == len(sizes)


@pytest.mark.parametrize("plus", [False, True])
@pytest.mark.parametrize("config", ["gpu_pointwise{vec=1}", "gpu_pointwise", "gpu_pointwise{vec=1 tile=32}"])
def test_transpose(config: str, plus: bool) -> None:
    assert sweep(transpose(plus=plus), config, "MN", [(4, 8), (36, 33), (64, 1)], seed=1) == 3


def test_tiles_of_a_transpose_read_and_write_whole_sectors() -> None:
    """The tiled kernel keeps the operand in shared memory; the plain one has none."""
    assert build(transpose().text, "gpu_pointwise{vec=1 tile=32}").kernel.shared_bytes == 32 * 33 * 4
    assert build(transpose().text, "gpu_pointwise{vec=1}").kernel.shared_bytes == 0
    straight = pointwise("%s = arith.addf %x0, %x1 : f32\n linalg.yield %s : f32", np.add)
    assert build(straight.text, "gpu_pointwise{vec=1 tile=32}").kernel.shared_bytes == 0


@pytest.mark.parametrize("config,columns", [("gpu_pointwise{vec=1}", 5), ("gpu_pointwise{vec=1 index=64}", 1),
                                            ("gpu_pointwise", 36)])
@pytest.mark.parametrize("element,index", [("f32", "i64"), ("f32", "i32"), ("f16", "i64"), ("i8", "i32"), ("f64", "i64")])
def test_gather(element: str, index: str, config: str, columns: int) -> None:
    case = gather(element, index)
    dims = {"M": 7, "N": columns, "K": 131}
    table = random(case.inputs[0], dims)
    at = np.random.default_rng(0).integers(0, 7, 131).astype(NUMPY[index])
    got = run(case.text, config, dims, [Placed(table), Placed(at)], [Placed(random(case.results[0], dims))])
    np.testing.assert_array_equal(got[0], table[at])


@pytest.mark.parametrize("config", ["gpu_pointwise{vec=1}", "gpu_pointwise"])
@pytest.mark.parametrize("case,extent", [(concat(), lambda m, n: 2 * n + 8), (padded(), lambda m, n: n + 4),
                                         (diagonals(), lambda m, n: m + n - 1)], ids=["concat", "padded", "diagonals"])
def test_parts_pads_and_scatters(case: Case, extent: Callable[[int, int], int], config: str) -> None:
    """Vectors cross the borders of parts, lane by lane."""
    sizes = [(m, n, extent(m, n)) for m, n in ((1, 1), (3, 5), (4, 12), (7, 32))]
    ran = sweep(case, config, "MNL", sizes)
    assert ran == len(sizes) if "vec=1" in config else ran > 1
