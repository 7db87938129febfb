"""Family `gpu_attention` on the emulator, under all of its checks, against NumPy in f64."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from attention_workloads import LAYOUTS, attention, dims_of
from gpu_harness import Placed, build, check, launch, place, random, run
from gpu_workloads import Case

from tilewright.passes.analysis.attention import Attention
from tilewright.passes.codegen.attention_mask import AttentionMask
from tilewright.passes.linalg.symbolic import SymbolicShapes
from tilewright.passes.mlir import functions, ir, operations
from tilewright.runtime.emulator import EmulatorDevice
from tilewright.runtime.errors import BuildError
from tilewright.runtime.shape import Expr

SMALL = "gpu_attention{bm=32 bn=32}"
FREE = "gpu_attention{bm=64 bn=16 stages=3 vec=1 index=64 queries-in-registers=false}"
SPLIT = "gpu_attention{bm=16 bn=32 split-kv=4}"
SIZES = [(1, 1, 1), (2, 40, 72), (1, 33, 100), (1, 70, 65), (0, 3, 3), (1, 0, 4), (1, 9, 0)]
HALVES = {"f16": 2e-3, "bf16": 1.6e-2, "f32": 2e-3}


def sweep(case: Case, config: str, sizes: Sequence[tuple[int, ...]], element: str = "f16", seed: int | None = None,
          **given: object) -> int:
    """Checks all sizes; the number of those that the kernel's guards let run."""
    dims = [dict(zip(dims_of(case), size, strict=True)) for size in sizes]
    return sum(check(case.text, config, case.inputs, case.results, d, case.reference, seed, tolerance=HALVES[element], **given)
               for d in dims)  # type: ignore[arg-type]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("config", [SMALL, FREE, SPLIT])
@pytest.mark.parametrize("mask", ["", "causal", "added causal"])
def test_lengths_and_masks(mask: str, config: str) -> None:
    assert sweep(attention(mask=mask, depth=32, columns=32), config, SIZES) == len(SIZES)


@pytest.mark.parametrize("config", [SMALL, FREE, SPLIT])
def test_masks_from_memory(config: str) -> None:
    """Pairs of the mask need an even distance between its rows."""
    odd = 0 if config == FREE else 3
    assert sweep(attention(mask="row", depth=32, columns=32), config, SIZES) == len(SIZES) - odd


@pytest.mark.sampled(4)
@pytest.mark.parametrize("layout,element", [*((x, "f16") for x in LAYOUTS), ("turned", "f32"), ("grouped", "f32"),
                                            ("heads inside", "bf16")])
def test_layouts(layout: str, element: str) -> None:
    case = attention(LAYOUTS[layout], element, depth=32, columns=32, mask="causal")
    sizes = {"grouped": [(2, 3, 20, 40)], "one head": [(17, 40)]}.get(layout, [(2, 24, 40)])
    more = " tf32=true vec=4}" if element == "f32" else "}"
    assert sweep(case, f"gpu_attention{{bm=64 bn=32 stages=3{more}", sizes, element) == 1
    more = more.replace(" vec=4", "")
    assert sweep(case, f"gpu_attention{{bm=32 wm=32 bn=16 vec=1 queries-in-registers=false{more}", sizes, element) == 1


@pytest.mark.parametrize("depth,columns", [(128, 128), (80, 48), (5, 7), (256, 256)])
def test_head_sizes(depth: int, columns: int) -> None:
    config = SMALL.replace("}", " queries-in-registers=false}") if depth > 128 else SMALL
    assert sweep(attention(depth=depth, columns=columns), config, [(1, 40, 72)]) == 1
    if depth < 100:
        assert sweep(attention(depth=depth, columns=columns), FREE, [(1, 17, 23)]) == 1


@pytest.mark.parametrize("out", ["f16", "bf16"])
def test_what_is_fused_around(out: str) -> None:
    case = attention(out=out, computed=True, depth=32, columns=48)
    assert sweep(case, SMALL, [(2, 20, 40)], out) == 1
    assert sweep(case, SPLIT, [(2, 20, 40)], out) == 1


def test_views_with_gaps_and_offsets() -> None:
    case = attention(depth=32, columns=32)
    pads, offsets = {0: (0, 0, 8), 1: (8, 0, 16), 2: (0, 0, 8), 3: (0, 0, 4)}, {0: 8, 2: 16}
    assert sweep(case, SMALL, [(2, 20, 40)], pads=pads, offsets=offsets) == 1
    assert sweep(case, SMALL, [(2, 20, 40)], pads={0: (0, 0, 3)}) == 0
    assert sweep(case, FREE, [(2, 20, 41)], pads={0: (0, 0, 3), 2: (0, 0, 5)}, offsets={1: 1}) == 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("config", [SMALL, "gpu_attention{bm=32 bn=16 stages=3}", "gpu_attention{bm=32 bn=16 vec=1}", SPLIT])
def test_any_order_of_warps_and_copies(config: str, seed: int) -> None:
    assert sweep(attention(mask="causal", depth=32, columns=32), config, [(1, 33, 90), (1, 3, 2)], seed=seed) == 2


def test_nan_and_infinity_stay_in_their_rows() -> None:
    case = attention(depth=32, columns=32, mask="row")
    rng = np.random.default_rng(5)
    arrays = [rng.standard_normal(s).astype(t) for s, t in (((1, 40, 32), np.float16), ((1, 60, 32), np.float16),
                                                            ((1, 60, 32), np.float16), ((40, 60), np.float32))]
    arrays[0][0, 3] = np.nan
    arrays[0][0, 7] = np.inf
    arrays[3][9] = -np.inf
    arrays[3][10, :35] = -np.inf  # a step whose keys are all masked comes before those that count
    arrays[3][11] = np.linspace(0, 300, 60)  # the maximum rises from step to step
    for config in (SMALL, SPLIT):
        (got,) = run(case.text, config, {"B": 1, "M": 40, "N": 60}, [Placed(a) for a in arrays],
                     [Placed(np.zeros((1, 40, 32), np.float32))])
        want = np.asarray(case.reference(*(a.astype(np.float64) for a in arrays)))
        assert sorted(set(np.nonzero(np.isnan(got))[1])) == [3, 7, 9]
        fine = ~np.isnan(want)
        np.testing.assert_allclose(got[fine], want[fine], atol=2e-3)


def test_keys_that_no_query_sees_are_not_read() -> None:
    """Causal steps above the diagonal bring no copies: half of the work is left."""
    counts = []
    for mask in ("", "causal"):
        case = attention(mask=mask, depth=32, columns=32)
        built = build(case.text, "gpu_attention{bm=32 bn=16}")
        arrays = [random(t, {"B": 1, "M": 256, "N": 256}) for t in (*case.inputs, *case.results)]
        device = EmulatorDevice("sm_80")
        dims = {"B": 1, "M": 256, "N": 256}
        setup = place(device, built.kernel, dims, [Placed(a) for a in arrays[:3]], [Placed(arrays[3])])
        launch(device, built.kernel, built.code, dims, setup.args)
        counts.append(sum(n for name, n in device.launches[0].instructions.items() if name.startswith("mma")))
    assert counts[1] == counts[0] * 9 / 16


def test_steps_have_no_bank_conflicts() -> None:
    case = attention()
    built = build(case.text, "gpu_attention{bm=64 bn=64}")
    waves = []
    for keys in (64, 192):
        device = EmulatorDevice("sm_80", profile=True)
        dims = {"B": 1, "M": 64, "N": keys}
        arrays = [random(t, dims) for t in (*case.inputs, *case.results)]
        setup = place(device, built.kernel, dims, [Placed(a) for a in arrays[:3]], [Placed(arrays[3])])
        launch(device, built.kernel, built.code, dims, setup.args)
        waves.append((device.launches[0].shared_wavefronts, device.launches[0].shared_ideal))
    (first, least), (second, most) = waves
    assert second - first == most - least > 0


@pytest.mark.parametrize("mask,scale,reach", [("", 0.125, None), ("causal", 0.125, "N - M"), ("added causal", 0.5, "N - M"),
                                              ("row", None, None)])
def test_attention_mask(mask: str, scale: float | None, reach: str | None) -> None:
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(attention(mask=mask, scale=scale or 0.125).text)
        (fn,) = functions(module)
        ops, shapes = operations(fn.regions[0].blocks[0])[:-1], SymbolicShapes(fn)
        view = Attention.of(ops, shapes)
        found = AttentionMask.of(view, shapes)
        assert found.scale == scale
        assert found.reach == (None if reach is None else Expr.parse(reach))
        assert found.row == (None if reach is None else 1)
        assert module.operation.verify()


def test_what_tensor_cores_do_not_multiply_is_refused() -> None:
    with pytest.raises(BuildError, match="tensor cores do not multiply f32 by f32"):
        build(attention(element="f32").text, "gpu_attention")
    with pytest.raises(BuildError, match="head-size"):
        build(attention(depth=512).text, "gpu_attention")
