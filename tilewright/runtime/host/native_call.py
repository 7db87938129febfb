"""Gives a loaded function its native entry: the code that takes a call without Python (compiler/host/call_path.py emits it).

Four symbols of a program's binder object, of which old artifacts lack the last two:
  `PyObject *tw_enter(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)`, a `vectorcallfunc`
  `uint64_t tw_words[]`, which `attach` fills: python_abi.WORDS, then the dtype object of each tensor input and of each
      result, then the address of each constant
  `uint64_t tw_more_words[]`: python_abi.MORE_WORDS
  `uint64_t tw_copy`: the function of NumPy that copies an array
`tw_enter` takes the calls that need no conversion, and passes all others with the same arguments to the word "fallback". Where
the program nests its arguments or results, calls reach it from Python, flat (`Caller.call`).
"""

from __future__ import annotations

import contextlib
import sys

from tilewright.runtime.call.python_abi import (
    builtin,
    callable_type,
    fill,
    fill_copy,
    fill_more,
    is_supported,
    more_words,
    set_entry,
    shared_words,
)
from tilewright.runtime.host.host_caller import HostCaller
from tilewright.runtime.program.program import Program

ENTRY, TABLE, MORE_TABLE, COPY = "tw_enter", "tw_words", "tw_more_words", "tw_copy"

__all__ = ["attach", "callable_type", "can_take"]


def can_take(program: Program) -> bool:
    """Has the program a binder, and does it fit this interpreter?"""
    return bool(program.binder_object) and is_supported()


def attach(instance: object, base: type, caller: HostCaller) -> tuple[object, ...]:
    """Send calls of an instance of `callable_type(base)` to the program's native entry.

    Returns:
        What the entry refers to; it must live as long as the instance. None of it refers back to the instance.
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
    with contextlib.suppress(KeyError):
        caller.more_table = caller.code.address(MORE_TABLE)
        fill_more(caller.more_table, more_words())
        fill_copy(caller.code.address(COPY))
    caller.native = builtin(caller.code.address(ENTRY))
    if is_flat:
        set_entry(instance, base, caller.code.address(ENTRY))
    return (fallback, dtypes, sys.intern("out"), sys.intern("threads"))
