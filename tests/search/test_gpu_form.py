from __future__ import annotations

import functools

import numpy as np
import pytest
from codes_workloads import Coded
from gpu_surfaces import H100, attention, narrow, pointwise, product_rows, rows, square
from hypothesis import given, settings
from hypothesis import strategies as st
from search_surfaces import dense

from tilewright.passes.spaces.family_registry import cost_of, family_names, space_of
from tilewright.passes.spaces.gpu.gpu_grid import Occupancy
from tilewright.passes.spaces.gpu.gpu_rates import resident
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.search.cost_model.forms import feature_space, form_of
from tilewright.search.cost_model.gpu_form import GpuForm
from tilewright.search.cost_model.pairs import Pairs
from tilewright.search.space.kernel_facts import KernelFacts
from tilewright.search.space.lattice import Lattice

WORKLOADS = {"simt": dense(512, 256), "mma": narrow(), "wgmma": narrow(), "gemv": narrow(), "gpu_rows": rows(),
             "gpu_codes": Coded(256, 512).workload(None)[0], "gpu_pointwise": pointwise(), "gpu_attention": attention(),
             "wgmma_attention": attention(),
             "mma_rows": product_rows()}


@functools.cache
def every_config(family: str) -> list[TileConfig]:
    """Of its workload: listing them takes longer than what is asked of them."""
    return list(space_of(family).space(WORKLOADS[family], H100))


def lattice(family: str, count: int = 60) -> Lattice:
    every = every_config(family)
    rng = np.random.default_rng(0)
    return Lattice(WORKLOADS[family], H100, [every[i] for i in rng.choice(len(every), min(count, len(every)), replace=False)])


def test_every_gpu_family_has_a_kernel_cost() -> None:
    assert set(WORKLOADS) == set(family_names(gpu=True))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("family", family_names(gpu=True))
def test_a_kernel_cost_is_within_what_the_family_allows(family: str) -> None:
    found = lattice(family)
    form = form_of(found)
    assert isinstance(form, GpuForm)
    extents = cost_of(family).extents(found.workload)
    for i in range(len(found)):
        a, block = found.kernel_cost(i), form.block(i)
        assert set(a.tiles) | set(a.units) | set(a.pads) <= set(extents)
        assert 32 <= block.threads <= H100.threads and 16 <= block.registers <= H100.thread_registers
        assert block.shared_bytes <= H100.shared_bytes and block.registers * block.threads <= H100.registers * 1.3
        assert block.step.issue > 0 and block.depth >= 1 and (not block.along or block.along in extents)
        assert all(np.isfinite(v) for v in a.features.values())


@pytest.mark.parametrize("family", family_names(gpu=True))
def test_features_have_names_and_vary(family: str) -> None:
    space = feature_space(lattice(family), [(("d0", n),) for n in (1, 100, 3000)])
    pairs = Pairs.product(range(len(space.lattice)), range(3), [1])
    rows_, columns = space.pair_rows(pairs), space.config_rows
    assert len(set(rows_.names)) == len(rows_.names) and rows_.values.shape == (len(pairs), len(rows_.names))
    assert {"occ", "pad", "log_waves", "resident"} <= set(rows_.names) and {"registers", "spills"} <= set(columns.names)
    assert np.isfinite(rows_.values).all()
    assert ((rows_.under(["occ"]) > 0) & (rows_.under(["occ"]) <= 1)).all()
    times = space.log_base(pairs).reshape(-1, 3)
    assert np.isfinite(times).all() and (times[:, 2] >= times[:, 0]).all() and times[:, 2].std() > 0.05


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 6000), st.floats(0, 1), st.floats(100, 20_000))
def test_more_rows_take_no_less_time(m: int, tail: float, launch: float) -> None:
    space = feature_space(lattice("simt", 20), [(("d0", m),), (("d0", m + 1),), (("d0", 2 * m),)])
    form = space.form
    assert isinstance(form, GpuForm)
    pairs = Pairs.product(range(len(space.lattice)), range(3), [1])
    cycles = form.grid(space, pairs).log_cycles(Occupancy(launch, tail)).reshape(-1, 3)
    assert (np.diff(cycles, axis=1) >= -1e-12).all()


def test_a_wave_more_costs_a_wave() -> None:
    from tilewright.passes.spaces.gpu.simt import SimtConfig

    found = Lattice(dense(64, 8192), H100, [SimtConfig(64, 64, 16, 4, 4, 3, 4)])
    units = H100.multiprocessors
    space = feature_space(found, [(("d0", 64 * n),) for n in (units * 20, units * 20 + 1, units * 21)])
    form = space.form
    assert isinstance(form, GpuForm)
    grid = form.grid(space, Pairs.product([0], range(3), [1]))
    assert list(grid.busiest) == [20, 21, 21]
    assert grid.filled[1] == pytest.approx((units * 20 + 1) / (units * 21))
    stairs, smooth = grid.log_cycles(Occupancy(0.0, 1.0)), grid.log_cycles(Occupancy(0.0, 0.0))
    assert stairs[1] == pytest.approx(stairs[2], abs=1e-3) and stairs[1] > stairs[0] + 0.04
    assert smooth[0] < smooth[1] < smooth[2] and smooth[1] < smooth[0] + 0.001


def test_split_fills_the_machine_and_pays_for_a_second_launch() -> None:
    from tilewright.passes.spaces.gpu.simt import SimtConfig

    found = Lattice(dense(64, 4096), H100, [SimtConfig(64, 64, 16, 4, 4, 3, 4, split_k=s) for s in (1, 8)])
    space = feature_space(found, [(("d0", 64),), (("d0", 64 * 132 * 30),)])
    few = space.log_base(Pairs.product([0, 1], [0], [1]))
    many = space.log_base(Pairs.product([0, 1], [1], [1]))
    assert few[1] < few[0] and many[1] >= many[0]
    assert isinstance(space.form, GpuForm)
    grid = space.form.grid(space, Pairs.product([0, 1], [0], [1]))
    assert list(grid.launches) == [1, 2] and list(grid.blocks) == [1, 8]


@pytest.mark.parametrize("threads, registers, shared, blocks", [
    (256, 64, 0, 4), (256, 32, 0, 8), (1024, 64, 0, 1), (64, 32, 0, 32), (128, 40, 100 * 1024, 2), (384, 168, 200 * 1024, 1),
])
def test_residents_follow_nvidias_rules(threads: int, registers: int, shared: int, blocks: int) -> None:
    assert resident(threads, registers, shared, H100) == blocks


def test_what_a_built_kernel_tells_takes_the_place_of_what_was_expected() -> None:
    found = lattice("simt", 12)
    space = feature_space(found, [(("d0", 4096),)])
    pairs = Pairs.product([3], [0], [1])
    before, time = space.config_rows, space.log_base(pairs)[0]
    space.form.note(found.texts[3], KernelFacts(255, 64, 200 * 1024, ()))
    after = space.config_rows
    names = ("registers", "spills", "shared_bytes", "resident")
    assert list(after.under(names)[3]) == [255, 64, 200 * 1024, 1]
    assert (after.under(names)[2] == before.under(names)[2]).all()
    assert space.log_base(pairs)[0] >= time


def test_guards_of_built_kernels_bound_where_they_are_proposed() -> None:
    from tilewright.passes.spaces.gpu.simt import SimtConfig

    w = square()
    configs = [SimtConfig(64, 64, 16, 4, 4, 3, 4), SimtConfig(128, 64, 16, 4, 4, 3, 4), SimtConfig(64, 64, 16, 4, 4, 3, 1)]
    found = Lattice(w, H100, configs)
    space = feature_space(found, [(("d0", 8), ("d1", n)) for n in (63, 64)])
    every = Pairs.product(range(3), range(2), [1])
    assert space.legal(every).all()
    space.form.note(found.texts[0], KernelFacts(64, 0, 1024, ("mod(operand1.stride0, 4)",)))
    space.form.note(found.texts[2], KernelFacts(64, 0, 1024, ("floordiv(d0, 1000000)",)))
    legal = space.legal(every).reshape(3, 2)
    assert legal.tolist() == [[False, True], [False, True], [True, True]]  # the second is taken to be guarded like the first
