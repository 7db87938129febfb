"""The host program of a model with branches or loops, as data: what it does, as a tree, for those who read it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from tilewright.runtime.shape import Expr


class LaunchStep(msgspec.Struct, frozen=True, tag="launch"):
    """The calls of these numbers: one, or several that share the threads."""

    calls: tuple[int, ...]


class CopyStep(msgspec.Struct, frozen=True, tag="copy"):
    """A buffer moved to another one; `bytes`: text of an Expr over the dims. site: of the loop on data whose result it is."""

    bytes: str
    site: int = -1


class IfStep(msgspec.Struct, frozen=True, tag="if"):
    """One of two lists. condition: over the dims, or what is read from memory. site: number among the branches and loops on data
    of a program for a GPU; -1: none of these."""

    condition: str
    then: tuple[Step, ...]
    otherwise: tuple[Step, ...]
    site: int = -1


class LoopCounter(msgspec.Struct, frozen=True):
    """A dim inside a loop; texts of Exprs over the dims outside."""

    name: str
    start: str
    step: str
    largest: str

    def __str__(self) -> str:
        return f"{self.name} from {self.start} to at most {self.largest}" + (f" by {self.step}" if self.step != "1" else "")


class LoopStep(msgspec.Struct, frozen=True, tag="loop"):
    """`test`, then `body` where the condition holds, and again. carried: what lies in one of two buffers in turn. site: as of
    IfStep. trips: at most so often, text of an Expr over the dims; "": unknown. varies: do launches differ from turn to turn in
    more than which of the two buffers they use?"""

    counters: tuple[LoopCounter, ...]
    carried: tuple[str, ...]
    test: tuple[Step, ...]
    condition: str
    body: tuple[Step, ...]
    site: int = -1
    trips: str = ""
    varies: bool = False


Step = LaunchStep | CopyStep | IfStep | LoopStep


def all_steps(steps: Sequence[Step]) -> Iterator[Step]:
    """Each step, then those inside it."""
    for step in steps:
        yield step
        inside: tuple[Step, ...] = ()
        if isinstance(step, IfStep):
            inside = (*step.then, *step.otherwise)
        elif isinstance(step, LoopStep):
            inside = (*step.test, *step.body)
        yield from all_steps(inside)


def counters_of(steps: Sequence[Step]) -> Iterator[LoopCounter]:
    """The counters of all loops, those of outer loops first."""
    for step in steps:
        if isinstance(step, IfStep):
            yield from counters_of((*step.then, *step.otherwise))
        elif isinstance(step, LoopStep):
            yield from step.counters
            yield from counters_of((*step.test, *step.body))


def with_counters(steps: Sequence[Step], dims: Mapping[str, int]) -> dict[str, int]:
    """The dims, and each counter at its largest value unless `dims` says what it is."""
    found = dict(dims)
    for counter in counters_of(steps):
        if counter.name not in found:
            found[counter.name] = max(Expr.parse(counter.start).evaluate(found), Expr.parse(counter.largest).evaluate(found))
    return found


def shown(steps: Sequence[Step], depth: int = 0) -> list[str]:
    """Lines that read like the program."""
    pad = "  " * depth
    lines: list[str] = []
    for step in steps:
        if isinstance(step, LaunchStep):
            lines.append(f"{pad}call " + " beside ".join(map(str, step.calls)))
        elif isinstance(step, CopyStep):
            lines.append(f"{pad}copy {step.bytes} bytes")
        elif isinstance(step, IfStep):
            lines += [f"{pad}if {step.condition}:", *(shown(step.then, depth + 1) or [f"{pad}  nothing"])]
            if step.otherwise:
                lines += [f"{pad}else:", *shown(step.otherwise, depth + 1)]
        else:
            counted = "; ".join(map(str, step.counters))
            lines.append(f"{pad}loop{f' {counted}' if counted else ''}:")
            lines += [*shown(step.test, depth + 1), f"{pad}  while {step.condition}:", *shown(step.body, depth + 2)]
    return lines
