"""Family `wgmma` on the emulator, under all of its checks, against NumPy in f64."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gpu_harness import Placed, build, check, launch, place, random, run
from gpu_workloads import Case
from tensor_core_workloads import convolution, product, shortened

from tilewright.runtime.emulator import EmulatorDevice, EmulatorError
from tilewright.runtime.errors import BuildError

ARCH = "sm_90a"
LAYOUTS = {"nn": "m k,k n,m n", "nt": "m k,n k,m n", "tn": "k m,k n,m n", "tt": "k m,n k,m n", "transposed_result": "m k,k n,n m"}
SMALL = "wgmma{bm=64 bn=64 consumers=1 stages=3 blocks=2}"
HARD = [(64, 64, 64), (8, 8, 8), (136, 72, 200)]


def sweep(case: Case, config: str, names: str, sizes: list[tuple[int, ...]], seed: int | None = None, **given: object) -> int:
    """Checks all sizes; the number of those that the kernel's guards let run."""
    dims = [dict(zip(names, size, strict=True)) for size in sizes]
    return sum(check(case.text, config, case.inputs, case.results, d, case.reference, seed, ARCH, **given) for d in dims)  # type: ignore[arg-type]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("element", ["f16", "bf16"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_matmul(layout: str, element: str) -> None:
    assert sweep(product(LAYOUTS[layout], element), SMALL, "MNK", HARD, seed=0 if element == "f16" else None) == len(HARD)


@pytest.mark.parametrize("element", ["f8E4M3FN", "f8E5M2", "i8"])
def test_bytes_along_k(element: str) -> None:
    """Of 8-bit floats the tensor cores of an H200 drop bits of each sum: up to 5.4e-4 of the largest was seen."""
    case = product("m k,n k,m n", element)
    given = {} if element == "i8" else {"tolerance": 8e-4}
    assert sweep(case, SMALL, "MNK", [(16, 16, 16), (72, 80, 272)], **given) == 2
    with pytest.raises(BuildError, match="must be contiguous along k"):
        build(product("m k,k n,m n", element).text, SMALL, ARCH)


TILES = ["wgmma{bm=128 bn=32 stages=2 blocks=0}", "wgmma{bm=256 bn=64 stages=2 consumers=2 blocks=1}",
         "wgmma{bm=192 bn=128 consumers=3 stages=3 blocks=1 group-m=1}", "wgmma{bm=128 bn=256 stages=3}"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("config", TILES)
def test_tiles(config: str) -> None:
    layout = "nt" if "bn=32" in config else "nn"
    assert sweep(product(LAYOUTS[layout]), config, "MNK", [(200, 264, 136)], seed=1) == 1


def test_three_warpgroups_of_64_rows() -> None:
    config = "wgmma{bm=192 bn=192 consumers=3 stages=2 blocks=1 copied=true}"
    assert sweep(product("m k,n k,m n", out="bf16"), config, "MNK", [(200, 200, 136)], seed=1) == 1


CLUSTERS = ["wgmma{bm=64 bn=64 consumers=1 stages=3 blocks=2 cluster-m=2}", "wgmma{bm=128 bn=64 stages=2 blocks=0 cluster-n=2}",
            "wgmma{bm=64 bn=128 consumers=1 stages=3 blocks=4 group-m=1 cluster-n=4}"]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("layout,config,seed", [("nn", CLUSTERS[0], None), ("nn", CLUSTERS[1], 0), ("nt", CLUSTERS[2], 1),
                                                ("nt", CLUSTERS[0], 0), ("tn", CLUSTERS[1], None), ("tn", CLUSTERS[2], 0)])
def test_clusters(layout: str, config: str, seed: int | None) -> None:
    """Odd numbers of tiles, fewer than a cluster takes, and several of them for each."""
    assert sweep(product(LAYOUTS[layout]), config, "MNK", [(8, 8, 8), (136, 200, 136)], seed) == 2


WIDE = ["wgmma{bm=64 bn=64 consumers=1 stages=2 blocks=4 cluster-m=2 cluster-n=2 deep=2}",
        "wgmma{bm=64 bn=128 stages=2 blocks=8 copied=true pingpong=true cluster-m=4 cluster-n=2}",
        "wgmma{bm=64 bn=64 consumers=1 stages=3 blocks=0 cluster-m=2 cluster-n=2 cluster-k=2}",
        "wgmma{bm=128 bn=64 stages=2 blocks=0 cluster-n=2 cluster-k=4 deep=2}"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("layout,config,seed", [("nn", WIDE[0], None), ("tn", WIDE[1], 0), ("nt", WIDE[2], 1),
                                                ("nn", WIDE[3], 2)])
def test_clusters_below_and_beside_each_other(layout: str, config: str, seed: int | None) -> None:
    """Each with some of what it reads in common with others, alone or with parts of k too; steps of one and two rows."""
    case = product(LAYOUTS[layout], out="f16")
    assert sweep(case, config, "MNK", [(136, 264, 200), (8, 8, 8), (72, 136, 0)], seed) == 3


@pytest.mark.parametrize("element", ["f16", "i8"])
def test_steps_of_two_rows(element: str) -> None:
    """More positions of k than a step, fewer, and none."""
    case = product("m k,n k,m n", element)
    config = "wgmma{bm=128 bn=64 stages=2 blocks=2 deep=2}"
    assert sweep(case, config, "MNK", [(136, 80, 592), (16, 16, 16), (8, 16, 0)], seed=1) == 3


def test_clusters_of_parts_batches_and_bytes() -> None:
    config = "wgmma{bm=64 bn=64 consumers=1 stages=3 blocks=0 split-k=2 cluster-m=2}"
    assert sweep(product("b m k,b n k,b m n", epilogue="relu"), config, "BMNK", [(2, 72, 40, 456)], seed=1) == 1
    assert sweep(product("m k,n k,m n", "i8"), "wgmma{bm=64 bn=64 consumers=1 cluster-m=2}", "MNK", [(72, 80, 272)], seed=0) == 1
    copied = "wgmma{bm=64 bn=64 consumers=1 blocks=2 copied=true cluster-n=2}"
    assert sweep(product("m k,k n,m n", out="f16"), copied, "MNK", [(72, 136, 104)], seed=2) == 1


@pytest.mark.parametrize("split", [2, 5])
def test_split_sums(split: int) -> None:
    config = f"wgmma{{bm=64 bn=64 consumers=1 stages=3 blocks=0 split-k={split}}}"
    case = product("b m k,b n k,b m n", epilogue="relu")
    assert sweep(case, config, "BMNK", [(2, 72, 40, 456), (1, 8, 8, 8)], seed=1) == 2


def test_tf32() -> None:
    """Copies cannot round: what is beyond 10 bits of mantissa is cut off."""
    case = product("m k,n k,m n", "f32")
    exact = case.reference
    cut = replace(case, reference=lambda a, b: exact(shortened(a), shortened(b)))
    assert sweep(cut, "wgmma{bm=64 bn=64 consumers=1 tf32=true}", "MNK", [(72, 64, 100)]) == 1


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


@pytest.mark.sampled(4)
@pytest.mark.parametrize("out", ["", "f16"])
@pytest.mark.parametrize("epilogue", ["relu", "tanh"])
@pytest.mark.parametrize("copied", ["false", "true"])
def test_epilogues(copied: str, epilogue: str, out: str) -> None:
    case = product("m k,k n,m n", epilogue=epilogue, out=out)
    config = f"wgmma{{bm=64 bn=128 consumers=1 stages=2 blocks=2 copied={copied}}}"
    assert sweep(case, config, "MNK", [(32, 64, 32), (72, 136, 104)], seed=2) == 2


PINGPONG = ["wgmma{bm=64 bn=64 stages=3 blocks=1 copied=true pingpong=true}",
            "wgmma{bm=128 bn=64 stages=2 blocks=2 pingpong=true}",
            "wgmma{bm=64 bn=128 stages=3 blocks=2 copied=true pingpong=true cluster-m=2}"]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("config,seed", [(PINGPONG[0], None), (PINGPONG[0], 1), (PINGPONG[1], 0), (PINGPONG[2], None),
                                         (PINGPONG[2], 2)])
def test_warpgroups_take_turns(config: str, seed: int | None) -> None:
    """Odd and even numbers of tiles, one, and none for the second; k of no, one and several steps."""
    case = product("m k,k n,m n", out="f16", epilogue="relu" if seed is None else "")
    assert sweep(case, config, "MNK", [(264, 72, 136), (8, 8, 8), (72, 136, 0)], seed) == 3


PARTS_OF_ROWS = [("nn", "f16", "bm=64 bn=96 consumers=1 stages=3 blocks=2 copied=true"),
                 ("nn", "bf16", "bm=128 bn=160 stages=2 blocks=2 copied=true cluster-m=2"),
                 ("tn", "f16", "bm=64 bn=144 consumers=1 stages=2 blocks=1 copied=true deep=2"),
                 ("nn", "", "bm=64 bn=80 consumers=1 stages=3 blocks=2 copied=true"),
                 ("nn", "f16", "bm=128 bn=240 stages=2 blocks=1"),
                 ("nt", "f16", "bm=64 bn=112 consumers=2 stages=3 blocks=2 copied=true pingpong=true"),
                 ("nn", "f16", "bm=64 bn=96 consumers=1 stages=2 blocks=0 cluster-k=2"),
                 ("nn", "", "bm=64 bn=112 consumers=1 stages=2 blocks=3 copied=true streamed=true"),
                 ("transposed_result", "f16", "bm=64 bn=80 consumers=1 stages=2 blocks=1 copied=true")]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("layout,out,config", PARTS_OF_ROWS)
def test_columns_that_are_parts_of_rows(layout: str, out: str, config: str) -> None:
    """Tiles that read a part of the last row of 128 bytes that copies bring, and whose results leave in boxes of 32 and 64."""
    sizes = [(136, 264, 200), (200, 136, 72), HARD[1]]
    assert sweep(product(LAYOUTS[layout], out=out), f"wgmma{{{config}}}", "MNK", sizes, 0) == 3


@pytest.mark.parametrize("maps", ["b m k,b n k,b m n", "b m k,b k n,m b n", "k m,k n,n m"])
def test_results_leave_by_copies(maps: str) -> None:
    order = "".join(x.upper() for x in "bmn" if x in maps.split(",")[2]) + "K"
    sizes = [(3, 40, 72, 24), (1, 136, 8, 72)] if "b" in maps else [(40, 72, 24), (136, 8, 72)]
    for seed in (None, 1):
        assert sweep(product(maps, out="bf16"), "wgmma{bm=128 bn=64 stages=2 blocks=1 copied=true}", order, sizes, seed) == 2


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(2))
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

STREAMED = ["wgmma{bm=64 bn=64 consumers=1 stages=3 blocks=3 streamed=true}",
            "wgmma{bm=64 bn=64 consumers=1 stages=2 blocks=5 group-m=2 vec=1 streamed=true}",
            "wgmma{bm=128 bn=64 stages=2 blocks=4 copied=true cluster-n=2 streamed=true}",
            "wgmma{bm=64 bn=64 consumers=1 stages=2 blocks=8 cluster-m=2 cluster-n=2 deep=2 streamed=true}"]
SHARED_OUT = [(136, 200, 136), (136, 72, 328), (8, 8, 8), (64, 64, 584), (72, 136, 0)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("layout,config,seed", [("nn", STREAMED[0], None), ("nt", STREAMED[1], 0), ("tn", STREAMED[2], 1),
                                                ("nt", STREAMED[3], 2)])
def test_steps_shared_evenly(layout: str, config: str, seed: int | None) -> None:
    """Fewer tiles than workers and more, tiles that no worker and that all of them have a part of, fewer steps than workers."""
    case = product(LAYOUTS[layout], out="f16")
    assert sweep(case, config, "MNK", SHARED_OUT, seed) == len(SHARED_OUT)


@pytest.mark.parametrize("layout,element,config,given", [
    ("b m k,b n k,b m n", "bf16", "wgmma{bm=64 bn=64 consumers=1 stages=2 blocks=3 streamed=true}", {"epilogue": "relu"}),
    ("m k,n k,m n", "i8", "wgmma{bm=64 bn=32 consumers=1 stages=2 blocks=2 streamed=true}", {}),
    ("m k,n k,m n", "f8E4M3FN", "wgmma{bm=64 bn=64 consumers=1 stages=2 blocks=2 streamed=true}", {"tolerance": 8e-4})])
def test_steps_of_batches_and_bytes_shared_evenly(layout: str, element: str, config: str, given: dict[str, Any]) -> None:
    tolerance = {"tolerance": given["tolerance"]} if "tolerance" in given else {}
    case = product(layout, element, epilogue=given.get("epilogue", ""))
    names, sizes = ("BMNK", [(2, 72, 40, 456), (3, 8, 8, 8)]) if "b" in layout else ("MNK", [(72, 80, 528), (16, 16, 16)])
    assert sweep(case, config, names, sizes, 1, **tolerance) == 2


def test_steps_are_shared_alike_on_every_device() -> None:
    """Where a device holds fewer blocks than share the steps, a block does what several would, and the sums have the same bits:
    those of four parts of k in their order, not those of the whole."""
    case, sizes = product("m k,n k,m n"), {"M": 64, "N": 64, "K": 512}
    arrays = [random(t, sizes, i) for i, t in enumerate(case.inputs)]

    def run_on(multiprocessors: int | None, config: str) -> np.ndarray:
        device = EmulatorDevice(ARCH, seed=1, multiprocessors=multiprocessors)
        outputs = [Placed(np.zeros((64, 64), np.float32))]
        return run(case.text, config, sizes, [Placed(a) for a in arrays], outputs, arch=ARCH, device=device)[0]

    tile = "wgmma{bm=64 bn=64 consumers=1 stages=3"
    shared = [run_on(units, f"{tile} blocks=4 streamed=true}}") for units in (None, 3, 1)]
    np.testing.assert_array_equal(shared[0], run_on(None, f"{tile} blocks=0 split-k=4}}"))
    for other in shared[1:]:
        np.testing.assert_array_equal(shared[0], other)
    assert not np.array_equal(shared[0], run_on(None, f"{tile} blocks=1}}"))


# -- what the checks find when a kernel is changed


def broken(text: str, seed: int | None, config: str = "") -> str:
    """What happens when the kernel of `text` multiplies 136 x 72 x 328: a finding's name, "wrong" or "" when all is well."""
    case = product("m k,n k,m n")
    sizes = {"M": 136, "N": 72, "K": 328}
    built = build(case.text, config or MUTANT, ARCH)
    device = EmulatorDevice(ARCH, seed=seed, budget=300_000)
    arrays = [random(t, sizes, i) for i, t in enumerate(case.inputs)]
    wanted = case.reference(*(a.astype(np.float64) for a in arrays))
    setup = place(device, built.kernel, sizes, [Placed(a) for a in arrays], [Placed(np.zeros(np.shape(wanted), np.float32))])
    try:
        launch(device, built.kernel, text.encode(), sizes, setup.args)
        got = device.copy_out(setup.pointers[-1], np.shape(wanted), np.float32)
    except EmulatorError as error:
        return error.finding.check.value if error.finding is not None else str(error)
    return "" if np.abs(got - wanted).max() < 1e-3 else "wrong"


MUTANT = "wgmma{bm=128 bn=64 stages=3 blocks=1}"
EARLY = {"shared-memory-race", "wrong", "used-before-complete"}
UNREADY = {"shared-memory-race", "uninitialised-read"}
DESCRIPTOR = r"4611686293305\d+"
MUTATIONS: dict[str, tuple[str, Any, set[str]]] = {
    "no mbarrier fence": (r"fence\.mbarrier_init[^;]*;", "", {"missing-proxy-fence"}),
    "no wgmma fence": (r"wgmma\.fence[^;]*;", "", {"missing-proxy-fence"}),
    "stages released too early": (r"wgmma\.wait_group\.sync\.aligned\s+1;", "", EARLY),
    "sums used too early": (r"wgmma\.wait_group\.sync\.aligned\s+0;", "", EARLY),
    "no swizzle in descriptors": (DESCRIPTOR, lambda m: str(int(m[0]) & ~(1 << 62)), {"wrong"}),
    "other stride in descriptors": (DESCRIPTOR, lambda m: str(int(m[0]) ^ (3 << 37)), {"wrong", "out-of-bounds", *UNREADY}),
    "stages never released": (r"mbarrier\.arrive\.shared\.b64[^;]*;", "", {"deadlock"}),
    "too few bytes announced": (r"(expect_tx[^;]*, )(%r\d+|\d+);", r"\g<1>16384;", {"deadlock", *UNREADY}),
    "no wait for copies": (r"mbarrier\.try_wait\.parity[^;]*;", "setp.eq.b32 P1, 0, 0;", {"barrier-divergence", *UNREADY}),
    "no barrier after initialisation": (r"bar\.sync\s+0;", "", UNREADY),
    "no warp barrier around results": (r"bar\.warp\.sync[^;]*;", "", {"shared-memory-race"}),
}


def test_the_kernel_as_it_is_has_no_findings() -> None:
    text = build(product("m k,n k,m n").text, MUTANT, ARCH).code.decode()
    assert [broken(text, seed) for seed in (None, 5)] == ["", ""]


@pytest.mark.parametrize("piece,wanted", [(r"fence\.proxy\.async[^;]*;", {"missing-proxy-fence"}),
                                          (r"cp\.async\.bulk\.wait_group[^;]*;", {"shared-memory-race", "used-before-complete"})])
def test_a_changed_store_is_found(piece: str, wanted: set[str]) -> None:
    config = MUTANT.replace("}", " copied=true}")
    text = build(product("m k,n k,m n").text, config, ARCH).code.decode()
    assert broken(text, 1, config) == ""
    assert any(broken(re.sub(piece, "", text), seed, config) in wanted for seed in (0, None, 1, 2))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_changed_kernel_is_found(name: str) -> None:
    pattern, replacement, wanted = MUTATIONS[name]
    text = build(product("m k,n k,m n").text, MUTANT, ARCH).code.decode()
    changed, count = re.subn(pattern, replacement, text)
    assert count
    found = {broken(changed, seed) for seed in (None, 5)}
    assert found - {""}
    assert found <= wanted
