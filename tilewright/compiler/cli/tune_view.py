"""TuneView: the live view of a search: a line per operator, or per arm of a model, with its best so far, budget and time left."""

from __future__ import annotations

import math
import signal
import threading
import time
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from tilewright.compiler.cli.arm_view import ArmTable, arm_event
from tilewright.compiler.cli.farm_view import farm_event, farm_line
from tilewright.compiler.cli.layout import Column, FittedTable, abbreviated
from tilewright.compiler.cli.output import Output, known
from tilewright.search.search_strategy.outcome import Progress
from tilewright.search.task_scheduler.model_tuner import ModelProgress

if TYPE_CHECKING:
    from tilewright.search.task_scheduler.farm_progress import FarmProgress

_AFTER, _NOTE = ("verifying", "certifying"), 28  # phases after the last slot; characters of an operator's name in their note
_EVERY = 0.5  # seconds between two events with --json
_COLUMNS = (Column("operator"), Column("phase", False, 4), Column("measured", True, 4), Column("kernels", True, 6),
            Column("failed", True, 7), Column("latency", True, 1), Column("speed-up", True, 2), Column("budget", True, 5),
            Column("left", True, 3))


class TuneView:
    """A context: `update` is told every step. With --json a line at most twice a second and operator.

    An interrupt that the interpreter drops, as it does in finalizers and callbacks from C, is raised again at the next step.
    """

    def __init__(self, out: Output) -> None:
        self.out = out
        self._states: dict[str, Progress] = {}
        self._model: ModelProgress | None = None
        self._note = ""
        self._farms: dict[str, FarmProgress] = {}
        self._first: dict[str, float] = {}
        self._told: dict[str, float] = {}
        self._live: Any = None
        self._interrupted = False
        self._handler: Any = None

    def __enter__(self) -> TuneView:
        if threading.current_thread() is threading.main_thread():
            self._handler = signal.signal(signal.SIGINT, self._interrupt)
        if not self.out.as_json:
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(stderr=True), refresh_per_second=4, get_renderable=self._table)
            self._live.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._handler is not None:
            signal.signal(signal.SIGINT, self._handler)
        if self._live is not None:
            self._live.__exit__(kind, error, trace)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self._interrupted = True
        raise KeyboardInterrupt

    def update(self, state: Progress | ModelProgress | FarmProgress) -> None:
        """Take the state of an operator's search, or after a slot of a model's, or of a farm."""
        if self._interrupted:
            raise KeyboardInterrupt
        if not isinstance(state, Progress | ModelProgress):
            self._farms[state.target] = state
            self.out.event("farm", **farm_event(state))
            return
        if isinstance(state, ModelProgress):
            self._model, self._note = state, ""
            self.out.event("slot", **arm_event(state))
            return
        self._states[state.workload] = state
        self._note = f"{state.phase} {abbreviated(state.workload, _NOTE)}" if state.phase in _AFTER else self._note
        if math.isfinite(state.latency):
            self._first.setdefault(state.workload, state.latency)
        now = time.monotonic()
        if self.out.as_json and now - self._told.get(state.workload, -_EVERY) >= _EVERY:
            self._told[state.workload] = now
            self.out.event("progress", workload=state.workload, phase=state.phase, trials=state.trials, kernels=state.kernels,
                           failed=state.failed, latency=known(state.latency), share=round(state.share, 4), eta=state.eta)

    def _table(self) -> Any:
        if self._farms:
            from rich.console import Group
            from rich.text import Text

            return Group(*(Text(farm_line(farm), overflow="fold") for farm in self._farms.values()), self._search())
        return self._search()

    def _search(self) -> Any:
        if self._model is not None:
            return ArmTable(self._model, self._note)
        rows = []
        for s in self._states.values():
            first = self._first.get(s.workload)
            faster = f"{first / s.latency:.2f}x" if first and math.isfinite(s.latency) else ""
            latency = f"{s.latency * 1e6:.1f} us" if math.isfinite(s.latency) else ""
            left = "" if s.eta is None else f"{s.eta:.0f} s"
            counts = (str(s.trials), str(s.kernels), str(s.failed))
            rows.append((s.workload, s.phase, *counts, latency, faster, f"{s.share:.0%}", left))
        return FittedTable(_COLUMNS, rows)
