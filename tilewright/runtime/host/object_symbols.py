"""Names that an ELF object leaves undefined. Needs no LLVM."""

from __future__ import annotations

import struct

_SYMTAB = 2


def undefined_symbols(data: bytes) -> frozenset[str]:
    """Undefined, non-weak symbols of a 64-bit little-endian ELF object; empty for other formats."""
    if data[:6] != b"\x7fELF\x02\x01":
        return frozenset()
    (start,) = struct.unpack_from("<Q", data, 40)
    entry, count = struct.unpack_from("<HH", data, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, start + entry * i) for i in range(count)]
    found = set()
    for section in sections:
        if section[1] != _SYMTAB:
            continue
        strings = sections[section[6]][4]
        for name, info, _, index, _, _ in struct.iter_unpack("<IBBHQQ", data[section[4] : section[4] + section[5]]):
            if name and not index and info >> 4 != 2:
                found.add(data[strings + name : data.index(b"\0", strings + name)].decode())
    return frozenset(found)
