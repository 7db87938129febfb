"""Replays: work of a GPU captured as a CUDA graph, and the seconds that its replays take, alone or beside others'."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tilewright.runtime.cuda.cuda_device import CudaDevice
from tilewright.runtime.cuda.driver import reported
from tilewright.runtime.host.benchmark import Timing, spread

WARM_SECONDS = 0.05  # of untimed replays: an idle device clocks up meanwhile
MOST_ROUNDS = 10_000
_SHORTEST = 1e-7  # seconds of a replay that the counts are reckoned with


class Replays:
    """What `enqueue` gives a stream, captured in the order of the device's one. What it needs is loaded, and its memory taken,
    before.

    So what a launch costs the host is in no figure; what it costs the device is. The device is the thread's current one.

    Raises:
        CudaError: the driver refuses something.
    """

    def __init__(self, device: CudaDevice, enqueue: Callable[[Any], None]) -> None:
        self._stream = device.stream
        with reported("capture work of the GPU as a graph"):
            self._building = device.stream.create_graph_builder().begin_building("relaxed")
            enqueue(self._building.stream)
            self._graph = self._building.end_building().complete()

    def seconds(self, rounds: int, before: int = 0) -> float:
        """What the device takes for so many replays, between two events. before: replays in front of these that are not timed,
        so that the caches are as it leaves them itself."""
        timed = {"timing_enabled": True}
        for _ in range(before):
            self._graph.launch(self._stream)
        first = self._stream.record(options=timed)
        for _ in range(rounds):
            self._graph.launch(self._stream)
        last = self._stream.record(options=timed)
        last.sync()
        return float(last - first) * 1e-3

    def warmed_up(self, seconds: float, turns: int = 0, warm: float = WARM_SECONDS) -> int:
        """How many replays last about so long, after untimed ones: turns of them at least, and for `warm` seconds."""
        rounds, turn, end = 1, 0, time.perf_counter() + warm
        while turn < max(turns, 1) or time.perf_counter() < end:
            each, turn = self.seconds(rounds) / rounds, turn + 1
            rounds = max(1, min(MOST_ROUNDS, int(seconds / max(each, _SHORTEST))))
        return rounds

    def close(self) -> None:
        self._graph.close()
        self._building.close()


def times_beside(one: Replays, other: Replays, timing: Timing) -> list[float]:
    """One's time over the other's, a figure a round of a turn each, until their median is within the wanted error or they took
    the longest time, what warms up left out. Turns last `timing.turn`, each behind a replay that is not timed, which finds what
    the other's left in the caches; who is first changes from round to round."""
    ratios = list[float]()
    with reported("time a model on the GPU"):
        counts = [r.warmed_up(timing.turn, warm=timing.warmup) for r in (one, other)]
        begin = time.perf_counter()
        while len(ratios) < timing.fewest or spread(ratios) > timing.error:
            times = [0.0, 0.0]
            for place in ((0, 1), (1, 0))[len(ratios) % 2]:
                times[place] = (one, other)[place].seconds(counts[place], before=1) / counts[place]
            ratios.append(times[0] / times[1])
            if time.perf_counter() - begin > timing.longest:
                break
    return ratios
