"""An x86-64 ELF object that holds the constants of a program, written straight from their memory.

Each constant is a section of its own, 64-byte aligned and read-only, so that a linker holds one of them at a time; all are large
sections (System V ABI, AMD64, section 4.2.1), which may lie further than 2 GB from the code.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from tilewright.runtime.errors import BuildError
from tilewright.runtime.program.artifact import ALIGNMENT, Memory, raw_bytes

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_PROGBITS, _SYMTAB, _STRTAB = 1, 2, 3
_READ_ONLY = 0x2 | 0x10000000  # SHF_ALLOC, SHF_X86_64_LARGE
_GLOBAL_OBJECT, _HIDDEN = 1 << 4 | 1, 2
_NAMES = b"\0.lrodata\0.note.GNU-stack\0.symtab\0.strtab\0.shstrtab\0"
_MOST = 0xFF00 - 6  # section numbers that a symbol can name


def write_constant_object(path: Path, constants: Sequence[tuple[str, Memory]]) -> None:
    """Write an object that defines a symbol, hidden in what is linked, for each (symbol, bytes).

    Raises:
        BuildError: more constants than an object has sections.
    """
    if len(constants) > _MOST:
        raise BuildError(f"{len(constants)} constants: an object file takes at most {_MOST}; join some of them")
    strings = b"\0" + b"".join(name.encode() + b"\0" for name, _ in constants)
    symbols, sections, place = [_SYMBOL.pack(0, 0, 0, 0, 0, 0)], [bytes(_SECTION.size)], 1
    with path.open("wb") as file:
        file.write(bytes(_HEADER.size))
        for number, (name, memory) in enumerate(constants, 1):
            data = raw_bytes(memory)
            offset = _align(file)
            file.write(data)
            sections.append(_section(".lrodata", _PROGBITS, (offset, data.nbytes), flags=_READ_ONLY, align=ALIGNMENT))
            symbols.append(_SYMBOL.pack(place, _GLOBAL_OBJECT, _HIDDEN, number, 0, data.nbytes))
            place += len(name.encode()) + 1
        sections.append(_section(".note.GNU-stack", _PROGBITS, (file.tell(), 0)))
        table = b"".join(symbols)
        link = len(sections) + 1
        sections.append(_section(".symtab", _SYMTAB, (_align(file), len(table)), link=(link, 1, _SYMBOL.size), align=8))
        file.write(table)
        sections.append(_section(".strtab", _STRTAB, (file.tell(), len(strings))))
        file.write(strings)
        sections.append(_section(".shstrtab", _STRTAB, (file.tell(), len(_NAMES))))
        file.write(_NAMES)
        start = _align(file)
        file.write(b"".join(sections))
        file.seek(0)
        identity = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
        file.write(_HEADER.pack(identity, 1, 62, 1, 0, 0, start, 0, _HEADER.size, 0, 0, _SECTION.size, len(sections),
                                len(sections) - 1))


def _section(name: str, kind: int, extent: tuple[int, int], *, flags: int = 0, align: int = 1,
             link: tuple[int, int, int] = (0, 0, 0)) -> bytes:
    """extent: offset and bytes; link: of a symbol table its strings, first global symbol and entry size."""
    number = _NAMES.index(b"\0" + name.encode() + b"\0") + 1
    return _SECTION.pack(number, kind, flags, 0, *extent, link[0], link[1], align, link[2])


def _align(file: BinaryIO) -> int:
    """Write zeros up to the next boundary; where that is."""
    here = file.tell()
    file.write(bytes(-here % ALIGNMENT))
    return here + -here % ALIGNMENT
