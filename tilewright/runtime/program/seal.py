"""Seal: native code says which program it was compiled for.

A host program and a binder hold, as data, the hash of the program that they were emitted for: of its stored form, which names the
kernels and constants by their hashes. Where it differs, dims, extents, tables or offsets are not those that the code was compiled
for, and the code would read and write elsewhere. The names of the two objects themselves stand beside the program, not in it.
"""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec

from tilewright.runtime.program.program import Program

Part = Literal["host", "binder"]


def stored_program(program: Program) -> bytes:
    """The program as it is stored: all but the names of the objects that hold its hash."""
    return msgspec.json.encode(msgspec.structs.replace(program, host_object="", binder_object=""))


def seal(part: Part, stored: bytes) -> bytes:
    """What the code of a part holds that was compiled for a stored program."""
    return f"tilewright {part} of\0".encode() + hashlib.sha256(stored).digest()


def seal_ir(part: Part, program: Program) -> str:
    """The seal as a global of a module in LLVM IR."""
    data = seal(part, stored_program(program))
    return f'@tw_seal_{part} = constant [{len(data)} x i8] c"{escaped(data)}"\n'


def escaped(data: bytes) -> str:
    """Bytes in a string of LLVM IR or MLIR."""
    return "".join(f"\\{byte:02X}" for byte in data)
