"""Writes a shared library whose functions jump through pointers that Python sets: a libcuda.so.1 without a driver behind it."""

from __future__ import annotations

import atexit
import ctypes
import struct
from pathlib import Path

_PAGE = 4096
SLOTS, ENDED = "slots", "ended"
_DEINITIALIZED = b"\xb8\x04\x00\x00\x00\xc3"  # mov eax, 4; ret


def write_library(path: Path, soname: str, functions: tuple[str, ...]) -> None:
    """An ELF shared object for x86-64 that exports `functions`, each `jmp *slots[i]`, the array `slots`, and `ended`, which says
    that the driver is gone.

    One segment of code and tables, one of the dynamic section and the slots; no relocations, so no linker is needed.
    """
    functions = (*functions, ENDED)
    names = (*functions, SLOTS)
    strings, at = b"\0", {}
    for name in (*names, soname):
        at[name] = len(strings)
        strings += name.encode() + b"\0"
    symbols = 1 + len(names)
    head = 64 + 3 * 56
    hashes = head
    table = hashes + 4 * (2 + 1 + symbols)
    table += -table % 8
    text_at = table + 24 * symbols + len(strings)
    text_at += -text_at % 16
    data = _PAGE + -(-(text_at + 16 * len(functions)) // _PAGE) * _PAGE
    dynamic = data
    slots = dynamic + 16 * 7  # after the null entry
    image = bytearray(slots + 8 * len(functions))
    # one bucket that chains all symbols
    struct.pack_into(f"<{3 + symbols}I", image, hashes, 1, symbols, 1, 0, *range(2, symbols), 0)
    for number, name in enumerate(names, 1):
        code = number <= len(functions)
        value, size, kind = (text_at + 16 * (number - 1), 16, 2) if code else (slots, 8 * len(functions), 1)
        struct.pack_into("<IBBHQQ", image, table + 24 * number, at[name], 0x10 | kind, 0, number, value, size)
    image[table + 24 * symbols : table + 24 * symbols + len(strings)] = strings
    for number in range(len(functions)):
        here = text_at + 16 * number
        jump = b"\xff\x25" + struct.pack("<i", slots + 8 * number - (here + 6))
        image[here : here + 6] = _DEINITIALIZED if functions[number] == ENDED else jump
    entries = ((14, at[soname]), (4, hashes), (5, table + 24 * symbols), (6, table), (10, len(strings)), (11, 24))
    struct.pack_into("<12Q", image, dynamic, *(x for e in entries for x in e))
    path.write_bytes(_with_headers(image, text_at, dynamic, slots, data))


def _with_headers(image: bytearray, text_at: int, dynamic: int, slots: int, data: int) -> bytes:
    struct.pack_into("<16sHHIQQQIHHHHHH", image, 0, b"\x7fELF\x02\x01\x01", 3, 62, 1, 0, 64, 0, 0, 64, 56, 3, 64, 0, 0)
    size = len(image)
    rows = ((1, 5, 0, 0, data, data, _PAGE), (1, 6, data, data, size - data, size - data, _PAGE),
            (2, 6, dynamic, dynamic, slots - dynamic, slots - dynamic, 8))
    for number, (kind, flags, offset, address, stored, taken, align) in enumerate(rows):
        struct.pack_into("<IIQQQQQQ", image, 64 + 56 * number, kind, flags, offset, address, address, stored, taken, align)
    return bytes(image)


class FakeLibrary:
    """What `write_library` wrote, loaded; later loads of the same soname by anyone give this library.

    When Python ends, every function becomes `ended`: what destructors call then finds no Python behind it, as it would find no
    driver.
    """

    def __init__(self, path: Path, functions: tuple[str, ...]) -> None:
        self._library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        self._numbers = {name: i for i, name in enumerate(functions)}
        self._slots = (ctypes.c_uint64 * len(functions)).in_dll(self._library, SLOTS)
        atexit.register(self._end)

    def put(self, name: str, callback: int) -> int:
        """Lets a function lead to a callback; the function's address."""
        self._slots[self._numbers[name]] = callback
        return self._address(name)

    def _address(self, name: str) -> int:
        return ctypes.cast(getattr(self._library, name), ctypes.c_void_p).value or 0

    def _end(self) -> None:
        self._slots[:] = [self._address(ENDED)] * len(self._slots)
