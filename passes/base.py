"""Pass and PassPipeline: a pass is a frozen dataclass whose fields are its options; a pipeline is a plain list of passes.

Text form, as on the command line: `tile-rows{rows=8 unroll=4}`; an MLIR pass of the bindings is `mlir{pipeline="cse"}`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, get_type_hints

from passes.mlir import PassManager, ir
from runtime.errors import OptionError, PassError


@dataclass(frozen=True)
class Pass:
    """One transformation of a module, in place. Subclasses set `name` and implement `run`."""

    name: ClassVar[str] = ""

    def run(self, module: ir.Module) -> None:
        raise AssertionError(f"{type(self).__name__} does not implement run")

    def spec(self) -> str:
        """The pass as text, with the options that differ from their defaults."""
        return spec_of(self.name, self)

    @classmethod
    def parse(cls, options: dict[str, str]) -> Pass:
        return from_options(cls, cls.name, options)


@dataclass(frozen=True)
class Mlir(Pass):
    """A pipeline of the bindings' own passes over the whole module, e.g. `canonicalize,cse`."""

    name: ClassVar[str] = "mlir"
    pipeline: str = "canonicalize,cse"

    def run(self, module: ir.Module) -> None:
        with module.context:
            PassManager.parse(f"builtin.module({self.pipeline})").run(module.operation)


Callback = Callable[[str, ir.Module, "Pass"], None]


@dataclass(frozen=True)
class PassPipeline:
    """Passes run in order; the IR is verified before and after each.

    callback: called as callback("before" | "after" | "failed", module, pass): dumping, timing and reproducers hook in here.
    """

    passes: Sequence[Pass]
    callback: Callback | None = None

    def run(self, module: ir.Module) -> ir.Module:
        for step in self.passes:
            if self.callback:
                self.callback("before", module, step)
            done = False
            try:
                with module.context, ir.Location.unknown():
                    step.run(module)
                    module.operation.verify()
                done = True
            except (ir.MLIRError, ValueError, RuntimeError) as error:
                raise PassError(f"pass {step.spec()} failed: {error}") from error
            finally:
                if not done and self.callback:
                    self.callback("failed", module, step)
            if self.callback:
                self.callback("after", module, step)
        return module

    def spec(self) -> str:
        return ",".join(p.spec() for p in self.passes)


def spec_of(name: str, value: Any) -> str:
    """`name{option=value ...}` with the dataclass fields that differ from their defaults."""
    shown = []
    for field in dataclasses.fields(value):
        v = getattr(value, field.name)
        if v != field.default:
            shown.append(f"{field.name.replace('_', '-')}={_to_text(v)}")
    return name + ("{" + " ".join(shown) + "}" if shown else "")


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
    hints = get_type_hints(cls)
    known = {f.name: hints[f.name] for f in dataclasses.fields(cls)}
    for option in options:
        if option not in known:
            listed = ", ".join(k.replace("_", "-") for k in known) or "none"
            raise OptionError(f"{name} has no option {option.replace('_', '-')!r}; its options: {listed}")
    values = {o: _from_text(name, o, t, known[o]) for o, t in options.items()}
    try:
        return cls(**values)
    except TypeError as error:
        raise OptionError(f"{name}: {error}") from error


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
