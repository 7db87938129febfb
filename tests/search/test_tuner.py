from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hand_workloads import with_loops
from search_surfaces import LIMITS, Clock, dense_task, matmul_seconds, regret, rows_up_to, square_pair

from tilewright.passes.spaces.family_registry import config_text, heuristics_of
from tilewright.passes.spaces.workload import Kind, Loop, Operand, Workload
from tilewright.runtime.program.dispatch import Leaf, select
from tilewright.runtime.program.kernel import MicroKernel
from tilewright.runtime.shape import Expr, ShapeRange
from tilewright.runtime.tensor import DType
from tilewright.search.cost_model.feature_space import FeatureSpace
from tilewright.search.cost_model.forms import form_of
from tilewright.search.database.records import TuningLog
from tilewright.search.protocols import Measurement
from tilewright.search.runner.measurer import Measurer
from tilewright.search.runner.replay import ReplayBuilder, ReplayRunner, SurfaceRunner
from tilewright.search.search_strategy.certify import Entry, certify, measure_entry
from tilewright.search.search_strategy.outcome import Progress, Tuned
from tilewright.search.search_strategy.selection import serves_all
from tilewright.search.search_strategy.tune_options import Budget, TuneOptions
from tilewright.search.search_strategy.tuner import Tuner, tune
from tilewright.search.space.shapes import ShapeDemand
from tilewright.search.space.task import Task


def run(task: Task, trials: int, options: TuneOptions | None = None, log: TuningLog | None = None,
        states: list[Progress] | None = None) -> tuple[Tuned, SurfaceRunner]:
    clock = Clock()
    runner = SurfaceRunner(matmul_seconds, clock.advance)
    tuned = tune(task, clock.context(runner, log), Budget(trials=trials), options,
                 progress=states.append if states is not None else lambda state: None)
    return tuned, runner


@pytest.mark.parametrize("threads", [1, 2])
def test_a_known_optimum_is_reached_over_the_whole_range(threads: int) -> None:
    means = []
    for seed in range(3):  # single seeds vary by some 2 %
        task = dense_task(seed=seed)
        tuned, runner = run(task, 320, TuneOptions(threads=threads))
        found = np.log(1 + np.array(regret(task, tuned, task.points.thin(16).shapes, threads)))
        means.append(found.mean())
        assert np.exp(np.quantile(found, 0.9)) < 1.25
        assert len(tuned.configs) <= 8
        assert len(task.lattice()) > 1000 and runner.runs < 600
    assert np.exp(np.mean(means)) < 1.085 and np.exp(means[0]) < 1.1


def test_two_dynamic_extents_are_tuned_together() -> None:
    uses = [{"d0": Expr.dim("S"), "d1": Expr.dim("N")}]
    task = Task.of(square_pair(), LIMITS, ("host_matmul",), ShapeDemand(ShapeRange.of({"S": (1, 300), "N": (16, 600)}), uses))
    tuned, _ = run(task, 220)
    configs, root = task.untuned()
    untuned = replace(tuned, configs=tuple(configs), root=root)
    before, after = (np.log(1 + np.array(regret(task, t, task.points.thin(20).shapes, 1))).mean() for t in (untuned, tuned))
    assert after - before < np.log(0.82)  # of the untuned time
    assert after < np.log(1.25) and after < before / 2


def test_what_runs_untuned_comes_first_at_each_shape_where_time_is_the_limit() -> None:
    task, clock, log = dense_task(), Clock(), TuningLog()
    runner = SurfaceRunner(matmul_seconds, clock.advance)
    tuner = Tuner(task, clock.context(runner, log), Budget(seconds=1e6))
    for _ in range(4):
        tuner.step()
    configs, root = task.untuned()
    first = {r.shape: r for r in reversed(log.records)}
    assert len(first) > 10
    for shape, record in first.items():
        leaf = select(root, dict(shape))
        assert (record.config, record.threads) == (config_text(configs[leaf.kernel]), leaf.threads or 1)


def test_equal_seeds_give_equal_results_and_a_replayed_log_gives_them_again(tmp_path: Path) -> None:
    task = dense_task()
    log = TuningLog(tmp_path / "log.jsonl")
    first, _ = run(task, 80, log=log)
    again, _ = run(task, 80)
    assert (first.configs, first.root) == (again.configs, again.root)
    clock = Clock()
    replayed = tune(task, clock.context(ReplayRunner(log.records)), Budget(trials=80))
    assert (replayed.configs, replayed.root) == (first.configs, first.root)


@pytest.mark.parametrize("stop", [1, 47])
def test_a_killed_run_resumes_and_measures_little_twice(tmp_path: Path, stop: int) -> None:
    task = dense_task()
    clock = Clock()
    path = tmp_path / "log.jsonl"

    class Killed(SurfaceRunner):
        def run(self, workload: Workload, kernel: MicroKernel, code: bytes, dims: Mapping[str, int],
                threads: int = 1, seconds: float | None = None) -> Measurement:
            if self.runs == stop:
                raise KeyboardInterrupt
            return super().run(workload, kernel, code, dims, threads, seconds)

    options = TuneOptions(certify=0.0)
    with pytest.raises(KeyboardInterrupt):
        tune(task, clock.context(Killed(matmul_seconds), TuningLog(path)), Budget(trials=80), options)
    path.write_bytes(path.read_bytes() + b'{"record": "measurement", "workl')  # a line that kill -9 cut
    resumed = TuningLog(path)
    assert len([r for r in resumed.records if r.seconds]) == stop
    seen: list[tuple[str, int, int]] = []
    known = {(r.config, r.dims["d0"], r.threads) for r in resumed.records}

    class Watched(SurfaceRunner):
        def run(self, workload: Workload, kernel: MicroKernel, code: bytes, dims: Mapping[str, int],
                threads: int = 1, seconds: float | None = None) -> Measurement:
            seen.append((kernel.config, dims["d0"], threads))
            return super().run(workload, kernel, code, dims, threads, seconds)

    tuner = Tuner(task, clock.context(Watched(matmul_seconds), resumed), Budget(trials=60), options)
    while not tuner.done:
        tuner.step()
    times: dict[int, dict[tuple[str, int], float]] = {}
    twice: dict[int, list[float]] = {}
    for r in (r for r in resumed.records if r.seconds):
        there, key = times.setdefault(r.dims["d0"], {}), (r.config, r.threads)
        if key in there:  # twice only what was faster than all else, and much faster than what had been measured twice
            assert there[key] < min(seconds for other, seconds in there.items() if other != key)
            assert there[key] < 0.95 * min(twice.get(r.dims["d0"], [np.inf]))
            twice.setdefault(r.dims["d0"], []).append(there[key])
        there[key] = r.time
    assert seen and len(set(seen) - known) > 0.8 * len(seen)
    assert len(TuningLog(path).skipped) == 1
    assert np.mean(regret(task, tuner.best(), task.points.thin(12).shapes, 1)) < 0.3


def test_failed_candidates_are_records_and_are_not_built_again() -> None:
    task = dense_task()
    bad = {text: "out of registers" for text in task.lattice().texts if "pack=panel" in text}
    clock, log = Clock(), TuningLog()
    tune(task, clock.context(SurfaceRunner(matmul_seconds), log, ReplayBuilder(bad)), Budget(trials=60))
    failed = [r for r in log.records if r.error]
    assert failed and all(r.error == "out of registers" and not r.dims for r in failed)
    assert len({r.config for r in failed}) == len(failed)


def test_equal_machine_code_is_measured_once() -> None:
    from tilewright.search.runner.measurer import Measurer

    class OneCode(ReplayBuilder):
        def _build(self, workload: Workload, text: str, family: str):  # type: ignore[no-untyped-def]
            built = super()._build(workload, text, family)
            return type(built)(built.kernel, b"the same code")

    task, clock, log = dense_task(), Clock(), TuningLog()
    runner = SurfaceRunner(matmul_seconds)
    measurer = Measurer(task.workload, clock.context(runner, log, OneCode()))
    first, second = task.lattice().configs[:2]
    shape = task.points.shapes[0]
    one, two = measurer.measure(first, shape, 1), measurer.measure(second, shape, 1)
    assert runner.runs == 1 and one is not None and two is not None
    assert one.seconds == two.seconds and two.config == config_text(second) and len(log) == 2


def test_progress_tells_trials_budget_and_time_left() -> None:
    clock = Clock()
    states: list[Progress] = []
    runner = SurfaceRunner(matmul_seconds, clock.advance)
    tune(dense_task(), clock.context(runner), Budget(seconds=5.0), progress=states.append)
    assert runner.runs <= 5.0 / clock.each + 15  # three rounds of five kernels at a held-out shape
    assert [s.trials for s in states] == sorted(s.trials for s in states)
    assert all(0 <= s.share <= 1 and s.eta is not None and s.eta >= 0 for s in states)
    assert {"first kernels", "searching", "certifying"} <= {s.phase for s in states}
    assert states[-1].latency < 0.01


def test_the_search_answers_at_any_moment() -> None:
    task, clock = dense_task(), Clock()
    tuner = Tuner(task, clock.context(SurfaceRunner(matmul_seconds)), Budget(trials=160))
    shapes = task.points.thin(12).shapes
    untuned = tuner.best()
    assert untuned.certificate.points == 1
    means = []
    while not tuner.done:
        tuner.step()
        means.append(np.mean(regret(task, tuner.best(), shapes, 1)))
    assert len(means) > 1 and max(means) < 1.0
    tuned = regret(task, tuner.certified(), shapes, 1)
    assert np.mean(tuned) < np.mean(regret(task, untuned, shapes, 1))


def test_held_out_shapes_are_never_measured_before_the_certificate() -> None:
    task, clock, log = dense_task(), Clock(), TuningLog()
    tuner = Tuner(task, clock.context(SurfaceRunner(matmul_seconds), log), Budget(trials=80))
    while not tuner.done:
        tuner.step()
    assert not {r.shape for r in log.records} & set(task.held_out)
    tuned = tuner.certified()
    assert {tuple(d.items()) for d in tuned.certificate.held_out} <= set(task.held_out)


def test_the_certificate_says_what_was_measured() -> None:
    task = dense_task()
    tuned, _ = run(task, 120)
    found = tuned.certificate
    shapes = [tuple(d.items()) for d in found.held_out]
    truth = np.array(regret(task, tuned, shapes, 1))
    assert np.all(np.array(found.regrets) <= truth + 1e-9)  # rivals are a part of the space
    assert found.measured_worst == max(found.regrets) and found.measured_mean == pytest.approx(np.mean(found.regrets))
    assert found.confidence == pytest.approx(1 - 0.9 ** len(shapes))
    assert found.workload == task.workload.key and found.kernels == len(tuned.configs)


def test_a_machine_that_changes_pace_between_rounds_adds_no_regret() -> None:
    pace = iter([1.4, 1.4, 1.4, 1.4, 1.4, 1.0])
    entry = measure_entry((("d0", 5),), Leaf(0), [Leaf(1)], lambda leaf, s: next(pace))
    assert entry is not None and entry.regret == 0.0


def test_certificate_numbers() -> None:
    times = {(0, 5): 2.0, (1, 5): 1.6, (2, 5): 4.0}
    shape = (("d0", 5),)
    entry = measure_entry(shape, Leaf(0), [Leaf(1), Leaf(0), Leaf(2)], lambda leaf, s: times[leaf.kernel, s[0][1]])
    assert entry is not None and entry.regret == pytest.approx(0.25)
    found = certify([entry, Entry(shape, (1.0, 2.0))], np.array([0.0, 0.1]), np.array([3.0, 1.0]), rivals=3)
    assert (found.measured_mean, found.measured_worst) == (pytest.approx(0.125), pytest.approx(0.25))
    assert (found.predicted_mean, found.predicted_worst) == (pytest.approx(0.025), pytest.approx(0.1))
    assert found.confidence == pytest.approx(0.19)
    assert "2 shapes held out" in str(found)


def test_what_is_known_of_no_kernel_for_some_shape_leaves_the_defaults() -> None:
    """A log cut short may hold only kernels that stop at an extent."""
    w, clock = softmax(), Clock()
    task = Task.of(w, LIMITS, ("host_rows",), rows_up_to(128))
    lattice = task.lattice()
    short = next(c for i, c in enumerate(lattice.configs) if 0 < min(lattice.kernel_cost(i).most.values(), default=0) < 128)
    log = TuningLog()
    measurer = Measurer(w, clock.context(SurfaceRunner(lambda c, d, t: 1e-6), log))
    measurer.measure(short, (("d0", 8),), 1)
    tuner = Tuner(task, clock.context(ReplayRunner(()), log), Budget(trials=0))
    tuner.ledger.learn()
    assert tuner.best().configs == tuple(heuristics_of("host_rows").default(w, LIMITS)[0])


def test_a_default_that_serves_every_shape_is_measured_too() -> None:
    """Where what runs untuned at all shapes of the task stops at an extent, as kernels of short sequences do."""
    task = Task.of(softmax(), LIMITS, ("host_rows",), rows_up_to(64))
    lattice = task.lattice()
    short = next(c for i, c in enumerate(lattice.configs) if min(lattice.kernel_cost(i).most.values(), default=0) >= 64)
    tuner = Tuner(replace(task, incumbent=((short,), Leaf(0))), Clock().context(SurfaceRunner(lambda c, d, t: 1e-6)),
                  Budget(trials=40))
    tuner.step()
    measured = tuner.ledger.kernels()
    assert len(measured) > 1 and config_text(short) in measured
    assert tuner.best().shapes


def softmax() -> Workload:
    """Rows of [12, d0, d0]."""
    rows, columns = Expr.dim("d0") * 12, Expr.dim("d0")
    x = Operand(DType.F32, (rows, columns), 1)
    found = Workload("softmax", "softmax", Kind.ROWS, "", ("d0",), (x,), (x,), (Loop("row", rows), Loop("col", columns)),
                     rows * columns * 8, rows * columns * 8)
    return with_loops(found, "row col,row col")


def test_what_a_single_kernel_serves_is_told_without_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver of a farm asks it of the default kernels, while another process holds the costs of the whole space."""
    lattice, made = Task.lattice(dense_task()), list[int]()
    described = lattice.kernel_cost
    monkeypatch.setattr(lattice, "kernel_cost", lambda index: made.append(index) or described(index))
    space = FeatureSpace(form_of(lattice), [(("d0", n),) for n in (1, 64)])
    assert serves_all(space, 0) == (not described(0).most) and set(made) == {0} and len(lattice) > 100
