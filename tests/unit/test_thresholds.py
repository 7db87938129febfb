"""Every threshold of an untuned choice names an operator of the bench, a unit and results; defaults read them."""

from __future__ import annotations

import importlib
from dataclasses import fields, replace
from pathlib import Path

import pytest
from matmul_workloads import AVX512, described

from tilewright.passes.spaces import threads_heuristics
from tilewright.passes.spaces.family_registry import family_names, heuristics_of
from tilewright.passes.spaces.host import generic_heuristics, host_matmul_heuristics
from tilewright.passes.spaces.host.host_matmul import HostMatmulConfig, Pack, why_invalid
from tilewright.passes.spaces.threads import effort
from tilewright.passes.spaces.threshold import origins
from tilewright.passes.spaces.workload import Kind
from tilewright.runtime.limits import HostLimits
from tilewright.runtime.program.dispatch import select
from tools.bench.operators import operators

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("module", sorted(p.stem for p in (ROOT / "passes" / "spaces").glob("*_heuristics.py")))
def test_thresholds_name_their_origin(module: str) -> None:
    known = {operator.name for operator in operators()}
    found = origins(importlib.import_module(f"tilewright.passes.spaces.{module}").Thresholds())
    assert found
    for name, (value, origin) in found.items():
        assert value > 0 and origin.unit, name
        assert origin.operator in known, f"{name} of {module}: {origin.operator} is no operator of the bench"
        files = [word.strip(":,") for word in origin.results.split() if ".jsonl" in word]
        assert origin.results and all((ROOT / "tools" / "bench" / "results" / f).exists() for f in files), name


@pytest.mark.parametrize("family", family_names(gpu=False))
def test_every_host_family_has_heuristics(family: str) -> None:
    assert callable(heuristics_of(family).default)


def test_a_default_follows_its_thresholds() -> None:
    work = described("M", 768, 768, transposed=True)
    usual = host_matmul_heuristics.Thresholds()
    for rows in (2, 3, 6):
        configs, root = host_matmul_heuristics.default(work, AVX512, replace(usual, transposed_rows=rows))
        kernels = [configs[select(root, {"M": m}).kernel] for m in (rows, rows + 1)]
        assert [bool(c.stream) for c in kernels] == [True, False]


def test_columns_of_a_distant_cache_are_read_in_short_pieces() -> None:
    usual, near = host_matmul_heuristics.Thresholds(), replace(AVX512, cores=2)
    far = replace(near, l1=48 << 10, l2=2 << 20, l3=256 << 20)
    work = described("M", 768, 3072)

    def chosen(limits: HostLimits, rows: int) -> HostMatmulConfig:
        configs, root = host_matmul_heuristics.default(work, limits, usual)
        return configs[select(root, {"M": rows}).kernel]

    assert not any(chosen(near, rows).kc in range(1, 512) for rows in (2, 8, 127, 128))
    short = chosen(far, 8)
    assert chosen(far, usual.short_piece_rows) == short and short.pack is Pack.NONE and why_invalid(short, work, far) is None
    assert 0 < short.kc * short.columns * 4 <= far.l1 and short.panels * short.columns * far.cores >= 768
    copied = chosen(far, usual.short_piece_rows + 1)
    assert chosen(far, 4).stream and copied.pack is Pack.PANEL and copied == chosen(far, 2000)
    assert why_invalid(copied, work, far) is None
    assert (copied.kc, copied.panels, copied.copy_rows) == (short.kc, short.panels, True)
    deep = host_matmul_heuristics.default(described("M", 768, 3072, transposed=True), far, usual)[0][-1]
    assert deep.pack is Pack.PANEL and deep.kc == 512  # of columns along k
    alone = chosen(replace(far, threads=1), 8)
    assert (alone.mr, alone.nv, alone.kc) == (short.mr, short.nv, short.kc) and alone.panels == 2 * short.panels
    raised = host_matmul_heuristics.default(work, far, replace(usual, distant_bytes=far.l3 + 1))
    assert raised == host_matmul_heuristics.default(work, replace(far, l3=usual.distant_bytes - 1), usual)


def test_work_follows_each_of_its_thresholds() -> None:
    usual = threads_heuristics.Thresholds()
    dense = replace(described("M", 768, 8), bytes=described("M", 768, 8).size("m") * 768 * 1000)
    rows = replace(dense, kind=Kind.ATTENTION, transcendentals=1,
                   inputs=tuple(replace(o, dtype=type(o.dtype)("bf16")) for o in dense.inputs))
    at = {"M": 8, "N": 768, "K": 8}
    for field in fields(usual):
        if field.name != "small":
            more = replace(usual, **{field.name: 4 * getattr(usual, field.name)})
            assert effort(rows, more).evaluate(at) > effort(rows, usual).evaluate(at), field.name


def test_long_chains_of_functions_are_computed_in_two_registers() -> None:
    work, usual = replace(described("M", 768, 768), kind=Kind.POINTWISE), generic_heuristics.Thresholds()
    for least in (usual.interleaved, 7):
        given = [(replace(work, transcendentals=n), AVX512, replace(usual, interleaved=least)) for n in (least - 1, least)]
        lanes = [generic_heuristics.default(*each)[0][0].lanes for each in given]
        assert lanes == [AVX512.lanes(4), 2 * AVX512.lanes(4)]
