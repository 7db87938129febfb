"""The watch for erased operations (tests/erased_operations.py) sees what it is to see, and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from erased_operations import watched

from tilewright.passes.mlir import functions, ir, new_context, operations, walk

_TEXT = """
func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
  %e = tensor.empty() : tensor<4xf32>
  %0 = linalg.exp ins(%a : tensor<4xf32>) outs(%e : tensor<4xf32>) -> tensor<4xf32>
  %1 = linalg.tanh ins(%a : tensor<4xf32>) outs(%e : tensor<4xf32>) -> tensor<4xf32>
  return %1 : tensor<4xf32>
}"""


@pytest.fixture
def ops() -> Iterator[list[Any]]:
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(_TEXT)
        yield operations(next(functions(module)).regions[0].blocks[0])


def test_what_is_erased_is_not_read(ops: list[Any]) -> None:
    exp, value = ops[1], ops[1].results[0]
    inner = walk(exp)[0]
    with watched():
        exp.erase()
        for read in (lambda: exp.name, lambda: hash(exp), lambda: inner.name, lambda: value.type, lambda: list(value.uses),
                     exp.erase):
            with pytest.raises(AssertionError, match=r"was erased"):
                read()
        assert [op.name for op in ops if op != exp] == ["tensor.empty", "linalg.tanh", "func.return"]


def test_what_is_used_is_not_erased(ops: list[Any]) -> None:
    with watched(), pytest.raises(AssertionError, match=r"linalg\.tanh is erased, and its results are used"):
        ops[2].erase()


def test_operands_of_what_is_erased_lose_a_use(ops: list[Any]) -> None:
    argument = ops[1].operands[0]
    with watched():
        ops[1].erase()
        assert len(list(argument.uses)) == 1 and len(operations(ops[0].block)) == 3
    ops[2].results[0].replace_all_uses_with(argument)
    ops[2].erase()
    ops[0].erase()
    assert [op.name for op in operations(ops[3].block)] == ["func.return"]
