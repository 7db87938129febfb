"""Reading a model: MLIR text, an .mlir path, an `ir.Module` or an object that prints itself, into a fresh context."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Protocol, Union, runtime_checkable

from tilewright.compiler.dims.places import argument_names
from tilewright.compiler.frontends.text_bounds import check_bounds
from tilewright.compiler.frontends.unreadable import check_content, file_text, is_bytecode, no_file, no_model, no_text
from tilewright.passes.base import Mlir
from tilewright.passes.mlir import functions, ir, new_context, walk
from tilewright.runtime.errors import IngestError, perhaps
from tilewright.runtime.wording import Wording

_LOOKS_LIKE_TEXT = re.compile(r"\n|func\.func|\bmodule\b\s*(?:@\w+\s*)?(?:attributes\s*)?\{")
_INLINE = Mlir("inline,symbol-dce")
_LONGEST_PATH = 4095
_TEXT = "the model's text"


@runtime_checkable
class HasModuleText(Protocol):
    """Anything that can print itself as MLIR, such as what `tilewright.ops` builds."""

    def module_text(self) -> str: ...


ModelIR = Union[str, "os.PathLike[str]", HasModuleText, ir.Module]


def read_model(model: ModelIR, context: ir.Context) -> ir.Module:
    """The model's module in `context`.

    Raises:
        IngestError: the file is missing, the text does not parse (names file and line), or `model` is none of these.
    """
    if isinstance(model, str) and (_LOOKS_LIKE_TEXT.search(model) or len(model) > _LONGEST_PATH):
        return parse_text(model, context)
    if isinstance(model, (str, os.PathLike)):
        return _parse_file(Path(model), context)
    return parse_text(_printed(model), context)


def model_content(model: ModelIR) -> str | bytes:
    """What tells a model from all others: its text, or the content of its file; IngestError where `read_model` gives one."""
    if isinstance(model, str) and (_LOOKS_LIKE_TEXT.search(model) or len(model) > _LONGEST_PATH):
        _check_text(model, _TEXT)
        return model
    if isinstance(model, (str, os.PathLike)):
        path = Path(model)
        _check_file(path)
        return path.read_bytes()
    return _printed(model)


def _printed(model: ModelIR) -> str:
    if isinstance(model, ir.Module):
        return str(model.operation.get_asm(enable_debug_info=True))
    if isinstance(model, type) or not isinstance(model, HasModuleText):
        raise no_model(model)
    return model.module_text()


def _check_file(path: Path) -> None:
    if not os.path.isfile(path):
        raise no_file(path)
    check_content(path)


def _check_text(text: str, where: str) -> None:
    if (problem := no_text(text, where)) is not None:
        raise problem


def parse_text(text: str, context: ir.Context, where: str = _TEXT) -> ir.Module:
    """The module that a text is; IngestError where it is none. where: names the text."""
    _check_text(text, where)
    check_bounds(text, where)
    try:
        return ir.Module.parse(text, context)
    except ir.MLIRError as error:
        raise IngestError(f"{where} is not valid MLIR; correct it there, or export it again. {error}") from error


def _parse_file(path: Path, context: ir.Context) -> ir.Module:
    _check_file(path)
    if not is_bytecode(path):
        check_bounds(file_text(path), str(path))
    try:
        return ir.Module.parseFile(str(path), context)
    except ir.MLIRError as error:
        raise IngestError(f"{path} is not valid MLIR; correct it there, or export it again. {error}") from error


def select_function(module: ir.Module, wanted: str | None) -> ir.Operation:
    """Keep one function as the public @main, with the functions that it calls inlined.

    Raises:
        IngestError: there is no function, several public ones without a choice, or none of the name wanted; extents of calls
            contradict each other.
    """
    defined = [f for f in functions(module) if any(r.blocks for r in f.regions)]
    public = [f for f in defined if _visible(f)]
    names = ", ".join("@" + _name(f) for f in public) or "none"
    chosen = [f for f in defined if _name(f) == wanted] if wanted is not None else public
    if len(chosen) != 1:
        what = (
            f"no function @{wanted}"
            if wanted is not None
            else "no public function"
            if not chosen
            else f"{len(chosen)} public functions"
        )
        guess = perhaps(wanted, map(_name, public)) if wanted is not None else ""
        raise IngestError(f"the model has {what} (public: {names}); wanted one, choose it with "
                          + Wording('function="name"', "--function NAME") + guess)
    target = chosen[0]
    for other in functions(module):
        if other != target:
            if _name(other) == "main":
                _rename(module, other, "main_")
            other.attributes["sym_visibility"] = ir.StringAttr.get("private", module.context)
    _rename(module, target, "main")
    if "sym_visibility" in target.attributes:
        del target.attributes["sym_visibility"]
    if len(list(functions(module))) > 1:
        try:
            _INLINE.run(module)
        except ir.MLIRError as error:
            raise IngestError("the model's functions are no valid MLIR once their calls are inlined, as where extents that have "
                              f"to agree do not: correct the model, or export it again. {error}") from error
    return next(f for f in functions(module) if _name(f) == "main")


def source_arguments(text: str) -> tuple[str, ...]:
    """The names of the arguments of an ingested model's @main, in order."""
    with new_context(unknown=True) as context, ir.Location.unknown():
        module = parse_text(text, context)
        return argument_names(select_function(module, "main"))


def _visible(fn: ir.Operation) -> bool:
    return "sym_visibility" not in fn.attributes or ir.StringAttr(fn.attributes["sym_visibility"]).value == "public"


def _name(fn: ir.Operation) -> str:
    return str(ir.StringAttr(fn.attributes["sym_name"]).value)


def _rename(module: ir.Module, fn: ir.Operation, name: str) -> None:
    old = _name(fn)
    if old == name:
        return
    fn.attributes["sym_name"] = ir.StringAttr.get(name, module.context)
    symbol = ir.FlatSymbolRefAttr.get(name, module.context)
    for op in walk(module.operation):
        if op.name == "func.call" and ir.FlatSymbolRefAttr(op.attributes["callee"]).value == old:
            op.attributes["callee"] = symbol
