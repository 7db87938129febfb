"""What native code must know of CPython and NumPy to take a call without Python: addresses and object layouts.

Nothing of Python or NumPy is linked: emitted code finds all it uses in a table of 8-byte words, filled when a function is
loaded. `is_supported` checks the layouts on live objects; where one is not as expected (another implementation, a
free-threaded or debug build, a NumPy of another ABI) calls go through Python.

References: https://docs.python.org/3/c-api/call.html, https://numpy.org/doc/stable/reference/c-api/types-and-structures.html
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.runtime.once import once

# Byte offsets: of the type in any object, of a tuple's length, of the fields of an ndarray.
TYPE, LENGTH = 8, 16
DATA, RANK, EXTENTS, STRIDES, DTYPE, FLAGS = 16, 24, 32, 40, 56, 64
CONTIGUOUS, ALIGNED, WRITEABLE = 0x1, 0x100, 0x400  # NPY_ARRAY_* bits of the flags
WRITEABLE_ARRAY = CONTIGUOUS | ALIGNED | WRITEABLE

# The words of the table that every program has, in order.
WORDS = (
    "save_thread", "restore_thread", "vectorcall", "incref", "decref", "tuple_new", "tuple_set_item", "long_value",
    "float_value", "empty", "getenv", "ndarray", "tuple", "int", "float", "out", "tuple_items", "fallback", "call",
    "device", "threads",
)  # fmt: skip

# The words of a second table. Artifacts from before it have no such table; those of PyTorch are zero while it is not imported.
TORCH_WORDS = ("tensor", "parameter", "exchange", "requires_grad", "is_neg", "grad_enabled")
MORE_WORDS = ("threads_keyword", "get_attribute", "clear_error", "none", "true", *TORCH_WORDS)

# The words of a table of its own, which artifacts from before it do not have.
ARRAY_WORDS = ("new_array", "set_base", "byte")

_FUNCTIONS = {
    "save_thread": "PyEval_SaveThread",
    "restore_thread": "PyEval_RestoreThread",
    "vectorcall": "PyObject_Vectorcall",
    "incref": "Py_IncRef",
    "decref": "Py_DecRef",
    "tuple_new": "PyTuple_New",
    "tuple_set_item": "PyTuple_SetItem",
    "long_value": "PyLong_AsLongLongAndOverflow",
    "float_value": "PyFloat_AsDouble",
}
# In NumPy's table of C functions: PyArray_GetNDArrayCVersion, PyArray_NewCopy, PyArray_NewFromDescr, PyArray_Empty,
# PyArray_SetBaseObject
_NUMPY_VERSION, _NUMPY_COPY, _NUMPY_NEW, _NUMPY_EMPTY, _NUMPY_SET_BASE = 0, 85, 94, 184, 282

_BYTE = np.dtype(np.uint8)
_VECTORCALL_FLAG = 1 << 11  # Py_TPFLAGS_HAVE_VECTORCALL
_DEFAULT_FLAGS = 1 << 18  # Py_TPFLAGS_DEFAULT
_MEMBERS_SLOT = 72  # Py_tp_members
_SSIZE, _READONLY = 19, 1  # Py_T_PYSSIZET, Py_READONLY
_FASTCALL_KEYWORDS = 0x82  # METH_FASTCALL | METH_KEYWORDS


class _MemberDef(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("type", ctypes.c_int), ("offset", ctypes.c_ssize_t),
                ("flags", ctypes.c_int), ("doc", ctypes.c_char_p))  # fmt: skip


class _TypeSlot(ctypes.Structure):
    _fields_ = (("slot", ctypes.c_int), ("function", ctypes.c_void_p))


class _Method(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("function", ctypes.c_void_p), ("flags", ctypes.c_int),
                ("doc", ctypes.c_char_p))  # fmt: skip


class _Spec(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("basicsize", ctypes.c_int), ("itemsize", ctypes.c_int),
                ("flags", ctypes.c_uint), ("slots", ctypes.POINTER(_TypeSlot)))  # fmt: skip


@functools.cache
def is_supported() -> bool:
    """Are objects of this interpreter and this NumPy laid out as emitted code takes them to be?"""
    if sys.implementation.name != "cpython" or sys.maxsize != (1 << 63) - 1 or hasattr(sys, "gettotalrefcount"):
        return False
    return object.__basicsize__ == 16 and _tuple_fits() and _array_fits() and _numpy_fits()


def word(base: int, offset: int, type_: type[Any] = ctypes.c_int64) -> Any:
    """The value at an address."""
    return type_.from_address(base + offset).value


def _tuple_fits() -> bool:
    probe = ("out", object())
    items = tuple.__basicsize__
    return (
        word(id(probe), TYPE) == id(tuple)
        and word(id(probe), LENGTH) == 2
        and [word(id(probe), items + 8 * i) for i in range(2)] == [id(p) for p in probe]
    )


def _array_fits() -> bool:
    for shape, flags in (((3, 5), WRITEABLE_ARRAY), ((), CONTIGUOUS | ALIGNED)):
        probe = np.zeros(shape, np.float32)
        probe.flags.writeable = bool(flags & WRITEABLE)
        at = id(probe)
        if (
            word(at, TYPE) != id(np.ndarray)
            or word(at, DATA) != probe.__array_interface__["data"][0]
            or word(at, RANK, ctypes.c_int) != probe.ndim
            or [word(word(at, EXTENTS), 8 * axis) for axis in range(probe.ndim)] != list(shape)
            or [word(word(at, STRIDES), 8 * axis) for axis in range(probe.ndim)] != list(probe.strides)
            or word(at, DTYPE) != id(probe.dtype)
            or word(at, FLAGS, ctypes.c_int) & WRITEABLE_ARRAY != flags
        ):
            return False
    strided = np.zeros((4, 4), np.float32)[:, ::2]
    return not word(id(strided), FLAGS, ctypes.c_int) & CONTIGUOUS


def _numpy_fits() -> bool:
    table = _numpy_table()
    if not table:
        return False
    version = ctypes.CFUNCTYPE(ctypes.c_uint)(word(table, 8 * _NUMPY_VERSION))()
    return bool(version >> 24 == 2)


def _numpy_table() -> int:
    """Address of NumPy's table of C functions, which extension modules import; 0 when there is none."""
    capsule = getattr(importlib.import_module("numpy._core._multiarray_umath"), "_ARRAY_API", None)
    if capsule is None:
        return 0
    pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )
    return int(pointer(capsule, None) or 0)


@functools.cache
def shared_words() -> dict[str, int]:
    """The words that are the same for every function of the process."""
    addresses = {name: _address(getattr(ctypes.pythonapi, symbol)) for name, symbol in _FUNCTIONS.items()}
    return {
        **addresses,
        "empty": word(_numpy_table(), 8 * _NUMPY_EMPTY),
        "getenv": _address(ctypes.CDLL(None).getenv),
        "ndarray": id(np.ndarray),
        "tuple": id(tuple),
        "int": id(int),
        "float": id(float),
        "out": id(sys.intern("out")),
        "tuple_items": tuple.__basicsize__,
    }


@functools.cache
def more_words() -> dict[str, int]:
    """The words of the second table that every process has."""
    return {
        "threads_keyword": id(sys.intern("threads")),
        "get_attribute": _address(ctypes.pythonapi.PyObject_GetAttr),
        "clear_error": _address(ctypes.pythonapi.PyErr_Clear),
        "none": id(None),
        "true": id(True),
    }


@once
def torch_words() -> tuple[dict[str, int], tuple[object, ...]]:
    """The words of an imported PyTorch, and the objects that they refer to; none where its tensors are read through Python only.

    Reference: DLPackExchangeAPI of DLPack 1.3.
    """
    torch: Any = sys.modules["torch"]
    capsule = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if capsule is None:
        return {}, ()
    pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )
    exchange = int(pointer(capsule, b"dlpack_exchange_api"))
    if word(exchange, 0, ctypes.c_uint32) != 1 or not all(word(exchange, at) for at in (16, 32, 40)):
        return {}, ()
    kept = (torch.Tensor, torch.nn.Parameter, sys.intern("requires_grad"), torch.Tensor.is_neg, torch.is_grad_enabled)
    tensor, parameter, *others = map(id, kept)
    return dict(zip(TORCH_WORDS, (tensor, parameter, exchange, *others), strict=True)), (capsule, *kept)


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


@once
def callable_type(base: type) -> type:
    """A subclass of `base` with one word more, at `base.__basicsize__`: the native function that a call goes to.

    The word has the signature of `vectorcallfunc`; while it is null, calls go to `base.__call__`.
    """
    members = (_MemberDef * 2)()
    members[0] = _MemberDef(b"__vectorcalloffset__", _SSIZE, base.__basicsize__, _READONLY, None)
    slots = (_TypeSlot * 2)()
    slots[0] = _TypeSlot(_MEMBERS_SLOT, ctypes.addressof(members))
    name = f"{base.__module__}.{base.__qualname__}".encode()
    spec = _Spec(name, base.__basicsize__ + 8, 0, _DEFAULT_FLAGS | _VECTORCALL_FLAG, slots)
    create = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object)(
        ("PyType_FromSpecWithBases", ctypes.pythonapi)
    )
    made: type = create(ctypes.addressof(spec), (base,))
    made.__doc__ = base.__doc__
    made._spec = (members, slots, name)  # type: ignore[attr-defined] # CPython keeps pointers into these
    return made


def set_entry(instance: object, base: type, address: int) -> None:
    """Make calls of an instance of `callable_type(base)` go to native code."""
    ctypes.c_int64.from_address(id(instance) + base.__basicsize__).value = address


def builtin(address: int) -> Callable[..., Any]:
    """A builtin function over native code of the signature of `vectorcallfunc`.

    Its definition is its `self` too: CPython reads the definition when the function ends, and frees `self` after that.
    """
    method = _Method(b"native_call", address, _FASTCALL_KEYWORDS, None)
    create = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)(
        ("PyCFunction_NewEx", ctypes.pythonapi)
    )
    made: Callable[..., Any] = create(ctypes.addressof(method), method, None)
    return made


def fill(table: int, words: dict[str, int], rest: Sequence[int]) -> None:
    """Write WORDS and what follows them."""
    for index, value in enumerate([*(words[name] for name in WORDS), *rest]):
        ctypes.c_uint64.from_address(table + 8 * index).value = value


def fill_copy(at: int) -> None:
    """Write the address of NumPy's function that copies an array."""
    ctypes.c_uint64.from_address(at).value = word(_numpy_table(), 8 * _NUMPY_COPY)


def fill_arrays(table: int) -> None:
    """Write ARRAY_WORDS, "new_array" last, which the others are read after."""
    words = (word(_numpy_table(), 8 * _NUMPY_NEW), word(_numpy_table(), 8 * _NUMPY_SET_BASE), id(_BYTE))
    for index, value in reversed(list(enumerate(words))):
        ctypes.c_uint64.from_address(table + 8 * index).value = value


def fill_more(table: int, words: dict[str, int]) -> None:
    """Write some of MORE_WORDS, "tensor" after those that are read where it is set."""
    for name in sorted(words, key=MORE_WORDS.index, reverse=True):
        ctypes.c_uint64.from_address(table + 8 * MORE_WORDS.index(name)).value = words[name]
