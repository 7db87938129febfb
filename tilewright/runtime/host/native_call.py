"""Gives a loaded function its native entry: the code that takes a call without Python (compiler/host/call_path.py emits it).

Six symbols of a program's binder object:
  `PyObject *tw_enter(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)`, a `vectorcallfunc`
  `uint64_t tw_words[]`, which `attach` fills: python_abi.WORDS, then the dtype object of each tensor input and of each
      result, then the address of each constant
  `uint64_t tw_more_words[]`: python_abi.MORE_WORDS
  `uint64_t tw_array_words[]`: python_abi.ARRAY_WORDS
  `uint64_t tw_copy`: the function of NumPy that copies an array
  `int64_t *tw_counts`: where calls are counted by their shape (runtime/call/shape_counts.py); null: nowhere
and, of programs that take tw.Jagged natively (compiler/host/call_jagged.py), `uint64_t tw_jagged_words[]`: JAGGED_WORDS.
`tw_enter` takes the calls that need no conversion, and passes all others with the same arguments to the word "fallback". Where
the program nests its arguments or results, calls reach it from Python, flat (`Caller.call`).
"""

from __future__ import annotations

import contextlib
import ctypes
import sys

import numpy as np

from tilewright.runtime.call.jagged import Jagged
from tilewright.runtime.call.python_abi import (
    builtin,
    callable_type,
    fill,
    fill_arrays,
    fill_copy,
    fill_more,
    is_supported,
    more_words,
    set_entry,
    shared_words,
    word,
)
from tilewright.runtime.host.host_caller import HostCaller
from tilewright.runtime.program.program import Program

ENTRY, TABLE, MORE_TABLE, COPY = "tw_enter", "tw_words", "tw_more_words", "tw_copy"
ARRAY_TABLE = "tw_array_words"
JAGGED_TABLE, JAGGED_WORDS = "tw_jagged_words", ("jagged", "generic_alloc")
OFFSETS, VALUES = 16, 24  # bytes of the slots of a tw.Jagged

__all__ = ["attach", "callable_type", "can_take", "enter"]


def can_take(program: Program) -> bool:
    """Has the program a binder, and does it fit this interpreter?"""
    return bool(program.binder_object) and is_supported()


def attach(caller: HostCaller) -> tuple[object, ...]:
    """Make the program's native entry ready, which `enter` then sends calls to.

    Returns:
        What the entry refers to; it must live as long as calls go there.
    """
    dtypes = [dtype for _, dtype, _, _ in caller.binder.tensors] + list(caller.results.dtypes)
    is_flat = caller.signature.is_flat
    fallback = caller.call if is_flat else caller.__call__
    words = {
        **shared_words(),
        "fallback": id(fallback),
        "call": caller.entry,
        "device": caller.table_pointer,
        "threads": caller.most_threads,
    }
    fill(caller.code.address(TABLE), words, [*map(id, dtypes), *caller.constant_pointers])
    caller.more_table = caller.code.address(MORE_TABLE)
    fill_more(caller.more_table, more_words())
    fill_copy(caller.code.address(COPY))
    with contextlib.suppress(KeyError):  # an artifact from before there was this table
        fill_arrays(caller.code.address(ARRAY_TABLE))
    if caller.ragged is not None:
        _fill_jagged(caller)
    caller.native = builtin(caller.code.address(ENTRY))
    return (fallback, dtypes, sys.intern("out"), sys.intern("threads"))


def _fill_jagged(caller: HostCaller) -> None:
    """The words of tw.Jagged, where the program has a table for them and its slots lie where the code takes them to be."""
    try:
        table = caller.code.address(JAGGED_TABLE)
    except KeyError:
        return  # another form of call, or an artifact from before there was this table
    offsets, values = np.zeros(1, np.int64), np.zeros(0, np.float32)
    probe = Jagged.checked(values, offsets)
    if Jagged.__basicsize__ == VALUES + 8 and (word(id(probe), OFFSETS), word(id(probe), VALUES)) == (id(offsets), id(values)):
        words = (id(Jagged), ctypes.cast(ctypes.pythonapi.PyType_GenericAlloc, ctypes.c_void_p).value or 0)
        for number, value in reversed(list(enumerate(words))):
            ctypes.c_uint64.from_address(table + 8 * number).value = value


def enter(instance: object, base: type, caller: HostCaller | None) -> None:
    """Send calls of an instance of `callable_type(base)` to the native entry of a caller that was attached; where there is none,
    to `base.__call__`. The change is one store: a call goes the old way or the new one."""
    is_native = caller is not None and caller.native is not None and caller.signature.is_flat
    set_entry(instance, base, caller.code.address(ENTRY) if caller is not None and is_native else 0)
