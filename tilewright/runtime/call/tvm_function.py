"""A compiled function as a function of TVM's FFI, for the runtimes and languages that speak it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.runtime.errors import OptionError


def tvm_function(fn: Callable[..., Any], inputs: int, outputs: int) -> Any:
    """`fn` as a `tvm_ffi.Function` of tensors and scalars.

    Called with the inputs it returns tensors (an Array when there are several); called with the inputs and then the
    outputs it fills those and returns None.

    Raises:
        OptionError: apache-tvm-ffi is not installed.
    """
    try:
        import tvm_ffi
    except ImportError as error:
        raise OptionError("to_tvm_ffi() needs apache-tvm-ffi; install it with pip install apache-tvm-ffi") from error

    def call(*args: Any) -> Any:
        if len(args) == inputs + outputs:
            fn(*args[:inputs], out=tuple(args[inputs:]))
            return None
        found = fn(*args)
        if outputs == 1:
            return tvm_ffi.from_dlpack(found)
        return tvm_ffi.convert([tvm_ffi.from_dlpack(array) for array in found])

    return tvm_ffi.convert(call)
