"""Which kernels host_matmul runs untuned: how columns are read, the rows and vectors of blocks, what is fetched ahead."""

from __future__ import annotations

import dataclasses

import pytest
from kernel_harness import Dim
from matmul_workloads import AVX2, AVX512, described, prepacked_work

from tilewright.passes.spaces.host.host_block import DISTANT_BYTES, panel_block, register_block
from tilewright.passes.spaces.host.host_matmul import HostMatmulConfig, Pack, why_invalid
from tilewright.passes.spaces.host.host_matmul_heuristics import Thresholds, default
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import HostLimits
from tilewright.runtime.program.dispatch import select


def test_columns_are_streamed_then_copied_or_read_in_place() -> None:
    """By arithmetic: copies pay after few rows with 16 registers of 32 bytes; where a step of a block hides the lines of a row
    that lies apart, columns stay in place, unless rows share cache sets, and one is read again for every block."""
    slow = dataclasses.replace(AVX512, multiply_adds=1)

    def reading(columns: int, limits: HostLimits, m: int) -> tuple[bool, Pack]:
        configs, root = default(described("M", columns, 768), limits)
        found = configs[select(root, {"M": m}).kernel]
        return bool(found.stream), found.pack

    rows = {(limits, columns, m): reading(columns, limits, m) for limits in (AVX2, slow) for columns in (768, 1024)
            for m in (2, 4, 5, 13, 16, 24, 100)}
    streamed, in_place, copied = (True, Pack.NONE), (False, Pack.NONE), (False, Pack.PANEL)
    assert [rows[AVX2, 768, m] for m in (5, 13, 16, 100)] == [streamed, streamed, copied, copied]
    assert [rows[AVX2, 1024, m] for m in (5, 16, 24)] == [streamed, streamed, copied]
    assert [rows[slow, 768, m] for m in (2, 4, 16, 100)] == [streamed, in_place, in_place, in_place]
    assert [rows[slow, 1024, m] for m in (2, 24)] == [streamed, copied]


@pytest.mark.parametrize(("limits", "tile"), [(AVX2, 16), (AVX512, 64)])
@pytest.mark.parametrize("rows", [0, 1, 4])
def test_prepacked_panels_are_fetched_ahead_for_all_but_a_few_rows(limits: HostLimits, tile: int, rows: int) -> None:
    thresholds = Thresholds(unfetched_rows=rows)
    configs, root = default(prepacked_work("M", tile), limits, thresholds)
    for m in (1, 2, 4, 5, 128):
        chosen = configs[select(root, {"M": m}).kernel]
        assert chosen.prefetch == (0 if m <= rows else 16) and (m > rows or chosen.mr == rows)
    assert {c.prefetch for c in default(prepacked_work(64, tile), limits, thresholds)[0]} == {16}


def test_columns_of_a_block_that_are_no_whole_lines_are_not_fetched_ahead() -> None:
    configs, root = default(prepacked_work("M", 24), AVX2)
    assert {(c.mr, c.nv, c.prefetch) for c in configs} == {(4, 3, 0)}
    assert [configs[select(root, {"M": m}).kernel].mc for m in (1, 127, 128)] == [0, 0, 512]


@pytest.mark.parametrize(("l3", "cores", "columns", "rows"), [
    (1 << 25, 2, 768, 512), (1 << 22, 2, 768, 340), (1 << 20, 2, 768, 128), (DISTANT_BYTES, 2, 768, 128), (1 << 25, 8, 768, 128),
    (1 << 25, 2, 96, 512), (1 << 25, 4, 1536, 512)])
def test_rows_of_a_unit_come_from_a_near_last_cache(l3: int, cores: int, columns: int, rows: int) -> None:
    """A quarter of it at most; as many as the second one holds beside a panel where that is more, where the last is far or many
    cores share it."""
    limits = dataclasses.replace(AVX2, l2=1 << 19, l3=l3, cores=cores, threads=cores)
    configs, root = default(prepacked_work("M", 24, columns), limits)
    assert configs[select(root, {"M": 2000}).kernel].mc == rows


def test_few_panels_keep_to_the_second_cache_and_long_k_comes_in_pieces() -> None:
    """With 32 registers panels are copied for as many rows where the second cache has room for few."""
    few = dataclasses.replace(AVX2, l2=1 << 19, l3=1 << 25, cores=2, threads=2)
    many = dataclasses.replace(few, vector_registers=32, vector_bytes=64, l2=1 << 20)

    def rows(limits: HostLimits, columns: int, depth: int) -> tuple[int, int]:
        configs, root = default(described("M", columns, depth), limits)
        chosen = configs[select(root, {"M": 2000}).kernel]
        return chosen.mc, chosen.kc

    assert rows(few, 72, 768) == (128, 0)
    assert [rows(few, 768, depth) for depth in (768, 3072, 8192)] == [(512, 0), (512, 0), (512, 1024)]
    assert [rows(many, 768, depth) for depth in (768, 3072, 8192)] == [(168, 0), (512, 0), (256, 512)]


def test_rows_are_divided_where_few_panels_leave_threads_idle() -> None:
    """A panel of 64 columns is one unit for all rows, else; two are one for each thread."""

    def rows(columns: int, threads: int, m: int) -> int:
        limits = dataclasses.replace(AVX512, cores=2, threads=threads, l2=1 << 21)
        configs, root = default(prepacked_work("M", 64, columns), limits)
        chosen = configs[select(root, {"M": m}).kernel]
        assert chosen.mc % chosen.mr == 0
        return -(-m // (chosen.mc or m))

    assert rows(64, 2, 127) >= 4 and rows(64, 2, 1000) >= 16 and rows(192, 2, 127) >= 4
    assert rows(64, 1, 127) == rows(128, 2, 127) == rows(64, 2, 6) == 1


def test_blocks_of_rows_share_the_fetches_of_a_panel_that_is_not_near() -> None:
    near, rows = dataclasses.replace(AVX2, l2=1 << 24), {12: True, 11: False, "M": False}
    for m, shared in rows.items():
        assert default(prepacked_work(m, 24), AVX2)[0][0].next_panel == shared
        assert not default(prepacked_work(m, 24), near)[0][0].next_panel
    assert str(why_invalid(HostMatmulConfig(4, 3, 8, next_panel=True), described(64, 64, 64), AVX2)).startswith("next-panel")
    outer = HostMatmulConfig(4, 3, 8, columns_outer=True)
    assert str(why_invalid(outer, described(64, 64, 64), AVX2)).startswith("columns-outer")


@pytest.mark.parametrize(("columns", "block"), [
    (8, (6, 2)), (24, (4, 3)), (32, (6, 2)), (64, (6, 2)), (128, (6, 2)), (256, (4, 3)), (768, (4, 3)), (1024, (4, 3))])
def test_constant_columns_are_in_blocks_of_the_fewest_loads_unless_the_last_one_is_a_large_part(
        columns: int, block: tuple[int, int]) -> None:
    assert panel_block(columns, 8, AVX2) == block
    assert panel_block(columns, 16, AVX512) == register_block(columns, 16, AVX512)


def test_panels_from_a_distant_cache_are_narrow_and_meet_the_most_rows() -> None:
    """Two vectors, so that a block has as many rows as registers allow to multiply while its columns come."""
    far = dataclasses.replace(AVX512, l3=DISTANT_BYTES)
    assert [panel_block(n, 16, far) for n in (1024, 2304, 96, 48)] == [(12, 2), (12, 2), (12, 2), (8, 3)]
    assert panel_block(1024, 16, dataclasses.replace(far, l3=DISTANT_BYTES - 1)) == (6, 4)
    assert panel_block(1024, 8, dataclasses.replace(AVX2, l3=DISTANT_BYTES)) == panel_block(1024, 8, AVX2)
    configs = default(prepacked_work("M", 32), far)[0]
    assert {(c.mr, c.nv, c.prefetch) for c in configs} == {(6, 4, 8), (12, 2, 32)}
    assert all(c.low_tail for c in configs if c.exact_tails)
    assert not any(c.low_tail for c in default(prepacked_work("M", 32), AVX512)[0])


@pytest.mark.parametrize(("depth", "rows"), [(1024, 8), (2048, 8), (1536, 12), ("K", 12)])
def test_rows_that_share_a_set_of_the_first_cache_are_no_more_than_its_ways(depth: Dim, rows: int) -> None:
    configs, _ = default(described("M", 12, depth), AVX512)
    assert {c.mr for c in configs if not c.stream} == {rows}
    wide, _ = default(described("M", 768, 1024), AVX512)
    assert max(c.mr for c in wide) == 8


def test_columns_of_one_line_are_read_in_place_by_more_rows() -> None:
    configs, root = default(described("M", 16, "K"), AVX512)

    def block(m: int, k: int) -> tuple[int, Pack]:
        chosen = configs[select(root, {"M": m, "K": k}).kernel]
        return chosen.mr, chosen.pack

    assert {block(m, k) for m in (2, 50, 1000) for k in (512, 100, 1023)} == {(16, Pack.NONE)}
    assert {block(m, 2048) for m in (2, 50, 1000)} == {(8, Pack.NONE)} and block(1, 512)[0] == 1
    for other in (described("M", 12, "K"), described("M", 16, 1024), described("M", 32, "K"),
                  described("M", 16, "K", transposed=True), described("M", 16, "K", across=True)):
        assert all(c.mr < 16 for c in default(other, AVX512)[0])
    assert all(c.mr < 16 for c in default(described("M", 8, "K"), AVX2)[0])


@pytest.mark.parametrize("near", [AVX2, AVX512])
def test_columns_of_a_distant_cache_pass_in_pieces_of_k_that_the_first_one_holds(near: HostLimits) -> None:
    """In place for few rows, else copied with the rows; not where a copy of a panel is small, nor where lines come soon."""
    far = dataclasses.replace(near, l3=DISTANT_BYTES, l2=1 << 21)

    def chosen(limits: HostLimits, m: int, columns: int, depth: int) -> HostMatmulConfig:
        configs, root = default(described("M", columns, depth), limits)
        return configs[select(root, {"M": m}).kernel]

    few, many = chosen(far, 12, 1000, 2048), chosen(far, 100, 1000, 2048)
    assert (few.pack, many.pack, many.copy_rows) == (Pack.NONE, Pack.PANEL, True)
    for config in (few, many):
        assert 4 * config.kc * config.columns <= near.l1 and 2048 <= -(-2048 // config.kc) * config.kc < 2048 + 16 * config.kc
    assert chosen(far, 100, 1024, 576).kc and not chosen(far, 100, 1000, 576).kc  # the former's rows share sets
    assert not any(chosen(near, m, 1000, 2048).copy_rows for m in (12, 100))


def test_one_thread_copies_rows_for_many_panels_where_the_last_cache_is_distant() -> None:
    """Not of few rows or panels, on several threads, where k comes in pieces, with 16 registers, nor where lines come soon."""
    far = dataclasses.replace(AVX512, l3=DISTANT_BYTES, l2=1 << 21, cores=2, threads=1)

    def chosen(limits: HostLimits, m: int = 300, tile: int = 32, columns: int = 2304) -> HostMatmulConfig:
        configs, root = default(prepacked_work("M", tile, columns), limits)
        return configs[select(root, {"M": m}).kernel]

    for limits in (far, dataclasses.replace(far, cores=1, threads=0)):
        found = chosen(limits)
        assert (found.copy_rows, found.panels, found.mc) == (True, 72, 504)
        assert why_invalid(found, prepacked_work("M", 32), limits) is None
    narrow = dataclasses.replace(AVX2, l3=DISTANT_BYTES, l2=1 << 21, threads=1)
    others = (chosen(far, 100), chosen(far, columns=352), chosen(dataclasses.replace(far, threads=0)), chosen(narrow, tile=24),
              chosen(dataclasses.replace(far, l3=DISTANT_BYTES - 1)), chosen(far, columns=16384))
    assert not any(config.copy_rows for config in others) and others[-1].kc  # the last ones come from memory
    assert chosen(far, columns=384).copy_rows


def test_few_rows_read_two_panels_in_turns_where_these_come_from_afar() -> None:
    """As many rows as that leaves registers for; not of panels in the second cache, of fewer pairs than threads, nor where lines
    come soon."""
    far = dataclasses.replace(AVX512, l3=DISTANT_BYTES, l2=1 << 21, cores=2, threads=1)

    def block(limits: HostLimits, m: int, tile: int = 32, columns: int = 2304) -> tuple[int, int]:
        work = prepacked_work("M", tile, columns)
        configs, root = default(work, limits)
        chosen = configs[select(root, {"M": m}).kernel]
        assert why_invalid(chosen, work, limits) is None
        return chosen.mr, chosen.nv

    assert [block(far, m) for m in (1, 6, 7)] == [(6, 4), (6, 4), (12, 2)]
    narrow = dataclasses.replace(far, vector_bytes=32, vector_registers=16)
    assert [block(narrow, m, 24) for m in (1, 2)] == [(1, 6), (4, 3)]
    near, many = dataclasses.replace(far, l3=DISTANT_BYTES - 1), dataclasses.replace(far, threads=37, cores=37)
    assert block(near, 1) == (1, 2) and block(many, 1) == block(far, 1, columns=512) == (12, 2)


@pytest.mark.parametrize("columns", [12, 16, 32])
def test_rows_that_pass_a_block_of_columns_once_fetch_the_next_ones(columns: int) -> None:
    """Where all of them exceed the second cache, from one that is distant; not where columns are more, nor in words."""
    far = dataclasses.replace(AVX512, l3=DISTANT_BYTES, l2=1 << 21)

    def fetches(work: Workload, limits: HostLimits, m: int, k: int) -> bool:
        configs, root = default(work, limits)
        chosen = configs[select(root, {"M": m, "K": k}).kernel]
        assert why_invalid(chosen, work, limits) is None
        return chosen.next_rows

    work = described("M", columns, "K")
    assert fetches(work, far, 4096, 200) and fetches(described(4096, columns, 200), far, 4096, 200)
    near = dataclasses.replace(far, l3=DISTANT_BYTES - 1)
    assert not any((fetches(work, far, 64, 200), fetches(work, far, 1, 1 << 20), fetches(work, near, 4096, 200),
                    fetches(described("M", 64, "K"), far, 4096, 200), fetches(described(64, columns, 200), far, 64, 200)))
    assert str(why_invalid(HostMatmulConfig(8, 1, 16, next_rows=True, copy_rows=True, mc=64), work, far)).startswith("next-rows")


@pytest.mark.parametrize("columns", ["M", 512, 4096])
def test_results_of_few_products_are_written_along_rows_where_they_leave_the_last_cache(columns: Dim) -> None:
    """By vectors of half a line, from half of that cache on; not those of many products, nor of one panel."""
    limits = dataclasses.replace(AVX2, l3=1 << 22)

    def chosen(m: int, depth: int = 16, columns: Dim = columns, limits: HostLimits = limits) -> HostMatmulConfig:
        work = described("M", columns, depth, transposed=True)
        configs, root = default(work, limits)
        found = configs[select(root, {"M": m}).kernel]
        assert why_invalid(found, work, limits) is None
        return found

    few, many = {"M": (700, 730), 512: (1000, 1030), 4096: (120, 130)}[columns]
    assert not chosen(few).by_rows and chosen(many).by_rows and chosen(many).panels == (22 if columns == 512 else 32)
    assert not any((chosen(many, 64).by_rows, chosen(1 << 20, columns=16).by_rows, chosen(many, limits=AVX512).by_rows))
    refused = why_invalid(dataclasses.replace(chosen(many), kc=8), described("M", columns, 16, transposed=True), limits)
    assert str(refused).startswith("by-rows")


@pytest.mark.parametrize(("limits", "rows"), [(AVX512, 6), (AVX2, 3)])
def test_a_few_rows_share_transposed_columns_that_exceed_the_first_cache(limits: HostLimits, rows: int) -> None:
    def chosen(m: int, depth: int = 768) -> HostMatmulConfig:
        work = described("M", 64, depth, transposed=True)
        configs, root = default(work, limits)
        found = configs[select(root, {"M": m}).kernel]
        assert why_invalid(found, work, limits) is None
        return found

    assert (chosen(1).stream > 0, chosen(1).mr) == (True, 1)
    assert {(c.mr, c.stream, c.mc) for c in map(chosen, (2, 7, 12))} == {(rows, 4, 12)}
    assert (chosen(13).stream, chosen(13).pack) == (chosen(2, 64).stream, chosen(2, 64).pack) == (0, Pack.PANEL)
    too_many = HostMatmulConfig(rows + 1, 2, 8, stream=4, mc=rows + 1)
    assert str(why_invalid(too_many, described(8, 64, 768, transposed=True), limits)).startswith("register-budget")
