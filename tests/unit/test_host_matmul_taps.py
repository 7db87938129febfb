"""Taps of windows in the family host_matmul: rows that a tap reads zero padding for are left out, the sums stay the same."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from allpairspy import AllPairs
from convolution_workloads import WHOLE, Zeros, convolution, image, layer, padded, values
from kernel_harness import T, at_edge, guarded, load
from matmul_workloads import AVX512, TOLERANCE, windows

from tilewright.passes.spaces.host.host_matmul import HostMatmulConfig, space, why_invalid
from tilewright.passes.spaces.host.host_matmul_heuristics import default
from tilewright.runtime.errors import BuildError
from tilewright.runtime.host.host_cpu import cpu_features
from tilewright.runtime.limits import HostLimits
from tilewright.search.space.dense import clear_zeros

TAPS = ("host_matmul{mr=4 nv=2 lanes=8 mc=8 taps=true}",
        "host_matmul{mr=3 nv=1 lanes=8 pack=panel prefetch=4 mc=6 exact-tails=true panels=2 taps=true}",
        "host_matmul{mr=6 nv=4 mc=48 exact-tails=true taps=true}")


def run(text: str, config: str, x: np.ndarray, w: np.ndarray, dims: dict[str, int], shape: tuple[int, ...],
        parts: int = 1) -> np.ndarray:
    out = guarded(shape, x.dtype)
    load(text, config)([at_edge(x), at_edge(w)], dims, [out], parts)
    return out


def check(config: str, size: tuple[int, int], kernel: tuple[int, int], stride: int, dilation: int, zeros: Zeros,
          channels: int = 5, filters: int = 19, batch: int = 2, dynamic: bool = False, element: str = "f32") -> None:
    x = padded(batch, size, channels, zeros, element)
    w = values((*kernel, channels, filters), 2, element)
    seen = windows(x.astype(np.float64), *kernel, stride, dilation)
    want = np.einsum("nhwijc,ijcf->nhwf", seen, w.astype(np.float64))
    out = want.shape[1:3]
    dims = {"B": batch, "H": x.shape[1], "W": x.shape[2], "OH": out[0], "OW": out[1]}
    t = image(*(("H", "W") if dynamic else x.shape[1:3]), channels, zeros, element)
    text = convolution(t, kernel, filters, stride, dilation, ("OH", "OW") if dynamic else out)
    for parts in (1, 3):
        got = run(text, config, x, w, dims, want.shape, parts)
        error = np.abs(got.astype(np.float64) - want).max(initial=0) / max(1.0, np.abs(want).max(initial=0))
        assert error <= TOLERANCE[element], (size, kernel, stride, dilation, zeros, error)


CASES = [((7, 7), (3, 3), 1, 1, ((1, 1), (1, 1))), ((1, 1), (3, 3), 1, 1, ((1, 1), (1, 1))),
         ((5, 1), (3, 3), 1, 1, ((1, 1), (1, 1))), ((2, 6), (5, 3), 1, 1, ((4, 4), (2, 2))),
         ((6, 5), (3, 3), 2, 1, ((1, 1), (1, 1))), ((7, 4), (3, 3), 3, 1, ((2, 0), (0, 2))),
         ((8, 6), (3, 3), 1, 2, ((2, 2), (2, 2))), ((9, 7), (3, 2), 2, 3, ((3, 3), (1, 3))),
         ((4, 9), (1, 3), 1, 1, ((0, 0), (1, 1))), ((4, 3), (2, 4), 1, 1, ((3, 0), (0, 5)))]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("case,config,dynamic", list(AllPairs([CASES, TAPS, [False, True]])))
def test_windows_over_padding(case: tuple[tuple[int, int], tuple[int, int], int, int, Zeros], config: str, dynamic: bool) -> None:
    check(config, *case, dynamic=dynamic)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("batch,filters,config", list(AllPairs([[0, 1, 5], [3, 8, 64, 130], TAPS])))
def test_batches_and_panels(batch: int, filters: int, config: str) -> None:
    check(config, (5, 4), (3, 3), 1, 1, ((1, 1), (1, 1)), channels=3, filters=filters, batch=batch)


@pytest.mark.parametrize("element", ["f64", "f16", "bf16"])
def test_element_types(element: str) -> None:
    check(TAPS[0], (5, 4), (3, 3), 1, 1, ((1, 1), (1, 1)), element=element)


@pytest.mark.skipif("avx512bf16" not in cpu_features(), reason="the CPU has no AVX-512 BF16")
@pytest.mark.parametrize("channels", [4, 7])
def test_pairs_of_bf16(channels: int) -> None:
    for pack in ("none", "panel"):
        check(f"host_matmul{{mr=4 nv=2 pack={pack} mc=8 pairs=true taps=true}}", (5, 4), (3, 3), 1, 1, ((1, 1), (1, 1)),
              channels=channels, element="bf16")


def test_padding_is_not_read_and_not_multiplied() -> None:
    """What lies in the places of zeros, and filters' NaN where only they are read, do not reach the results."""
    zeros = ((1, 1), (1, 1))
    x, w = padded(2, (1, 6), 5, zeros), values((3, 3, 5, 19), 2)
    want = run(convolution(image(3, 8, 5, zeros), (3, 3), 19, 1, 1, (1, 6)), TAPS[0], x, w, {"B": 2}, (2, 1, 6, 19))
    inner = np.full_like(x, np.nan)
    inner[:, 1:-1, 1:-1] = x[:, 1:-1, 1:-1]
    w[0] = w[2] = np.inf  # of rows above and below the only one
    got = run(convolution(image(3, 8, 5, zeros), (3, 3), 19, 1, 1, (1, 6)), TAPS[0], inner, w, {"B": 2}, (2, 1, 6, 19))
    np.testing.assert_array_equal(got, want)


def test_bits_do_not_depend_on_how_units_are_split() -> None:
    zeros = ((1, 1), (1, 1))
    x, w = padded(3, (7, 5), 33, zeros), values((3, 3, 33, 130), 2)
    text = convolution(image(9, 7, 33, zeros), (3, 3), 130, 1, 1, (7, 5))
    for config in TAPS:
        got = [run(text, config, x, w, {"B": 3}, (3, 7, 5, 130), parts).tobytes() for parts in (1, 2, 7)]
        assert got[0] == got[1] == got[2]


def test_a_window_without_zeros_is_no_window_of_taps() -> None:
    text = convolution(T("f32", ("B", 9, 9, 8)), (3, 3), 16, 1, 1, (7, 7))
    with pytest.raises(BuildError, match="no window over rows passes over zeros"):
        load(text, TAPS[0])
    described = layer(8, 16, 7, WHOLE)
    assert described.windows and not any(w.padded for w in described.windows)
    assert (why_invalid(HostMatmulConfig(4, 2, mc=8, taps=True), described, AVX512) or "").startswith("taps-of-windows")


def test_a_workload_tells_of_its_windows() -> None:
    described = layer(8, 16, 7, ((1, 2), (0, 3)), 2)
    assert described.inputs[0].zeros == (0, 0, 1, 2, 0, 3, 0, 0)
    assert [(w.row, w.tap, w.stride, w.dilation, w.low, w.high) for w in described.windows] == [(1, 4, 2, 1, 1, 2),
                                                                                              (2, 5, 2, 1, 0, 3)]
    array = clear_zeros(described.inputs[0], np.ones((1, 10, 10, 8)))
    assert array.sum() == 7 * 7 * 8 and array[0, 1:8, :7].all()


@pytest.mark.parametrize("change,rule", [({"mc": 0}, "taps-one-by-one"), ({"kc": 16}, "taps-one-by-one"),
                                         ({"copy_rows": True}, "taps-one-by-one"), ({"mr": 1, "stream": 4}, "taps-one-by-one")])
def test_rules(change: dict[str, int | bool], rule: str) -> None:
    fields = {"mr": 4, "nv": 2, "mc": 8, "taps": True} | change
    assert (why_invalid(HostMatmulConfig(**fields), layer(64, 64, 7), AVX512) or "").startswith(rule)


def test_default_takes_taps_where_they_leave_out_more_than_they_cost() -> None:
    def taken(*args: int, stride: int = 1, limits: HostLimits = AVX512) -> bool:
        return default(layer(*args, stride=stride), limits)[0][-1].taps

    assert taken(512, 512, 7) and taken(256, 256, 14) and taken(512, 512, 14, stride=2)
    assert not taken(64, 64, 56) and not taken(128, 128, 56, stride=2) and not taken(8, 64, 7)
    assert any(c.taps for c in itertools.islice(space(layer(64, 64, 56), AVX512), 100000))
