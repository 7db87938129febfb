"""Nested `{ }` scopes of PTX: names declared inside get a unique suffix, so that a body is one flat list."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tilewright.runtime.emulator.ptx.ptx_syntax import (
    Address,
    Arguments,
    BodyItem,
    BranchTargets,
    Instruction,
    Negated,
    Pair,
    PtxOperand,
    Register,
    Symbol,
    Vector,
)


class Scope:
    """Names declared between two braces, and the scope around them."""

    def __init__(self, parent: Scope | None, suffix: str) -> None:
        self.parent = parent
        self.depth: int = 0 if parent is None else parent.depth + 1
        self._suffix = suffix
        self._names: dict[str, str] = {}

    def declares(self, name: str) -> bool:
        """Is the name one of this scope's own?"""
        return name in self._names

    def declare(self, name: str) -> str:
        unique = name + self._suffix
        self._names[name] = unique
        return unique

    def resolve(self, name: str) -> str:
        scope: Scope | None = self
        while scope is not None:
            if name in scope._names:
                return scope._names[name]
            scope = scope.parent
        return name


def renamed(item: BodyItem, scope: Scope) -> BodyItem:
    """`item` with every name replaced by the one that the scopes give it."""
    if scope.parent is None or not isinstance(item, Instruction | BranchTargets):
        return item
    return rename_item(item, scope.resolve)


def rename_item(item: BodyItem, rename: Callable[[str], str]) -> BodyItem:
    """Apply `rename` to every name that an instruction or a branch table uses."""
    if isinstance(item, BranchTargets):
        return replace(item, labels=tuple(rename(label) for label in item.labels))
    if not isinstance(item, Instruction):
        return item
    predicate = Register(rename(item.predicate.name)) if item.predicate else None
    operands = tuple(rename_operand(o, rename) for o in item.operands)
    return replace(item, predicate=predicate, operands=operands)


def names_in(operand: PtxOperand) -> Iterator[str]:
    """Every name in an operand."""
    match operand:
        case Register(name) | Symbol(name, _) | Negated(Register(name)):
            yield name
        case Address(base, _, coordinates):
            for element in (base, *coordinates):
                yield from names_in(element)
        case Vector(elements) | Arguments(elements):
            for element in elements:
                yield from names_in(element)
        case Pair(first, second):
            yield from names_in(first)
            yield from names_in(second)


def rename_operand(operand: PtxOperand, rename: Callable[[str], str]) -> PtxOperand:
    def each(elements: tuple[PtxOperand, ...]) -> tuple[PtxOperand, ...]:
        return tuple(rename_operand(e, rename) for e in elements)

    match operand:
        case Register(name):
            return Register(rename(name))
        case Symbol(name, offset):
            return Symbol(rename(name), offset)
        case Negated(Register(name)):
            return Negated(Register(rename(name)))
        case Address(base, offset, coordinates):
            inner = rename_operand(base, rename)
            assert isinstance(inner, Register | Symbol) or inner is base
            return Address(inner, offset, each(coordinates))
        case Vector(elements):
            return Vector(each(elements))
        case Arguments(elements):
            return Arguments(each(elements))
        case Pair(first, second):
            return Pair(rename_operand(first, rename), rename_operand(second, rename))
        case _:
            return operand
