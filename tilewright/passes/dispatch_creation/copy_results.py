"""copy-results: every result of the function is a value of its own, not an argument, a window or another result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.passes.base import Pass
from tilewright.passes.linalg.builders import elementwise
from tilewright.passes.linalg.reshape import Reshaper, product
from tilewright.passes.linalg.strides import Views, dense_strides
from tilewright.passes.linalg.structured import CHEAP_OPS, OVERWRITTEN, UPDATE, main_of
from tilewright.passes.mlir import ir, operations, owner
from tilewright.runtime.errors import PassError


@dataclass(frozen=True)
class CopyResults(Pass):
    """A result that is an argument, a constant, part of a buffer, or the same buffer as an earlier result is copied. So is what a
    branch or loop is given that is no buffer of its own, whose elements lie side by side, and a part that is put into what a loop
    carries (`tw.update`) where no kernel makes it.
    """

    name: ClassVar[str] = "copy-results"

    def run(self, module: ir.Module) -> None:
        for fn in main_of(module):
            if "sym_visibility" not in fn.attributes:
                _copy_results(fn)


def _copy_results(fn: ir.Operation) -> None:
    tensors = Reshaper(fn)
    views = Views(tensors.shapes)
    terminator = operations(fn.regions[0].blocks[0])[-1]
    returned: set[ir.Value] = set()

    def copied(value: ir.Value, before: ir.Operation) -> ir.Value:
        with ir.InsertionPoint(before):
            empty = tensors.empty(tensors.shapes.dims(value), ir.RankedTensorType(value.type).element_type)
            return elementwise([value], tensors.as_type(empty, value.type), lambda inner: inner[0])

    for update in (op for op in operations(fn.regions[0].blocks[0]) if UPDATE in op.attributes):
        made = owner(views.view(update.operands[0]).buffer)
        if made is not None and made.name in CHEAP_OPS:
            update.operands[0] = copied(update.operands[0], update)
    for call in (op for op in operations(fn.regions[0].blocks[0]) if op.name == "func.call"):
        for number, value in enumerate(call.operands):
            if isinstance(value.type, ir.RankedTensorType):
                buffer = _whole_buffer(value, views)
                made = None if buffer is None else owner(buffer)
                if buffer is None or (made is not None and made.name in CHEAP_OPS and OVERWRITTEN not in made.attributes):
                    call.operands[number] = copied(value, call)
    for number, value in enumerate(list(terminator.operands)):
        if not isinstance(value.type, ir.RankedTensorType):
            raise PassError(f"result {number} of the function is a {value.type}; return tensors only")
        buffer = _whole_buffer(value, views)
        made = None if buffer is None else owner(buffer)
        if made is not None and made.name not in CHEAP_OPS and buffer not in returned:
            returned.add(buffer)
            continue
        terminator.operands[number] = copied(value, terminator)


def _whole_buffer(value: ir.Value, views: Views) -> ir.Value | None:
    """The buffer of which `value` shows every element in order."""
    view, dims = views.view(value), views.shapes.dims(value)
    whole = view.offset.constant == 0 and view.strides == dense_strides(dims)
    return view.buffer if whole and product(dims) == product(views.shapes.dims(view.buffer)) else None
