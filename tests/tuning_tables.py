"""Planted tuning problems: tables with known times, and arms whose curves are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from search_surfaces import dense

from tilewright.passes.spaces.family_registry import config_text
from tilewright.passes.spaces.host.host_matmul import HostMatmulConfig
from tilewright.search.database.measurement_table import OperatorTable
from tilewright.search.database.workload_form import WorkloadForm
from tilewright.search.task_scheduler.bandit import UNLIMITED, Trials
from tilewright.search.task_scheduler.simulation import SimulatedClock


def planted_table(name: str, columns: int, spread: float, seed: int, calls: int = 1, count: int = 40) -> OperatorTable:
    """Times fall to the optimum with the block height, by `spread` in all, with a little noise."""
    rng = np.random.default_rng(seed)
    configs = [HostMatmulConfig(mr, nv, 16) for mr in range(1, 11) for nv in range(1, 5)][:count]
    shapes = tuple((("d0", m),) for m in (8, 32, 128, 512))
    slow = np.array([spread ** (1 - c.mr * c.nv / 40) for c in configs]) * np.exp(0.05 * rng.standard_normal(len(configs)))
    seconds = slow[:, None] * columns * np.array([m for ((_, m),) in shapes])[None, :] * 1e-9
    form = WorkloadForm.of(dense(columns, key=f"{seed:08x}{name}"))
    return OperatorTable(
        name,
        form,
        calls,
        shapes,
        tuple(map(config_text, configs)),
        tuple(map(tuple, seconds.tolist())),
        (0.3,) * len(configs),
        (0.02,) * len(configs),
    )


@dataclass
class CurveArm:
    """An arm that follows a list of latencies, one a trial; a trial takes `each` seconds."""

    key: str
    curve: Sequence[float]
    clock: SimulatedClock
    group: str = "alike"
    flops: float = 1.0
    ideal: float = 0.05
    each: float = 1.0
    done: int = 0
    interrupt_at: int | None = None
    log: list[str] = field(default_factory=list)
    known: bool = True

    @property
    def latency(self) -> float:
        return min(self.curve[: self.done + 1])

    @property
    def trials(self) -> int:
        return self.done + 1

    @property
    def exhausted(self) -> bool:
        return self.done + 1 >= len(self.curve)

    def tune(self, seconds: float, trials: Trials = UNLIMITED) -> list[tuple[int, float]]:
        points, spent = list[tuple[int, float]](), 0.0
        while spent < seconds and not self.exhausted and len(points) < min(trials.about, trials.most):
            if self.interrupt_at == self.done:
                raise KeyboardInterrupt
            self.done += 1
            spent += self.each
            self.clock.advance(self.each)
            self.log.append(self.key)
            points.append((self.trials, self.latency))
        return points
