"""Partitions as arms of a search: alternatives are legal and differ, what gains is taken, and the log tells later compiles."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from unit.graph_models import EXP, T, W, X, generic, matmul, model
from unit.test_cut_refused import check, softmax
from unit.test_partition import assert_partition, planned
from unit.test_strips import wide

import tilewright as tw
from tilewright.compiler.builder.codegen import limits
from tilewright.compiler.builder.local_builder import LocalBuilder
from tilewright.compiler.cli.main import main
from tilewright.compiler.compilation.compilation import Compilation, full_target
from tilewright.compiler.compilation.outlined_model import SPEEDS_OF, Cut, outline, speeds_of
from tilewright.compiler.compilation.partitions import alternatives_of, partitions_of
from tilewright.compiler.report.cut_section import cut_section
from tilewright.compiler.tuning.operator_tuning import environment
from tilewright.compiler.verification import models_beside, partition_arms
from tilewright.compiler.verification.keep_what_gains import Verdict
from tilewright.compiler.verification.models_beside import Shapes
from tilewright.compiler.verification.partition_arms import HostModels, shapes_of
from tilewright.passes.dispatch_creation.fuse import Fuse
from tilewright.passes.mlir import ir
from tilewright.passes.partition.alternatives import alternatives
from tilewright.passes.partition.cost import SPEEDS, Machine
from tilewright.passes.partition.rules import rules_named
from tilewright.passes.partition.strip_choice import StripChoice
from tilewright.runtime.errors import OptionError
from tilewright.runtime.limits import HostLimits
from tilewright.runtime.load.function import CompiledFunction
from tilewright.runtime.target import Target
from tilewright.search.database.cut_records import CutRecord
from tilewright.search.database.records import TuningLog

RANGE = {"T": (1, 64)}
CUT = '{"record":"cut","graph":"g","way":"gain","apart":[],"ratio":1,"error":0,"predicted":1,"rounds":1,"taken":true}'


def compilation(log: Path | None = None) -> Compilation:
    found = tw.CompileOptions(seconds=400.0, threads=1, log=log, builder=LocalBuilder(Target.parse("host")))
    return Compilation(softmax(), RANGE, full_target("host"), found)


def test_alternatives_are_other_partitions_each_of_every_operation() -> None:
    own = outline(compilation())
    found = alternatives_of(own, 8)
    assert len(found) > 2 and [a.predicted for a in found] == sorted(a.predicted for a in found)
    calls = {tuple(sorted(outline(compilation(), a.cut).operations.values())) for a in found}
    assert len(calls) == len(found) and tuple(sorted(own.operations.values())) not in calls
    assert {outline(compilation(), a.cut).graph for a in found} == {own.graph}  # numbers mean the same operations


def test_alternatives_of_equal_regions_are_cut_alike() -> None:
    body = ""
    value = "%x"
    for n in range(3):
        body += generic(f"p{n}", value, T, "%e", T, EXP, "#id, #id") + generic(f"q{n}", f"%p{n}", T, "%e", T, EXP, "#id, #id")
        body += matmul(f"m{n}", f"%q{n}")
        value = f"%m{n}"
    with ir.Context(), ir.Location.unknown():
        taken = planned(model([X, W], body, value, T))
        found = alternatives(taken, rules_named(), True, Machine(), 8)
        assert found
        for plan in found:
            assert_partition(plan)
        cut = [p for p in found if p.way == taken.way]
        assert any(p.cost.launches == taken.cost.launches + 2 for p in cut)  # behind two products alike


def test_what_gains_is_taken_and_the_log_tells_later_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                              capsys: pytest.CaptureFixture[str]) -> None:
    path, ratios = tmp_path / "log.jsonl", iter([1.2, 0.8, 0.9, *[1.0] * 99])
    monkeypatch.setattr(partition_arms, "_MOST", 4)

    def compare(_: HostModels, base: CompiledFunction, new: CompiledFunction, *__: object) -> Verdict:
        check(new)
        return Verdict(next(ratios), 0.001, 20)

    monkeypatch.setattr(HostModels, "compare", compare)
    asked = compilation(path)
    found, _ = partition_arms.measured_cut(asked, LocalBuilder(Target.parse("host")))
    records = TuningLog(path).cuts
    assert [r.taken for r in records[:3]] == [False, True, True] and not any(r.taken for r in records[3:])
    last = [r for r in records if r.taken][-1]
    assert found.cut.apart == tuple(zip(last.apart[::2], last.apart[1::2], strict=True)) and found.cut != Cut()
    monkeypatch.setattr(HostModels, "compare", lambda *_: pytest.fail("what the log knows is measured again"))
    again, _ = partition_arms.measured_cut(compilation(path), LocalBuilder(Target.parse("host")))
    assert again.cut == found.cut and len(TuningLog(path).cuts) == len(records)
    fn = tw.compile(softmax(), RANGE, options={"log": path, "threads": 1})
    check(fn)
    assert fn.program.asked.apart == found.cut.apart and len(fn.program.calls) == len(found.plan.calls)
    assert fn.program.asked.measured == pytest.approx(0.8 * 0.9) and found.cut.measured == pytest.approx(0.8 * 0.9)
    fn.save(tmp_path / "m.tw")
    assert main(["explain", str(tmp_path / "m.tw")]) == 0
    assert "0.720 of the time of the predicted one" in " ".join(capsys.readouterr().out.split())
    shown = partitions_of(fn.program.source, limits(full_target("host")), fn.program.asked)[-1]
    assert len(shown.areas) == len(found.plan.calls)
    other = tw.compile(softmax(), RANGE, options={"log": path, "threads": 2})
    assert other.program.asked.apart == ()  # measured with another number of threads
    assert len(cut_section(records).tables[0].rows) == len(records)


def test_an_alternative_that_gives_other_results_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models_beside, "why_other", lambda *_: "planted")
    monkeypatch.setattr(partition_arms, "_MOST", 2)
    path = tmp_path / "log.jsonl"
    found, _ = partition_arms.measured_cut(compilation(path), LocalBuilder(Target.parse("host")))
    records = TuningLog(path).cuts
    assert found.cut == Cut() and records and all(r.wrong == "planted" and not r.taken for r in records)


def test_strips_of_rows_are_arms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing by strips, and what is not predicted to lose; what was measured is known later."""
    graph, weights = wide()
    path = tmp_path / "log.jsonl"
    options = tw.CompileOptions(seconds=400.0, threads=1, log=path, builder=LocalBuilder(Target.parse("host")))
    asked = Compilation(graph, {"T": (1, 4096)}, full_target("host"), options, weights)
    own = outline(asked)
    arms = {a.cut.strips: a for a in alternatives_of(own, 8) if a.cut.strips is not own.cut.strips}
    assert own.plan.strips and StripChoice.NEVER in arms and arms[StripChoice.NEVER].predicted > 1
    for choice, arm in arms.items():
        assert (arm.cut.way, arm.cut.apart) == (own.cut.way, own.cut.apart) and arm.cut.strips is choice
    monkeypatch.setattr(partition_arms, "alternatives_of", lambda *_: [arms[StripChoice.NEVER]])
    monkeypatch.setattr(HostModels, "compare", lambda *_: Verdict(0.9, 0.001, 20))
    found, _ = partition_arms.measured_cut(asked, LocalBuilder(Target.parse("host")))
    assert found.cut.strips is StripChoice.NEVER and not found.plan.strips
    [record] = TuningLog(path).cuts
    assert (record.strips, record.taken, record.apart) == ("never", True, ())
    fn = tw.compile(graph, {"T": (1, 4096)}, constants=weights, options={"log": path, "threads": 1})
    assert not fn.program.strips and fn.program.asked.strips == "never"
    assert [row[3] for row in cut_section([record]).tables[0].rows] == ["never"]
    donated = alternatives_of(replace(own, donated=((0, 0),)), 8)
    assert {a.cut.strips for a in donated} <= {own.cut.strips}


def test_without_time_nothing_is_measured(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    asked = Compilation(softmax(), RANGE, full_target("host"), tw.CompileOptions(seconds=1e-3, threads=1, log=path))
    partition_arms.measured_cut(asked, LocalBuilder(Target.parse("host")))
    assert not TuningLog(path).cuts


def test_one_model_against_itself_gains_nothing() -> None:
    g = softmax()
    fn = tw.compile(g, RANGE, options={"threads": 1})
    shapes = Shapes(shapes_of(outline(compilation())), False)
    verdict = partition_arms.HostModels().compare(fn, fn, shapes, end=np.inf)
    assert verdict.rounds >= 3 and not verdict.wrong and 0.5 < verdict.ratio < 2


@pytest.mark.parametrize(("line", "reason"), [
    ('{"record":"cut","schema":9}', "schema 9"),
    (CUT.replace("[]", "[1]"), "odd number"),
    (CUT.replace("[]", "[-1,2]"), "apart"),
])
def test_damaged_cuts_are_skipped(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(line + "\n")
    log = TuningLog(path)
    assert not log.cuts and reason in log.skipped[0].reason


@pytest.mark.parametrize(("way", "apart"), [("cost", (0, 999)), ("guess", ())])
def test_a_log_that_names_no_partition_is_passed_over(tmp_path: Path, way: str, apart: tuple[int, ...],
                                                      caplog: pytest.LogCaptureFixture) -> None:
    model = outline(compilation(tmp_path / "log.jsonl"))
    here = environment(model.compilation.target).device
    TuningLog(tmp_path / "log.jsonl").add_cut(CutRecord(model.graph, way, apart, 0.5, 0.0, 1.0, 9, True, device=here, threads=1))
    fn = tw.compile(softmax(), RANGE, options={"log": tmp_path / "log.jsonl", "threads": 1})
    check(fn)
    assert fn.program.asked.way == "cost" and "is passed over: " in caplog.text


def test_speeds_of_the_machine_are_what_partitions_are_predicted_by() -> None:
    plain = limits(full_target("host"))
    assert isinstance(plain, HostLimits)
    known = tuple((f"{SPEEDS_OF}.{name}", 10**9 + n) for n, name in enumerate(SPEEDS))
    assert speeds_of(replace(plain, calibrated=())) == () and speeds_of(replace(plain, calibrated=known[1:])) == ()
    here = speeds_of(replace(plain, calibrated=known))
    machine = Machine.of(here)
    assert machine.launch == pytest.approx(1e-3) and machine.memory == 10**9 + 4 and machine.products == 10**9 + 6
    assert [size for size, _ in machine.caches] == [size for size, _ in Machine().caches]
    assert Machine.of(()) == Machine() and Fuse(speeds=here).spec().startswith("fuse{speeds=1000000000,")
    with pytest.raises(OptionError, match="speeds=1,2; wanted 7 numbers"):
        Fuse(speeds=(1, 2))
