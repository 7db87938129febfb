"""Loads x86-64 ELF relocatable objects into this process: milliseconds, and no LLVM in a process that only runs models.

Knows what LLVM emits for position-independent code with neither thread-local data nor constructors; for anything else
it raises UnsupportedObjectError and the caller takes LLVM's own loader. Reference: System V ABI, AMD64, section 4.4.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import struct
import sys
import weakref
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tilewright.runtime.device import LoadedCode
from tilewright.runtime.errors import DeviceError

_PROGBITS, _SYMTAB, _RELA, _NOBITS, _NOTE, _UNWIND = 1, 2, 4, 8, 7, 0x70000001
_WRITE, _ALLOC, _EXEC, _TLS = 1, 2, 4, 0x400
_ABSOLUTE, _COMMON, _RESERVED = 0xFFF1, 0xFFF2, 0xFF00
_R_64, _R_PC32, _R_PLT32, _R_PC64 = 1, 2, 4, 24
_R_GOT = (9, 41, 42)  # GOTPCREL, GOTPCRELX, REX_GOTPCRELX
_LINE = 64  # bytes of a cache line
# Lines of a page that code of kernels begins at. Twelve operators of short kernels at each of the 64, on Zen 5, called from
# CPython 3.11: on average 1.3 % over the best from these, up to 5 % in the last quarter, wherever the rest of the program lies.
_FIRST, _LINES = 8, 32
_STUB = b"\xff\x25"  # jmp *disp32(%rip)
_LIBRARIES = (None, "libm.so.6", "libpthread.so.0", "libmvec.so.1", "libgcc_s.so.1")


class UnsupportedObjectError(Exception):
    """This loader does not know something in the object, or the platform; LLVM's loader does."""


class _Section(NamedTuple):
    name: str
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    align: int


class _Symbol(NamedTuple):
    name: str
    section: int
    value: int
    is_local: bool
    is_weak: bool


class _Relocation(NamedTuple):
    place: int
    kind: int
    symbol: _Symbol
    addend: int


@dataclass
class _Object:
    data: bytes
    sections: list[_Section]
    symbols: list[_Symbol] = field(default_factory=list)
    placed: dict[int, int] = field(default_factory=dict)

    def relocations(self) -> Iterator[tuple[int, int, int, _Symbol, int]]:
        """(section, offset, type, symbol, addend) of every relocation of a loaded section."""
        for section in self.sections:
            if section.kind == _RELA and section.info in self.placed:
                for offset, info, addend in struct.iter_unpack("<QQq", _bytes(self.data, section)):
                    yield section.info, offset, info & 0xFFFFFFFF, self.symbols[info >> 32], addend


class ElfCode:
    """Loaded objects. The memory goes with this object, but not at interpreter exit: threads may still run in it."""

    def __init__(self, base: int, size: int, symbols: dict[str, int]) -> None:
        self._symbols = symbols
        finalizer = weakref.finalize(self, _unmap, base, size)
        finalizer.atexit = False

    def address(self, symbol: str) -> int:
        return self._symbols[symbol]


def load_object(objects: Sequence[bytes], kernels: Sequence[bytes] = ()) -> LoadedCode:
    """Load objects together: they may refer to each other's symbols and to libc, libm and pthread.

    kernels: objects whose code begins, within a page, where its own bytes say, whatever lies before it. How fast a short kernel
    runs depends by up to a fifth on the lines of a page that it lies in (branch prediction and the instruction cache go by them),
    so one is as fast in every program, and where a search measures it by itself. Not all at the same line: short kernels of a
    program would drive each other out of the cache.

    Raises:
        UnsupportedObjectError: not x86-64 Linux, or an object that needs more than this loader knows.
        DeviceError: a symbol is defined twice or nowhere, or the system refuses executable memory.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise UnsupportedObjectError(f"{sys.platform} on {platform.machine()}")
    try:
        parsed = [_parse(bytes(data)) for data in (*objects, *kernels)]
    except (struct.error, ValueError, IndexError) as error:
        raise UnsupportedObjectError(f"an object cannot be read ({error}); it may be truncated") from error
    externals = _Externals(parsed)
    text = _place(parsed[: len(objects)], _is_code, 0)
    for owner in parsed[len(objects) :]:
        text = _place([owner], _is_code, _next_own_line(owner, text))
    stubs = _align(text, 16)
    constants = _align(stubs + 16 * len(externals.called), mmap.PAGESIZE)
    got = _align(_place(parsed, lambda flags: not flags & (_EXEC | _WRITE), constants), 8)
    variables = _align(got + 8 * len(externals.slots), mmap.PAGESIZE)
    size = max(
        _align(_place(parsed, lambda flags: flags & (_EXEC | _WRITE) == _WRITE, variables), mmap.PAGESIZE),
        mmap.PAGESIZE,
    )
    base = _map(size)
    try:
        image = bytearray(size)
        globals_ = _define(parsed, base)
        for key, index in externals.called.items():
            at = stubs + 16 * index
            image[at : at + 6] = _STUB + struct.pack("<i", got + 8 * externals.slots[key] - (at + 6))
        _fill(parsed, image)
        for index, (symbol, owner) in enumerate(externals.entries):
            struct.pack_into("<Q", image, got + 8 * index, _value(symbol, owner, globals_, base))
        for parsed_object in parsed:
            _relocate(parsed_object, image, base, globals_, externals, stubs, got)
        ctypes.memmove(base, bytes(image), size)
        _protect(base, constants, mmap.PROT_READ | mmap.PROT_EXEC)
        _protect(base + constants, variables - constants, mmap.PROT_READ)
    except BaseException:
        _unmap(base, size)
        raise
    return ElfCode(base, size, globals_)


class _Externals:
    """The global offset table: an entry per symbol used through it, a stub per undefined function called."""

    def __init__(self, objects: Sequence[_Object]) -> None:
        defined = {s.name for o in objects for s in o.symbols if s.section and not s.is_local}
        self.entries: list[tuple[_Symbol, _Object]] = []
        self.slots: dict[str, int] = {}
        self.called: dict[str, int] = {}
        for owner in objects:
            owner.placed = {i: 0 for i, s in enumerate(owner.sections) if _is_loaded(s)}
            for _, _, kind, symbol, _ in owner.relocations():
                undefined = not symbol.section and symbol.name not in defined
                if kind in _R_GOT or (undefined and kind == _R_PLT32):
                    key = self.key(symbol, owner)
                    if key not in self.slots:
                        self.slots[key] = len(self.entries)
                        self.entries.append((symbol, owner))
                    if undefined and kind == _R_PLT32:
                        self.called.setdefault(key, len(self.called))
                elif undefined and kind != _R_64:
                    raise UnsupportedObjectError(f"relocation {kind} against the undefined symbol {symbol.name}")

    @staticmethod
    def key(symbol: _Symbol, owner: _Object) -> str:
        return f"{id(owner)}:{symbol.section}:{symbol.value}:{symbol.name}" if symbol.is_local else symbol.name


def _parse(data: bytes) -> _Object:
    if data[:7] != b"\x7fELF\x02\x01\x01":
        raise UnsupportedObjectError("not a 64-bit little-endian ELF file")
    kind, machine = struct.unpack_from("<HH", data, 16)
    if kind != 1 or machine != 62:
        raise UnsupportedObjectError(f"ELF type {kind} for machine {machine}; wanted a relocatable object for x86-64")
    (start,) = struct.unpack_from("<Q", data, 40)
    entry, count, names = struct.unpack_from("<HHH", data, 58)
    rows = [struct.unpack_from("<IIQQQQIIQQ", data, start + entry * i) for i in range(count)]
    if not count:
        raise UnsupportedObjectError("more sections than this loader counts")
    strings = data[rows[names][4] : rows[names][4] + rows[names][5]]
    found = _Object(
        data, [_Section(_text(strings, r[0]), r[1], r[2], r[4], r[5], r[6], r[7], max(r[8], 1)) for r in rows]
    )
    for section in found.sections:
        if section.flags & _ALLOC and (
            section.flags & _TLS or section.kind not in (_PROGBITS, _NOBITS, _NOTE, _UNWIND)
        ):
            raise UnsupportedObjectError(f"section {section.name}")
        if section.kind == _SYMTAB:
            names_of = _bytes(data, found.sections[section.link])
            found.symbols = [_symbol(names_of, *row) for row in struct.iter_unpack("<IBBHQQ", _bytes(data, section))]
    return found


def _symbol(strings: bytes, name: int, info: int, _other: int, section: int, value: int, _size: int) -> _Symbol:
    if info & 15 in (6, 10) or section == _COMMON or (section >= _RESERVED and section != _ABSOLUTE):
        raise UnsupportedObjectError(f"symbol {_text(strings, name)}: thread-local, indirect or common")
    return _Symbol(_text(strings, name), section, value, info >> 4 == 0, info >> 4 == 2)


def _is_loaded(section: _Section) -> bool:
    return bool(section.flags & _ALLOC) and section.kind in (_PROGBITS, _NOBITS) and section.name != ".eh_frame"


def _is_code(flags: int) -> bool:
    return bool(flags & _EXEC)


def _next_own_line(kernel: _Object, at: int) -> int:
    """From `at` on, the next line of a page that follows from the code of a kernel."""
    sections = [kernel.sections[index] for index in kernel.placed]
    code = next((_bytes(kernel.data, s) for s in sections if _is_code(s.flags)), b"")
    line = _FIRST + zlib.crc32(code) % _LINES
    at = _align(at, _LINE)
    return at + (line * _LINE - at) % mmap.PAGESIZE


def _place(objects: Sequence[_Object], wanted: Callable[[int], bool], at: int) -> int:
    """Give every loaded section whose flags are wanted its offset in the image, from `at`; the end."""
    for owner in objects:
        for index in owner.placed:
            section = owner.sections[index]
            if wanted(section.flags):
                owner.placed[index] = at = _align(at, section.align)
                at += section.size
    return at


def _define(objects: Sequence[_Object], base: int) -> dict[str, int]:
    """Addresses of all global symbols that the objects define; a strong definition beats a weak one."""
    found: dict[str, int] = {}
    strong: set[str] = set()
    for owner in objects:
        for s in owner.symbols:
            if not s.section or s.is_local or (s.section != _ABSOLUTE and s.section not in owner.placed):
                continue
            if not s.is_weak and s.name in strong:
                raise DeviceError(f"symbol {s.name} is defined by two objects; names of kernels must be distinct")
            if not s.is_weak or s.name not in found:
                found[s.name] = s.value if s.section == _ABSOLUTE else base + owner.placed[s.section] + s.value
            if not s.is_weak:
                strong.add(s.name)
    return found


def _fill(objects: Sequence[_Object], image: bytearray) -> None:
    for owner in objects:
        for index, at in owner.placed.items():
            if owner.sections[index].kind == _PROGBITS:
                image[at : at + owner.sections[index].size] = _bytes(owner.data, owner.sections[index])


def _relocate(
    owner: _Object, image: bytearray, base: int, globals_: dict[str, int], externals: _Externals, stubs: int, got: int
) -> None:
    for section, offset, kind, symbol, addend in owner.relocations():
        at = owner.placed[section] + offset
        key = externals.key(symbol, owner)
        if kind in _R_GOT:
            target = base + got + 8 * externals.slots[key]
        elif kind == _R_PLT32 and key in externals.called:
            target = base + stubs + 16 * externals.called[key]
        elif kind in (_R_64, _R_PC32, _R_PLT32, _R_PC64):
            target = _value(symbol, owner, globals_, base)
        else:
            raise UnsupportedObjectError(f"relocation type {kind} in {owner.sections[section].name}")
        value = target + addend - (0 if kind == _R_64 else base + at)
        if kind in (_R_64, _R_PC64):
            struct.pack_into("<Q", image, at, value & 0xFFFFFFFFFFFFFFFF)
        elif -(1 << 31) <= value < 1 << 31:
            struct.pack_into("<i", image, at, value)
        else:
            raise UnsupportedObjectError(f"{symbol.name} is out of reach of a 32-bit displacement")


def _value(symbol: _Symbol, owner: _Object, globals_: dict[str, int], base: int) -> int:
    if not symbol.is_local and symbol.name in globals_:
        return globals_[symbol.name]
    if symbol.section == _ABSOLUTE:
        return symbol.value
    if symbol.section:
        if symbol.section not in owner.placed:
            raise UnsupportedObjectError(f"a reference into section {owner.sections[symbol.section].name}")
        return base + owner.placed[symbol.section] + symbol.value
    return _external(symbol.name, symbol.is_weak) if symbol.name else 0


def _external(name: str, is_weak: bool) -> int:
    for library in _LIBRARIES:
        try:
            return ctypes.cast(ctypes.CDLL(library)[name], ctypes.c_void_p).value or 0
        except (AttributeError, OSError):
            continue
    if is_weak:
        return 0
    raise DeviceError(
        f"the code refers to {name}, which neither it nor libc, libm, pthread or libgcc defines; "
        "rebuild the model for this machine"
    )


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return libc


def _map(size: int) -> int:
    address = _libc().mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    if address is None or address == ctypes.c_void_p(-1).value:
        raise DeviceError(f"no memory for {size} bytes of code (errno {ctypes.get_errno()})")
    return int(address)


def _protect(address: int, size: int, protection: int) -> None:
    if size and _libc().mprotect(address, size, protection):
        raise DeviceError(f"the system refuses executable memory (errno {ctypes.get_errno()})")


def _unmap(address: int, size: int) -> None:
    _libc().munmap(address, size)


def _bytes(data: bytes, section: _Section) -> bytes:
    return data[section.offset : section.offset + section.size]


def _text(strings: bytes, at: int) -> str:
    return strings[at : strings.index(b"\0", at)].decode()


def _align(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment
