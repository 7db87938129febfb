"""Arena plan: where each temporary of the host program lives, as expressions over the model dims.

Temporaries that are never live together share a slot; slots lie one after the other. So every offset is a sum of slot
sizes and the plan is valid for all shapes at once.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.runtime.errors import OptionError
from tilewright.runtime.shape import LARGEST, Expr

ALIGNMENT = 64
_APART = 4096  # bytes between the workspaces of two threads
_UNBOUNDED = 1024  # stands for an unbounded dim where sizes are compared to pick a slot; any value is correct


@dataclass(frozen=True)
class Temporary:
    """A buffer of `size` bytes that holds data from call `birth`, which writes it, to `death`, its last reader."""

    name: str
    size: Expr
    birth: int
    death: int

    def overlaps(self, other: Temporary) -> bool:
        """Both hold data during some call."""
        return self.birth <= other.death and other.birth <= self.death


@dataclass(frozen=True)
class ArenaPlan:
    """Byte offset of each temporary and the bytes of all; offsets and total are multiples of 64."""

    offsets: Mapping[str, Expr]
    total: Expr


@dataclass
class _Slot:
    """members: one after the other in time."""

    size: Expr
    members: list[Temporary] = field(default_factory=list)

    def is_free(self, temporary: Temporary) -> bool:
        """Over its whole life."""
        at = bisect_left(self.members, temporary.birth, key=_birth)
        return not any(temporary.overlaps(m) for m in self.members[max(0, at - 1) : at + 1])

    def add(self, temporary: Temporary) -> None:
        insort(self.members, temporary, key=_birth)


def _birth(temporary: Temporary) -> int:
    return temporary.birth


def plan(temporaries: Sequence[Temporary], ranges: Mapping[str, tuple[float, float]] | None = None) -> ArenaPlan:
    """Offsets such that temporaries that are live together never share memory, for any dims.

    Greedy by size over shared slots (Pisarchyk and Lee, arXiv:2001.03288, section 5).

    Args:
        ranges: inclusive ranges of the dims; they let more sizes be compared and never affect correctness within them.
    """
    names = [t.name for t in temporaries]
    if len(set(names)) != len(names):
        raise OptionError(
            f"temporaries need distinct names; {sorted({n for n in names if names.count(n) > 1})} come twice"
        )
    known = dict(ranges or {})
    slots: list[_Slot] = []
    for temporary in _largest_first(temporaries, known):
        size = round_up(temporary.size)
        slot = _choose(slots, temporary, size, known)
        if slot is None:
            slots.append(_Slot(size, [temporary]))
            continue
        slot.size = larger(slot.size, size, known)
        slot.add(temporary)
    offsets: dict[str, Expr] = {}
    total = Expr.of(0)
    for slot in slots:
        offsets.update((member.name, total) for member in slot.members)
        total = total + slot.size
    return ArenaPlan({name: offsets[name] for name in names}, total)


def round_up(size: Expr, alignment: int = ALIGNMENT) -> Expr:
    """The smallest multiple of `alignment` that is not below `size`."""
    return size.ceildiv(alignment) * alignment


def workspace_stride(size: Expr) -> Expr:
    """Bytes from the workspace of a thread, of `size` bytes, to that of the next one, 0 when there is none.

    A page lies between them: what the hardware fetches ahead at the end of one would take lines that another core writes.
    """
    return size if size == Expr.of(0) else round_up(size) + _APART


def larger(a: Expr, b: Expr, ranges: Mapping[str, tuple[float, float]]) -> Expr:
    """The maximum, without a `max` where one is provably not smaller."""
    if _at_least(a, b, ranges):
        return a
    return b if _at_least(b, a, ranges) else a.maximum(b)


def _at_least(a: Expr, b: Expr, ranges: Mapping[str, tuple[float, float]]) -> bool:
    return (a - b).bounds(ranges)[0] >= 0


def _choose(
    slots: Iterable[_Slot], temporary: Temporary, size: Expr, ranges: Mapping[str, tuple[float, float]]
) -> _Slot | None:
    """A slot that is free over the whole life: of the same size, else provably large enough, else any."""
    free = [s for s in slots if s.is_free(temporary)]
    same = next((s for s in free if s.size == size), None)
    enough = [s for s in reversed(free) if _at_least(s.size, size, ranges)]
    return same or next(iter(enough or free), None)


def _largest_first(temporaries: Sequence[Temporary], ranges: Mapping[str, tuple[float, float]]) -> list[Temporary]:
    """By size at the upper end of the ranges, then by birth."""
    symbols: frozenset[str] = frozenset().union(*(t.size.symbols for t in temporaries))
    point = {s: _representative(ranges.get(s)) for s in symbols}
    return sorted(temporaries, key=lambda t: (-t.size.evaluate(point), t.birth, t.name))


def _representative(span: tuple[float, float] | None) -> int:
    if span is None:
        return _UNBOUNDED
    return int(span[1]) if span[1] < LARGEST else max(_UNBOUNDED, int(span[0]))
