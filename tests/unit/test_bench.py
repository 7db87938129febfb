"""tools.bench: turns, ratios, checks and records, with systems that only count."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest

from tools.bench import models, operators
from tools.bench.control import cases
from tools.bench.harness import records, report
from tools.bench.harness.compare import arguments, matches
from tools.bench.harness.interleave import PINS, Team, Worker, WorkerDiedError, environment, rounds
from tools.bench.harness.measure import Bench
from tools.bench.harness.quiet import Snapshot, others, snapshot
from tools.bench.harness.records import SCALING, Case, Failure, Figure, Run, Timed
from tools.bench.harness.worker import catalog, time_calls
from tools.bench.operator_spec import extents, relative_error
from tools.bench.peers import OURS, SYSTEMS, chosen
from tools.bench.references import reference
from tools.bench.zoo import modules


def timing(us: float) -> Timed:
    return records.timed([us * 1e-6] * 3, 1e-7, 0.5)


def case(threads: int = 1, shape: int = 5, wrong: Sequence[str] = (), **times: float) -> Case:
    systems = {n.replace("__", ":"): timing(t) for n, t in times.items()}
    return Case("r", "dense", {"T": shape}, threads, systems, 100, list(wrong))


def test_every_round_starts_with_the_next_system() -> None:
    turns: list[tuple[str, float]] = []

    def turn(name: str, each: float):
        def take(seconds: float) -> float:
            turns.append((name, seconds))
            return each

        return take

    found = rounds({"a": turn("a", 1.0), "b": turn("b", 2.0), "c": turn("c", 3.0)}, 4, 0.8)
    assert found == {"a": [1.0] * 4, "b": [2.0] * 4, "c": [3.0] * 4}
    assert "".join(name for name, _ in turns) == "abcbcacababc"
    assert {seconds for _, seconds in turns} == {0.2}


def test_time_calls_measures_batches_after_a_warm_up() -> None:
    now, calls = [0.0], [0]

    def call() -> None:
        calls[0] += 1
        now[0] += 0.001 if calls[0] > 3 else 0.5

    assert time_calls(call, 2.0, lambda: now[0]) == pytest.approx(0.001)
    assert calls[0] < 3 + 2 / 0.001


def test_time_calls_of_one_long_call() -> None:
    now, calls = [0.0], [0]

    def call() -> None:
        calls[0] += 1
        now[0] += 7.0

    assert time_calls(call, 0.1, lambda: now[0]) == 7.0
    assert calls[0] == 2


def test_ratio_is_the_best_correct_peer_over_ours() -> None:
    assert case(tilewright=10, numpy=30, ort=12).ratio == pytest.approx(1.2)
    assert case(tilewright=10, numpy=30, ort=12).best_peer == "ort"
    assert case(tilewright=10, numpy=30, ort=12, wrong=["ort"]).ratio == pytest.approx(3.0)
    assert case(tilewright=10, ort=12, wrong=[OURS]).ratio is None
    assert case(tilewright=10).ratio is None
    assert case(numpy=10, ort=5).ratio is None


def test_rows_of_the_report() -> None:
    cases = [case(shape=5, tilewright=10, ort=20, numpy=40), case(shape=24, tilewright=10, ort=5, numpy=10)]
    (row,) = report.rows(cases)
    assert (row.geomean, row.worst, row.worst_shape) == (pytest.approx(1.0), pytest.approx(0.5), "T=24")
    assert dict(row.peers) == {"numpy": pytest.approx(2.0), "ort": pytest.approx(1.0)}
    assert len(report.rows([*cases, case(threads=2, tilewright=1, ort=1)])) == 2
    assert report.rows([case(numpy=1)])[0].geomean is None


def test_scaling_is_the_worst_of_the_shapes() -> None:
    def scaled(shape: str, value: float) -> Figure:
        return Figure("r", SCALING, value, "x", {"operator": "dense", "shape": shape, "threads": "2"})

    (found,) = report.scalings([scaled("T=5", 1.1), scaled("T=24", 1.9), case(tilewright=10), scaled("T=5", 1.8),
                                scaled("T=5", 1.85)])
    assert (found.operator, found.threads, found.cases, found.worst, found.worst_shape) == ("dense", 2, 2, 1.8, "T=5")
    assert "| dense | 2 | 2 | 1.80 | T=5 |" in report.markdown([scaled("T=5", 1.8), scaled("T=24", 1.9)])


def test_a_later_measurement_replaces_an_earlier_one() -> None:
    found = report.latest([case(tilewright=10, ort=5), case(shape=24, tilewright=1, ort=1), case(tilewright=10, ort=20)])
    assert [c.ratio for c in found] == [pytest.approx(2.0), pytest.approx(1.0)]


def test_disturbed_cases_are_only_counted() -> None:
    noisy = msgspec.structs.replace(case(shape=24, tilewright=10, ort=1), others=0.5)
    (row,) = report.rows([case(tilewright=10, ort=20), noisy])
    assert (row.cases, row.disturbed, row.worst) == (1, 1, pytest.approx(2.0))


def test_others_are_what_is_not_ours() -> None:
    before, after = Snapshot(10.0, 100.0, 50.0), Snapshot(12.0, 103.0, 52.0)
    assert others(before, after) == pytest.approx(0.5)
    assert others(before, Snapshot(12.0, 101.0, 52.0)) == 0
    found = snapshot([])
    assert 0 < found.own <= found.all


def test_records_are_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    run = records.new_run({"numpy": "1"}, {"threads": "1"})
    written = [run, case(tilewright=10, ort__fused=20), Failure("r", "conv", 1, OURS, "no"), Figure("r", "dispatch", 2.0, "ns")]
    for record in written:
        records.append(path, record)
    assert list(records.read(path)) == written
    assert isinstance(written[0], Run) and run.cores >= 1 and run.cpu and run.schema == records.SCHEMA
    text = report.markdown(written)
    assert "| dense | 1 | 1 | 2.00 | 2.00 | T=5 | ort:fused 2.00 |  |  |" in text
    assert "- tilewright, conv" in text and "| dispatch | 2 ns" in text


def test_a_line_of_another_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text('{"record":"case","run":"r","operator":"dense"}\n')
    with pytest.raises(msgspec.ValidationError, match="shape"):
        list(records.read(path))


def test_committed_results_can_be_read() -> None:
    for path in (Path(report.__file__).parent / "results").glob("host-*.jsonl"):
        found = list(records.read(path))
        assert isinstance(found[0], Run), path
        assert report.markdown(found)


def test_patterns_and_peers() -> None:
    assert matches("dense_768x768", "dense_*,!*_argument") and not matches("dense_768x768_argument", "dense_*,!*_argument")
    assert matches("softmax", "!dense_*") and not matches("softmax", "bmm_*")
    assert chosen("ort") == [OURS, "ort", "ort:fused", "ort:module"]
    assert chosen("eager,ort:module") == [OURS, "ort:module", "eager"]
    with pytest.raises(ValueError, match="unknown peer blis"):
        chosen("blis")
    assert arguments("models", ["--threads", "1,2"]).suite == "models"
    assert [arguments("operators", a).suite for a in ([], ["--avx2"])] == ["operators", "avx2"]


def test_workers_get_no_pins(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PINS:
        monkeypatch.setenv(name, "x")
    found = environment(2)
    assert not set(PINS) & set(found)
    assert environment(2, "numpy:avx2")["OPENBLAS_CORETYPE"] == "Haswell"
    assert (environment(2, "numpy")["OPENBLAS_NUM_THREADS"], environment(2, "ort")["OPENBLAS_NUM_THREADS"]) == ("2", "1")
    assert (found["OMP_NUM_THREADS"], found["OPENBLAS_NUM_THREADS"]) == ("2", "1")


def test_relative_error() -> None:
    exact = np.array([3.0, 4.0])
    assert relative_error(np.array([3.0, 4.5], np.float32), exact) == pytest.approx(0.1)
    assert math.isinf(relative_error(np.array([3.0]), exact)) and math.isinf(relative_error(np.array([3.0, np.nan]), exact))


def test_the_catalog() -> None:
    found = catalog()
    plain = [*operators.operators(), *models.models(), *cases.cases()]
    assert len(found) == len([*plain, *modules.groups(), *modules.layers(), *modules.models()])
    for operator in plain:
        for shape in (*operator.points, *operator.more_points):
            assert all(operator.ranges[n][0] <= v <= operator.ranges[n][1] for n, v in shape.items())
            assert extents(operator.output, shape) == operator.empty_output(shape).shape
    dense = found["dense_768x768"]
    assert dense.work({"T": 5}) == 2 * 5 * 768 * 768
    assert set(dense.constants()) == {"w"} and set(dense.arguments({"T": 5})) == {"x"}
    assert np.array_equal(dense.constants()["w"], dense.constants()["w"])


@pytest.mark.parametrize("name", ["softmax", "dense_768x3072_nk_argument", "attention_causal", "conv3x3_s2_128x56_128_nhwc",
                                  "bert_layer", "resnet_block"])
def test_references_have_the_shape_of_the_output(name: str) -> None:
    operator = catalog()[name]
    shape = {n: 2 if n != "B" else 1 for n in operator.ranges}
    wanted = reference(operator, {**operator.constants(), **operator.arguments(shape)})
    assert wanted.dtype == np.float64 and wanted.shape == extents(operator.output, shape) and np.isfinite(wanted).all()


class FakeTeam(Team):
    """Ours gives the right sum of squares late, a peer a wrong one early; `broken` dies when it prepares."""

    def __init__(self) -> None:
        super().__init__([OURS, "wrong", "broken"], 1)

    def prepare(self, operator: str) -> tuple[dict[str, float], dict[str, str]]:
        return {OURS: 0.5, "wrong": 0.1}, {"broken": "ValueError: no"}

    def bind(self, systems: Sequence[str], shape: object, folder: Path) -> tuple[dict[str, Path], dict[str, str]]:
        operator = catalog()["softmax"]
        exact = reference(operator, operator.arguments(shape))  # type: ignore[arg-type]
        for system, factor in ((OURS, 1.0), ("wrong", 1.5)):
            np.save(folder / f"{system}.npy", exact * factor)
        return {s: folder / f"{s}.npy" for s in systems}, {}

    def worker(self, system: str) -> Worker:
        class Fake:
            def __init__(self) -> None:
                self.near: list[float] = []

            def turn(self, seconds: float) -> float:
                return 2e-6 if system == OURS else 1e-6

        return Fake()  # type: ignore[return-value]


def test_a_wrong_result_and_a_dead_system_are_recorded(tmp_path: Path) -> None:
    busy = iter([Snapshot(0, 0, 0), Snapshot(1, 2, 1), Snapshot(1, 2, 1), Snapshot(2, 3.1, 2)])
    bench = Bench("r", FakeTeam(), 0.1, 3, tmp_path, lambda _: next(busy))
    failure, measured = bench.operator(catalog()["softmax"], [{"T": 5}])
    assert isinstance(failure, Failure) and failure.error == "ValueError: no"
    assert isinstance(measured, Case)
    assert measured.others == 0.1 and next(busy, None) is None
    assert measured.wrong == ["wrong"] and measured.ratio is None
    assert measured.systems["wrong"].rounds_us == [1.0] * 3 and measured.systems[OURS].error < 1e-12


def test_worker_processes() -> None:
    """A real worker answers, stands still between requests, and says why it ended."""
    pytest.importorskip("threadpoolctl")
    assert "numpy" in SYSTEMS
    with Team(["numpy"], 1) as team:
        assert "numpy" in team.ask("numpy", do="version")["version"]
        assert team.ask("numpy", do="prepare", operator="conv3x3_64x56_64_nchw")["unsupported"]
        assert team.prepare("bmm_nn")[1] == {}
        process = team.worker("numpy")._process
        assert Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
        with pytest.raises(WorkerDiedError, match="KeyError"):
            team.ask("numpy", do="prepare", operator="no such operator")
        assert team.prepare("bmm_nn")[0].keys() == {"numpy"}
