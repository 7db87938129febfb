"""Rules: which kinds of regions are joined. A rule is a pattern of two regions and says of a pair whether it joins, or why not.

Rules are asked in their order; the first one whose pattern fits decides. What one kernel cannot hold stays apart whatever a rule
says: regions whose values have no place in one frame, that wait for each other, or that are too large (partition.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tilewright.passes.analysis.op_kinds import OpKind
from tilewright.passes.partition.region import ROOTED, Region
from tilewright.runtime.errors import OptionError


@dataclass(frozen=True)
class Rule:
    """A pattern of two regions.

    name: as refusals and `fuse{rules=...}` have it. order: the lower, the earlier it is asked; those of the compiler stand at 100
    and above. beside: is it about two regions that read one tensor, not about one that reads what the other gives?
    """

    name: ClassVar[str] = ""
    order: ClassVar[int] = 0
    beside: ClassVar[bool] = False

    def applies(self, a: Region, b: Region) -> bool:
        """Is it for this rule to say whether `b`, which reads a value of `a` or the same tensor, joins it?"""
        raise AssertionError(f"{type(self).__name__} does not implement applies")

    def joins(self, a: Region, b: Region) -> str | None:
        """None where they join, as all do unless a rule says otherwise, else the reason why they do not."""
        return None


PRODUCT_ROWS = "product-rows"


@dataclass(frozen=True)
class ProductRows(Rule):
    """A product and the work on its rows, on GPUs that have kernels for both (stitching.py)."""

    name: ClassVar[str] = PRODUCT_ROWS
    order: ClassVar[int] = 105

    def applies(self, a: Region, b: Region) -> bool:
        return a.kind is OpKind.CONTRACTION and b.kind is OpKind.REDUCTION


@dataclass(frozen=True)
class Elements(Rule):
    """Elementwise operations one after the other."""

    name: ClassVar[str] = "elements"
    order: ClassVar[int] = 100

    def applies(self, a: Region, b: Region) -> bool:
        return all(r.kind is OpKind.ELEMENTWISE and not r.parts for r in (a, b))


@dataclass(frozen=True)
class Epilogue(Rule):
    """A contraction or window, and the elementwise operations before and after it."""

    name: ClassVar[str] = "epilogue"
    order: ClassVar[int] = 110

    def applies(self, a: Region, b: Region) -> bool:
        return a.kind in ROOTED or b.kind in ROOTED


@dataclass(frozen=True)
class Rows(Rule):
    """Reductions along rows, the operations between them, and reductions in parts of the rows."""

    name: ClassVar[str] = "rows"
    order: ClassVar[int] = 120

    def applies(self, a: Region, b: Region) -> bool:
        return any(r.kind is OpKind.REDUCTION or r.parts for r in (a, b))


@dataclass(frozen=True)
class PartsBeside(Rule):
    """Reductions in parts beside whatever else walks the rows that they read."""

    name: ClassVar[str] = "parts-beside"
    order: ClassVar[int] = 130
    beside: ClassVar[bool] = True

    def applies(self, a: Region, b: Region) -> bool:
        return a.parts or b.parts


@dataclass(frozen=True)
class Beside(Rule):
    """Reductions along rows, or elementwise operations, that read one tensor element by element and are ready at one point."""

    name: ClassVar[str] = "beside"
    order: ClassVar[int] = 140
    beside: ClassVar[bool] = True

    def applies(self, a: Region, b: Region) -> bool:
        return not (a.parts or b.parts)


_REGISTERED: dict[str, Rule] = {rule.name: rule for rule in (
    Elements(), ProductRows(), Epilogue(), Rows(), PartsBeside(), Beside())}
_OWN = frozenset(_REGISTERED)


def register(rule: Rule) -> Rule:
    """A further rule for all compiles of this process, which then do not come from the cache of whole compiles.

    Raises:
        OptionError: no rule, one without a name, or a name that is taken.

        @dataclass(frozen=True)
        class SoftmaxAlone(Rule):
            name, order = "softmax-alone", 10

            def applies(self, a, b):
                return b.has("math.exp")

            def joins(self, a, b):
                return "a softmax is a kernel of its own"

        register(SoftmaxAlone())
    """
    if not isinstance(rule, Rule):
        raise OptionError(f"register: {rule!r} is no rule; wanted an instance of a subclass of Rule")
    if not rule.name or not all(c.isalnum() or c in "-_" for c in rule.name):
        raise OptionError(f"register: {type(rule).__name__} has the name {rule.name!r}; wanted letters, digits and hyphens, "
                          "as in softmax-alone")
    if rule.name in _REGISTERED:
        raise OptionError(f"register: there is a rule {rule.name!r} already, {type(_REGISTERED[rule.name]).__name__}; "
                          "give this one another name, or unregister that one first")
    _REGISTERED[rule.name] = rule
    return rule


def unregister(name: str) -> None:
    """Takes back a rule that was registered; OptionError where there is none, or where it is one of the compiler's."""
    if name in _OWN or name not in _REGISTERED:
        why = "is one of the compiler's; leave it out by fuse{rules=...}" if name in _OWN else "was not registered"
        raise OptionError(f"unregister: the rule {name!r} {why}")
    del _REGISTERED[name]


def users_rules() -> list[Rule]:
    """The rules that are not the compiler's."""
    return [rule for name, rule in _REGISTERED.items() if name not in _OWN]


def rules_named(names: Sequence[str] = ()) -> tuple[Rule, ...]:
    """Rules by name, in their order; all of them where none is named. OptionError names one that is unknown."""
    for name in names:
        if name not in _REGISTERED:
            raise OptionError(f"there is no rule {name!r}; the rules are {', '.join(_REGISTERED)}")
    return tuple(sorted((_REGISTERED[n] for n in names or _REGISTERED), key=lambda rule: rule.order))
