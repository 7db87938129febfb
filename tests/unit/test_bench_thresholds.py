"""python -m tools.bench thresholds: which shapes differ, what a value costs, and the command line, with a family of the test."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import msgspec
import pytest

from tilewright.passes.spaces import family_registry
from tilewright.passes.spaces.host.host_rows import HostRowsConfig
from tilewright.passes.spaces.threshold import threshold
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.errors import BuildError, OptionError
from tilewright.runtime.limits import GpuLimits, HostLimits
from tilewright.runtime.program.dispatch import Leaf, Node, Split
from tilewright.runtime.target import Target
from tilewright.search.calibration.choices import Choice, choices, differing, thresholds_of, values_of
from tilewright.search.space.shapes import Dims
from tools.bench.__main__ import COMMANDS
from tools.bench.__main__ import main as bench
from tools.bench.gpu.cases import cases
from tools.bench.thresholds import command
from tools.bench.thresholds.rederive import Rederived, rederive


@dataclass(frozen=True)
class Thresholds:
    """Of the family of this test."""

    most_columns: int = threshold(16, unit="columns", operator="softmax", results="tests: none")
    unused: int = threshold(3, unit="rows", operator="softmax", results="tests: none")


def default(workload: Workload, limits: HostLimits, thresholds: Thresholds = Thresholds()) -> tuple[
        tuple[HostRowsConfig, ...], Node]:
    """One accumulator up to so many columns, four beyond."""
    lanes = limits.lanes(4)
    columns = next(str(loop.extent) for loop in workload.loops if loop.role == "col")
    return (HostRowsConfig(lanes=lanes, unroll=1), HostRowsConfig(lanes=lanes, unroll=4)), Split(
        columns, thresholds.most_columns, Leaf(0), Leaf(1))


RESULTS = Path(__file__).resolve().parents[2] / "tools" / "bench" / "results"
FAMILY = ModuleType("host_rows_heuristics")
FAMILY.__dict__.update(Thresholds=Thresholds, default=default)


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The family's heuristics are those of this test, and no other family has any."""

    def heuristics_of(family: str) -> ModuleType:
        if family == "generic":
            return ModuleType("without_thresholds")
        if family != "host_rows":
            raise ModuleNotFoundError(family)
        return FAMILY

    monkeypatch.setattr(family_registry, "heuristics_of", heuristics_of)
    return FAMILY


def test_values_about_the_one_of_today() -> None:
    assert values_of(16) == (4, 8, 16, 32, 64)
    assert values_of(1) == (0, 1, 2, 4) and values_of(0) == (0,)


class Found(NamedTuple):
    """Softmax of [12, T, T] with what is chosen at each T."""

    workload: Workload
    shapes: Sequence[Dims]
    chosen: Mapping[int, list[Choice]]


def columns(shape: Dims) -> int:
    """The workload's dims are rows and columns."""
    return dict(shape)["d1"]


@pytest.fixture(scope="module")
def found() -> Found:
    limits = HostLimits()
    (most, _) = thresholds_of("host_rows", FAMILY)
    workload, shapes = command.subject(most, command.operator_of(most), Target.parse("host"))
    found = choices(FAMILY, most, workload, limits, shapes, lambda *_: pytest.fail("the host builds nothing"))
    return Found(workload, shapes, found)


def test_shapes_differ_between_the_least_and_the_largest_value(found: Found) -> None:
    _, shapes, chosen = found
    assert len(shapes) == 128 and set(chosen) == {4, 8, 16, 32, 64}
    assert [columns(shapes[p]) for p in differing(chosen)] == list(range(5, 65))


def test_the_best_value_and_what_the_others_cost(found: Found) -> None:
    """Four accumulators are twice as fast from 9 columns on and twice as slow below: 8 is right, 16 is what stands there."""
    workload, shapes, chosen = found
    asked: list[int] = []

    def timer(_: Workload, variants: Sequence[Choice], shape: Dims) -> dict[Choice, float]:
        asked.append(columns(shape))
        return {v: 2.0 if ("unroll=1" in v[0]) == (asked[-1] > 8) else 1.0 for v in variants}

    result = rederive(thresholds_of("host_rows", FAMILY)[0], chosen, workload, shapes, 1, timer)
    assert asked == list(range(5, 65)) and (result.best, result.value, result.measured, result.shapes) == (8, 16, 60, 128)
    by_value = {t.value: t for t in result.tried}
    assert by_value[16].geomean == by_value[16].worst == 1.0
    assert by_value[8].geomean == pytest.approx(0.5 ** (8 / 128), abs=1e-4) and by_value[8].worst == 1.0
    assert by_value[32].geomean == pytest.approx(2 ** (16 / 128), abs=1e-4) and by_value[32].worst_shape["d1"] == 17
    assert "host_rows.most_columns = 16 columns: best 8; softmax, 1 threads, 60 of 128 shapes differ" in str(result)


def test_a_value_whose_kernel_may_not_run_is_no_best_one(found: Found) -> None:
    most = thresholds_of("host_rows", FAMILY)[0]
    chosen = {v: [("never", 1)] * 128 if v == 64 else c for v, c in found.chosen.items()}

    def timer(_: Workload, variants: Sequence[Choice], shape: Dims) -> dict[Choice, float]:
        return {v: 1.0 for v in variants if v[0] != "never"}

    result = rederive(most, chosen, found.workload, found.shapes, 1, timer)
    assert result.best == 16 and [t.geomean for t in result.tried] == [1.0, 1.0, 1.0, 1.0, None]
    assert "64  chooses a kernel that may not run at d0=12, d1=1" in str(result)
    with pytest.raises(BuildError, match="never, which is chosen today, cannot be built"):
        rederive(most, {**chosen, 16: chosen[64]}, found.workload, found.shapes, 1, timer)


def test_a_threshold_that_decides_nothing_is_not_measured(found: Found) -> None:
    unused = thresholds_of("host_rows", FAMILY)[1]
    chosen = choices(FAMILY, unused, found.workload, HostLimits(), found.shapes, lambda *_: [])
    result = rederive(unused, chosen, found.workload, found.shapes, 1, lambda *_: pytest.fail("nothing to measure"))
    assert (result.best, result.measured) == (3, 0)


def test_the_command_measures_and_writes_a_line(found: Found, module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                capsys: pytest.CaptureFixture[str]) -> None:
    """Real kernels, at two shapes."""
    monkeypatch.setattr(command, "subject", lambda *_: (found.workload, found.shapes[23:128:80]))
    path = tmp_path / "found.jsonl"
    assert bench(["thresholds", "host_rows.most_columns", "--seconds", "0.001", "--json", str(path)]) == 0
    (result,) = (msgspec.json.decode(line, type=Rederived) for line in path.read_bytes().splitlines())
    assert (result.shapes, result.measured, len(result.tried)) == (2, 1, 5)
    assert "best" in capsys.readouterr().out


def test_guards_and_the_emulator_s_clock(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A GPU family: a kernel is reached only where its guards hold, and the clock of the emulator times it."""
    made, untuned = ModuleType("gpu_rows_heuristics"), family_registry.heuristics_of("gpu_rows")

    def on_gpu(workload: Workload, limits: GpuLimits, thresholds: Thresholds) -> tuple[tuple[TileConfig, ...], Node]:
        configs, _ = untuned.default(workload, limits)
        return (configs[0], configs[-1]), Split(str(workload.size("col")), thresholds.most_columns, Leaf(0), Leaf(1))

    made.__dict__.update(Thresholds=Thresholds, default=on_gpu)
    monkeypatch.setattr(family_registry, "heuristics_of", lambda family: made if family == "gpu_rows" else FAMILY)
    taken, shapes = command.subject, [(("d0", 60), ("d1", 5)), (("d0", 144), ("d1", 12))]
    monkeypatch.setattr(command, "subject", lambda *given: (taken(*given)[0], shapes))
    assert bench(["thresholds", "gpu_rows.most_columns", "--target", "emulator:sm_90a"]) == 0
    assert "; softmax, 1 threads, 2 of 2 shapes differ" in capsys.readouterr().out


def test_names_are_listed_and_unknown_ones_refused(module: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(["thresholds", "--list"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "host_rows.most_columns = 16 columns; softmax; tests: none", "host_rows.unused = 3 rows; softmax; tests: none"]
    assert bench(["thresholds", "host_rows.least"]) == 1
    assert "error: no threshold 'host_rows.least'; the thresholds are host_rows.most_columns, " in capsys.readouterr().err
    with pytest.raises(OptionError, match="no kernel is timed on a GPU"):
        command.main(["--target", "cuda:sm_90a"])


def test_every_threshold_names_an_operator_of_the_bench_and_results_that_are_kept() -> None:
    for family in (*family_registry.family_names(gpu=False), *family_registry.family_names(gpu=True)):
        heuristics = command.heuristics(family)
        for t in thresholds_of(family, heuristics) if heuristics is not None else ():
            known = command.catalog().keys() | {case.name for case in cases()}
            assert t.origin.operator in known, f"{family}.{t.name}"
            for named in re.findall(r"[\w.-]+\.(?:jsonl|md)\b", t.origin.results):
                assert (RESULTS / named).exists(), f"{family}.{t.name}: {named}"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        bench([name, "--help"])
    assert stop.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: python -m tools.bench {name} ")


def test_the_entry_lists_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"\n  {name} " in shown for name in COMMANDS)
    assert bench([]) == 2 and bench(["nothing"]) == 2
    assert "no command 'nothing'; the commands are operators, models, " in capsys.readouterr().err
