"""How branches and loops on data are run on a GPU, and why; what `explain` says of them."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.runtime.program.steps import IfStep, LaunchStep, LoopStep, Step, all_steps
from tilewright.runtime.shape import Expr

CONDITIONAL_SINCE, ELSE_SINCE = 12040, 12080  # driver versions with conditional nodes, and with IF nodes of two sides
SHORT = 4  # launches of a branch up to which kernels that return at once cost less than a node more
UNROLLED = 16  # turns of a loop that a graph holds one behind the other
AHEAD = 8  # turns of a loop that are enqueued between two reads; even, so that what it carries lies where it did


def launches_in(steps: Sequence[Step]) -> int:
    """Launches of one turn, at least."""
    return sum(len(s.calls) for s in all_steps(steps) if isinstance(s, LaunchStep))


def is_short(step: IfStep) -> bool:
    """Is a branch better launched whole?"""
    return launches_in((*step.then, *step.otherwise)) <= SHORT


def few_turns(step: LoopStep) -> int | None:
    """The largest number of turns of a loop that a graph may hold as they are; None where they are many or unknown."""
    limit = Expr.parse(step.trips).constant if step.trips else None
    return limit if limit is not None and limit <= UNROLLED else None


def how(step: IfStep | LoopStep) -> str:
    """In words."""
    if isinstance(step, IfStep):
        count = launches_in((*step.then, *step.otherwise))
        if is_short(step):
            return f"kernels go by the byte, as there are {count} launches"
        return f"{count} launches: in a CUDA graph an IF node ({_SINCE}), else kernels go by the byte"
    limit, ahead = few_turns(step), f"kernels go by the byte, {AHEAD} turns are enqueued between two reads"
    if limit is not None:
        return f"{ahead}; in a CUDA graph all {limit} turns"
    if step.varies:
        return f"{ahead}; no CUDA graph, as launches follow the counters"
    return f"{ahead}; in a CUDA graph a WHILE node ({_SINCE})"


_SINCE = f"driver {CONDITIONAL_SINCE // 1000}.{CONDITIONAL_SINCE % 1000 // 10} or later"
