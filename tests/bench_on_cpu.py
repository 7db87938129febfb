"""Times of tools.bench.gpu without a GPU: a graph is a call, and takes what the CPU's clock says."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from tools.bench.gpu.compare_gpu import Bench


class OnCpu(Bench):
    """On torch's CPU. cache: bytes that operands rotate through."""

    def __init__(self, torch: Any, rounds: int = 1, seconds: float = 0.0, cache: int = 0) -> None:
        self.torch, self.rounds, self.seconds, self.cache = torch, rounds, seconds, cache

    def graph(self, call: Callable[..., Any], sets: Sequence[Sequence[Any]]) -> Any:
        return lambda: [call(*given) for given in sets]

    def replay(self, graph: Any, turns: int) -> float:
        start = time.perf_counter()
        for _ in range(turns):
            graph()
        return time.perf_counter() - start
