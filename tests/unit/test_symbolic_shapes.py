"""Extents over the dims of values that are computed from many others."""

from __future__ import annotations

from tilewright.passes.linalg.symbolic import SymbolicShapes
from tilewright.passes.mlir import functions, ir, new_context, operations
from tilewright.runtime.shape import Expr


def test_parts_written_one_after_the_other_may_be_many() -> None:
    """More than Python's stack is deep."""
    lines = ["%v0 = tensor.empty(%n) : tensor<?x4xf32>"]
    lines += [f"%v{i + 1} = tensor.insert_slice %part into %v{i}[%at, 0] [1, 4] [1, 1] : tensor<4xf32> into tensor<?x4xf32>"
              for i in range(3000)]
    lines += ["%w = tensor.collapse_shape %v3000 [[0, 1]] : tensor<?x4xf32> into tensor<?xf32>"]
    text = f"""func.func @main(%part: tensor<4xf32>, %n: index {{tw.dims = ["N"]}}, %at: index) -> tensor<?xf32> {{
        {chr(10).join(lines)}
        return %w : tensor<?xf32> }}"""
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        fn = next(functions(module))
        [result] = operations(fn.regions[0].blocks[0])[-1].operands
        assert SymbolicShapes(fn).dims(result) == (Expr.parse("4*N"),)
