"""Places: what the arguments of a model are called, and the axes and scalars that dims are read from.

Users write `input_ids.1` (axis 1 of the argument of that name) or `arg0.1` (of the argument at that position), and
`cache_length` or `arg2` for a scalar; inside expressions that place is the symbol `arg0_1` or `arg2`.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.passes.linalg.symbolic import argument_attributes
from tilewright.passes.mlir import ir
from tilewright.runtime.errors import IngestError

NAME = "tw.name"
RESERVED = ("threads", "min", "max", "mod", "floordiv", "ceildiv")
_PLACE = re.compile(r"arg(\d+)(?:[._](\d+))?$")


@dataclass(frozen=True)
class Places:
    """names: of the arguments, in order. extents: symbol of every tensor axis -> its static extent or None, and of every
    scalar that may be a dimension -> None."""

    names: tuple[str, ...]
    extents: Mapping[str, int | None]

    @staticmethod
    def of(fn: ir.Operation) -> Places:
        """The places of a function.

        Raises:
            IngestError: a `tw.name` is no text, or two arguments have one name.
        """
        found: dict[str, int | None] = {}
        for i, argument in enumerate(fn.regions[0].blocks[0].arguments):
            if isinstance(argument.type, ir.RankedTensorType):
                t = ir.RankedTensorType(argument.type)
                found |= {f"arg{i}_{a}": None if t.is_dynamic_dim(a) else t.get_dim_size(a) for a in range(t.rank)}
            elif str(argument.type) in ("index", "i64", "i32"):
                found[f"arg{i}"] = None
        return Places(argument_names(fn), found)

    @property
    def dynamic(self) -> list[str]:
        """Symbols of the places whose extent is not static."""
        return [p for p, size in self.extents.items() if size is None]

    def find(self, text: str) -> str | None:
        """The symbol of a place as users write it; None when there is none. A name counts before a position."""
        argument, _, axis = text.rpartition(".")
        if text in self.names:
            found = f"arg{self.names.index(text)}"
        elif argument in self.names and axis.isdecimal():
            found = f"arg{self.names.index(argument)}_{int(axis)}"
        else:
            found = text.replace(".", "_") if _PLACE.match(text) else ""
        return found if found in self.extents else None

    def is_place(self, text: str) -> bool:
        """Does the text name a place, or have the form of one?"""
        return self.find(text) is not None or _PLACE.match(text) is not None

    def text(self, symbol: str) -> str:
        """A place as users write it; other symbols as they are."""
        found = _PLACE.match(symbol) if symbol in self.extents else None
        if found is None:
            return symbol
        name = self.names[int(found[1])]
        return name if found[2] is None else f"{name}.{found[2]}"

    def dim_name(self, symbol: str) -> str:
        """What a dim is called that is known by its place alone: `input_ids_1`, or its symbol where that is no name."""
        name = _as_name(self.text(symbol))
        taken = name in self.extents or [_as_name(self.text(p)) for p in self.extents].count(name) > 1
        return symbol if taken or not is_dim_name(name) else name


def _as_name(place: str) -> str:
    return re.sub(r"\W", "_", place)


def is_dim_name(name: str) -> bool:
    """May a dimension have this name?"""
    return name.isidentifier() and not keyword.iskeyword(name) and name not in RESERVED


def argument_names(fn: ir.Operation) -> tuple[str, ...]:
    """Each argument's `tw.name`, or "arg{i}" where the model gives none; IngestError when two are equal."""
    found: list[str] = []
    for i, named in enumerate(argument_attributes(fn)):
        name = _name(named, f"argument {i} of @main") or f"arg{i}"
        if name in found:
            raise IngestError(f"arguments {found.index(name)} and {i} of @main are both called {name!r}; give each a tw.name "
                              "of its own")
        found.append(name)
    return tuple(found)


def take_result_names(fn: ir.Operation) -> tuple[str, ...]:
    """Each result's `tw.name`, or "result{i}"; the attributes leave the function, whose results the passes replace."""
    count = len(ir.FunctionType(ir.TypeAttr(fn.attributes["function_type"]).value).results)
    if "res_attrs" not in fn.attributes:
        return tuple(f"result{i}" for i in range(count))
    given = [{n.name: n.attr for n in ir.DictAttr(a)} for a in ir.ArrayAttr(fn.attributes["res_attrs"])]
    del fn.attributes["res_attrs"]
    return tuple(_name(named, f"result {i} of @main") or f"result{i}" for i, named in enumerate(given))


def _name(named: Mapping[str, ir.Attribute], what: str) -> str:
    if NAME in named and not isinstance(named[NAME], ir.StringAttr):
        raise IngestError(f'{what}: tw.name = {named[NAME]}; wanted a text, write it as "input_ids"')
    return str(ir.StringAttr(named[NAME]).value) if NAME in named else ""
