"""GpuImage: what a GPU kernel is stored as: the text of PTX, with the machine code that ptxas made of it where it was there.

Stored PTX alone is its text. With machine code: a header (magic, architecture, bytes of the text, bytes of the machine code), the
text, the machine code.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

from tilewright.runtime.errors import DeviceError

_MAGIC = b"\x7fTWGPU\n\0"
_ELF = b"\x7fELF"
_HEADER = struct.Struct("<8s16sQQ")
_ARCH = re.compile(r"sm_(\d+)(\d)([af]?)")


@dataclass(frozen=True)
class GpuImage:
    """ptx: the text; empty where only machine code is there. cubin: machine code for `arch`; empty where there is none."""

    ptx: bytes
    cubin: bytes = b""
    arch: str = ""

    @classmethod
    def of(cls, stored: bytes) -> GpuImage:
        """From what `stored` gave, PTX, or an ELF file of machine code for the device at hand. DeviceError where it is cut."""
        if stored[: len(_ELF)] == _ELF:
            return cls(b"", stored)
        if stored[: len(_MAGIC)] != _MAGIC:
            return cls(stored)
        if len(stored) < _HEADER.size:
            raise DeviceError(f"the image of a GPU kernel is truncated: {len(stored)} bytes are less than a header")
        _, arch, text, code = _HEADER.unpack_from(stored)
        if len(stored) != _HEADER.size + text + code:
            wanted = _HEADER.size + text + code
            raise DeviceError(f"the image of a GPU kernel is damaged: wanted {wanted} bytes, found {len(stored)}")
        at = _HEADER.size + text
        return cls(stored[_HEADER.size : at], stored[at:], arch.rstrip(b"\0").decode("ascii", "replace"))

    def stored(self) -> bytes:
        """The bytes that `of` reads."""
        if not self.cubin:
            return self.ptx
        return _HEADER.pack(_MAGIC, self.arch.encode(), len(self.ptx), len(self.cubin)) + self.ptx + self.cubin

    def for_device(self, arch: str) -> tuple[bytes, ...]:
        """What to give the driver of such a device, the first that it takes: machine code that fits, then PTX."""
        fits = self.cubin and (not self.ptx or machine_code_fits(self.arch, arch))
        return tuple(code for code in (self.cubin if fits else b"", self.ptx) if code)


def machine_code_fits(arch: str, device: str) -> bool:
    """Does machine code for `arch` run on a device? That of `sm_80` does on all 8.x, that of `sm_90a` on 9.0 alone."""
    wanted, here = _ARCH.fullmatch(arch), _ARCH.fullmatch(device)
    if wanted is None or here is None or wanted[1] != here[1]:
        return False
    return wanted[2] == here[2] if wanted[3] == "a" else int(wanted[2]) <= int(here[2])
