"""A farm in the live view of a search: a line for people, an event for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from tilewright.search.task_scheduler.farm_progress import FarmProgress


def farm_event(state: FarmProgress) -> dict[str, Any]:
    """The fields of a state."""
    facts: dict[str, Any] = msgspec.to_builtins(state.record)
    for name in ("record", "schema", "run"):
        facts.pop(name, None)
    return {"target": state.target, **facts, "builds_per_second": round(state.builds_per_second, 2),
            "measurements_per_second": round(state.measurements_per_second, 2)}


def farm_line(state: FarmProgress) -> str:
    """One line."""
    r = state.record
    troubles = [f"{count} {what}" for count, what in ((r.lost, "lost"), (len(r.quarantined), "quarantined"),
                                                      (r.refused, "refused")) if count]
    overhead = 1e3 * (r.build_overhead + r.run_overhead)
    return (f"farm for {state.target}: {r.nodes} nodes, {r.builders} builders, {r.runners} runners; {r.in_flight} under way, "
            f"{r.ready} built; {state.builds_per_second:.1f} builds/s, {state.measurements_per_second:.1f} measurements/s; "
            f"overhead {overhead:.0f} ms, driver {r.driver:.0%} of a core{'; ' if troubles else ''}{', '.join(troubles)}")
