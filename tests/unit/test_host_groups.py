"""The loop over calls that are launched together: which phases are shared, and what a thread alone does."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Sequence

import numpy as np
import pytest

from tilewright.compiler.builder.codegen import compile_object
from tilewright.compiler.builder.lowering import to_llvm_text
from tilewright.compiler.host.host_groups import ENTRY, PHASE, PIECES, together_ir
from tilewright.passes.mlir import ir, new_context
from tilewright.runtime.device import PARALLEL_FOR
from tilewright.runtime.host.cpu import load_native
from tilewright.runtime.target import Target

WORD = ctypes.c_int64
LOOP = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, WORD, WORD, ctypes.c_void_p, WORD)
KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, WORD, WORD, ctypes.c_void_p)
_DOOR = """
llvm.func @together(%table: !llvm.ptr, %head: !llvm.ptr, %threads: i64, %work: !llvm.ptr, %stride: i64) {
  llvm.call @tw_together(%table, %head, %threads, %work, %stride) : (!llvm.ptr, !llvm.ptr, i64, !llvm.ptr, i64) -> ()
  llvm.return
}"""


class Groups:
    """The loop as machine code, and what it did: threads that were asked for, calls of kernels with their units."""

    def __init__(self) -> None:
        with new_context(), ir.Location.unknown():
            module = ir.Module.parse(together_ir(platform.machine()) + _DOOR)
            self.code = load_native([compile_object(to_llvm_text(module), Target.parse("host"))])
        self.asked, self.ran = list[int](), list[tuple[int, int, int]]()

    def launch(self, threads: int, phases: Sequence[Sequence[tuple[int, int]]]) -> None:
        """phases: of each call its work in pieces and its units; the kernels are numbered in order. What the threads of the loop
        do is done one after the other."""
        self.asked, self.ran = [], []
        head, words, kernels = np.zeros(PHASE * (1 + len(phases)), np.uint64), [], []

        def loop(_: int, body: int, slots: int, units: int, asked: int, workspace: int, __: int) -> None:
            self.asked.append(asked)
            KERNEL(body)(slots, 0, units, workspace)

        def kernel(number: int) -> object:
            return KERNEL(lambda _, begin, end, __: self.ran.append((number, begin, end)))

        for place, calls in enumerate(phases, 1):
            group = np.zeros(1 + ENTRY * len(calls), np.uint64)
            group[0] = len(calls)
            for n, (work, units) in enumerate(calls):
                kernels.append(kernel(len(kernels)))
                group[1 + ENTRY * n : 1 + ENTRY * (n + 1)] = work, units, ctypes.cast(kernels[-1], ctypes.c_void_p).value, 0
            head[PHASE * place + 1] = group.ctypes.data
            words.append(group)
        head[0] = len(phases)
        called = LOOP(loop)
        table = np.zeros(16, np.uint64)
        table[PARALLEL_FOR] = ctypes.cast(called, ctypes.c_void_p).value
        run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, WORD, ctypes.c_void_p, WORD)(self.code.address("together"))
        run(table.ctypes.data, head.ctypes.data, threads, None, 0)


@pytest.fixture(scope="module")
def groups() -> Groups:
    return Groups()


def test_one_thread_runs_all_units_of_each_call_in_their_order_without_a_loop(groups: Groups) -> None:
    groups.launch(1, [[(100, 7), (0, 0), (3, 2)], [(500, 9)]])
    assert groups.asked == [] and groups.ran == [(0, 0, 7), (2, 0, 2), (3, 0, 9)]


def test_phases_of_which_each_is_small_are_the_callers_alone(groups: Groups) -> None:
    """As small as a call alone may be; the last piece of each call is hardly a whole one."""
    groups.launch(2, [[(PIECES, 8)], [(PIECES, 5), (1, 1)]])
    assert groups.asked == [] and groups.ran == [(0, 0, 8), (1, 0, 5), (2, 0, 1)]


@pytest.mark.parametrize("phases", [
    [[(PIECES + 1, 4)], [(1, 1)]], [[(1, 1)], [(PIECES, 3), (2, 2)]], [[(400, 96)], [(300, 50), (9, 9)]]])
def test_larger_ones_are_shared_and_each_unit_is_run_once(groups: Groups, phases: list[list[tuple[int, int]]]) -> None:
    groups.launch(2, phases)
    assert groups.asked == [2]
    calls = [call for phase in phases for call in phase]
    for number, (_, units) in enumerate(calls):
        assert sorted(u for n, begin, end in groups.ran if n == number for u in range(begin, end)) == list(range(units))
    second = [number >= len(phases[0]) for number, *_ in groups.ran]
    assert second == sorted(second), "the second phase began before the first one ended"


def test_a_call_of_no_work_is_not_run(groups: Groups) -> None:
    groups.launch(2, [[(400, 96)], [(0, 0), (40, 3)], [(0, 0)]])
    assert {n for n, *_ in groups.ran} == {0, 2}
