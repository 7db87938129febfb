"""Kernels beside what runs untuned: where they take its place, and where it stays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import numpy as np
import pytest
from search_surfaces import Clock, dense_task, matmul_seconds

from tilewright.compiler.tuning.operator_tuning import best_known
from tilewright.passes.spaces.family_registry import config_text, parse_config
from tilewright.passes.spaces.host.host_matmul import HostMatmulConfig
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.program.certificate import Expected
from tilewright.runtime.program.dispatch import Leaf, Node, Split, select
from tilewright.search.database.records import TuningLog, TuningRecord
from tilewright.search.protocols import KernelAt, Turns
from tilewright.search.runner.measurer import Measurer
from tilewright.search.runner.replay import ReplayBuilder, ReplayRunner, SurfaceRunner
from tilewright.search.search_strategy.decision_tree import grafted
from tilewright.search.search_strategy.final_choice import _expected
from tilewright.search.search_strategy.judged import OPEN_TURNS, TURNS, WITHIN, Found, Judged
from tilewright.search.search_strategy.outcome import Tuned
from tilewright.search.search_strategy.tune_options import Budget, TuneOptions
from tilewright.search.search_strategy.tuner import tune
from tilewright.search.space.shapes import Dims
from tilewright.search.space.task import Task

Share = Callable[[KernelAt, int], float]


class Beside(SurfaceRunner):
    """Alone, kernels take what the surface says; beside each other so many times that, and noise."""

    def __init__(self, clock: Clock, share: Share = lambda kernel, within: 1.0, noise: float = 0.01) -> None:
        super().__init__(matmul_seconds, clock.advance)
        self.rng, self.noise, self.share = np.random.default_rng(0), noise, share

    def run_in_turns(self, workload: Workload, asked: Sequence[KernelAt], rounds: int, seconds: float | None = None,
                     within: int = 0) -> Turns:
        self.advance(0.0)
        true = [self.share(x, within) * self.surface(parse_config(x.kernel.config), dict(x.dims), x.threads) for x in asked]
        noise = np.exp(self.noise * self.rng.standard_normal((rounds, len(true))))
        return Turns(tuple(tuple(float(v) for v in row) for row in noise * true))


def tuned_with(share: Share, seconds: float = 60.0, threads: int = 1, log: TuningLog | None = None) -> tuple[Task, Tuned, Clock]:
    task, clock = dense_task(), Clock()
    runner = Beside(clock, share)
    found = tune(task, clock.context(runner, log), Budget(seconds=seconds), TuneOptions(threads=threads))
    return task, found, clock


def is_default(task: Task, found: Tuned, rows: int) -> bool:
    (configs, root), dims = task.untuned(), {"d0": rows}
    leaf, usual = select(found.root, dims), select(root, dims)
    return (found.configs[leaf.kernel], leaf.threads) == (configs[usual.kernel], usual.threads)


def slow_others(task: Task, slow: Callable[[int], bool], within: Sequence[int] = WITHIN) -> Share:
    """Kernels other than the default one take half as long again as that at some rows, wherever they seemed to be faster."""
    configs, root = task.untuned()

    def share(x: KernelAt, lain: int) -> float:
        dims = dict(x.dims)
        usual = configs[select(root, dims).kernel]
        if not slow(dims["d0"]) or lain not in within or x.kernel.config == config_text(usual):
            return 1.0
        return 1.5 * matmul_seconds(usual, dims, 1) / matmul_seconds(parse_config(x.kernel.config), dims, x.threads)

    return share


@pytest.mark.parametrize("within", [WITHIN, WITHIN[1:]])
def test_the_default_stays_where_others_are_slower_beside_it(within: Sequence[int]) -> None:
    """Alone they are up to 2.5 times as fast there; and it is enough that they are slower where inputs lie within a line."""
    task, found, _ = tuned_with(slow_others(dense_task(), lambda rows: 16 <= rows <= 40, within))
    assert all(is_default(task, found, rows) for rows in range(16, 41))
    assert sum(not is_default(task, found, rows) for rows in range(1, 129)) > 30
    at = {e.dims[0]: e for e in found.certificate.expected}
    for rows, e in at.items():
        assert is_default(task, found, rows) == (e.default == e.predicted) and e.most < 1
    assert any(e.ratio for e in at.values()) and not any(at[rows].ratio for rows in range(16, 41))


def test_no_shape_is_slower_than_what_a_plain_compile_runs_on_two_threads() -> None:
    """A number of threads is a choice like others: it takes another one's place where it was faster beside it."""
    task, found, _ = tuned_with(lambda x, within: 1.0, threads=2)
    configs, root = task.untuned()
    for (_, rows), in task.points.shapes:
        dims = {"d0": rows}
        mine, usual = select(found.root, dims), select(root, dims)
        old, new = (matmul_seconds(c, dims, leaf.threads or 2)
                    for c, leaf in ((configs[usual.kernel], usual), (found.configs[mine.kernel], mine)))
        assert new <= old * 1.001


def test_noise_alone_makes_no_kernel_faster() -> None:
    task = dense_task()
    configs, root = task.untuned()

    def share(x: KernelAt, within: int) -> float:
        usual = configs[select(root, dict(x.dims)).kernel]
        return matmul_seconds(usual, dict(x.dims), 1) / matmul_seconds(parse_config(x.kernel.config), dict(x.dims), x.threads)

    task, found, _ = tuned_with(share)
    assert sum(is_default(task, found, rows) for rows in range(1, 129)) > 120


def test_comparing_is_a_part_of_the_budget_and_told_of() -> None:
    task, found, clock = tuned_with(slow_others(dense_task(), lambda rows: rows < 20), seconds=40.0)
    told = found.certificate
    assert clock.now <= 40.0 + 2 * clock.each
    assert 0 < told.comparing <= 0.3 * 40.0 + 2 * clock.each
    assert told.compared > 40 and 0 < told.replaced < told.compared
    assert f"beside the default one at {told.compared} shapes, {told.comparing:.1f} s" in str(told)
    assert any(e.ratio for e in told.expected)
    del task


def test_a_log_tells_the_choice_of_the_search_that_wrote_it(tmp_path: Path) -> None:
    """Whatever came after the choice: the certificate's measurements, of the very kernels."""
    path = tmp_path / "log.jsonl"
    task, found, _ = tuned_with(slow_others(dense_task(), lambda rows: rows < 30), log=TuningLog(path))
    read = TuningLog(path)
    assert found.certificate.held_out and not read.skipped and {r.within for r in read.records if r.beside} == set(WITHIN)
    again = best_known(task, Clock().context(ReplayRunner(()), read), TuneOptions())
    assert (again.configs, again.root) == (found.configs, found.root)
    assert (again.certificate.compared, again.certificate.replaced) == (found.certificate.compared, found.certificate.replaced)


@pytest.mark.parametrize(("told", "known"), [({0: [-0.2], 16: []}, False), ({0: [-0.2, -0.2], 16: [-0.2, -0.2]}, True)])
def test_a_ratio_without_a_bound_is_not_told_of(told: dict[int, list[float]], known: bool) -> None:
    """Of a kernel that was compared where inputs lay in one way only; JSON, in which models keep it, has no infinity."""
    dims = (("d0", 4),)
    usual, other = HostMatmulConfig(4, 2), config_text(HostMatmulConfig())
    found = Judged({((other, 1), (config_text(usual), 1)): {dims: told}})
    ledger = SimpleNamespace(records=[], untuned=lambda: ((usual,), Leaf(0)), judged=lambda: found,
                             task=SimpleNamespace(points=SimpleNamespace(shapes=(dims,))), options=TuneOptions(threads=1),
                             lattice=SimpleNamespace(texts=[other]))
    one = np.ones(1)
    chosen = SimpleNamespace(leaf=lambda _: Leaf(0), configs=(0,), seconds=one, regrets=one, untuned=one)
    (expected,) = _expected(cast(Any, ledger), cast(Any, chosen))
    assert msgspec.json.decode(msgspec.json.encode(expected), type=Expected) == expected
    assert (expected.ratio > 0, expected.most > 0) == (known, known)


def records(ratios: Sequence[tuple[int, int, float]]) -> list[TuningRecord]:
    """(rows, within, time of `other` over that of `usual`) of requests."""
    return [TuningRecord("w", "", "", config, {"d0": rows}, 1, (seconds,), beside=str(n), within=within)
            for n, (rows, within, ratio) in enumerate(ratios) for config, seconds in (("other", ratio * 1e-6), ("usual", 1e-6))]


def judged(ratios: Sequence[tuple[int, int, float]]) -> Judged:
    return Judged.of(records(ratios), lambda shape: ("usual", 1))


PAIR = ("other", 1), ("usual", 1)


@pytest.mark.parametrize(("ratios", "wanted"), [
    ([(4, 0, 0.9), (4, 16, 0.9), (4, 0, 0.9), (4, 16, 0.9)], True),
    ([(4, 0, 0.9), (4, 16, 0.9), (4, 0, 0.91)], True),
    ([(4, 0, 0.9), (4, 16, 0.9)], False),  # how far apart times are is not known
    ([(4, 0, 0.9), (4, 0, 0.9), (4, 0, 0.9), (4, 0, 0.9)], False),  # nor how it is where inputs lie elsewhere
    ([(4, 0, 0.9), (4, 16, 0.9), (4, 0, 0.9), (4, 16, 1.15)], False),
    ([(4, 0, 0.955), (4, 16, 0.955), (4, 0, 0.975), (4, 16, 0.975)], True),  # on the whole; another time 1.014 at most
    ([(4, 0, 0.9), (4, 16, 0.9), (4, 0, 0.98), (4, 16, 0.98)], False),
    ([(4, 0, 0.5), (4, 16, 1.02), (4, 0, 0.5), (4, 16, 1.02)], False),
    ([(4, 0, 0.996), (4, 16, 0.996), (4, 0, 0.996), (4, 16, 0.996)], False),  # no more than places differ by
])  # fmt: skip
def test_what_is_faster(ratios: list[tuple[int, int, float]], wanted: bool) -> None:
    found = judged(ratios).at(PAIR, (("d0", 4),))
    assert found is not None and found.faster == wanted


def test_turns_end_when_it_is_settled() -> None:
    assert Found(TURNS, -0.1, -0.05, -0.01).settled and Found(TURNS, 0.1, 0.12, 0.2).settled
    assert not Found(TURNS, -0.1, -0.02, 0.05).settled and Found(OPEN_TURNS, -0.1, -0.02, 0.05).settled
    assert not Found(TURNS - 1, -0.1, -0.05, -0.01).settled


def test_shapes_between_go_by_the_two_nearest() -> None:
    ratios = [(rows, within, ratio) for rows, ratio in ((2, 0.8), (6, 0.8), (10, 1.1), (20, 0.8)) for within in (0, 16, 0, 16)]
    shapes: list[Dims] = [(("d0", rows),) for rows in (2, 4, 6, 8, 10, 20, 30)]
    at = np.array([s[0][1] for s in shapes], float)
    apart = np.abs(at[:, None] - at[None])
    numbers, reach, alike = {s: i for i, s in enumerate(shapes)}, np.full(len(at), 5.0), np.zeros(len(at))
    found = judged(ratios).is_faster(PAIR, numbers, apart, reach, alike)
    assert found.tolist() == [True, True, True, False, False, True, False]  # the last one is farther from all than `reach`
    for lost, wanted in ((0.1, True), (0.25, False)):  # of the gain, at four rows, by what is expected
        found = judged(ratios).is_faster(PAIR, numbers, apart, reach, np.where(at == 4, lost, 0.0))
        assert found.tolist() == [True, wanted, True, False, False, True, False]
    little = [(rows, within, 0.975 if rows == 6 else ratio) for rows, within, ratio in ratios]
    found = judged(little).is_faster(PAIR, numbers, apart, reach, alike)
    assert found.tolist() == [True, False, True, False, False, True, False]  # what is gained at six rows may be lost at four
    for known in ([6], [2, 6]):  # what runs untuned stays on the far side of the last shape where they were compared
        found = judged([r for r in ratios if r[0] in known]).is_faster(PAIR, numbers, apart, reach, alike)
        assert found.tolist() == [2 in known, 2 in known, True, False, False, False, False]
    assert not Judged({}).is_faster(PAIR, {}, apart, reach, alike).any()


def test_a_default_tree_stands_where_it_stays() -> None:
    default: Node = Split("d0", 10, Leaf(0), Split("d0", 40, Leaf(1, 1), Leaf(2)))
    found = grafted(Split("d0", 20, Leaf(-1), Split("d0", 30, Leaf(3), Leaf(-1))), -1, default)
    wanted = {rows: select(default, {"d0": rows}) if not 20 < rows <= 30 else Leaf(3) for rows in range(64)}
    assert {rows: select(found, {"d0": rows}) for rows in range(64)} == wanted
    assert found == Split("d0", 20, Split("d0", 10, Leaf(0), Leaf(1, 1)),
                          Split("d0", 30, Leaf(3), Split("d0", 40, Leaf(1, 1), Leaf(2))))


def test_times_beside_each_other_are_kept_at_one_pace() -> None:
    """The machine was fast in one round and slow in two."""
    class Paced(Beside):
        def run_in_turns(self, workload: Workload, asked: Sequence[KernelAt], rounds: int, seconds: float | None = None,
                         within: int = 0) -> Turns:
            return Turns(((1e-6, 2e-6), (3e-6, 6e-6), (9e-6, 18e-6)))

    task, clock = dense_task(), Clock()
    runner = Paced(clock)
    measurer = Measurer(task.workload, clock.context(runner, builder=ReplayBuilder()))
    configs = task.lattice().configs
    measurer.in_turns(runner, [(configs[0], 1), (configs[1], 1)], (("d0", 5),), 3, within=16)
    one, two = measurer.records
    assert one.beside == two.beside != "" and one.within == 16
    assert one.seconds == pytest.approx((3e-6,) * 3) and two.seconds == pytest.approx((6e-6,) * 3)
