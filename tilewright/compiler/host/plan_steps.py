"""What a host program does, as a tree: launches, copies, branches and loops, and the memory that they read and write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tilewright.compiler.host.row_cuts import RowCut
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.program.arena_plan import ALIGNMENT
from tilewright.runtime.program.program import DimInfo
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType


@dataclass(frozen=True)
class CallerMemory:
    """Memory that the caller hands over: position in the `tensors` array of the native convention."""

    position: int


@dataclass(frozen=True)
class Temp:
    """Memory in the arena, by the temporary's name."""

    name: str


@dataclass(frozen=True)
class Current:
    """What a loop carries under this name, where it lies this time around."""

    name: str


@dataclass(frozen=True)
class Next:
    """Where the loop wants what it carries under this name for the next time around."""

    name: str


Place = CallerMemory | Temp | Current | Next


@dataclass(frozen=True)
class Offsets:
    """A ragged dim and the memory that says where its sequences begin."""

    dim: DimInfo
    place: CallerMemory


@dataclass(frozen=True)
class PlacedOperand:
    """An operand of a call: where its buffer lies, offset and strides in elements over the dims."""

    place: Place
    dtype: DType
    offset: Expr
    strides: tuple[Expr, ...]


@dataclass(frozen=True)
class PlannedCall:
    """One call of a workload. `scalars` are positions in the `scalars` array of the native convention.

    segments: of a call that is made for each sequence of a ragged program, all in one launch: per operand, how many elements of
    its buffer a sequence takes, over the ragged dims; None where all sequences have the same. `dims` and the operands' offsets
    and strides are then those of one sequence.
    """

    workload: Workload
    operands: tuple[PlacedOperand, ...]
    dims: tuple[Expr, ...]
    scalars: tuple[int, ...]
    segments: tuple[Expr | None, ...] | None = None


@dataclass(frozen=True)
class Launch:
    """The calls of these numbers, which share the threads: phases one after the other, whose calls do not need each other.

    counts: how many calls each phase has; () where there is one phase.
    """

    calls: tuple[int, ...]
    counts: tuple[int, ...] = ()

    def phases(self) -> Iterator[tuple[int, ...]]:
        """The calls of each phase, in order."""
        first = 0
        for count in self.counts or (len(self.calls),):
            yield self.calls[first : first + count]
            first += count


@dataclass(frozen=True)
class Strips:
    """Launches that follow each other and compute rows from rows: from `least` rows on a work unit takes `size` of them or fewer
    through all, where the threads of the machine share these units evenly.

    rows: over the dims. cuts: how each call is cut, by its number. local: what lies between calls, a strip of it for each
    thread; bytes of a row. gain: share of the time that is predicted to be saved at `least` rows.
    """

    launches: tuple[Launch, ...]
    rows: Expr
    size: int
    least: int
    cuts: Mapping[int, RowCut]
    local: Mapping[Temp, int]
    gain: float

    @property
    def bytes(self) -> int:
        """Bytes of a strip of what lies between."""
        return sum(map(self._room, self.local))

    def places(self) -> dict[Temp, int]:
        """Where in them each temporary begins."""
        found, at = {}, 0
        for temporary in self.local:
            found[temporary] = at
            at += self._room(temporary)
        return found

    def _room(self, temporary: Temp) -> int:
        return -(-self.size * self.local[temporary] // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class Copy:
    """Move `bytes` between two buffers; nothing where they turn out to be the same."""

    source: Place
    target: Place
    bytes: Expr


@dataclass(frozen=True)
class Insert:
    """Put a part, whose axes have these extents, to where `into` says that its elements belong."""

    part: PlacedOperand
    into: PlacedOperand
    extents: tuple[Expr, ...]


@dataclass(frozen=True)
class Positive:
    """Holds where an expression of the dims is above 0."""

    expr: Expr


@dataclass(frozen=True)
class Loaded:
    """Holds where the byte at a place is not 0, once the launches so far are done."""

    operand: PlacedOperand


Condition = Positive | Loaded


@dataclass(frozen=True)
class If:
    """One of two lists of steps."""

    condition: Condition
    then: tuple[Step, ...]
    otherwise: tuple[Step, ...]


@dataclass(frozen=True)
class Counter:
    """A dim inside a loop: its first value, what is added each time around, and its largest value, over the dims outside."""

    name: str
    start: Expr
    step: Expr
    largest: Expr


@dataclass(frozen=True)
class Carried:
    """A tensor that a loop carries. It begins at `start`, which is only read, then lies in the two buffers in turn. Where both
    are the same it begins there and stays.
    """

    name: str
    start: PlacedOperand
    buffers: tuple[Place, Place]


@dataclass(frozen=True)
class Loop:
    """Each time around `test`, then, where the condition holds, `body`. trips: at most so often, over the dims; None: unknown."""

    counters: tuple[Counter, ...]
    carried: tuple[Carried, ...]
    test: tuple[Step, ...]
    condition: Condition
    body: tuple[Step, ...]
    trips: Expr | None

    def limit(self) -> Expr | None:
        """At most so many turns, over the dims: by the trips, or until a counter passes its largest value; None: unknown."""
        if self.trips is not None:
            return self.trips.maximum(0)
        found: Expr | None = None
        for c in self.counters:
            step = c.step.constant
            if step is not None and step > 0:
                turns = ((c.largest - c.start) // step + 1).maximum(0)
                found = turns if found is None else found.minimum(turns)
        return found


Step = Launch | Copy | Insert | If | Loop


def parts(step: Step) -> tuple[tuple[Step, ...], ...]:
    """The lists of steps inside a step."""
    if isinstance(step, If):
        return step.then, step.otherwise
    return (step.test, step.body) if isinstance(step, Loop) else ()


def all_steps(steps: Sequence[Step]) -> Iterator[Step]:
    """Each step, then those inside it."""
    for step in steps:
        yield step
        for inside in parts(step):
            yield from all_steps(inside)


def places_beside_calls(steps: Sequence[Step]) -> set[Place]:
    """What is read and written by steps that launch nothing."""
    found: set[Place] = set()
    for step in all_steps(steps):
        if isinstance(step, Copy):
            found |= {step.source, step.target}
        elif isinstance(step, Insert):
            found |= {step.part.place, step.into.place}
        elif isinstance(step, Loop):
            found.update(p for c in step.carried for p in (c.start.place, *c.buffers))
        if isinstance(step, If | Loop) and isinstance(step.condition, Loaded):
            found.add(step.condition.operand.place)
    return found


def counters_of(steps: Sequence[Step]) -> Iterator[Counter]:
    """The counters of all loops, those of outer loops first."""
    for step in all_steps(steps):
        if isinstance(step, Loop):
            yield from step.counters


def sites_of(steps: Sequence[Step]) -> list[If | Loop]:
    """The branches and loops that depend on data, outer ones first. Their places in it are the sites of a program for a GPU."""
    return [s for s in all_steps(steps) if isinstance(s, If | Loop) and isinstance(s.condition, Loaded)]


def conditional_calls(steps: Sequence[Step]) -> set[int]:
    """Numbers of the calls inside them."""
    inside = [step for site in sites_of(steps) for part in parts(site) for step in all_steps(part)]
    return {number for step in inside if isinstance(step, Launch) for number in step.calls}
