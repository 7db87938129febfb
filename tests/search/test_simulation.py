from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from search_surfaces import LIMITS, Clock
from tuning_tables import planted_table

from tilewright.passes.spaces.family_registry import parse_config
from tilewright.runtime.errors import ArtifactError
from tilewright.search.database.measurement_table import read_tables, write_tables
from tilewright.search.protocols import Runner
from tilewright.search.search_strategy.tune_options import Budget
from tilewright.search.search_strategy.tuner import tune
from tilewright.search.space.shapes import Points
from tilewright.search.space.task import Task
from tilewright.search.task_scheduler.belief import EmceeSampler
from tilewright.search.task_scheduler.belief_pool import BeliefPool
from tilewright.search.task_scheduler.model_tuner import ModelBudget, ModelTuneOptions, ModelTuner
from tilewright.search.task_scheduler.peak import Peak
from tilewright.search.task_scheduler.policies import policies
from tilewright.search.task_scheduler.simulation import SimulatedClock, TableRunner, TableSearch, table_arms, table_builder

PEAK = Peak(1e13, 1e13)
COMMITTED = Path(__file__).resolve().parents[2] / "tools" / "bench" / "policies" / "tables"


def tables():  # type: ignore[no-untyped-def]
    return [
        planted_table("steep", 2304, 6.0, 1, calls=4),
        planted_table("flat", 768, 1.1, 2),
        planted_table("middling", 768, 2.0, 3),
    ]


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_tables(tmp_path / "t.jsonl", tables())
    assert read_tables(tmp_path / "t.jsonl") == tables()
    (tmp_path / "bad.jsonl").write_text("{}\n")
    with pytest.raises(ArtifactError, match=r"bad\.jsonl:1"):
        read_tables(tmp_path / "bad.jsonl")


def test_the_runner_answers_exactly_and_says_what_it_does_not_hold() -> None:
    clock = SimulatedClock()
    table = tables()[0]
    runner: Runner = TableRunner([table], clock.advance)
    built = table_builder(table).build([(table.operator, parse_config(t)) for t in table.configs])
    for c, b in enumerate(built):
        assert b.kernel is not None
        for s, shape in enumerate(table.shapes):
            assert runner.run(table.operator, b.kernel, b.code, dict(shape)).seconds == (table.seconds[c][s],)
    assert clock.now == pytest.approx(sum(table.measure_seconds) * len(table.shapes))
    assert built[0].kernel is not None
    assert "no table" in runner.run(table.operator, built[0].kernel, b"", {"d0": 5}).error


def test_the_search_runs_on_a_table() -> None:
    table, clock = tables()[0], Clock()
    points = Points.of((dict(s), 1.0) for s in table.shapes)
    task = Task(table.operator, LIMITS, ("host_matmul",), points, (), table.tiles)
    tuned = tune(task, clock.context(TableRunner([table]), builder=table_builder(table)), Budget(trials=60))
    best = [table.number(c) for c in tuned.configs]
    assert np.all(table.times[best].min(axis=0) <= 1.06 * table.times.min(axis=0))


def test_the_cheap_search_ends_at_the_optimum_and_learns_on_the_way() -> None:
    found, blind = [], []
    for seed in range(4):
        for explore, keep in ((0.25, found), (1.0, blind)):
            search = TableSearch(tables()[0], seed, explore)
            for _ in range(10):
                config = search.next([0, 1])
                assert config is not None
                search.try_([config], [0, 1])
            keep.append(search.best()[0] / search.table.times[:, 0].min())
    assert np.mean(found) < np.mean(blind)
    while (config := search.next([0, 1])) is not None:
        search.try_([config], [0, 1])
    assert search.best()[:2] == pytest.approx(search.table.times.min(axis=0)[:2])


def outcome(name: str, seed: int, seconds: float = 25.0) -> tuple[float, list[str]]:
    clock = SimulatedClock()
    arms = table_arms(tables(), PEAK, seed, 2, clock.advance)
    options = ModelTuneOptions(policies()[name], slot_seconds=1.5, seed=seed)
    tuner = ModelTuner(arms, ModelBudget(seconds=seconds), clock, options, pool=BeliefPool(sampler=EmceeSampler(40, 20, 4)))
    return tuner.run() / sum(a.floor for a in arms), [s.arm for s in tuner.log.slots]


def test_arms_count_calls_and_share_what_is_built() -> None:
    arms = table_arms(tables(), PEAK, 0, 2)
    assert len(arms) == 6 and arms[0].key == "steep/0" and arms[0].search is arms[1].search
    times = arms[0].search.best()
    assert arms[0].latency == pytest.approx(4 * (times[0] + times[1]) / 4)
    spent: list[float] = []
    again = table_arms(tables(), PEAK, 0, 2, spent.append)
    first = again[0].tune(0.2)
    assert len(first) == 1 and spent == pytest.approx([0.3 + 2 * 0.02])


def test_the_belief_beats_blind_slots_on_a_planted_model() -> None:
    found = {name: float(np.median([outcome(name, s, 12.0)[0] for s in range(3)])) for name in ("ucb", "random")}
    assert found["ucb"] < found["random"] * 1.01


@pytest.mark.parametrize("name", ["ucb", "ansor", "random"])
def test_equal_seeds_give_equal_runs(name: str) -> None:
    assert outcome(name, 3, 8.0) == outcome(name, 3, 8.0)


def test_without_limits_every_policy_ends_at_the_floor() -> None:
    for name in ("sequential", "round_robin", "linear"):
        assert outcome(name, 0, 1e6)[0] == pytest.approx(1.0)


@pytest.mark.skipif(not COMMITTED.is_dir(), reason="the tables lie in the checkout only")
def test_committed_tables_are_whole() -> None:
    found = {p.stem: read_tables(p) for p in COMMITTED.glob("*.jsonl")}
    assert found
    for name, model in found.items():
        for table in model:
            assert len(table.configs) <= 256 and len(table.shapes) <= 6, f"{name}: {table.name}"
            assert np.isfinite(table.times).any(axis=0).all() and len(table.tiles) == len(table.seconds)
