"""The family host_winograd: minimal filtering gives the sums of the definition, for every size, type and configuration."""

from __future__ import annotations

import itertools
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from allpairspy import AllPairs
from convolution_workloads import WHOLE, Zeros, convolution, image, layer, padded, values
from kernel_harness import Dim, T, at_edge, filled, guarded, load, workload
from matmul_workloads import AVX2, AVX512, described, generic, multiply_add, windows

from tilewright.passes.families.host.winograd_matrices import matrices
from tilewright.passes.spaces.host import host_matmul_heuristics
from tilewright.passes.spaces.host.host_block import DISTANT_BYTES
from tilewright.passes.spaces.host.host_winograd import HostWinogradConfig, space, why_invalid
from tilewright.passes.spaces.host.host_winograd_cost import kernel_cost
from tilewright.passes.spaces.host.host_winograd_heuristics import default
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.errors import BuildError
from tilewright.runtime.limits import HostLimits
from tilewright.runtime.program.dispatch import Leaf, select

CONFIGS = ("host_winograd{mr=4 nv=2 lanes=8 mc=8}",
           "host_winograd{m=4 mr=3 nv=1 lanes=8 mc=6 chunks=1 panels=2}",
           "host_winograd{m=4 mr=6 nv=4 mc=12 chunks=2}",
           "host_winograd{mr=5 nv=2 mc=10 panels=2 kc=16}")
TOLERANCE = {"f32": 1e-5, "f64": 1e-13, "f16": 2e-3, "bf16": 1.6e-2}
SAME = ((1, 1), (1, 1))


@pytest.mark.parametrize("m,r", [(2, 3), (4, 3), (3, 3), (2, 5), (6, 3), (4, 2)])
def test_matrices_give_the_filter_exactly(m: int, r: int) -> None:
    at, g, bt = matrices(m, r)
    rng = np.random.default_rng(m)
    d, taps = ([Fraction(int(v)) for v in rng.integers(-99, 99, n)] for n in (m + r - 1, r))

    def times(matrix: tuple[tuple[Fraction, ...], ...], vector: list[Fraction]) -> list[Fraction]:
        return [sum((a * b for a, b in zip(row, vector, strict=True)), Fraction(0)) for row in matrix]

    found = times(at, [a * b for a, b in zip(times(g, taps), times(bt, d), strict=True)])
    assert found == [sum(d[i + k] * taps[k] for k in range(r)) for i in range(m)]


def check(config: str, size: tuple[int, int], zeros: Zeros = SAME, channels: int = 5, filters: int = 19, batch: int = 2,
          dynamic: bool = False, element: str = "f32", target: str = "host", window: tuple[int, int] = (3, 3),
          step: int = 1) -> None:
    x = padded(batch, size, channels, zeros, element)
    w = values((*window, channels, filters), 2, element)
    want = np.einsum("nhwijc,ijcf->nhwf", windows(x.astype(np.float64), *window, step, 1), w.astype(np.float64))
    out = want.shape[1:3]
    dims = {"B": batch, "H": x.shape[1], "W": x.shape[2], "OH": out[0], "OW": out[1]}
    t = image(*(("H", "W") if dynamic else x.shape[1:3]), channels, zeros, element)
    text = convolution(t, window, filters, step, 1, ("OH", "OW") if dynamic else out)
    results = []
    for parts in (1, 3):
        got = guarded(want.shape, x.dtype)
        load(text, config, target)([at_edge(x), at_edge(w)], dims, [got], parts)
        error = np.abs(got.astype(np.float64) - want).max(initial=0) / max(1.0, np.abs(want).max(initial=0))
        assert error <= TOLERANCE[element], (config, size, zeros, error)
        results.append(got.tobytes())
    assert results[0] == results[1]


SIZES = [((8, 8), SAME), ((7, 7), SAME), ((1, 1), SAME), ((5, 1), SAME), ((2, 13), SAME), ((3, 3), WHOLE), ((6, 9), WHOLE),
         ((4, 5), ((2, 0), (0, 3)))]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("image,config,dynamic", list(AllPairs([SIZES, CONFIGS, [False, True]])))
def test_sizes(image: tuple[tuple[int, int], Zeros], config: str, dynamic: bool) -> None:
    check(config, *image, dynamic=dynamic)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("channels,filters,config", list(AllPairs([[1, 16, 37], [3, 8, 64, 130], CONFIGS])))
def test_channels_and_filters(channels: int, filters: int, config: str) -> None:
    check(config, (5, 6), channels=channels, filters=filters)


SQUARE = [(2, 1), (4, 1), (5, 1), (3, 2), (4, 2), (5, 2), (6, 2), (7, 2), (8, 2)]  # windows and steps
OTHER = [((1, 3), 1), ((3, 1), 1), ((2, 5), 1), ((1, 3), 2), ((4, 1), 2), ((3, 4), 2), ((6, 3), 2), ((7, 5), 2)]
FORMS = [*(((n, n), step) for n, step in SQUARE), *OTHER]


def tile_of(window: tuple[int, int], step: int, config: int) -> int:
    """The largest tiles that serve the window, where config is 1."""
    return 4 if max(-(-n // step) for n in window) < 4 and config else 2


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form,size,config,dynamic", list(AllPairs([FORMS, [(8, 8), (13, 9), (9, 22)], (0, 1), [False, True]])))
def test_forms(form: tuple[tuple[int, int], int], size: tuple[int, int], config: int, dynamic: bool) -> None:
    """Windows of other sizes, along one axis, too, and steps of two, whose phases are summed over at the same points."""
    m = tile_of(*form, config)
    for channels, filters, kc in ((17, 40, 0), (5, 19, 8), (37, 19, 8)):
        check(f"host_winograd{{m={m} mr=4 nv={2 - config} lanes=8 mc=8 panels={1 + config} kc={kc}}}", size, WHOLE, channels,
              filters, dynamic=dynamic, window=form[0], step=form[1])


def sequence(window: int, step: int, out: Dim, channels: int, filters: int) -> str:
    """Loops sequence, place, filter, then place of the window, channel."""
    x, w, y = T("f32", ("B", "W", channels)), T("f32", (window, channels, filters)), T("f32", ("B", out, filters))
    loops = "(d0, d1, d2, d3, d4)"
    maps = [f"{loops} -> (d0, d1 * {step} + d3, d4)", f"{loops} -> (d3, d4, d2)", f"{loops} -> (d0, d1, d2)"]
    body = filled("z", y, "0.0") + "\n" + generic("y", maps, "ppprr", {"x": x, "w": w}, ("z", y), multiply_add("f32"))
    return workload({"x": x, "w": w}, ["B", "W", *([out] if isinstance(out, str) else [])], body, {"y": y})


@pytest.mark.parametrize("window,step,config", list(AllPairs([[2, 3, 5, 7], [1, 2], [0, 1]], filter_func=lambda row: (
    len(row) < 2 or (row[0], row[1]) not in ((7, 1), (2, 2))))))
def test_sequences(window: int, step: int, config: int) -> None:
    for size in (window, 24, 41):
        x, w = values((3, size, 21), 1), values((window, 21, 35), 2)
        out = (size - window) // step + 1
        places = np.stack([x[:, i : i + (out - 1) * step + 1 : step] for i in range(window)], axis=2)
        want = np.einsum("nxic,icf->nxf", places.astype(np.float64), w.astype(np.float64))
        got = guarded(want.shape, x.dtype)
        m = tile_of((1, window), step, config)
        text = f"host_winograd{{m={m} mr=4 nv=2 lanes=8 mc=8 chunks={config} kc={8 * config}}}"
        load(sequence(window, step, "OW", 21, 35), text)([at_edge(x), at_edge(w)], {"B": 3, "W": size, "OW": out}, [got], 2)
        assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()


@pytest.mark.parametrize("batch", [0, 1, 9])
def test_batches(batch: int) -> None:
    for config in CONFIGS:
        check(config, (9, 6), batch=batch)


@pytest.mark.parametrize("element", ["f64", "f16", "bf16"])
def test_element_types(element: str) -> None:
    for m in (2, 4):
        check(f"host_winograd{{m={m} mr=4 nv=2 lanes=8 mc=8}}", (5, 6), element=element)


def test_a_target_without_avx512() -> None:
    check("host_winograd{m=4 mr=6 nv=2 lanes=8 mc=12}", (9, 7), channels=12, filters=40, target="host:x86-64-v3")


def grouped(groups: int) -> str:
    """Loops image, row, column, group, filter, then window row, window column, channel."""
    loops = "(d0, d1, d2, d3, d4, d5, d6, d7)"
    x, w, y = T("f32", ("B", 8, 7, groups, 4)), T("f32", (groups, 3, 3, 4, 12)), T("f32", ("B", 6, 5, groups, 12))
    maps = [f"{loops} -> (d0, d1 + d5, d2 + d6, d3, d7)", f"{loops} -> (d3, d5, d6, d7, d4)", f"{loops} -> (d0, d1, d2, d3, d4)"]
    body = filled("z", y, "0.0") + "\n" + generic("y", maps, "ppppprrr", {"x": x, "w": w}, ("z", y), multiply_add("f32"))
    return workload({"x": x, "w": w}, ["B"], body, {"y": y})


def test_groups() -> None:
    x, w = values((2, 8, 7, 3, 4), 1), values((3, 3, 3, 4, 12), 2)
    want = np.stack([np.einsum("nhwijc,ijcf->nhwf", windows(x[:, :, :, g], 3, 3, 1, 1), w[g]) for g in range(3)], axis=3)
    for config in CONFIGS:
        got = guarded(want.shape, x.dtype)
        load(grouped(3), config)([at_edge(x), at_edge(w)], {"B": 2}, [got], 4)
        assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()


def after(y: T, op: str) -> str:
    """op(y + bias) with the bias [filter]."""
    read = ["(d0, d1, d2, d3) -> (d0, d1, d2, d3)", "(d0, d1, d2, d3) -> (d3)", "(d0, d1, d2, d3) -> (d0, d1, d2, d3)"]
    b = T("f32", y.dims[3:])
    body = f"%s = arith.addf %x0, %x1 : f32\n%r = {op} %s : f32\nlinalg.yield %r : f32"
    return filled("e", y, "0.0") + "\n" + generic("r", read, "pppp", {"y": y, "b": b}, ("e", y), body)


@pytest.mark.parametrize("op,numpy", [("arith.negf", np.negative), ("math.exp", np.exp)])
def test_what_follows(op: str, numpy: np.ufunc) -> None:
    x, w, b = padded(2, (5, 6), 5, SAME), values((3, 3, 5, 19), 2) * np.float32(0.1), values((19,), 3)
    y = T("f32", ("B", 5, 6, 19))
    bare = convolution(image(7, 8, 5, SAME), (3, 3), 19, 1, 1, (5, 6))
    body = bare[bare.index("{\n") + 2 : bare.rindex("return")] + after(y, op)
    tensors = {"x": image(7, 8, 5, SAME), "w": T("f32", (3, 3, 5, 19)), "b": T("f32", (19,))}
    want = numpy(np.einsum("nhwijc,ijcf->nhwf", windows(x, 3, 3, 1, 1), w) + b)
    for config in CONFIGS:
        got = guarded(want.shape, x.dtype)
        load(workload(tensors, ["B"], body, {"r": y}), config)([at_edge(x), at_edge(w), at_edge(b)], {"B": 2}, [got])
        assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()


@pytest.mark.parametrize("kernel,stride,dilation", [
    ((3, 3), 3, 1), ((3, 3), 1, 2), ((6, 6), 1, 1), ((1, 1), 1, 1), ((2, 2), 2, 1), ((3, 6), 1, 1)])
def test_other_windows_are_refused(kernel: tuple[int, int], stride: int, dilation: int) -> None:
    out: tuple[Dim, Dim] = ("OH", "OW")
    with pytest.raises(BuildError, match="windows of 2, 3, 4, 5 places with steps of 1 or 3, 4, 5, 6, 7, 8, 9, 10 places with"):
        load(convolution(image("H", "W", 8, SAME), kernel, 16, stride, dilation, out), CONFIGS[0])


@pytest.mark.parametrize("change,rule", [
    ({"m": 3}, "tile-known"), ({"mc": 0}, "counts-positive"), ({"chunks": -1}, "counts-positive"), ({"lanes": 32}, "lanes-fit"),
    ({"lanes": 3}, "lanes-fit"), ({"mr": 12, "mc": 24}, "register-budget"), ({"panels": 2}, "panels-used"),
    ({"kc": 24}, "channels-whole-vectors"), ({"kc": -1}, "counts-positive"), ({"kc": 64}, "channels-used"),
    ({"mc": 25}, "chunk-whole-blocks"), ({"mc": 6000}, "chunk-near-l2")])
def test_rules(change: dict[str, int], rule: str) -> None:
    assert why_invalid(HostWinogradConfig(), layer(64, 64, 56), AVX512) is None
    assert (why_invalid(HostWinogradConfig(**change), layer(64, 64, 56), AVX512) or "").startswith(rule)


def test_rules_of_workloads() -> None:
    def why(w: Workload, limits: HostLimits = AVX512, **fields: int) -> str:
        return (why_invalid(HostWinogradConfig(**fields), w, limits) or "").split(":")[0]

    assert why(described("M", 64, 64)) == "form" == why(layer(64, 64, 56, stride=3))
    assert why(layer(64, 64, 56, stride=2)) == "" == why(layer(64, 64, 56, stride=2), m=4)
    assert why(layer(64, 64, 56, WHOLE)) == ""
    assert why(layer(4096, 4096, 7), mr=2, mc=2, panels=8) == "filters-fit-l3"


def test_space_is_legal_and_neither_empty_nor_huge() -> None:
    work = layer(64, 64, 56)
    for limits in (AVX512, AVX2):
        every = list(space(work, limits))
        assert 300 < len(set(every)) == len(every) < 6000
        assert all(why_invalid(c, work, limits) is None for c in every)
        assert {c.m for c in every} == {2, 4}


def test_default_transforms_where_that_pays() -> None:
    configs, root = default(layer(64, 64, 56), AVX512)
    assert [c.family for c in configs] == ["host_winograd"] and root == Leaf(0)
    few = layer(512, 512, 7)
    configs, root = default(few, AVX512)
    usual = host_matmul_heuristics.default(few, AVX512)[0]
    assert configs[0].family == "host_winograd" and configs[-len(usual):] == usual
    assert configs[select(root, {"B": 1}).kernel].family == "host_matmul" and select(root, {"B": 64}).kernel == 0
    other = layer(3, 8, 7)
    assert default(other, AVX512) == host_matmul_heuristics.default(other, AVX512)


def test_filters_are_not_transformed_into_a_distant_cache_for_few_rows() -> None:
    """512 filters take 38 MB transformed, of which some channels at a time stay in the second cache; those of 64 do at once. By
    steps of two, which save fewer products, it is the definition."""
    near = replace(AVX512, l2=2 << 20, l3=DISTANT_BYTES - 1)
    far = replace(near, l3=300 << 20)

    def chosen(limits: HostLimits, subject: Workload, images: int) -> TileConfig:
        configs, root = default(subject, limits)
        return configs[select(root, {"B": images}).kernel]

    found = chosen(near, layer(512, 512, 7), 10)
    assert isinstance(found, HostWinogradConfig) and found.kc == 0
    assert [chosen(far, layer(512, 512, 7), n).family for n in (1, 10)] == ["host_matmul"] * 2
    assert default(layer(64, 64, 56), near)[0] == default(layer(64, 64, 56), far)[0]
    strided = layer(128, 128, 28, stride=2)
    assert [chosen(limits, strided, 4).family for limits in (near, far)] == ["host_winograd", "host_matmul"]


def test_one_image_has_a_kernel_of_its_own_where_filters_leave_the_cache() -> None:
    for subject in (layer(256, 256, 14), layer(256, 256, 28, stride=2)):
        configs, root = default(subject, AVX512)
        one, many = (configs[select(root, {"B": n}).kernel] for n in (1, 64))
        assert isinstance(one, HostWinogradConfig) and isinstance(many, HostWinogradConfig)
        assert many.kc == 0 < one.kc and one.m == many.m


def test_default_divides_an_image_only_among_cores() -> None:
    subject = layer(64, 64, 56)
    one, two = (replace(AVX512, l2=1 << 20, l3=32 << 20, cores=2, threads=n) for n in (1, 2))
    (alone,), (shared,) = (default(subject, limits)[0] for limits in (one, two))
    assert isinstance(alone, HostWinogradConfig) and isinstance(shared, HostWinogradConfig)
    assert alone.chunks == 0 < shared.chunks
    tile = (alone.m + 2) ** 2 * (64 + alone.columns * alone.panels) * 4
    assert alone.mc * tile <= one.l2 // 8 < (alone.mc + alone.mr) * tile


@pytest.mark.parametrize("filters", [48, 96, 160, 192])
def test_default_divides_filters_evenly_among_cores(filters: int) -> None:
    """48 filters are three panels: units of two panels and of one would keep one of two cores waiting."""
    limits = replace(AVX2, l2=1 << 19, l3=32 << 20, cores=2, threads=2)
    for config in default(layer(filters, filters, 28), limits)[0]:
        assert isinstance(config, HostWinogradConfig)
        assert config.chunks or filters / (config.columns * config.panels) % 2 == 0


def test_kernel_cost_counts_fewer_multiplications() -> None:
    subject = layer(128, 128, 28)
    two, four = (kernel_cost(HostWinogradConfig(m=m, mc=6), subject, AVX512) for m in (2, 4))
    assert 1 < two.rate < four.rate < 4
    some = list(itertools.islice(space(subject, AVX512), 500))
    assert len({tuple(kernel_cost(c, subject, AVX512).coordinates.values()) for c in some}) == len(some) == 500
