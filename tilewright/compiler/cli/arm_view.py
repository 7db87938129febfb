"""The live view of a model's tuning: its latency over time, and what each arm got and is expected to gain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.search.task_scheduler.model_tuner import ArmProgress, ModelProgress

_Z80 = 1.2816  # deviations of a normal on each side of its mean that hold 80 %
_LEVELS = "▁▂▃▄▅▆▇█"
_WIDTH = 40  # of the curve
_ROWS = 20  # arms shown; the others are counted


def arm_event(state: ModelProgress) -> dict[str, Any]:
    """The fields of the event `slot`: seconds of the model, and of each arm what it got and may still gain."""
    arms = [
        {"arm": a.key, "slots": a.pulls, "seconds": round(a.seconds, 3), "trials": a.trials, "latency": a.latency,
         "gain": a.gain, "low": expected(a)[0], "high": expected(a)[1], "resting": a.resting}
        for a in state.arms
    ]
    return {"slot": state.slot, "arm": state.arm, "policy": state.policy, "seconds": round(state.seconds, 3),
            "trials": state.trials, "latency": state.latency, "best": best_so_far(state)[-1][1], "untuned": state.untuned,
            "share": round(state.share, 4), "eta": state.eta, "overhead": round(state.overhead, 4), "arms": arms}


def expected(arm: ArmProgress) -> tuple[float, float]:
    """An interval of 80 % of the share of the model's latency that the arm's next slot saves."""
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


def arm_table(state: ModelProgress) -> Any:
    """A table with a row an arm, those that got most time first; above it the model."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    points = best_so_far(state)
    model = Table(box=None, show_header=False, padding=(0, 1))
    left = "" if state.eta is None else f"{state.eta:.0f} s left"
    model.add_row("model", f"{milliseconds(points[-1][1])}, {points[0][1] / points[-1][1]:.2f}x", Text(curve(points)),
                  ProgressBar(total=1.0, completed=state.share, width=20), left)
    table = Table(box=None)
    columns = ("arm", "slots", "time", "trials", "latency", "speed-up", "expected gain", "80 % interval", "")
    for name in columns:
        table.add_column(name, justify="left" if name in ("arm", "") else "right")
    ordered = sorted(state.arms, key=lambda a: (-a.seconds, a.key))
    for a in ordered[:_ROWS]:
        low, high = expected(a)
        gain, interval = (f"{a.gain:.2%}", f"{low:.2%} to {high:.2%}") if a.gain or a.deviation else ("", "")
        mark = "now" if a.key == state.arm else "resting" if a.resting else ""
        table.add_row(Text(a.key), str(a.pulls), f"{a.seconds:.1f} s", str(a.trials), milliseconds(a.latency),
                      f"{a.untuned / a.latency:.2f}x", gain, interval, mark)
    beliefs = f", beliefs {state.overhead:.1%} of the time" if state.overhead else ""
    more = f"{len(ordered) - _ROWS} more arms; " if len(ordered) > _ROWS else ""
    return Group(model, table, Text(f"{more}policy {state.policy}, slot {state.slot}, {state.trials} trials{beliefs}"))


def milliseconds(seconds: float) -> str:
    """`1.234 ms`, and below a tenth of one `12.3 us`."""
    return f"{1e3 * seconds:.3f} ms" if seconds >= 1e-4 else f"{1e6 * seconds:.1f} us"
