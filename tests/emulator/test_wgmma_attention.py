"""Family `wgmma_attention` on the emulator, under all of its checks, against NumPy in f64."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

import numpy as np
import pytest
from attention_workloads import LAYOUTS, attention, dims_of
from gpu_harness import Placed, build, check, launch, place, random, run
from gpu_workloads import Case

from tilewright.runtime.emulator import EmulatorDevice
from tilewright.runtime.emulator.machine.findings import EmulatorError
from tilewright.runtime.errors import BuildError

ARCH = "sm_90a"
SMALL, PAIR = "wgmma_attention{consumers=1 bn=64}", "wgmma_attention{bn=64}"
PARTS = "wgmma_attention{consumers=1 bn=64 split-kv=4}"
TOLERANCE = {"f16": 2e-3, "bf16": 1.6e-2}


def sweep(case: Case, config: str, sizes: Sequence[tuple[int, ...]], element: str = "f16", seed: int | None = None,
          **given: object) -> int:
    """Checks all sizes; the number of those that the kernel's guards let run."""
    dims = [dict(zip(dims_of(case), size, strict=True)) for size in sizes]
    return sum(check(case.text, config, case.inputs, case.results, d, case.reference, seed, tolerance=TOLERANCE[element],
                     arch=ARCH, **given) for d in dims)  # type: ignore[arg-type]


SIZES = [(1, 1, 1), (1, 7, 63), (1, 63, 129), (2, 65, 65), (0, 3, 3)]


@pytest.mark.parametrize("mask,config,sizes", [("causal", SMALL, SIZES), ("", PAIR, [(1, 129, 65), (1, 9, 0)]),
                                               ("added causal", PARTS, [(1, 7, 300), (1, 1, 1), (1, 9, 0)])])
def test_lengths_and_masks(mask: str, config: str, sizes: list[tuple[int, ...]]) -> None:
    assert sweep(attention(mask=mask), config, sizes) == len(sizes)


TILES = "wgmma_attention{bn=64 blocks=2 pingpong=true}"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mask,config,sizes", [
    ("causal", TILES, [(2, 200, 200), (1, 1, 1), (1, 150, 40), (0, 3, 3)]), ("", TILES, [(3, 130, 100)]),
    ("row", "wgmma_attention{consumers=1 bn=64 stages=3 blocks=3}", [(5, 70, 130)]),
    ("causal", "wgmma_attention{bn=64 pingpong=true}", [(1, 129, 200), (1, 5, 0)])])
def test_blocks_take_tiles_and_warpgroups_turns(mask: str, config: str, sizes: list[tuple[int, ...]]) -> None:
    """Several tiles a block, the last round of them not full, tiles without a visible key among them."""
    assert sweep(attention(mask=mask), config, sizes) == len(sizes)


@pytest.mark.parametrize("config,columns,sizes", [
    (TILES, 64, [(3, 130, 70), (1, 1, 1)]), ("wgmma_attention{bn=64 consumers=1}", 128, [(1, 70, 40), (2, 3, 4)])])
def test_results_leave_by_copies(config: str, columns: int, sizes: list[tuple[int, ...]]) -> None:
    """Tiles that jut out below, and warpgroups whose rows all lie behind the last one."""
    case = attention(columns=columns, out="f16", mask="causal")
    assert sweep(case, config.replace("}", " copied=true}"), sizes) == len(sizes)


def test_blocks_that_take_tiles_want_keys() -> None:
    """Each tile has a step."""
    assert sweep(attention(), TILES, [(1, 9, 0)]) == 0


def test_masks_from_memory() -> None:
    """Pairs of the mask need an even distance between its rows."""
    assert sweep(attention(mask="row"), PAIR, [(1, 65, 130), (1, 7, 63)]) == 1
    assert sweep(attention(mask="row"), PAIR.replace("}", " vec=1}"), [(1, 7, 63)]) == 1


@pytest.mark.parametrize("config", [SMALL, PARTS])
def test_lengths_from_memory(config: str) -> None:
    """From none of the keys on; steps behind a length are left out."""
    assert sweep(attention(mask="lengths"), config, [(3, 7, 140), (2, 1, 8)]) == 2


@pytest.mark.parametrize("layout", ["turned", "grouped"])
def test_layouts(layout: str) -> None:
    case = attention(LAYOUTS[layout], "bf16", mask="causal")
    assert sweep(case, SMALL, [(2, 3, 20, 72) if layout == "grouped" else (2, 24, 72)], "bf16") == 1


@pytest.mark.parametrize("depth,columns", [(80, 96), (256, 256), (24, 40)])
def test_head_sizes(depth: int, columns: int) -> None:
    assert sweep(attention(depth=depth, columns=columns, out="f16"), SMALL, [(1, 9, 65)]) == 1


def test_what_copies_cannot_bring_is_refused() -> None:
    with pytest.raises(BuildError, match="operand 0 is computed"):
        build(attention(computed=True).text, SMALL, ARCH)
    assert sweep(attention(), SMALL, [(2, 20, 40)], pads={0: (0, 0, 3)}) == 0
    assert sweep(attention(), SMALL, [(2, 20, 40)], pads={0: (0, 0, 8), 1: (8, 0, 16), 3: (0, 0, 8)}, offsets={0: 8, 2: 16}) == 1


@pytest.mark.parametrize("seed", range(2))
def test_any_order_of_warps_and_copies(seed: int) -> None:
    assert sweep(attention(mask="causal"), "wgmma_attention{bn=64 stages=3}", [(1, 129, 200)], seed=seed) == 1
    assert sweep(attention(mask="causal"), TILES, [(1, 300, 130)], seed=seed) == 1


def test_nan_and_infinity_stay_in_their_rows() -> None:
    case = attention(mask="row")
    rng = np.random.default_rng(5)
    arrays = [rng.standard_normal(s).astype(t) for s, t in (((1, 40, 64), np.float16), ((1, 160, 64), np.float16),
                                                            ((1, 160, 64), np.float16), ((40, 160), np.float32))]
    arrays[0][0, 3] = np.nan
    arrays[0][0, 7] = np.inf
    arrays[3][9] = -np.inf
    arrays[3][10, 70:] = -np.inf  # steps whose keys are all masked come before those that count
    arrays[3][11] = np.linspace(300, 0, 160)  # the maximum rises from step to step
    (got,) = run(case.text, SMALL, {"B": 1, "M": 40, "N": 160}, [Placed(a) for a in arrays],
                 [Placed(np.zeros((1, 40, 64), np.float32))], arch=ARCH)
    want = np.asarray(case.reference(*(a.astype(np.float64) for a in arrays)))
    assert sorted(set(np.nonzero(np.isnan(got))[1])) == [3, 7, 9]
    fine = ~np.isnan(want)
    np.testing.assert_allclose(got[fine], want[fine], atol=2e-3)


# -- what the checks find when the kernel is changed


@functools.cache
def text() -> str:
    return build(attention(mask="causal").text, SMALL, ARCH).code.decode()


def broken(ptx: str, seed: int | None) -> str:
    """A finding's name, "wrong" or "" when all is well."""
    case, dims = attention(mask="causal"), {"B": 1, "M": 40, "N": 200}
    built, device = build(case.text, SMALL, ARCH), EmulatorDevice(ARCH, seed=seed, budget=300_000)
    arrays = [random(t, dims, i) for i, t in enumerate((*case.inputs, *case.results))]
    setup = place(device, built.kernel, dims, [Placed(a) for a in arrays[:3]], [Placed(arrays[3])])
    try:
        launch(device, built.kernel, ptx.encode(), dims, setup.args)
        got = device.copy_out(setup.pointers[3], arrays[3].shape, np.float32)
    except EmulatorError as error:
        return error.finding.check.value if error.finding is not None else str(error)
    wanted = np.asarray(case.reference(*(a.astype(np.float64) for a in arrays[:3])))
    return "" if np.abs(got - wanted).max() < 2e-3 else "wrong"


def test_a_fence_hands_registers_to_products() -> None:
    """None at all, and a register of exponentials that is written behind one."""
    assert broken(text(), 3) == ""
    assert broken(text().replace("wgmma.fence.sync.aligned;", ""), None) == "missing-proxy-fence"
    late = re.sub(r"(wgmma\.mma_async\S+ \{[^}]*\}, \{(%r\d+))", r"mov.b32 \2, \2;\n\1", text())
    assert broken(late, None) == "missing-proxy-fence"


def test_registers_of_a_product_in_flight_stay_as_they_are() -> None:
    """Exponentials overwritten before the wait for the product that multiplies them."""
    first = re.search(r"wgmma\.mma_async\S+ \{[^}]*\}, \{(%r\d+)", text())
    assert first is not None
    early = re.sub(r"(wgmma\.wait_group\.sync\.aligned 1;)", rf"\1\nadd.s32 {first[1]}, {first[1]}, 1;", text())
    assert early != text()
    assert broken(early, None) == "used-before-complete"
