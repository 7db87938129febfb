"""Default configurations of the GPU families: where each break-even size lies, and what every number says of itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest
from hand_workloads import with_loops
from unit.test_gpu_attention_space import heads
from unit.test_gpu_spaces import dense, softmax
from unit.test_tensor_core_spaces import dense as tensor_cores

from tilewright.passes.spaces.family_registry import config_text, family_names, heuristics_of
from tilewright.passes.spaces.gpu import simt_cost, simt_heuristics, wgmma_cost, wgmma_heuristics
from tilewright.passes.spaces.gpu.gemv import GemvConfig
from tilewright.passes.spaces.gpu.predicted import Wanted, by_rows, predicted
from tilewright.passes.spaces.gpu.wgmma import WgmmaConfig
from tilewright.passes.spaces.in_order import default_of
from tilewright.passes.spaces.threshold import origins
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Kind, Workload
from tilewright.runtime.limits import GpuLimits
from tilewright.runtime.program.dispatch import select
from tilewright.runtime.tensor import DType
from tools.bench.gpu.cases import cases

A100, H100 = GpuLimits.of("sm_80"), GpuLimits.of("sm_90a")  # of 108 and 132 multiprocessors
FREE, SIMT, MMA, WGMMA = dense("M", "N", "K"), dense("M", 768, 768), tensor_cores("M", "N", "K"), tensor_cores("M", 4096, 512)
BYTES = tensor_cores("M", "N", "K", "i8", True)
ROWS, HEADS = softmax("M", "N"), heads()
ACROSS = with_loops(ROWS, "col row,col row")  # sums down the rows of a tensor


def config_at(family: str, work: Workload, limits: GpuLimits, **dims: int) -> TileConfig:
    configs, root = default_of(family, work, limits)
    return configs[select(root, dims).kernel]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("family,work,limits,dim,most,fixed", [
    ("simt", FREE, A100, "M", 32, {"N": 768, "K": 768}),
    ("simt", FREE, A100, "M", 2 * 108 * 128 * 128 // 768, {"N": 768, "K": 768}),
    ("mma", BYTES, A100, "M", 8, {"N": 4096, "K": 512}),
    ("mma", BYTES, A100, "M", 16, {"N": 4096, "K": 512}),
    ("mma", BYTES, A100, "K", 2048, {"M": 4, "N": 1024}),
    ("mma", BYTES, A100, "N", 32 * 108, {"M": 4, "K": 4096}),
    ("mma", MMA, A100, "M", 16, {"N": 4096, "K": 512}),
    ("gemv", MMA, A100, "M", 8, {"N": 4096, "K": 4096}),
    ("gemv", MMA, H100, "N", 64 * (132 * 36 // 10 // 4), {"M": 4, "K": 4096}),
    ("gemv", MMA, A100, "N", 64 * 54, {"M": 4, "K": 4096}),
    ("gemv", SIMT, H100, "M", 1, {}),
    ("gemv", SIMT, H100, "M", 4, {}),
    ("simt", SIMT, H100, "M", 16, {}),
    ("mma", MMA, A100, "M", 108 * 128 * 128 // 512, {"N": 512, "K": 512}),
    ("mma", MMA, A100, "M", 2 * 108 * 128 * 256 // 4096, {"N": 4096, "K": 512}),
    ("wgmma", WGMMA, H100, "M", 16, {}),
    ("wgmma", MMA, H100, "M", 132 * 128 * 128 // 2 // 4096, {"N": 4096, "K": 512}),
    ("wgmma", MMA, H100, "M", 2 * 132 * 128, {"N": 128, "K": 512}),
    ("wgmma", MMA, H100, "M", 2048, {"N": 8192, "K": 4096}),
    ("wgmma", MMA, H100, "M", 2 * 128, {"N": 1 << 17, "K": 512}),
    ("wgmma", MMA, H100, "K", 1024, {"M": 4096, "N": 4096}),
    ("gpu_attention", HEADS, A100, "M", 16, {"B": 12, "N": 64}),
    ("gpu_attention", HEADS, A100, "B", 16 * 108, {"M": 1, "N": 4096}),
    ("gpu_attention", HEADS, A100, "N", 512, {"B": 12, "M": 1}),
    ("gpu_attention", HEADS, A100, "M", 2 * 108 * 128 // 12, {"B": 12, "N": 64}),
    ("wgmma_attention", HEADS, H100, "M", 16, {"B": 12, "N": 64}),
    ("wgmma_attention", HEADS, H100, "M", 132 // 12 * 64, {"B": 12, "N": 64}),
    ("wgmma_attention", HEADS, H100, "M", 32, {"B": 96, "N": 32}),
    ("wgmma_attention", HEADS, H100, "N", 32, {"B": 96, "M": 32}),
    ("wgmma_attention", HEADS, H100, "N", 320, {"B": 96, "M": 128}),
    ("wgmma_attention", HEADS, H100, "N", 320, {"B": 96, "M": 384}),
    ("wgmma_attention", HEADS, H100, "B", 132, {"M": 128, "N": 512}),
    ("gpu_rows", ROWS, A100, "N", 256, {"M": 1}),
    ("gpu_rows", ROWS, A100, "N", 1024, {"M": 1}),
    ("gpu_rows", ROWS, A100, "N", 8192, {"M": 1}),
    ("gpu_rows", ROWS, A100, "M", 27, {"N": 1 << 16}),
    ("gpu_rows", ACROSS, A100, "N", 16, {"M": 768}),
    ("gpu_rows", ACROSS, A100, "M", 108 * 256, {"N": 64}),
])
def test_break_even_sizes(family: str, work: Workload, limits: GpuLimits, dim: str, most: int, fixed: dict[str, int]) -> None:
    """Another configuration runs from the next aligned size on."""
    step = 4 if dim == "N" and family == "gpu_rows" else 16 if dim in ("N", "K") and family in ("mma", "gemv") else 1
    step = 8 if dim == "K" and family == "wgmma" else step
    before, here, behind = (config_at(family, work, limits, **fixed, **{dim: most + s}) for s in (-step, 0, step))
    assert before == here != behind


def test_tiles_that_fill_waves() -> None:
    """192 x 192 where they compute a twentieth less, padding too, than the others."""
    assert "bm=192 bn=192" in config_text(config_at("wgmma", MMA, H100, M=2048, N=2304, K=768))
    assert "bm=192" not in config_text(config_at("wgmma", MMA, H100, M=1024, N=33 * 128, K=768))
    fewer = replace(H100, multiprocessors=114)
    assert "bm=192" not in config_text(config_at("wgmma", MMA, fewer, M=2048, N=2304, K=768))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("n,k,element,units", [
    (2304, 768, "f16", 132), (768, 3072, "bf16", 132), (768, 768, "f16", 114), (5120, 1024, "f16", 132), (128, 512, "i8", 132),
    (14336, 4096, "f16", 132),
])
def test_rows_run_what_is_predicted_to_take_least(n: int, k: int, element: str, units: int) -> None:
    """Few configurations stay near the best of all that were compared, for any number of rows."""
    work, limits = tensor_cores("M", n, k, element, True), replace(H100, multiprocessors=units)
    configs, root = default_of("wgmma", work, limits)
    candidates = list(wgmma_heuristics.candidates(work, limits))
    points = np.array([64, 200, 384, 1000, 1300, 2048, 3000, 8192, 30_000], np.float64)
    extents = {"batch": 1, "rows": points, "columns": n, "depth": k}
    cycles = predicted(candidates, work, limits, wgmma_cost, extents)
    chosen = [configs[select(root, {"M": int(m)}).kernel] for m in points]
    mine = predicted(chosen, work, limits, wgmma_cost, extents).diagonal()
    lost = mine / cycles.min(axis=0)
    assert lost.max() < 1.2 and np.exp(np.log(lost).mean()) < 1.08
    assert len({c for c in configs if isinstance(c, WgmmaConfig)}) <= 10
    assert all(c.blocks <= units for c in configs if isinstance(c, WgmmaConfig))


def test_clusters_share_what_many_turns_of_blocks_read() -> None:
    """By prediction: blocks that take more than three tiles each are no longer in step with each other."""
    few, many = tensor_cores("M", 2304, 768, transposed=True), tensor_cores("M", 4096, 4096, transposed=True)
    assert config_at("wgmma", few, H100, M=64).cluster == 1
    assert config_at("wgmma", many, H100, M=4096).cluster == 2


def test_steps_are_shared_evenly_where_a_long_k_leaves_a_wave_unfilled() -> None:
    """By prediction: 16 tiles of 256 columns are too few, and too many for parts of k over clusters. Not where k is short, nor
    where the tiles fill the device."""
    long, short = (tensor_cores("M", 512, k, transposed=True) for k in (16_384, 768))
    shared = config_at("wgmma", long, H100, M=1024)
    assert isinstance(shared, WgmmaConfig) and shared.streamed and shared.blocks == 132
    assert not any(getattr(c, "streamed", False) for c in default_of("wgmma", short, H100)[0])
    even = replace(shared, streamed=False)
    workers = shared.blocks // shared.cluster
    points = np.array([shared.bm * shared.cluster_m * n for n in (1, workers // 2, workers)], np.float64)
    extents = {"batch": 1, "rows": points, "columns": 2 * shared.bn * shared.cluster_n, "depth": 16_384}
    apart, together = predicted([shared, even], long, H100, wgmma_cost, extents)
    assert apart[0] < 0.5 * together[0]  # 2 tiles of a cluster for 132 blocks
    np.testing.assert_allclose(apart[1:], together[1:], rtol=0.06)  # each block has one tile, or two


@pytest.mark.parametrize("family,work,costs,candidates", [
    ("simt", dense("M", 768, 2304), simt_cost, simt_heuristics.candidates),
    ("simt", dense("M", 3072, 768), simt_cost, simt_heuristics.candidates),
])
def test_rows_of_f32_run_what_is_predicted_to_take_least(family: str, work: Workload, costs: ModuleType,
                                                         candidates: Callable[..., Iterator[TileConfig]]) -> None:
    configs, root = default_of(family, work, H100)
    points = np.array([32, 80, 384, 1000, 2048, 4096], np.float64)
    found = list(candidates(work, H100))
    extents = {"batch": 1, "rows": points, "columns": work.size("n").constant, "depth": work.size("k").constant}
    chosen = [configs[select(root, {"M": int(m)}).kernel] for m in points]
    lost = predicted(chosen, work, H100, costs, extents).diagonal() / predicted(found, work, H100, costs, extents).min(axis=0)
    assert lost.max() < 1.2 and np.exp(np.log(lost).mean()) < 1.08


def test_only_operands_that_are_not_aligned_are_copied_by_elements() -> None:
    scores, values = tensor_cores("M", "N", 64, transposed=True), tensor_cores("M", 64, "K")
    for n, told in ((43, " result-vec=1"), (42, " result-vec=2"), (48, "")):
        config = config_text(config_at("mma", scores, H100, M=43, N=n))
        assert (told in config) and ("-vec=" in config) == bool(told) and " vec=1" not in config
    for k, told in ((77, " row-vec=1"), (78, " row-vec=2"), (80, "")):
        config = config_text(config_at("mma", values, H100, M=43, K=k))
        assert (told in config) and ("-vec=" in config) == bool(told) and " vec=1" not in config


def test_one_kernel_where_more_save_nothing() -> None:
    """Of two candidates the slower one everywhere is not taken."""
    work = tensor_cores("M", 4096, 4096, transposed=True)
    few = [WgmmaConfig(128, 256, 4, cluster_m=2, copied=True), WgmmaConfig(64, 16, 2, consumers=1)]
    found = by_rows(few, work, H100, wgmma_cost, Wanted(2, 0.01, 0.03))
    assert found is not None and found.last == few[0] and {c for _, c in found.bounds} <= {few[1]}
    assert by_rows(few, MMA, H100, wgmma_cost, Wanted(2, 0.01, 0.03)) is None


def test_rows_are_shared_by_blocks_from_65536_columns_on() -> None:
    assert " blocks=" not in config_text(config_at("gpu_rows", ROWS, A100, M=1, N=65532))
    assert " blocks=16" in config_text(config_at("gpu_rows", ROWS, A100, M=1, N=65536))


@pytest.mark.parametrize("n,k,parts,unroll", [(768, 3072, 8, 1), (4096, 4096, 2, 2), (768, 768, 4, 2), (16896, 4096, 1, 2),
                                              (768, 200, 1, 2)])
def test_parts_of_k_fill_the_machine_once(n: int, k: int, parts: int, unroll: int) -> None:
    """Of blocks of 32 columns, four a multiprocessor, without a rest where pieces of k divide it."""
    chosen = config_at("wgmma", tensor_cores("M", n, k, transposed=True), H100, M=4)
    assert isinstance(chosen, GemvConfig)
    assert (chosen.cluster_k, chosen.unroll, chosen.split_k, chosen.tensor) == (parts, unroll, 1, True)


def test_parts_of_long_sums() -> None:
    assert " split-k=4" in config_text(config_at("mma", BYTES, A100, M=4, N=1024, K=4096))
    assert " split-kv=8" in config_text(config_at("gpu_attention", HEADS, A100, B=12, M=1, N=4096))


@pytest.mark.parametrize("work,shown", [
    (replace(softmax("M", 768), kind=Kind.POINTWISE), (4, 1, 256, 0)),
    (replace(softmax("M", 768), kind=Kind.POINTWISE, outputs=(replace(ROWS.outputs[0], dtype=DType.F64),)), (2, 1, 256, 0)),
    (replace(softmax("M", "N"), kind=Kind.POINTWISE, inputs=(replace(ROWS.inputs[0], unit_axis=0),)), (1, 1, 256, 32)),
    (dense("M", 64, 64), (1, 1, 128, 0)),
])
def test_pointwise(work: Workload, shown: tuple[int, ...]) -> None:
    configs, _ = default_of("gpu_pointwise", work, A100)
    assert tuple(getattr(configs[0], f) for f in ("vec", "chunks", "threads", "tile")) == shown
    assert "index=64" in config_text(configs[-1])


@pytest.mark.parametrize("family", family_names(gpu=True))
def test_every_number_names_its_origin(family: str) -> None:
    found = origins(heuristics_of(family).Thresholds())
    assert found
    measured = {case.name for case in cases()}
    assert all(value > 0 and o.unit and o.operator in measured and o.results for value, o in found.values())
