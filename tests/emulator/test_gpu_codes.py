"""Family `gpu_codes` on the emulator, under all of its checks, against NumPy in f64 on the decoded weights."""

from __future__ import annotations

import numpy as np
import pytest
from codes_workloads import Coded, Pooled, outlined
from gpu_harness import Placed, run
from gpu_harness import check as launched
from gpu_operands import NUMPY, T

from tilewright.passes.spaces.family_registry import config_text, parse_config
from tilewright.passes.spaces.gpu.gpu_codes import space, takes, why_invalid
from tilewright.passes.spaces.gpu.gpu_codes_heuristics import default
from tilewright.passes.spaces.numerics import PLAIN
from tilewright.runtime.limits import GpuLimits

NEAR = {"f32": 2e-6, "f16": 1e-3, "bf16": 8e-3}  # of the largest result
NAMES = {np.dtype(kind): name for name, kind in NUMPY.items()}
FORMATS = {
    "4 bits": (Coded(40, 256), "bytes=16 vec=4"),
    "4 bits, tails": (Coded(33, 104, 4, 16, "u8"), "bytes=4 vec=4"),
    "4 bits, odd k": (Coded(7, 37, 4, 32, 3.0), "bytes=1 vec=1"),
    "4 bits, zero points of floats": (Coded(40, 96, 4, 48, "f32"), "bytes=16 vec=4"),
    "2 bits": (Coded(35, 256, 2, 128), "bytes=16 vec=4"),
    "2 bits, whole columns": (Coded(33, 72, 2, 0, 1.5), "bytes=2 vec=4"),
    "1 bit": (Coded(33, 128, 1, 32), "bytes=16 vec=4"),
    "8 bits": (Coded(33, 160, 8, 32), "bytes=16 vec=4"),
    "8 bits, odd groups": (Coded(9, 60, 8, 20, 0.0), "bytes=4 vec=4"),
    "pool": (Pooled(40, 256), "bytes=16 vec=4"),
    "pool of 256, tails": (Pooled(33, 72, 256, 1, "f32", None), "bytes=1 vec=4"),
    "pool of 16 halves": (Pooled(33, 160, 16, 1, "f16"), "bytes=4 vec=4"),
    "two books": (Pooled(35, 128, 256, 2, "f32", None), "bytes=8 vec=4"),
}


def check(weight: Coded | Pooled, config: str, rows: int, arch: str = "sm_90a", seed: int | None = 1) -> None:
    """Of random operands in place of the arrays of the weight."""
    workload, given = weight.workload(None)
    limits = GpuLimits.of(arch)
    assert takes(workload, limits, PLAIN) is None and why_invalid(parse_config(config), workload, limits) is None  # type: ignore[arg-type]
    element = weight.element if isinstance(weight, Coded) else "f32"
    listed = weight.arrays if isinstance(weight, Coded) else weight.listed
    places = [next(i for i, a in enumerate(given) if a is not None and a.tobytes() == own.tobytes()) for own in listed]
    own = dict(zip(places, listed, strict=True))
    inputs = [T(NAMES[own[i].dtype], own[i].shape) if i in own else T(element, ("M", weight.k)) for i in range(len(given))]

    x = next(i for i, a in enumerate(given) if a is None)

    def reference(*operands: np.ndarray) -> np.ndarray:
        arrays = [operands[i].astype(a.dtype) for i, a in own.items()]
        return operands[x] @ weight.decoded(arrays).T

    dims = {"M": rows, workload.dims[0]: rows}
    results = [T(element, ("M", weight.n))]
    assert launched(workload.ir, config, inputs, results, dims, reference, seed, arch, tolerance=NEAR[element])


@pytest.mark.sampled(6)
@pytest.mark.parametrize("rows", [1, 3, 9])
@pytest.mark.parametrize("name", FORMATS)
def test_formats_and_tails(name: str, rows: int) -> None:
    """One row, where sums are scaled, and several, where values are; rows that end inside a block."""
    weight, options = FORMATS[name]
    height = 1 << (rows - 1).bit_length()
    check(weight, f"gpu_codes{{rows={height} warps=2 unroll=1 min-blocks-per-sm=1 {options}}}", rows)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("options", ["warps=2 cluster-k=2", "warps=2 split-k=4", "warps=2 cluster-k=4 unroll=2 ahead=true",
                                     "warps=4 ahead=true unroll=1"])
@pytest.mark.parametrize("weight", [Coded(40, 640, 4, 64, "u8"), Pooled(40, 576)], ids=["codes", "pool"])
def test_parts_of_k_and_codes_loaded_ahead(weight: Coded | Pooled, options: str) -> None:
    check(weight, f"gpu_codes{{rows=2 bytes=4 vec=4 min-blocks-per-sm=1 {options}}}", 2)


def tensor(weight: Coded, rows: int) -> str:
    """A configuration for so many rows."""
    read = 16 if weight.k % (128 // weight.bits) == 0 else 8
    return f"gpu_codes{{rows={8 if rows <= 8 else 16} warps=2 unroll=1 bytes={read} vec=8 tensor=true min-blocks-per-sm=1}}"


@pytest.mark.sampled(6)
@pytest.mark.parametrize("rows", [1, 8, 13])
@pytest.mark.parametrize("weight", [
    Coded(40, 256, element="f16"), Coded(33, 264, 8, 24, 0.0, element="f16"), Coded(40, 288, 2, 32, "f32", element="bf16"),
    Coded(35, 128, 1, 64, "u8", element="bf16"),
], ids=str)
def test_tensor_cores(weight: Coded, rows: int) -> None:
    """Values are rounded to the type of the rows as the region rounds them."""
    check(weight, tensor(weight, rows), rows)


PAIRS = {
    "4 bits": Coded(40, 256, 4, 32, element="f16", scales="f16"),
    "4 bits, whole columns": Coded(33, 96, 4, 0, element="f16", scales="f16"),
    "4 bits, zero points": Coded(40, 288, 4, 32, "u8", element="f16", scales="f16"),
    "4 bits, bf16": Coded(40, 256, 4, 64, element="bf16", scales="bf16"),
    "4 bits, bf16, zero points": Coded(33, 192, 4, 64, "u8", element="bf16", scales="bf16"),
    "2 bits": Coded(40, 288, 2, 32, 1.0, element="f16", scales="f16"),
    "2 bits, bf16": Coded(40, 256, 2, 64, element="bf16", scales="bf16"),
    "1 bit": Coded(35, 256, 1, 64, element="f16", scales="f16"),
    "1 bit, bf16": Coded(35, 128, 1, 64, "u8", element="bf16", scales="bf16"),
    "8 bits": Coded(40, 256, 8, 32, element="f16", scales="f16"),
    "8 bits, zero points": Coded(33, 160, 8, 32, "u8", element="f16", scales="f16"),
}  # fmt: skip


@pytest.mark.sampled(6)
@pytest.mark.parametrize("rows", [1, 8, 13])
@pytest.mark.parametrize("name", PAIRS)
def test_pairs_of_narrow_floats(name: str, rows: int) -> None:
    """Scales of the type of the rows: codes become such floats two at a time."""
    check(PAIRS[name], tensor(PAIRS[name], rows), rows)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", PAIRS)
def test_values_of_pairs_are_those_of_f32_arithmetic_to_the_last_bit(name: str) -> None:
    """Rows of a single one show them."""
    weight, rows = PAIRS[name], 13
    workload, given = weight.workload(None)
    places = np.random.default_rng(3).permutation(weight.k)[:rows]
    x = np.eye(weight.k, dtype=NUMPY[weight.element])[places]
    inputs, outputs = [Placed(x if a is None else a) for a in given], [Placed(np.zeros((rows, weight.n), x.dtype))]
    (got,) = run(workload.ir, tensor(weight, rows), {workload.dims[0]: rows}, inputs, outputs, 1, "sm_90a")
    np.testing.assert_array_equal(got.astype(np.float64), weight.weight[:, places].T)


@pytest.mark.parametrize("weight", [
    Coded(40, 256, 8, 32, element="bf16", scales="bf16"), Coded(40, 256, 4, 8, "f32", element="f16", scales="f16"),
    Coded(40, 256, 2, 8, element="f16", scales="f16"), Coded(40, 256, 4, 32, 0.5, element="f16", scales="f16"),
], ids=str)
def test_codes_that_are_no_exact_pairs_go_by_f32(weight: Coded) -> None:
    """Codes of more bits than a mantissa, zero points that are no whole numbers, groups that end inside a word."""
    check(weight, "gpu_codes{rows=8 warps=1 unroll=1 bytes=16 vec=8 tensor=true min-blocks-per-sm=1}", 3)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("weight", [
    Coded(64, 512), Coded(64, 512, element="f16", scales="f16"), Coded(64, 512, element="f16"),
    Coded(48, 264, 2, 24, "f32"), Pooled(72, 512, 128, 1, "i8", None),
], ids=str)
def test_untuned_configurations(weight: Coded | Pooled, arch: str) -> None:
    """What runs by default: the family for few rows, another one for more, with the last for anything."""
    workload, _ = weight.workload(None)
    configs, _ = default(workload, GpuLimits.of(arch))
    own = [c for c in configs if c.family == "gpu_codes"]
    assert own and configs[-1].family != "gpu_codes"
    for config in own[:: max(1, len(own) // 3)]:
        check(weight, config_text(config), min(config.rows, 3), arch, None)


def test_no_rows() -> None:
    check(Coded(40, 64), "gpu_codes{rows=1 warps=1 unroll=1 bytes=16 vec=4}", 0)


def test_every_legal_configuration_is_one_that_the_rules_allow() -> None:
    workload, _ = Coded(64, 4096, 4, 32).workload(None)
    found = list(space(workload, GpuLimits.of("sm_90a")))
    assert len(found) > 500 and {c.bytes for c in found} == {1, 2, 4, 8, 16} and not any(c.tensor for c in found)


@pytest.mark.parametrize("weight", [Coded(40, 64, 4, 32), Pooled(40, 64)], ids=["codes", "pool"])
def test_more_rows_are_not_taken(weight: Coded | Pooled) -> None:
    workload, _ = outlined(weight.graph(17), None, 17)
    assert "few-rows" in (takes(workload, GpuLimits.of("sm_80"), PLAIN) or "")
