"""The live view of a model's tuning: its latency over time, and what each arm got and is expected to gain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tilewright.compiler.cli.layout import Column, FittedTable, arm_label
from tilewright.search.task_scheduler.model_tuner import ArmProgress, ModelProgress

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

_Z80 = 1.2816  # deviations of a normal on each side of its mean that hold 80 %
_LEVELS = "▁▂▃▄▅▆▇█"
_WIDTH = 40  # of the curve, at most
_ROWS = 20  # arms shown; the others are counted
_COLUMNS = (Column("arm"), Column("slots", True, 5), Column("time", True, 4), Column("trials", True, 7),
            Column("latency", True, 1), Column("speed-up", True, 2), Column("expected gain", True, 6),
            Column("80 % interval", True, 8), Column("", False, 3))


def arm_event(state: ModelProgress) -> dict[str, Any]:
    """The fields of the event `slot`: seconds of the model, and of each arm what it got and may still gain; None is not known."""
    arms = []
    for a in state.arms:
        low, high = expected(a) or (None, None)
        arms.append({"arm": a.key, "slots": a.pulls, "seconds": round(a.seconds, 3), "trials": a.trials, "latency": a.latency,
                     "gain": a.gain, "low": low, "high": high, "resting": a.resting})
    whole = state.measured
    return {"slot": state.slot, "arm": state.arm or None, "policy": state.policy, "seconds": round(state.seconds, 3),
            "trials": state.trials, "latency": state.latency if whole else None,
            "best": best_so_far(state)[-1][1] if whole else None, "untuned": state.untuned if whole else None,
            "share": round(state.share, 4), "eta": state.eta, "overhead": round(state.overhead, 4), "arms": arms}


def expected(arm: ArmProgress) -> tuple[float, float] | None:
    """An interval of 80 % of the share of the model's latency that the arm's next slot saves; None where nothing is expected."""
    if arm.gain is None or arm.deviation is None:
        return None
    return max(0.0, arm.gain - _Z80 * arm.deviation), arm.gain + _Z80 * arm.deviation


def best_so_far(state: ModelProgress) -> list[tuple[float, float]]:
    """(seconds, least latency of the model until then)."""
    found: list[tuple[float, float]] = []
    for seconds, latency in state.history:
        found.append((seconds, min(latency, found[-1][1]) if found else latency))
    return found


def curve(points: Sequence[tuple[float, float]], width: int = _WIDTH) -> str:
    """Latency over time as a line of blocks: full at the first value, low at the least."""
    end, first, least = points[-1][0], points[0][1], points[-1][1]
    if end <= 0 or first <= least:
        return _LEVELS[0] * width if first <= least else _LEVELS[-1] * width
    text = []
    for column in range(width):
        now = end * (column + 1) / width
        latency = [v for seconds, v in points if seconds <= now][-1]
        text.append(_LEVELS[round((latency - least) / (first - least) * (len(_LEVELS) - 1))])
    return "".join(text)


@dataclass(frozen=True)
class ArmTable:
    """A rich renderable: the model above, then a row an arm, those that got most time first. note: what is done beside slots."""

    state: ModelProgress
    note: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.progress_bar import ProgressBar
        from rich.segment import Segment
        from rich.text import Text

        state, width = self.state, options.max_width
        points = best_so_far(state)
        left = self.note or ("" if state.eta is None else f"{state.eta:.0f} s left")
        head = [f"model {milliseconds(points[-1][1])}, {points[0][1] / points[-1][1]:.2f}x" if state.measured else "model", left]
        text = "  ".join(t for t in head if t)
        room = min(_WIDTH, width - len(text) - 2)
        yield Text(f"{text}  {curve(points, room)}" if state.measured and room >= 8 else text, overflow="ellipsis", no_wrap=True)
        yield ProgressBar(total=1.0, completed=state.share, width=min(_WIDTH, width))
        yield Segment.line()
        ordered = sorted(state.arms, key=lambda a: (-a.seconds, a.key))
        yield FittedTable(_COLUMNS, [_row(a, state) for a in ordered[:_ROWS]], arm_label)
        beliefs = f", beliefs {state.overhead:.1%} of the time" if state.overhead else ""
        more = f"{len(ordered) - _ROWS} more arms; " if len(ordered) > _ROWS else ""
        yield Text(f"{more}policy {state.policy}, slot {state.slot}, {state.trials} trials{beliefs}")


def _row(a: ArmProgress, state: ModelProgress) -> tuple[str, ...]:
    interval = expected(a)
    gain = "" if a.gain is None else f"{a.gain:.2%}"
    between = "" if interval is None else f"{interval[0]:.2%} to {interval[1]:.2%}"
    latency = "" if a.latency is None else milliseconds(a.latency)
    faster = "" if a.latency is None or a.untuned is None else f"{a.untuned / a.latency:.2f}x"
    mark = "now" if a.key == state.arm else "resting" if a.resting else ""
    return a.key, str(a.pulls), f"{a.seconds:.1f} s", str(a.trials), latency, faster, gain, between, mark


def milliseconds(seconds: float) -> str:
    """`1.234 ms`, and below a tenth of one `12.3 us`."""
    return f"{1e3 * seconds:.3f} ms" if seconds >= 1e-4 else f"{1e6 * seconds:.1f} us"
