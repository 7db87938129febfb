"""Device: where kernels are loaded and launched, and the C table through which a native host program reaches it.

Fields of the table, one 8-byte word each, in this order (host, CUDA and emulator each fill them):
  0 context       the device's own
  1 kernels       void **: native kernels by launch number (call number * 256 + kernel of its table; bits from 32 up count the
                  launches of one GPU kernel)
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
  8 read          int64_t (*)(Table *, void *source, int64_t bytes): up to 8 bytes, little endian, once the launches so far are
                  done; null on the host
  9 poll          int64_t (*)(Table *): not 0 where a loop is to be left, as the caller wants no more; null: nobody asks
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Protocol

TABLE_WORDS = 10
CONTEXT, KERNELS, LAUNCH, PARALLEL_FOR, ALLOC, RELEASE, TENSOR_MAP, COPY, READ, POLL = range(TABLE_WORDS)
KERNELS_PER_CALL = 256
NEXT_LAUNCH = 1 << 32  # step of the launch number between the launches of one GPU kernel


class LoadedCode(Protocol):
    """Native code in memory; it lives as long as this object."""

    def address(self, symbol: str) -> int:
        """Address of a function; KeyError when there is none."""


class Device(Protocol):
    """A place to run kernels."""

    name: str

    def load(self, objects: Sequence[bytes]) -> LoadedCode:
        """Load object code (host) or images (GPU) together, so that they may refer to each other's symbols."""

    def table(self, kernels: Sequence[int]) -> ctypes.Array[ctypes.c_uint64]:
        """A filled C table over kernel addresses indexed by launch number (0 where there is none)."""

    def properties(self) -> Mapping[str, int | str]:
        """What `tilewright targets` shows: cores, vector bytes, caches, features."""
