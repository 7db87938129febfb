"""Device: where kernels are loaded and launched, and the C table through which a native host program reaches it.

Fields of the table, one 8-byte word each, in this order (host, CUDA and emulator each fill them):
  0 context       the device's own
  1 kernels       void **: native kernels by launch number (call number * 256 + kernel of its table; bits from 32 up count the
                  launches of one GPU kernel). By call and then by kernel for CUDA (runtime/cuda/cuda_table.py)
  2 launch        void (*)(Table *, int64_t number, int64_t gx, int64_t gy, int64_t gz, const uint64_t *slots, int64_t count,
                           int64_t threads, void *workspace, int64_t workspace_stride)
  3 parallel_for  void (*)(Table *, void *kernel, const uint64_t *slots, int64_t units, int64_t threads, void *workspace,
                           int64_t workspace_stride): thread t works in workspace + t * workspace_stride
  4 alloc         void *(*)(Table *, int64_t bytes): an arena, 64-byte aligned; null when there is no memory
  5 release       void (*)(Table *, void *arena)
  6 tensor_map    void (*)(Table *, void *target, const int64_t *words): the 128 bytes that a kernel takes as a tensor map, from
                  what runtime/program/tensor_map.py (TensorMap.from_words) lists; the slot holds the address of `target`. Null on
                  the host
  7 copy          void (*)(Table *, void *target, void *source, int64_t bytes), in the order of the launches; null on the host
  8 control       int64_t (*)(Table *, int64_t op, uint64_t *words): a branch or loop that depends on data, see ControlOp; null on
                  the host, which reads the byte
  9 poll          int64_t (*)(Table *): not 0 where a loop is to be left, as the caller wants no more; null: nobody asks
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Protocol

TABLE_WORDS = 10
CONTEXT, KERNELS, LAUNCH, PARALLEL_FOR, ALLOC, RELEASE, TENSOR_MAP, COPY, CONTROL, POLL = range(TABLE_WORDS)
STOPPED = -2  # status of a run that a loop left because `poll` said so
KERNELS_PER_CALL = 256
NEXT_LAUNCH = 1 << 32  # step of the launch number between the launches of one GPU kernel


CONTROL_WORDS = ("state", "byte", "site", "limit", "outer", "turn", "count", "target", "start", "second", "bytes")
"""What `control` is told of one site, and what it keeps there between two calls. `state`: memory for it on the device
(runtime/gpu/control_kernels.py). `byte`: address of what decides. `site`: which of the program's branches and loops on data it
is. `limit`: at most so many turns of a loop; -1: unknown. `target` to `bytes`: what SETTLE is to move."""


class ControlOp(IntEnum):
    """BRANCH: the byte is known from here on; gives 1 where the first side is to be launched, plus 2 for the second. ELSE:
    between the sides. JOIN: behind them.
    LOOP: before the first test. TURN: behind each test; 1 where the body is to be launched. DONE: behind the loop; how often the
    body ran, or -1 where that is known on the device alone. SETTLE: then, for each tensor that it carries: the last value, which
    is at start, target or second, comes to target."""

    BRANCH = 0
    ELSE = 1
    JOIN = 2
    LOOP = 3
    TURN = 4
    DONE = 5
    SETTLE = 6


class LoadedCode(Protocol):
    """Native code in memory; it lives as long as this object."""

    def address(self, symbol: str) -> int:
        """Address of a function; KeyError when there is none."""


class Device(Protocol):
    """A place to run kernels."""

    name: str

    def load(self, objects: Sequence[bytes], kernels: Sequence[bytes] = ()) -> LoadedCode:
        """Load object code together, so that it may refer to each other's symbols. kernels: objects that each hold a kernel."""

    def table(self, kernels: Sequence[int]) -> ctypes.Array[ctypes.c_uint64]:
        """A filled C table over kernel addresses indexed by launch number (0 where there is none)."""

    def properties(self) -> Mapping[str, int | str]:
        """What `tilewright targets` shows: cores, vector bytes, caches, features."""
