"""Rows that are one vector of a thread, so that coordinates along them are constants: what random models came to."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw

EVERY_SECOND = """
func.func @main(%x: tensor<7x1xi1>, %part: tensor<8x1xi1>) -> tensor<9x2xi1> {
  %false = arith.constant false
  %padded = tensor.pad %x low[1, 1] high[1, 0] {
  ^bb0(%i: index, %j: index):
    tensor.yield %false : i1
  } : tensor<7x1xi1> to tensor<9x2xi1>
  %all = tensor.insert_slice %part into %padded[0, 0] [8, 1] [1, 2] : tensor<8x1xi1> into tensor<9x2xi1>
  return %all : tensor<9x2xi1>
}
"""
BORDER = """
func.func @main(%x: tensor<1x1xi1>) -> tensor<1x2xi1> {
  %false = arith.constant false
  %padded = tensor.pad %x low[0, 0] high[0, 1] {
  ^bb0(%i: index, %j: index):
    tensor.yield %false : i1
  } : tensor<1x1xi1> to tensor<1x2xi1>
  return %padded : tensor<1x2xi1>
}
"""
GPUS = ("emulator:sm_90a", "emulator:sm_80")


@pytest.mark.parametrize("target", GPUS)
def test_a_part_is_put_into_every_second_column(target: str) -> None:
    """Places along the row are made of constants, others of what the thread's number gives."""
    rng = np.random.default_rng(0)
    x, part = rng.random((7, 1)) < 0.5, rng.random((8, 1)) < 0.5
    wanted = np.zeros((9, 2), bool)
    wanted[1:8, 1:] = x
    wanted[:8, :1] = part
    np.testing.assert_array_equal(tw.compile(EVERY_SECOND, target=target)(x, part), wanted)


@pytest.mark.as_shipped
@pytest.mark.parametrize("target", GPUS)
def test_lanes_beyond_the_border_are_zero(target: str) -> None:
    """The mask is a constant, and the vector aligned: LLVM would end the process."""
    fn = tw.compile(BORDER, target=target)
    for one in (True, False):
        np.testing.assert_array_equal(fn(np.full((1, 1), one)), [[one, False]])
