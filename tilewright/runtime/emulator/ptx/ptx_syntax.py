"""PTX as data: modules, functions, variables, instructions and their operands (PTX ISA 8.x, sections 4 and 5)."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Union


@dataclass(frozen=True)
class Register:
    """`%r1`, or a special register such as `%tid.x`."""

    name: str


@functools.lru_cache(maxsize=4096)
def register(name: str) -> Register:
    """Of one name one object: a kernel names each of its registers many times."""
    return Register(name)


@dataclass(frozen=True)
class Negated:
    """`!%p1` as a source."""

    register: Register


@dataclass(frozen=True)
class Immediate:
    """A literal: an integer value, or the bits of a float of `float_bits` bits (0 for integers)."""

    value: int
    float_bits: int = 0


@dataclass(frozen=True)
class Symbol:
    """A variable, label or function, with a byte offset."""

    name: str
    offset: int = 0


@dataclass(frozen=True)
class Address:
    """`[base + offset]`; `coordinates` are those of a tensor access `[map, {x, y}]`."""

    base: Register | Symbol | Immediate
    offset: int = 0
    coordinates: tuple[PtxOperand, ...] = ()


@dataclass(frozen=True)
class Vector:
    """`{a, b, c, d}`."""

    elements: tuple[PtxOperand, ...]


@dataclass(frozen=True)
class Pair:
    """`d|p`: two results."""

    first: PtxOperand
    second: PtxOperand


@dataclass(frozen=True)
class Arguments:
    """`(a, b)` of a call."""

    elements: tuple[PtxOperand, ...]


PtxOperand = Union[Register, Negated, Immediate, Symbol, Address, Vector, Pair, Arguments]

SINK = "_"
"""The name of the result that is thrown away."""


@dataclass(frozen=True)
class Instruction:
    """One instruction: `opcode` split at dots is `parts`; `predicate` guards it."""

    opcode: str
    operands: tuple[PtxOperand, ...]
    line: int
    text: str
    predicate: Register | None = None
    negated: bool = False
    parts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", tuple(self.opcode.split(".")))

    def has(self, *names: str) -> bool:
        return any(name in self.parts for name in names)


@dataclass(frozen=True)
class Label:
    """A place in a body."""

    name: str
    line: int


@dataclass(frozen=True)
class BranchTargets:
    """`name: .branchtargets a, b;`"""

    name: str
    labels: tuple[str, ...]
    line: int


@dataclass(frozen=True)
class Variable:
    """A variable of a state space. `size` in bytes; 0 with `extern` is dynamic shared memory."""

    name: str
    space: str
    type: str
    size: int
    align: int
    extern: bool = False
    initial: tuple[int | Symbol, ...] = ()
    line: int = 0


BodyItem = Union[Instruction, Label, BranchTargets]


@dataclass
class Function:
    """A kernel (`entry`) or device function. `registers` maps a name to its type; `directives` holds .reqntid and others."""

    name: str
    entry: bool
    line: int
    parameters: list[Variable] = field(default_factory=list)
    results: list[Variable] = field(default_factory=list)
    registers: dict[str, str] = field(default_factory=dict)
    variables: list[Variable] = field(default_factory=list)
    body: list[BodyItem] = field(default_factory=list)
    directives: dict[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass
class Module:
    """A PTX file."""

    version: str = ""
    target: tuple[str, ...] = ()
    address_size: int = 64
    variables: list[Variable] = field(default_factory=list)
    functions: dict[str, Function] = field(default_factory=dict)

    @property
    def kernels(self) -> Mapping[str, Function]:
        return {name: f for name, f in self.functions.items() if f.entry}
