"""Options as text: a frozen dataclass written `name{option=value ...}` and read back. MLIR-free."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Hashable, Mapping
from typing import Any, cast, get_type_hints

from tilewright.runtime.errors import OptionError


def spec_of(name: str, value: Any) -> str:
    """`name{option=value ...}` with the dataclass fields that differ from their defaults."""
    shown = []
    for field, shown_as, default in _defaults(cast(Hashable, type(value))):
        v = getattr(value, field)
        if v != default:
            shown.append(f"{shown_as}={_to_text(v)}")
    return name + ("{" + " ".join(shown) + "}" if shown else "")


@functools.cache
def _defaults(cls: Any) -> tuple[tuple[str, str, Any], ...]:
    """Name, name in a text and default of each option."""
    return tuple((f.name, f.name.replace("_", "-"), f.default) for f in dataclasses.fields(cls))


def _to_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(map(_to_text, value))
    text = str(value)
    return f'"{text}"' if isinstance(value, str) and re.search(r"[\s{}=,]", text) else text


_SPEC = re.compile(r"\s*([A-Za-z][\w-]*)\s*(?:\{((?:\"[^\"]*\"|[^}\"])*)\})?\s*(,|$)")
_OPTION = re.compile(r"\s*([\w-]+)(?:=(\"[^\"]*\"|[^\s]*))?")


def parse_specs(text: str) -> list[tuple[str, dict[str, str]]]:
    """`a{x=1 y=2,3},b` -> [("a", {"x": "1", "y": "2,3"}), ("b", {})]."""
    found, at = [], 0
    while at < len(text):
        m = _SPEC.match(text, at)
        if m is None:
            raise OptionError(f"cannot read {text[at:]!r}; wanted name{{option=value ...}},name,...")
        options = {}
        for o in _OPTION.finditer(m[2] or ""):
            options[o[1].replace("-", "_")] = (o[2] or "true").strip('"')
        found.append((m[1], options))
        at = m.end()
    return found


def from_options(cls: type[Any], name: str, options: dict[str, str]) -> Any:
    """An instance of a frozen options dataclass from option texts; OptionError names a bad option and the known ones."""
    known = _option_types(cast(Hashable, cls))
    for option in options:
        if option not in known:
            listed = ", ".join(k.replace("_", "-") for k in known) or "none"
            raise OptionError(f"{name} has no option {option.replace('_', '-')!r}; its options: {listed}")
    values = {o: _from_text(name, o, t, known[o]) for o, t in options.items()}
    try:
        return cls(**values)
    except TypeError as error:
        raise OptionError(f"{name}: {error}") from error


@functools.cache
def _option_types(cls: Any) -> Mapping[str, Any]:
    """The type of each option, by name; reading them off a class takes longer than reading a text."""
    hints = get_type_hints(cls)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}


def _from_text(name: str, option: str, text: str, kind: Any) -> Any:
    try:
        if kind is bool:
            return {"true": True, "false": False, "1": True, "0": False}[text]
        if str(kind).startswith("tuple[int"):
            return tuple(int(t) for t in text.split(",") if t)
        if str(kind).startswith("tuple[str"):
            return tuple(t for t in text.split(",") if t)
        return kind(text)
    except (ValueError, KeyError):
        raise OptionError(f"{name}: option {option.replace('_', '-')}={text!r} is not of type {kind}") from None
