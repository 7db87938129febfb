"""Structure: how the flat inputs or results of a program are nested in tuples, lists and dicts for its callers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from tilewright.runtime.errors import DTypeError

Kind = Literal["leaf", "tuple", "list", "dict", "none"]
Constant = bool | int | float | str | None


class Structure(msgspec.Struct, frozen=True):
    """A tree of containers around numbered leaves; build one with `leaf`, `sequence`, `mapping`, `constant` and `NONE`.

    A program's input structure is a "dict" whose keys are the parameters in the order of positional calls; the number of a leaf
    is that of the input. In an output structure it is that of the result, and one result may stand at several leaves.

    keys: of a "dict", one for each of `items`. number: of a "leaf". is_number: this leaf of a result is a Python number.
    value: of a "none", what the model was compiled for in this place, or gives there.
    """

    kind: Kind
    items: tuple[Structure, ...] = ()
    keys: tuple[str, ...] = ()
    number: int = -1
    is_number: bool = False
    value: Constant = None

    @staticmethod
    def leaf(number: int, is_number: bool = False) -> Structure:
        """An input or result."""
        return Structure("leaf", number=number, is_number=is_number)

    @staticmethod
    def constant(value: Constant) -> Structure:
        """A place that holds the same for every call."""
        return Structure("none", value=value)

    @staticmethod
    def sequence(items: Iterable[Structure], kind: Literal["tuple", "list"] = "tuple") -> Structure:
        """A tuple or a list."""
        return Structure(kind, tuple(items))

    @staticmethod
    def mapping(items: Mapping[str, Structure]) -> Structure:
        """A dict in the order given."""
        return Structure("dict", tuple(items.values()), tuple(items))

    def numbers(self) -> Iterator[int]:
        """The numbers of all leaves, from left to right."""
        if self.kind == "leaf":
            yield self.number
        for item in self.items:
            yield from item.numbers()

    def flatten(self, value: Any, what: str = "value") -> list[Any]:
        """The leaves of a nested value, by their numbers.

        Args:
            what: names the value in errors.
        Raises:
            DTypeError: a container is of another kind, length or keys.
        """
        found: dict[int, Any] = {}
        self._collect(value, what, found)
        return [found[number] for number in sorted(found)]

    def unflatten(self, leaves: Sequence[Any]) -> Any:
        """The nested value of these leaves."""
        if self.kind == "leaf":
            return leaves[self.number].item() if self.is_number else leaves[self.number]
        if self.kind == "none":
            return self.value
        items = [item.unflatten(leaves) for item in self.items]
        if self.kind == "dict":
            return dict(zip(self.keys, items, strict=True))
        return tuple(items) if self.kind == "tuple" else items

    def renumbered(self, number_of: Mapping[int, int]) -> Structure:
        """With other numbers; leaves that have none leave their container, or become None where they have none."""
        if self.kind == "leaf":
            return msgspec.structs.replace(self, number=number_of[self.number]) if self.number in number_of else NONE
        if self.kind == "none":
            return self
        kept = [i for i, item in enumerate(self.items) if item.kind != "leaf" or item.number in number_of]
        keys = tuple(self.keys[i] for i in kept) if self.keys else ()
        return Structure(self.kind, tuple(self.items[i].renumbered(number_of) for i in kept), keys)

    def is_flat(self, names: Sequence[str]) -> bool:
        """Is this a dict of just the leaves 0, 1, ... under these names?"""
        return self == Structure.mapping({name: Structure.leaf(i) for i, name in enumerate(names)})

    def is_plain_result(self, count: int) -> bool:
        """Is this what a call gives without a structure: one leaf alone, or the tuple of several?"""
        leaves = [Structure.leaf(i) for i in range(count)]
        return self == (leaves[0] if count == 1 else Structure.sequence(leaves))

    def describe(self, leaf: Callable[[int], str] = lambda number: f"#{number}") -> str:
        """For people: `{x: #0, cache: (#1, #2)}`."""
        if self.kind == "leaf":
            return leaf(self.number)
        if self.kind == "none":
            return repr(self.value)
        items = [item.describe(leaf) for item in self.items]
        if self.kind == "dict":
            return f"{{{', '.join(f'{k}: {i}' for k, i in zip(self.keys, items, strict=True))}}}"
        inside = ", ".join(items) + ("," if self.kind == "tuple" and len(items) == 1 else "")
        return f"({inside})" if self.kind == "tuple" else f"[{inside}]"

    def _collect(self, value: Any, what: str, found: dict[int, Any]) -> None:
        if self.kind == "leaf":
            found[self.number] = value
        elif self.kind == "none":
            self._want_same(value, what)
        elif self.kind == "dict":
            self._collect_dict(value, what, found)
        else:
            if not isinstance(value, tuple | list) or len(value) != len(self.items):
                raise DTypeError(f"{what}: wanted a {self.kind} of {len(self.items)} as in {self.describe()}, got {_kind(value)}")
            for i, (item, part) in enumerate(zip(self.items, value, strict=True)):
                item._collect(part, f"{what}[{i}]", found)

    def _want_same(self, value: Any, what: str) -> None:
        """DTypeError unless the value is what the model was compiled for in this place, or left out."""
        simple = isinstance(value, bool | int | float | str)
        if value is None or (simple and value == self.value):
            return
        came = repr(value) if simple else _kind(value)
        remedy = f"leave it out or pass {self.value!r}" + (f", or compile the model for {came}" if simple else "")
        raise DTypeError(f"{what}: wanted {self.value!r}, as the model was compiled for, got {came}; {remedy}")

    def _collect_dict(self, value: Any, what: str, found: dict[int, Any]) -> None:
        if dataclasses.is_dataclass(value) and not isinstance(value, Mapping | type):
            fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
            value = {name: part for name, part in fields.items() if part is not None or name in self.keys}
        if not isinstance(value, Mapping):
            raise DTypeError(f"{what}: wanted a dict with {', '.join(self.keys)}, got {_kind(value)}")
        if set(map(str, value)) != set(self.keys):
            raise DTypeError(f"{what}: wanted a dict with {', '.join(self.keys)}, got one with {', '.join(map(str, value))}")
        parts = {str(key): part for key, part in value.items()}
        for key, item in zip(self.keys, self.items, strict=True):
            item._collect(parts[key], f"{what}[{key!r}]", found)


NONE = Structure("none")


def _kind(value: Any) -> str:
    name = type(value).__name__
    return f"a {name} of {len(value)}" if isinstance(value, tuple | list | Mapping) else name
